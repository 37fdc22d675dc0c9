"""The detections of a file, by image: COCO results, or the JSON lines of `detect`.

COCO results are a list of `{"image_id", "category_id", "bbox": [x, y, width, height] in pixels,
"score"}`; a line of `detect` is `{"file", "detections": [{"class_id", "name", "score", "box"}]}`.
Where masks are wanted, each detection of either also has a `segmentation` in run lengths; where
keypoints are, those of COCO results have `keypoints`. `bbox` may then be absent, as in COCO's
results. Other keys are ignored.
"""

from __future__ import annotations

import array
import collections
import os
from typing import Any, Counter, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np

from estimator_det.compat import tf
from estimator_det.config import files
from estimator_det.config.printing import plain, quoted
from estimator_det.files import json_values
from model_fn.checkpoints.errors import RunError
from model_fn.evaluation.detections.fields import (
    Fault,
    box_of,
    box_of_mask,
    class_id_of,
    field_of,
    keypoints_of,
    mask_of,
    number_of,
    object_of,
)
from model_fn.evaluation.metrics.run_lengths import RunLength

Array = np.ndarray[Any, Any]

MAX_DETECTIONS = 20_000_000  # detections of a file; they take 28 bytes each
MAX_DETECTIONS_OF_IMAGE = 10_000
MAX_PIXELS = 1e7  # distance of a coordinate from the image
LONGEST_NAME = 4_096  # characters of an image id or path
MAX_FAULTS = 10  # that an error lists
SIDES = ("ymin", "xmin", "ymax", "xmax")


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
                "parts, or leave out those of low scores"
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
    fields = object_of(entry)
    image_id = field_of(fields, "image_id")
    if isinstance(image_id, bool) or not isinstance(image_id, (int, str)):
        raise Fault(f"image_id is {quoted(image_id)}; it must be a number or a text")
    class_id = class_id_of(fields, "category_id")
    mask = _wanted_mask(file, fields)
    keypoints = None
    if file.wanted.num_keypoints and "keypoints" in fields:
        keypoints = keypoints_of(fields, file.wanted.num_keypoints)
    if "bbox" not in fields and mask is not None:
        box: Sequence[float] = box_of_mask(mask)
    elif "bbox" not in fields and keypoints is not None:
        box = [*keypoints.min(axis=0).tolist(), *keypoints.max(axis=0).tolist()]
    else:
        box = box_of(fields)
    if max(map(abs, box)) > MAX_PIXELS:
        raise Fault(f"bbox is {list(box)} (yxyx), more than {MAX_PIXELS:,.0f} pixels")
    score = number_of("score", field_of(fields, "score"))
    file.add(file.index_of(str(image_id)), class_id, score, box, mask, keypoints)


def _add_line(file: DetectionFile, entry: Any) -> None:
    """Adds a line of `detect`: an image with its detections."""
    fields = object_of(entry)
    if "image_id" in fields and "file" not in fields:
        raise Fault("is a COCO result outside of a list; put the results between [ and ]")
    if "annotations" in fields:
        raise Fault(
            "has annotations, so it is a COCO data set; give a list of results, of image_id, "
            "category_id, bbox and score each"
        )
    path = field_of(fields, "file")
    if not isinstance(path, str):
        raise Fault(f"file is {quoted(path)}; it must be a path")
    num_images = len(file.names)
    image = file.index_of(path)
    if image < num_images:
        raise Fault(f"file {quoted(path)} has a line before; give each image once")
    if "error" in fields:
        file.num_failed += 1
        return
    detections = field_of(fields, "detections")
    if not isinstance(detections, list):
        raise Fault(f"detections is {quoted(detections)}; it must be a list")
    for position, detection in enumerate(detections):
        try:
            _add_detection_of_line(file, image, object_of(detection))
        except Fault as fault:
            raise Fault(f"detections[{position}]: {fault}") from None


def _add_detection_of_line(file: DetectionFile, image: int, fields: Mapping[str, Any]) -> None:
    class_id = class_id_of(fields, "class_id")
    name, known = fields.get("name"), file.class_names.get(class_id)
    if known is not None and name not in (None, known, str(class_id)):
        raise Fault(
            f"class {class_id} is {quoted(name)}, and {quoted(known)} in the label map; use "
            "the label map of the export"
        )
    sides = object_of(field_of(fields, "box"))
    box = tuple(number_of(f"box.{side}", field_of(sides, side)) for side in SIDES)
    if not (box[0] <= box[2] and box[1] <= box[3]):
        raise Fault(f"box is {list(box)}; it must be ymin <= ymax and xmin <= xmax")
    score = number_of("score", field_of(fields, "score"))
    file.add(image, class_id, score, box, _wanted_mask(file, fields))


def _wanted_mask(file: DetectionFile, fields: Mapping[str, Any]) -> Optional[RunLength]:
    return mask_of(field_of(fields, "segmentation")) if file.wanted.masks else None


def read_detections(path: str, class_names: Mapping[int, str], wanted: Wanted) -> DetectionFile:
    """The detections of a local or remote file; `class_names` are those of the label map."""
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
