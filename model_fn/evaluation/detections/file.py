"""The detections of a file, by image: COCO results, or the JSON lines of `detect`.

COCO results are a list of `{"image_id", "category_id", "bbox": [x, y, width, height] in pixels,
"score"}`; a line of `detect` is `{"file", "detections": [{"class_id", "name", "score", "box"}]}`.
Where masks are wanted, each detection of either format also has a `segmentation` in run lengths;
where keypoints are wanted, COCO results have `keypoints`. `bbox` may then be absent, as in COCO's
results. Other keys are ignored.
"""

from __future__ import annotations

import array
import collections
import os
from typing import Any, Counter, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np
from pycocotools import mask as coco_mask

from estimator_det import files
from estimator_det.compat import tf
from estimator_det.console.printing import plain, quoted
from estimator_det.errors import RunError
from estimator_det.files import json_values, run_lengths
from model_fn.evaluation.metrics.run_lengths import RunLength

Array = np.ndarray[Any, Any]

MAX_DETECTIONS = 20_000_000  # detections of a file; they take 28 bytes each
MAX_DETECTIONS_OF_IMAGE = 10_000
MAX_PIXELS = 1e7  # distance of a coordinate from the image
MAX_MASK_PIXELS = 178_956_970  # the limit of images
LONGEST_NAME = 4_096  # characters of an image id or path
MAX_FAULTS = 10  # that an error lists
SIDES = ("ymin", "xmin", "ymax", "xmax")
_GREATEST = float(np.finfo(np.float32).max)


class Fault(Exception):
    """Fault of an entry."""


class ImageDetections(NamedTuple):
    """The detections of one image, by falling score."""

    boxes: Array  # float32 [n, 4], yxyx as fractions of the image
    scores: Array  # float32 [n]
    class_ids: Array  # int32 [n]
    masks: Array  # bytes [n], compressed run lengths of the image; [0] unless they are wanted
    keypoints: Array  # float32 [n, P, 2], y and x as fractions, NaN absent; P 0 unless wanted


class Wanted(NamedTuple):
    """Parts that are read besides boxes."""

    masks: bool = False
    num_keypoints: int = 0


class DetectionFile:
    """All detections of a file.

    Attributes:
        is_coco: True for COCO results: image ids, and boxes in pixels.
        names: Name of each image.
        num_failed: Images that `detect` could not use.
        unknown_classes: Class id -> detections that are left out, since the label map lacks it.
    """

    def __init__(self, path: str, class_names: Mapping[int, str], wanted: Wanted) -> None:
        self.path = path
        self.wanted = wanted
        self.is_coco = False
        self.names: List[str] = []
        self.class_names = class_names
        self.num_failed = 0
        self.unknown_classes: Counter[int] = collections.Counter()
        self._index: Dict[str, int] = {}
        self._images, self._class_ids = array.array("i"), array.array("i")
        self._scores, self._boxes = array.array("f"), array.array("f")
        self._masks: List[RunLength] = []
        self._keypoints = array.array("f")

    def __len__(self) -> int:
        """Detections whose class the label map has."""
        return len(self._scores)

    @property
    def num_read(self) -> int:
        return len(self) + sum(self.unknown_classes.values())

    def index_of(self, name: str) -> int:
        """Number of an image, which is new if none has this name."""
        if len(name) > LONGEST_NAME:
            raise Fault(f"the name of the image has {len(name):,} characters")
        index = self._index.setdefault(name, len(self.names))
        if index == len(self.names):
            self.names.append(name)
        return index

    def add(
        self,
        image: int,
        class_id: int,
        score: float,
        box: Sequence[float],
        mask: Optional[RunLength] = None,
        keypoints: Optional[Array] = None,
    ) -> None:
        """Adds a detection; its box is yxyx, its keypoints are [P, 2]."""
        if class_id not in self.class_names:
            self.unknown_classes[class_id] += 1
            return
        if max(len(self), len(self.names)) >= MAX_DETECTIONS:
            raise RunError(
                f"{plain(self.path)}: has more than {MAX_DETECTIONS:,} detections; evaluate it in "
                "parts, or leave out detections of low scores"
            )
        self._images.append(image)
        self._class_ids.append(class_id)
        self._scores.append(score)
        self._boxes.extend(box)
        if mask is not None:
            self._masks.append(mask)
        if self.wanted.num_keypoints:
            absent = np.full([self.wanted.num_keypoints, 2], np.nan)
            self._keypoints.extend((absent if keypoints is None else keypoints).ravel().tolist())

    def finish(self) -> None:
        """Orders the detections by image; nothing may be added after it."""
        images, scores = np.array(self._images, np.int32), np.array(self._scores, np.float32)
        order = np.lexsort((-scores, images))
        mask_order = order if self.wanted.masks else order[:0]
        keypoints = np.array(self._keypoints, np.float32)
        num_keypoints = self.wanted.num_keypoints
        if num_keypoints and len(self) and np.isnan(keypoints).all():
            raise RunError(f"{plain(self.path)}: no entry has keypoints, which the metrics need")
        self._ordered = ImageDetections(
            np.array(self._boxes, np.float32).reshape(-1, 4)[order],
            scores[order],
            np.array(self._class_ids, np.int32)[order],
            np.array([mask["counts"] for mask in self._masks], object)[mask_order],
            keypoints.reshape(len(order), num_keypoints, 2)[order],
        )
        sizes = [mask["size"] for mask in self._masks]
        self._mask_sizes = np.array(sizes, np.int64).reshape(-1, 2)[mask_order]
        self._starts = np.searchsorted(images[order], np.arange(len(self.names) + 1))
        counts = np.diff(self._starts)
        if counts.max(initial=0) > MAX_DETECTIONS_OF_IMAGE:
            raise RunError(
                f"{plain(self.path)}: image {quoted(self.names[int(np.argmax(counts))])} has "
                f"{counts.max():,} detections; at most {MAX_DETECTIONS_OF_IMAGE:,}"
            )

    def count_of(self, image: int) -> int:
        return int(self._starts[image + 1] - self._starts[image])

    def image_detections(self, image: int, height: int, width: int) -> ImageDetections:
        part = slice(self._starts[image], self._starts[image + 1])
        detections = ImageDetections(*(values[part] for values in self._ordered))
        mask_sizes = self._mask_sizes[part]
        others = mask_sizes[(mask_sizes != (height, width)).any(axis=1)]
        if len(others):
            raise RunError(
                f"{plain(self.path)}: a mask of image {quoted(self.names[image])} has the size "
                f"{others[0].tolist()}, and the record's image {[height, width]} (height, width); "
                "give masks of the whole image"
            )
        if not self.is_coco:
            return detections
        size = np.array([height, width], np.float64)
        return detections._replace(
            boxes=(detections.boxes / np.tile(size, 2)).astype(np.float32),
            keypoints=(detections.keypoints / size).astype(np.float32),
        )

    def nothing(self) -> ImageDetections:
        return ImageDetections(*(values[:0] for values in self._ordered))

    def aliases(self) -> Dict[str, List[int]]:
        """Image numbers by each of their names: as given, without folder, without suffix."""
        aliases: Dict[str, List[int]] = {}
        for number, name in enumerate(self.names):
            for alias in names_of_image(name):
                aliases.setdefault(alias, []).append(number)
        return aliases


def names_of_image(name: str) -> List[str]:
    """Names that may mean the same image: as given, without folders, and also without suffix."""
    base = os.path.basename(name)
    return [alias for alias in dict.fromkeys([name, base, os.path.splitext(base)[0]]) if alias]


def _add_result(file: DetectionFile, entry: Any) -> None:
    file.is_coco = True
    fields = _object_of(entry)
    image_id = _field_of(fields, "image_id")
    if isinstance(image_id, bool) or not isinstance(image_id, (int, str)):
        raise Fault(f"image_id is {quoted(image_id)}; it must be a number or a text")
    class_id = _class_id_of(fields, "category_id")
    mask = _wanted_mask(file, fields)
    keypoints = None
    if file.wanted.num_keypoints and "keypoints" in fields:
        keypoints = _keypoints_of(fields, file.wanted.num_keypoints)
    if "bbox" not in fields and mask is not None:
        box: Sequence[float] = _box_of_mask(mask)
    elif "bbox" not in fields and keypoints is not None:
        box = [*keypoints.min(axis=0).tolist(), *keypoints.max(axis=0).tolist()]
    else:
        box = _box_of(fields)
    if max(map(abs, box)) > MAX_PIXELS:
        raise Fault(f"bbox is {list(box)} (yxyx), more than {MAX_PIXELS:,.0f} pixels")
    score = _number_of("score", _field_of(fields, "score"))
    file.add(file.index_of(str(image_id)), class_id, score, box, mask, keypoints)


def _add_line(file: DetectionFile, entry: Any) -> None:
    """Adds a line of `detect`: an image with its detections."""
    fields = _object_of(entry)
    if "image_id" in fields and "file" not in fields:
        raise Fault("is a COCO result outside of a list; put the results between [ and ]")
    if "annotations" in fields:
        raise Fault(
            "has annotations, so it is a COCO data set; give a list of results, of image_id, "
            "category_id, bbox and score each"
        )
    path = _field_of(fields, "file")
    if not isinstance(path, str):
        raise Fault(f"file is {quoted(path)}; it must be a path")
    num_images = len(file.names)
    image = file.index_of(path)
    if image < num_images:
        raise Fault(f"file {quoted(path)} has a line before; give each image once")
    if "error" in fields:
        file.num_failed += 1
        return
    detections = _field_of(fields, "detections")
    if not isinstance(detections, list):
        raise Fault(f"detections is {quoted(detections)}; it must be a list")
    for position, detection in enumerate(detections):
        try:
            _add_detection_of_line(file, image, _object_of(detection))
        except Fault as fault:
            raise Fault(f"detections[{position}]: {fault}") from None


def _add_detection_of_line(file: DetectionFile, image: int, fields: Mapping[str, Any]) -> None:
    class_id = _class_id_of(fields, "class_id")
    name, known = fields.get("name"), file.class_names.get(class_id)
    if known is not None and name not in (None, known, str(class_id)):
        raise Fault(
            f"class {class_id} is {quoted(name)}, and {quoted(known)} in the label map; use "
            "the label map of the export"
        )
    sides = _object_of(_field_of(fields, "box"))
    box = tuple(_number_of(f"box.{side}", _field_of(sides, side)) for side in SIDES)
    if not (box[0] <= box[2] and box[1] <= box[3]):
        raise Fault(f"box is {list(box)}; it must be ymin <= ymax and xmin <= xmax")
    score = _number_of("score", _field_of(fields, "score"))
    file.add(image, class_id, score, box, _wanted_mask(file, fields))


def _wanted_mask(file: DetectionFile, fields: Mapping[str, Any]) -> Optional[RunLength]:
    return _mask_of(_field_of(fields, "segmentation")) if file.wanted.masks else None


def read_detections(path: str, class_names: Mapping[int, str], wanted: Wanted) -> DetectionFile:
    """The detections of a local or remote file; `class_names` are from the label map."""
    detection_file = DetectionFile(path, class_names, wanted)
    faults: List[str] = []
    for number, value in enumerate(_values(path), 1):
        try:
            (_add_result if value.in_list else _add_line)(detection_file, value.value)
        except Fault as fault:
            place = f"line {value.line}"
            place = f"entry {number} ({place})" if value.in_list else place
            faults.append(f"  {place}: {fault}")
            if len(faults) >= MAX_FAULTS:
                break
    if faults:
        raise RunError("\n".join([f"{plain(path)} has entries that cannot be used:", *faults]))
    detection_file.finish()
    return detection_file


def _values(path: str) -> Iterator[json_values.Value]:
    if kind := files.special_kind(path):
        raise RunError(f"{plain(path)}: is {kind}, not a file of detections")
    if not files.exists(path):
        raise FileNotFoundError(f"no such file of detections: {path}")
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            yield from json_values.read_values(file)
    except json_values.JsonError as error:
        raise RunError(f"{plain(path)}, line {error.line}: {plain(error)}") from None


def _object_of(value: Any) -> Mapping[str, Any]:
    """The value, which must be an object."""
    if not isinstance(value, dict):
        raise Fault(f"is {quoted(value)}, not an object between {{ and }}")
    return value


def _field_of(fields: Mapping[str, Any], name: str) -> Any:
    """A field that must be there."""
    if name not in fields:
        raise Fault(f"has no {name}; it has {plain(sorted(fields))}")
    return fields[name]


def _number_of(name: str, value: Any) -> float:
    """The value, which must be a number that float32 holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Fault(f"{name} is {quoted(value)}, not a number")
    if not abs(value) <= _GREATEST:  # NaN, too
        raise Fault(f"{name} is {value:g}; it must be finite")
    return float(value)


def _box_of(fields: Mapping[str, Any]) -> Sequence[float]:
    """The box, yxyx in pixels, of COCO's `bbox`."""
    values = _field_of(fields, "bbox")
    if not isinstance(values, list) or len(values) != 4:
        raise Fault(f"bbox is {quoted(values)}; it must be [x, y, width, height]")
    parts = zip(("x", "y", "width", "height"), values)
    x, y, width, height = (_number_of(f"bbox ({name})", value) for name, value in parts)
    if width < 0 or height < 0:
        raise Fault(f"bbox has the width {width:g} and the height {height:g}; 0 or more")
    return (y, x, y + height, x + width)


def _class_id_of(fields: Mapping[str, Any], name: str) -> int:
    """An id that a label map may have."""
    value = _field_of(fields, name)
    if not _is_count(value):
        raise Fault(f"{name} is {quoted(value)}; it must be an id of the label map")
    return int(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _mask_of(value: Any) -> RunLength:
    """The mask of COCO's run lengths `{"size": [height, width], "counts": text or numbers}`."""
    if isinstance(value, list):
        raise Fault("segmentation is a polygon; give run lengths, as pycocotools.mask.encode does")
    fields = _object_of(value)
    size = _field_of(fields, "size")
    is_size = isinstance(size, list) and len(size) == 2 and all(map(_is_count, size))
    if not is_size or not 0 < size[0] * size[1] <= MAX_MASK_PIXELS:
        raise Fault(f"segmentation.size is {quoted(size)}; it must be [height, width]")
    height, width = size
    try:
        counts = run_lengths.parse(_field_of(fields, "counts"), (height, width))
    except run_lengths.RunLengthError as error:
        raise Fault(f"segmentation.counts {error}") from None
    return coco_mask.frPyObjects({"size": size, "counts": counts}, *size)


def _box_of_mask(mask: RunLength) -> Sequence[float]:
    """The box around a mask, yxyx in pixels."""
    x, y, width, height = coco_mask.toBbox(mask)
    return (float(y), float(x), float(y + height), float(x + width))


def _keypoints_of(fields: Mapping[str, Any], count: int) -> np.ndarray:
    """Float [count, 2], y and x in pixels, of COCO's list of x, y and visibility."""
    values = _field_of(fields, "keypoints")
    if not isinstance(values, list) or len(values) != 3 * count:
        has = f"{len(values)} numbers" if isinstance(values, list) else quoted(values)
        raise Fault(
            f"keypoints has {has}; {3 * count} are needed, x, y and visibility of each of the "
            f"{count} keypoints of num_keypoints"
        )
    numbers = [_number_of("keypoints", value) for value in values]
    return np.reshape(numbers, [count, 3])[:, 1::-1]
