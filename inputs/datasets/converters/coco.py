"""COCO: one JSON file with `images`, `annotations` and `categories` (cocodataset.org/#format-data).

Also LVIS, whose images have `neg_category_ids` and `not_exhaustive_category_ids`. Class ids are
those of the categories. `inputs.conversion` keeps what records have no key for.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

from estimator_det.config.printing import plain, quoted
from estimator_det.config.text import ConfigError
from estimator_det.files.json_values import Value
from inputs.datasets.converters.base import CONVERTERS, takes
from inputs.datasets.grouping import Groups, Part
from inputs.datasets.paths import json_members, require_file
from inputs.datasets.source import (
    AnnotatedImage,
    AnnotatedObject,
    Source,
    SourceError,
    SourceFault,
    SourceOptions,
    broken,
    fault_image,
    left_out,
    number,
    numbers,
    whole_number,
)

IMAGES, ANNOTATIONS, CATEGORIES = "images", "annotations", "categories"
_IMAGE_KEYS = {"id", "file_name", "height", "width", "neg_category_ids"}
_IMAGE_KEYS |= {"not_exhaustive_category_ids"}
# "bbox" stays among the other fields: records hold it as fractions.
_OBJECT_KEYS = {"image_id", "category_id", "area", "iscrowd", "segmentation", "keypoints"}


class _File(NamedTuple):
    path: str
    groups: Groups
    names: Dict[int, str]
    dataset: Dict[str, Any]


@CONVERTERS.register("coco")
@takes("images", "annotations", masks=True)
def read_coco(options: SourceOptions) -> Source:
    """Reads a file of instances or keypoints in two passes; annotations may be in any order."""
    path = require_file(options.annotations, "--annotations")
    file = _File(path, Groups(options.scratch), {}, {})
    categories: List[Any] = []
    total = 0
    for entry in json_members(path):
        if entry.key in (IMAGES, ANNOTATIONS) and entry.in_list:
            file.groups.add(_key(entry), entry.key, entry.line, entry.text)
            total += entry.key == IMAGES
        elif entry.key == CATEGORIES:
            categories.append(entry.value)
            _add_category(entry, path, file.names)
        elif entry.in_list:
            file.dataset.setdefault(entry.key, []).append(entry.value)
        else:
            file.dataset[entry.key] = entry.value
    if not file.names:
        raise ConfigError(f"{path}: there are no categories; add them, with id and name")
    file.dataset[CATEGORIES] = categories
    file.groups.finish()
    return Source(_images(file), file.names, file.dataset, total)


def _key(entry: Value) -> Any:
    """The key of an entry's group: the id of its image."""
    field = "id" if entry.key == IMAGES else "image_id"
    value = entry.value.get(field) if isinstance(entry.value, dict) else None
    return value if isinstance(value, (int, str)) else None


def _add_category(entry: Value, path: str, names: Dict[int, str]) -> None:
    if not isinstance(entry.value, dict) or not isinstance(entry.value.get("name"), str):
        raise broken(path, entry.line, f"a category without a name: {plain(entry.text)}")
    identifier = whole_number(entry.value.get("id"), path, entry.line, "the id of a category")
    if identifier in names:
        raise broken(path, entry.line, f"two categories have id {identifier}")
    names[identifier] = entry.value["name"]


def _images(file: _File) -> Iterator[AnnotatedImage]:
    for part in file.groups.of_table(IMAGES):
        try:
            yield _image(file, part)
        except SourceError as error:
            yield fault_image(error)
    for part in file.groups.of_table(ANNOTATIONS):
        image = part.value.get("image_id") if isinstance(part.value, dict) else None
        if image is None or not file.groups.has(image, IMAGES):
            message = f"an annotation of image {plain(json.dumps(image))}, which is not listed"
            yield fault_image(SourceError("missing_key", file.path, part.line, message))
    file.groups.close()


def _image(file: _File, part: Part) -> AnnotatedImage:
    """The image of an entry, with the annotations of its id."""
    given, path, line = part.value, file.path, part.line
    if not isinstance(given, dict) or not isinstance(given.get("file_name"), str):
        raise broken(path, line, f"an image without file_name: {plain(json.dumps(given))}")
    if not isinstance(given.get("id"), (int, str)):
        raise broken(path, line, f"the image {quoted(given['file_name'])} has no id")
    objects: List[AnnotatedObject] = []
    faults: List[SourceFault] = []
    for other in file.groups.take(given["id"]):
        if other.table == ANNOTATIONS:
            with left_out(faults):
                objects.append(_object(file, other))
    height, width = (_side(given, side, path, line) for side in ("height", "width"))
    return AnnotatedImage(
        given["file_name"], path, line, str(given["id"]), height, width,
        objects=objects,
        absent_classes=_names(file, given, "neg_category_ids", line, faults),
        incomplete_classes=_names(file, given, "not_exhaustive_category_ids", line, faults),
        faults=faults,
        fields={key: value for key, value in given.items() if key not in _IMAGE_KEYS} or None,
    )  # fmt: skip


def _side(given: Dict[str, Any], side: str, path: str, line: int) -> Optional[int]:
    if given.get(side) is None:
        return None
    return whole_number(given[side], path, line, side)


def _names(
    file: _File, given: Dict[str, Any], key: str, line: int, faults: List[SourceFault]
) -> List[str]:
    found = []
    for value in given.get(key) or []:
        if isinstance(value, int) and value in file.names:
            found.append(file.names[value])
        else:
            message = f"{key} has {plain(json.dumps(value))}, which is no category"
            faults.append(SourceFault("unknown_id", file.path, line, message))
    return found


def _object(file: _File, part: Part) -> AnnotatedObject:
    given, path, line = part.value, file.path, part.line
    category = whole_number(given.get("category_id"), path, line, "category_id")
    box = None
    if given.get("bbox") is not None:
        sides = numbers(given["bbox"], path, line, "bbox")
        if len(sides) != 4:
            raise broken(path, line, f"bbox has {len(sides)} numbers, not 4")
        x, y, width, height = sides
        box = [y, x, y + height, x + width]
    area = given.get("area")
    if area is not None and not math.isfinite(number(area, path, line, "area")):
        raise broken(path, line, f"area is {area}")
    polygons, run_lengths = _segmentation(given.get("segmentation"), path, line)
    keypoints = given.get("keypoints")
    crowd = given.get("iscrowd")
    return AnnotatedObject(
        file.names.get(category, ""),
        box,
        line,
        0 if category in file.names else category,
        area=area,
        is_crowd=None if crowd is None else bool(whole_number(crowd, path, line, "iscrowd")),
        polygons=polygons,
        run_lengths=run_lengths,
        keypoints=None if keypoints is None else numbers(keypoints, path, line, "keypoints"),
        fields={key: value for key, value in given.items() if key not in _OBJECT_KEYS} or None,
    )


def _segmentation(given: Any, path: str, line: int) -> Any:
    """Polygons and run lengths; one of them is None, or both are."""
    if given is None or given == []:
        return None, None
    if isinstance(given, dict):
        return None, given
    if not isinstance(given, list):
        raise broken(path, line, f"segmentation is {plain(json.dumps(given))}")
    return [numbers(polygon, path, line, "a polygon") for polygon in given], None
