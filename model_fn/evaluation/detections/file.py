"""The detections of a file, by image: COCO results, or the JSON lines of `detect`.

COCO results are a list of `{"image_id", "category_id", "bbox": [x, y, width, height] in pixels,
"score"}`; a line of `detect` is `{"file", "detections": [{"class_id", "name", "score", "box"}]}`.
Other keys are ignored.
"""

from __future__ import annotations

import array
import collections
import math
import os
import re
from typing import Any, Counter, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_det.config.printing import plain, quoted
from model_fn.checkpoints.errors import RunError
from model_fn.evaluation.detections.json_values import Value, read_values

Array = np.ndarray[Any, Any]

MAX_DETECTIONS = 20_000_000  # of a file; they take 28 bytes each
MAX_DETECTIONS_OF_IMAGE = 10_000
MAX_PIXELS = 1e7  # of a coordinate, away from the image
LONGEST_NAME = 4_096  # characters of an image id or path
MAX_FAULTS = 10  # that an error lists
MAX_UNKNOWN_CLASSES = 1_000  # ids that are counted one by one
SIDES = ("ymin", "xmin", "ymax", "xmax")
_NUMBER_AT_END = re.compile(r"(?:^|_)0*(\d+)$")


class ImageDetections(NamedTuple):
    """The detections of one image, by falling score."""

    boxes: Array  # float32 [n, 4], yxyx as fractions of the image
    scores: Array  # float32 [n]
    class_ids: Array  # int32 [n]


NOTHING = ImageDetections(np.zeros([0, 4], np.float32), np.zeros(0, np.float32), np.zeros(0, "i4"))


class _Fault(Exception):
    """What is wrong with an entry."""


class _Entry(NamedTuple):
    """A detection; `box` is yxyx."""

    class_id: int
    score: float
    box: Tuple[float, ...]


class DetectionFile:
    """All detections of a file.

    Attributes:
        path: Of the file.
        is_coco: Whether it holds COCO results: image ids, and boxes in pixels.
        names: Of the images: ids or paths.
        num_failed: Images that `detect` could not use.
        unknown_classes: Class id -> detections that are left out, since the label map lacks it.
    """

    def __init__(self, path: str, class_names: Mapping[int, str]) -> None:
        self.path = path
        self.is_coco = False
        self.names: List[str] = []
        self.num_failed = 0
        self.unknown_classes: Counter[int] = collections.Counter()
        self._class_names = class_names
        self._index: Dict[str, int] = {}
        self._images, self._class_ids = array.array("i"), array.array("i")
        self._scores, self._boxes = array.array("f"), array.array("f")

    def __len__(self) -> int:
        """Detections whose class the label map has."""
        return len(self._scores)

    @property
    def num_read(self) -> int:
        """All detections."""
        return len(self) + sum(self.unknown_classes.values())

    def add_result(self, entry: Any) -> None:
        """Adds an entry of COCO results."""
        self.is_coco = True
        fields = _object(entry)
        image_id = _field(fields, "image_id")
        if isinstance(image_id, bool) or not isinstance(image_id, (int, str)):
            raise _Fault(f"image_id is {quoted(image_id)}; it must be a number or a text")
        category = _class_id(fields, "category_id")
        x, y, width, height = _numbers(fields, "bbox", ("x", "y", "width", "height"))
        if width < 0 or height < 0:
            raise _Fault(f"bbox has the width {width:g} and the height {height:g}; 0 or more")
        if max(abs(x), abs(y), x + width, y + height) > MAX_PIXELS:
            raise _Fault(f"bbox is {[x, y, width, height]}, more than {MAX_PIXELS:,.0f} pixels")
        box = (y, x, y + height, x + width)
        self._add(self._image(str(image_id)), _Entry(category, _score(fields), box))

    def add_line(self, entry: Any) -> None:
        """Adds a line of `detect`: an image with its detections."""
        fields = _object(entry)
        if "image_id" in fields and "file" not in fields:
            raise _Fault("is a COCO result outside of a list; put the results between [ and ]")
        if "annotations" in fields:
            raise _Fault(
                "has annotations, so it is a COCO data set; give a list of results, of image_id, "
                "category_id, bbox and score each"
            )
        path = _field(fields, "file")
        if not isinstance(path, str):
            raise _Fault(f"file is {quoted(path)}; it must be a path")
        if path in self._index:
            raise _Fault(f"file {quoted(path)} has a line before; give each image once")
        image = self._image(path)
        if "error" in fields:
            self.num_failed += 1
            return
        detections = _field(fields, "detections")
        if not isinstance(detections, list):
            raise _Fault(f"detections is {quoted(detections)}; it must be a list")
        for position, one in enumerate(detections):
            try:
                self._add(image, self._detection(_object(one)))
            except _Fault as fault:
                raise _Fault(f"detections[{position}]: {fault}") from None

    def _detection(self, fields: Mapping[str, Any]) -> _Entry:
        class_id = _class_id(fields, "class_id")
        name, known = fields.get("name"), self._class_names.get(class_id)
        if known is not None and name not in (None, known, str(class_id)):
            raise _Fault(
                f"class {class_id} is {quoted(name)}, and {quoted(known)} in the label map; use "
                "the label map of the export"
            )
        sides = _object(_field(fields, "box"))
        box = tuple(_number(f"box.{side}", _field(sides, side)) for side in SIDES)
        if not (box[0] <= box[2] and box[1] <= box[3]):
            raise _Fault(f"box is {list(box)}; it must be ymin <= ymax and xmin <= xmax")
        return _Entry(class_id, _score(fields), box)

    def _image(self, name: str) -> int:
        if len(name) > LONGEST_NAME:
            raise _Fault(f"the name of the image has {len(name):,} characters")
        index = self._index.setdefault(name, len(self.names))
        if index == len(self.names):
            self.names.append(name)
        return index

    def _add(self, image: int, entry: _Entry) -> None:
        if entry.class_id not in self._class_names:
            is_full = len(self.unknown_classes) >= MAX_UNKNOWN_CLASSES
            self.unknown_classes[-1 if is_full else entry.class_id] += 1
            return
        if max(len(self), len(self.names)) >= MAX_DETECTIONS:
            raise RunError(
                f"{plain(self.path)}: has more than {MAX_DETECTIONS:,} detections; evaluate it in "
                "parts, or leave out those of low scores"
            )
        self._images.append(image)
        self._class_ids.append(entry.class_id)
        self._scores.append(entry.score)
        self._boxes.extend(entry.box)

    def finish(self) -> None:
        """Orders the detections by image; nothing may be added after it."""
        images = np.frombuffer(self._images, np.int32) if self._images else np.zeros(0, np.int32)
        scores = np.array(self._scores, np.float32)
        order = np.lexsort((-scores, images))
        self._ordered = ImageDetections(
            np.array(self._boxes, np.float32).reshape(-1, 4)[order],
            scores[order],
            np.array(self._class_ids, np.int32)[order],
        )
        self._starts = np.searchsorted(images[order], np.arange(len(self.names) + 1))
        counts = np.diff(self._starts)
        if counts.max(initial=0) > MAX_DETECTIONS_OF_IMAGE:
            raise RunError(
                f"{plain(self.path)}: image {quoted(self.names[int(np.argmax(counts))])} has "
                f"{counts.max():,} detections; at most {MAX_DETECTIONS_OF_IMAGE:,}"
            )

    def count_of(self, image: int) -> int:
        """How many detections an image has."""
        return int(self._starts[image + 1] - self._starts[image])

    def of_image(self, image: int, height: int, width: int) -> ImageDetections:
        """The detections of an image of this size."""
        part = slice(self._starts[image], self._starts[image + 1])
        found = ImageDetections(*(values[part] for values in self._ordered))
        if not self.is_coco:
            return found
        size = np.array([height, width, height, width], np.float64)
        return found._replace(boxes=(found.boxes / size).astype(np.float32))

    def aliases(self) -> Dict[str, List[int]]:
        """Image numbers by each of their names: as given, without folder, without suffix."""
        found: Dict[str, List[int]] = {}
        for number, name in enumerate(self.names):
            for alias in names_of_image(name):
                found.setdefault(alias, []).append(number)
        return found


def names_of_image(name: str) -> List[str]:
    """Names that may mean the same image: as given, without folders, and also without suffix."""
    base = os.path.basename(name)
    return [one for one in dict.fromkeys([name, base, os.path.splitext(base)[0]]) if one]


def number_of_image(name: str) -> List[str]:
    """The number at the end of a file name as text, by which COCO names its images.

    It is 139 for `COCO_val2014_000000000139.jpg`; an empty list without a number.
    """
    found = _NUMBER_AT_END.search(os.path.splitext(os.path.basename(name))[0])
    return [found.group(1)] if found else []


def read_detections(path: str, class_names: Mapping[int, str]) -> DetectionFile:
    """The detections of a file.

    Args:
        path: COCO results, or JSON lines of `detect`; local or remote.
        class_names: Name of each class id of the label map.

    Raises:
        FileNotFoundError: if there is no such file.
        RunError: for faults, with entry and line of each, or too many detections.
    """
    found = DetectionFile(path, class_names)
    faults: List[str] = []
    add: Optional[Any] = None
    for value in read_values(path):
        add = add or (found.add_result if value.in_list else found.add_line)
        try:
            add(value.value)
        except _Fault as fault:
            faults.append(f"  {_place(value)}: {fault}")
            if len(faults) >= MAX_FAULTS:
                break
    if faults:
        raise RunError("\n".join([f"{plain(path)} has entries that cannot be used:", *faults]))
    found.finish()
    return found


def _place(value: Value) -> str:
    return f"entry {value.number} (line {value.line})" if value.in_list else f"line {value.line}"


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _Fault(f"is {quoted(value)}, not an object between {{ and }}")
    return value


def _field(fields: Mapping[str, Any], name: str) -> Any:
    if name not in fields:
        raise _Fault(f"has no {name}; it has {plain(sorted(fields))}")
    return fields[name]


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Fault(f"{name} is {quoted(value)}, not a number")
    if not math.isfinite(value) or abs(value) > np.finfo(np.float32).max:
        raise _Fault(f"{name} is {value:g}; it must be finite")
    return float(value)


def _numbers(fields: Mapping[str, Any], name: str, parts: Sequence[str]) -> List[float]:
    values = _field(fields, name)
    if not isinstance(values, list) or len(values) != len(parts):
        raise _Fault(f"{name} is {quoted(values)}; it must be [{', '.join(parts)}]")
    return [_number(f"{name} ({part})", value) for part, value in zip(parts, values)]


def _score(fields: Mapping[str, Any]) -> float:
    return _number("score", _field(fields, "score"))


def _class_id(fields: Mapping[str, Any], name: str) -> int:
    value = _field(fields, name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise _Fault(f"{name} is {quoted(value)}; it must be an id of the label map")
    return value
