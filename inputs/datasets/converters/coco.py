"""COCO: one JSON file with `images`, `annotations` and `categories` (cocodataset.org/#format-data).

Also LVIS, whose images have `neg_category_ids` and `not_exhaustive_category_ids`. Categories define
the class ids. `inputs.conversion` keeps values without a key in records.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence

from estimator_det.console.printing import plain, quoted
from estimator_det.errors import UsageError
from estimator_det.files.json_values import Value
from inputs.datasets import source
from inputs.datasets.converters.base import CONVERTERS, takes
from inputs.datasets.grouping import Groups, Part
from inputs.datasets.paths import json_members, require_file

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
def read_coco(options: source.SourceOptions) -> source.Source:
    """Reads a file of instances or keypoints in two passes; annotations may be in any order."""
    path = require_file(options.annotations, "--annotations")
    file = _File(path, Groups(options.scratch), {}, {})
    categories: List[Any] = []
    total = 0
    for entry in json_members(path):
        if entry.key in (IMAGES, ANNOTATIONS) and entry.in_list:
            id_field = "id" if entry.key == IMAGES else "image_id"
            file.groups.add(_image_id(entry.value, id_field), entry.key, entry.line, entry.text)
            total += entry.key == IMAGES
        elif entry.key == CATEGORIES:
            categories.append(entry.value)
            _add_category(entry, path, file.names)
        elif entry.in_list:
            file.dataset.setdefault(entry.key, []).append(entry.value)
        else:
            file.dataset[entry.key] = entry.value
    if not file.names:
        raise UsageError(f"{path}: there are no categories; add them, with id and name")
    file.dataset[CATEGORIES] = categories
    file.groups.finish()
    return source.Source(_images(file), file.names, file.dataset, total, _keypoints(categories))


def _image_id(entry: Any, field: str) -> Any:
    """The id of an image; programs that keep tables of floats write 7.0 for 7."""
    value = entry.get(field) if isinstance(entry, dict) else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, (int, str)) else None


def _add_category(entry: Value, path: str, names: Dict[int, str]) -> None:
    if not isinstance(entry.value, dict) or not isinstance(entry.value.get("name"), str):
        raise source.broken(path, entry.line, f"a category without a name: {plain(entry.text)}")
    identifier = source.whole_number(
        entry.value.get("id"), path, entry.line, "the id of a category"
    )
    if identifier in names:
        raise source.broken(path, entry.line, f"two categories have id {identifier}")
    names[identifier] = entry.value["name"]


def _keypoints(categories: Sequence[Any]) -> Dict[str, List[str]]:
    """Names of keypoints by the name of their class."""
    return {
        category["name"]: [str(name) for name in category["keypoints"]]
        for category in categories
        if isinstance(category.get("keypoints"), list)
    }


def _images(file: _File) -> Iterator[source.AnnotatedImage]:
    yield from source.read_images(lambda part: _image(file, part), file.groups.table_parts(IMAGES))
    for part in file.groups.table_parts(ANNOTATIONS, without=IMAGES):
        image = part.value.get("image_id") if isinstance(part.value, dict) else None
        message = f"an annotation of image {plain(json.dumps(image))}, which is not listed"
        yield source.fault_image(source.SourceError("missing_key", file.path, part.line, message))
    file.groups.close()


def _image(file: _File, part: Part) -> source.AnnotatedImage:
    """The image of an entry, with the annotations of its id."""
    entry, path, line = part.value, file.path, part.line
    if not isinstance(entry, dict) or not isinstance(entry.get("file_name"), str):
        raise source.broken(path, line, f"an image without file_name: {plain(json.dumps(entry))}")
    image_id = _image_id(entry, "id")
    if image_id is None:
        named_id = f"{quoted(entry['file_name'])} is {plain(json.dumps(entry.get('id')))}"
        raise source.broken(
            path, line, f"the id of the image {named_id}, not a whole number or text"
        )
    members = [part for part in file.groups.take(image_id) if part.table == ANNOTATIONS]
    objects, faults = source.read_objects(lambda member: _object(file, member), members)
    height, width = (
        source.optional_whole_number(entry.get(side), path, line, side)
        for side in ("height", "width")
    )
    return source.AnnotatedImage(
        entry["file_name"], path, line, str(image_id), height, width,
        objects=objects,
        absent_classes=_names(file, entry, "neg_category_ids", line, faults),
        incomplete_classes=_names(file, entry, "not_exhaustive_category_ids", line, faults),
        faults=faults,
        fields={key: value for key, value in entry.items() if key not in _IMAGE_KEYS} or None,
    )  # fmt: skip


def _names(
    file: _File, entry: Dict[str, Any], key: str, line: int, faults: List[source.SourceFault]
) -> List[str]:
    names = []
    for value in entry.get(key) or []:
        if isinstance(value, int) and value in file.names:
            names.append(file.names[value])
        else:
            message = f"{key} has {plain(json.dumps(value))}, which is no category"
            faults.append(source.SourceFault("unknown_id", file.path, line, message))
    return names


def _object(file: _File, part: Part) -> source.AnnotatedObject:
    entry, path, line = part.value, file.path, part.line
    category = source.whole_number(entry.get("category_id"), path, line, "category_id")
    box = None
    if entry.get("bbox") is not None:
        sides = source.numbers(entry["bbox"], path, line, "bbox")
        if len(sides) != 4:
            raise source.broken(path, line, f"bbox has {len(sides)} numbers, not 4")
        x, y, width, height = sides
        box = [y, x, y + height, x + width]
    area = entry.get("area")
    if area is not None and not math.isfinite(source.number(area, path, line, "area")):
        raise source.broken(path, line, f"area is {area}")
    polygons, run_lengths = _segmentation(entry.get("segmentation"), path, line)
    keypoints = entry.get("keypoints")
    crowd = source.optional_whole_number(entry.get("iscrowd"), path, line, "iscrowd")
    return source.AnnotatedObject(
        file.names.get(category, ""),
        box,
        line,
        0 if category in file.names else category,
        area=area,
        is_crowd=None if crowd is None else bool(crowd),
        polygons=polygons,
        run_lengths=run_lengths,
        keypoints=None if keypoints is None else source.numbers(keypoints, path, line, "keypoints"),
        fields={key: value for key, value in entry.items() if key not in _OBJECT_KEYS} or None,
    )


def _segmentation(segmentation: Any, path: str, line: int) -> Any:
    """(polygons, run lengths), at most one of them not None."""
    if segmentation is None or segmentation == []:
        return None, None
    if isinstance(segmentation, dict):
        return None, segmentation
    if not isinstance(segmentation, list):
        raise source.broken(path, line, f"segmentation is {plain(json.dumps(segmentation))}")
    return [source.numbers(polygon, path, line, "a polygon") for polygon in segmentation], None
