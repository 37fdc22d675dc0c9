"""Records to one COCO JSON file, so that other tools can read them.

Pixels come from the fractions in the records: the shortest decimal number that has the same float32
fraction. Values that `convert --from coco` keeps beside the keys of training (ids of annotations,
polygons, licences) are restored if they still agree with the record. The file is written piece by
piece: memory grows by 8 bytes for each image and object.
"""

from __future__ import annotations

import array
import collections
import itertools
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from typing import Any, Callable, DefaultDict, Dict, Iterator, List, Sequence, Tuple

import numpy as np

from estimator_det.compat import tf
from estimator_det.console.printing import plain, quoted
from estimator_det.errors import UsageError
from estimator_det.files import atomic, image_header, ownership, run_lengths
from inputs.checks.images import decode_mask
from inputs.conversion.examples import (
    IMAGE_FIELDS,
    OBJECT_FIELDS,
    box_from_stored,
    shortest_decimal,
)
from inputs.datasets import masks
from inputs.datasets.paths import require_file
from inputs.datasets.source import ConversionError
from inputs.decoding.example import OBJECT, PARSE_ERRORS, SIDES
from inputs.label_map import LabelMap, read_label_map
from inputs.records import tfrecord
from inputs.records.stream import find_files

FIRST_KEYS = ("info", "licenses")  # the order of keys in COCO's own files


@dataclass(frozen=True)
class CocoOptions:
    """Options of an export to COCO."""

    records: Sequence[str]  # patterns of record files
    output: str  # the JSON file
    label_map: str
    dataset: str = ""  # facts about all images that `convert` wrote; "" for the file beside
    write_images: str = ""  # folder for the image files; "" writes none

    def __post_init__(self) -> None:
        if not self.output:
            raise UsageError("output is empty; name a JSON file")


class _Record:
    """The values of a record by key, empty for absent keys, and its file and number."""

    def __init__(self, serialized: bytes, where: str) -> None:
        self.where = where
        try:
            features = tf.train.Example.FromString(serialized).features.feature
        except PARSE_ERRORS as error:
            message = f"it is not a tf.train.Example: {error}. Remedy: run check-data"
            raise self.error(message) from None
        self.values: DefaultDict[str, List[Any]] = collections.defaultdict(list)
        for key, feature in features.items():
            if kind := feature.WhichOneof("kind"):
                self.values[key] = list(getattr(feature, kind).value)
        # Values of each object in the source that training has no key for.
        self.object_fields = [_json(text) for text in self.values[OBJECT_FIELDS]]

    def error(self, message: str) -> ConversionError:
        return ConversionError(f"{self.where}: {message}")

    def text(self, key: str) -> str:
        value = (self.values[key] or [b""])[0]
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else plain(value)

    def object_value(self, key: str, i: int) -> Any:
        """The value of an object; None if the record has none."""
        values = self.values[OBJECT + key]
        return values[i] if i < len(values) else None

    def image_id(self) -> Any:
        """A whole number if the record has one, else text."""
        text = self.text("image/source_id")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text


def _categories(label_map: LabelMap) -> List[Dict[str, Any]]:
    """The classes as COCO lists them: keypoints in the order of an object's."""
    categories = label_map.categories()
    for category in categories:
        if "keypoints" in category:
            labels = {each["id"]: each["name"] for each in category["keypoints"]}
            category["keypoints"] = [labels.get(i, "") for i in range(max(labels) + 1)]
    return categories


def export_coco(
    options: CocoOptions, *, advance: Callable[[int], Any] = lambda records: None
) -> Tuple[int, int]:
    """Writes the JSON file, and the images if that is asked for; counts images and annotations."""
    paths = [path for pattern in options.records for path in find_files(pattern)]
    dataset = _dataset(options, paths)
    label_map = read_label_map(options.label_map)
    dataset.pop("written_by", None)
    categories = dataset.pop("categories", None) or _categories(label_map)
    ids = {category["name"]: category["id"] for category in categories}
    numbers = {each["id"]: len(each["keypoints"]) for each in categories if "keypoints" in each}
    writer = _Writer(options, ids, label_map, numbers)
    folder = os.path.dirname(os.path.abspath(options.output))
    os.makedirs(folder, exist_ok=True)
    writer.number(_records(paths))
    with (
        atomic.replaced(options.output) as unfinished,
        open(unfinished, "w", encoding="utf-8") as file,
        tempfile.TemporaryFile("w+", encoding="utf-8", dir=folder) as annotations,
    ):
        # A later export replaces only files that begin with this key.
        file.write(f'{{"written_by": {json.dumps(ownership.signature("convert"))},\n')
        for key in dict.fromkeys((*FIRST_KEYS, *dataset)):
            if key in dataset:
                file.write(f"{json.dumps(key)}: {json.dumps(dataset[key])},\n")
        file.write('"images": [\n')
        for record in _records(paths):
            writer.write(record, file, annotations)
            advance(1)
        file.write('],\n"annotations": [\n')
        annotations.seek(0)
        shutil.copyfileobj(annotations, file)
        file.write(f'],\n"categories": {json.dumps(categories)}}}\n')
    return writer.num_images, writer.num_annotations


def _dataset(options: CocoOptions, paths: Sequence[str]) -> Dict[str, Any]:
    """The facts about all images that a conversion wrote beside the records; none otherwise."""
    path = paths[0].rpartition(".record")[0] + ".dataset.json"
    if options.dataset:
        path = require_file(options.dataset, "--dataset")
    if not os.path.isfile(path):
        return {}
    with open(path, encoding="utf-8") as file:
        try:
            dataset = json.load(file)
        except ValueError as error:
            raise UsageError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(dataset, dict):
        raise UsageError(f"{path}: not a JSON object, as convert writes it")
    return dataset


def _records(paths: Sequence[str]) -> Iterator[_Record]:
    for path in paths:
        for number, record in enumerate(tfrecord.read_records(path)):
            where = f"{path}, record {number}"
            if isinstance(record, tfrecord.Damage):
                raise ConversionError(f"{where}: {record.message}. Remedy: write the record again")
            yield _Record(record, where)


class _Writer:
    """Images and annotations of records, one after the other."""

    def __init__(
        self,
        options: CocoOptions,
        ids: Dict[str, int],
        label_map: LabelMap,
        num_keypoints: Dict[int, int],
    ) -> None:
        self._options = options
        self._ids = ids  # class name -> id of the category
        self._label_map = label_map
        self._num_keypoints = num_keypoints  # by id of the category
        self._keeps_image_ids = self._keeps_object_ids = True
        self.num_images = self.num_annotations = 0

    def number(self, records: Iterator[_Record]) -> None:
        """Keeps the ids in the records if they are whole numbers, each once."""
        image_ids, object_ids = array.array("q"), array.array("q")
        for record in records:
            self._keeps_image_ids &= _append(image_ids, [record.image_id()])
            ids = [fields.get("id") for fields in record.object_fields]
            is_whole = len(ids) == len(record.values[SIDES[0]])
            self._keeps_object_ids &= is_whole and _append(object_ids, ids)
        self._keeps_image_ids &= len(np.unique(image_ids)) == len(image_ids)
        self._keeps_object_ids &= len(np.unique(object_ids)) == len(object_ids)

    def write(self, record: _Record, images: Any, annotations: Any) -> None:
        """Appends an image and its annotations to the two files."""
        encoded = (record.values["image/encoded"] or [b""])[0]
        size = image_header.claimed_size(encoded)
        if size is None:
            raise record.error("image/encoded is not an image. Run check-data")
        self.num_images += 1
        image_id = record.image_id() if self._keeps_image_ids else self.num_images
        name = record.text("image/filename") or record.text("image/source_id")
        image = {"file_name": name, "height": size[0], "width": size[1], "id": image_id}
        for key in ("neg_category_ids", "not_exhaustive_category_ids"):
            if f"image/{key}" in record.values:
                image[key] = [self._category(number) for number in record.values[f"image/{key}"]]
        for text in record.values[IMAGE_FIELDS][:1]:
            image.update(_json(text))
        images.write(("" if self.num_images == 1 else ",\n") + json.dumps(image))
        if self._options.write_images:
            self._write_image(name, encoded, record)
        for annotation in self._annotations(record, size, image_id):
            self.num_annotations += 1
            if not self._keeps_object_ids:
                annotation["id"] = self.num_annotations
            end = "" if self.num_annotations == 1 else ",\n"
            annotations.write(end + json.dumps(annotation))

    def _category(self, number: int) -> int:
        """The category of an id of the label map."""
        return self._ids.get(self._label_map.names.get(number, ""), number)

    def _check_class(self, record: _Record, i: int, number: int) -> None:
        """Refuses the class of an object that the label map lacks, or has with another id."""
        text = record.object_value("class/text", i)
        name = text.decode("utf-8", "replace") if isinstance(text, bytes) else ""
        labels = self._label_map
        if number not in labels.names or labels.ids.get(name, number) != number:
            raise record.error(
                f"class {number} ({quoted(name)}) does not fit {plain(labels.path)}. Give the "
                "label map of the records"
            )

    def _annotations(
        self, record: _Record, size: Tuple[int, int], image_id: Any
    ) -> Iterator[Dict[str, Any]]:
        values = record.values
        sides = [values[key] for key in SIDES]
        labels = values[OBJECT + "class/label"]
        if len({len(labels), *map(len, sides)}) > 1:
            raise record.error("lists of boxes differ in length. Run check-data")
        fields = record.object_fields
        keypoints = _keypoints(record, len(labels), size)
        for i, (label, *box) in enumerate(zip(labels, *sides)):
            self._check_class(record, i, label)
            extra = dict(fields[i]) if len(fields) == len(labels) else {}
            pixels = box_from_stored(box, *size)
            exact = extra.pop("bbox", None)
            is_box = isinstance(exact, list) and len(exact) == 4
            agrees = is_box and np.allclose(exact, pixels, rtol=1e-5, atol=1e-3)
            annotation: Dict[str, Any] = {
                "image_id": image_id,
                "category_id": self._category(label),
                "bbox": exact if agrees else pixels,
            }
            area = record.object_value("area", i)
            exact = extra.pop("area", None)
            if area is not None:
                agrees = exact is not None and np.float32(exact) == np.float32(area)
                annotation["area"] = exact if agrees else shortest_decimal(area)
            else:
                annotation["area"] = pixels[2] * pixels[3]
            marks = (record.object_value(mark, i) for mark in ("is_crowd", "group_of"))
            annotation["iscrowd"] = int(any(marks))
            segmentation = extra.pop("segmentation", None)
            encoded = record.object_value("mask", i)
            if encoded is not None:
                is_crowd = bool(annotation["iscrowd"])
                mask = _mask(encoded, size, record)
                annotation["segmentation"] = _segmentation(mask, segmentation, size, is_crowd)
            if keypoints and (any(keypoints[i][2::3]) or "num_keypoints" in extra):
                # Another class of the records may have more places.
                number = self._num_keypoints.get(annotation["category_id"], len(keypoints[i]))
                annotation["keypoints"] = keypoints[i][: 3 * number]
                annotation["num_keypoints"] = sum(v > 0 for v in annotation["keypoints"][2::3])
            score = record.object_value("class/confidence", i)
            if score is not None:
                annotation["score"] = shortest_decimal(score)
            annotation.update(extra)
            yield annotation

    def _write_image(self, name: str, encoded: bytes, record: _Record) -> None:
        folder = os.path.realpath(self._options.write_images)
        path = os.path.realpath(os.path.join(folder, name))
        if not name or "\0" in name or os.path.commonpath([folder, path]) != folder:
            raise record.error(
                f"the file name {quoted(name)} leads out of {folder}. Remedy: leave "
                "--write_images out, or correct image/filename"
            )
        atomic.write(path, encoded)


def _append(target: array.array[int], ids: Sequence[Any]) -> bool:
    """Appends ids if all are whole numbers; False otherwise."""
    are_whole = all(type(number) is int and abs(number) < 2**63 for number in ids)
    target.extend(ids if are_whole else ())
    return are_whole


def _mask(encoded: bytes, size: Tuple[int, int], record: _Record) -> np.ndarray:
    """Bool [h, w] of a PNG file of the size of the image, as training decodes it."""
    is_of_size = image_header.claimed_size(encoded) == size
    mask = decode_mask(encoded) if is_of_size else None
    if mask is None:
        raise record.error("a mask is no PNG of the image's size. Run check-data")
    return mask > 0


def _segmentation(mask: np.ndarray, stored: Any, size: Tuple[int, int], is_crowd: bool) -> Any:
    """The segmentation of the source if it still describes this mask, else run lengths."""
    try:
        if isinstance(stored, dict) and (masks.from_run_lengths(stored, size) == mask).all():
            return stored
        if isinstance(stored, list) and (masks.from_polygons(stored, size) == mask).all():
            return stored
    except masks.MaskError:  # the record was changed after it was made
        pass
    encoded = masks.to_run_lengths(mask)
    if is_crowd:  # COCO's own files have counts of crowds as a list
        encoded["counts"] = run_lengths.parse(encoded["counts"], size)
    return encoded


def _keypoints(record: _Record, count: int, size: Tuple[int, int]) -> List[List[float]]:
    """x, y, visibility, … in pixels for each object; an empty list without any."""
    x, y, seen = (record.values[f"{OBJECT}keypoint/{end}"] for end in ("x", "y", "visibility"))
    if not x or not count:
        return []
    if len(x) != len(y) or len(x) % count or len(seen) not in (0, len(x)):
        raise record.error("lists of keypoints differ in length")
    flat: List[float] = []
    for across, down, visibility in itertools.zip_longest(x, y, seen, fillvalue=2):
        if not visibility or across != across or down != down:
            flat += [0, 0, 0]
        else:
            places = ((across, size[1]), (down, size[0]))
            flat += [shortest_decimal(value, side) for value, side in places]
            flat.append(int(visibility))
    flat = [int(value) if value == int(value) else value for value in flat]
    each = len(flat) // count
    return [flat[i * each : (i + 1) * each] for i in range(count)]


def _json(text: bytes) -> Dict[str, Any]:
    """An object; an empty one if the text is something else, which `convert` never writes."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
