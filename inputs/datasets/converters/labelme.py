"""labelme: a JSON file for each image, with rectangles and polygons (github.com/wkentaro/labelme).

Shapes with the same `group_id` and label are parts of one object. `imagePath` is relative to the
JSON file; the image in `imageData` is not used. A flag named difficult, crowd or group of a shape
becomes that of the object.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from estimator_det.config.printing import plain, quoted
from estimator_det.files.json_values import Value
from inputs.datasets import paths
from inputs.datasets.converters.base import CONVERTERS, takes
from inputs.datasets.source import (
    AnnotatedImage,
    AnnotatedObject,
    Source,
    SourceError,
    SourceFault,
    SourceOptions,
    broken,
    collect_faults,
    fault_image,
    numbers,
    whole_number,
)

RECTANGLE, POLYGON = "rectangle", "polygon"


@CONVERTERS.register("labelme")
@takes("images", "annotations", masks=True)
def read_labelme(options: SourceOptions) -> Source:
    """Reads all JSON files below the folder of annotations."""
    folder = paths.real_folder(options.annotations, "--annotations")
    return Source(_images(folder, paths.real_folder(options.images, "--images")))


def _images(folder: str, images: str) -> Iterator[AnnotatedImage]:
    for path in paths.annotation_files(folder, (".json",)):
        try:
            paths.check_annotation(path, folder)
            yield _image(path, images)
        except SourceError as error:
            yield fault_image(error)


def _image(path: str, images: str) -> AnnotatedImage:
    members: Dict[str, Value] = {}
    shapes: List[Value] = []
    for entry in paths.json_members(path):
        if entry.key == "shapes" and entry.in_list:
            shapes.append(entry)
        members[entry.key] = entry
    name = members["imagePath"].value if "imagePath" in members else None
    if not isinstance(name, str):
        raise SourceError("missing_key", path, 0, "there is no imagePath")
    objects, faults = _objects(shapes, path)
    name = name.replace("\\", "/")  # programs on Windows write backslashes
    if not os.path.isabs(name):
        name = os.path.relpath(os.path.join(os.path.dirname(os.path.realpath(path)), name), images)
    height, width = (_side(members, key, path) for key in ("imageHeight", "imageWidth"))
    return AnnotatedImage(
        name, path, members["imagePath"].line, height=height, width=width, objects=objects,
        faults=faults,
    )  # fmt: skip


def _side(members: Dict[str, Value], key: str, path: str) -> Any:
    entry = members.get(key)
    if entry is None or entry.value is None:
        return None
    return whole_number(entry.value, path, entry.line, key)


def _objects(shapes: Sequence[Value], path: str) -> Tuple[List[AnnotatedObject], List[SourceFault]]:
    objects: Dict[Any, AnnotatedObject] = {}
    faults: List[SourceFault] = []
    for position, shape in enumerate(shapes):
        with collect_faults(faults):
            annotated = _object(shape.value, path, shape.line)
            group = shape.value.get("group_id")
            key = position if group is None else (json.dumps(group), annotated.class_name)
            objects[key] = _joined(objects[key], annotated) if key in objects else annotated
    return list(objects.values()), faults


def _object(shape: Any, path: str, line: int) -> AnnotatedObject:
    if not isinstance(shape, dict) or not isinstance(shape.get("label"), str):
        raise SourceError("missing_key", path, line, "a shape has no label")
    kind = shape.get("shape_type", POLYGON)
    if kind not in (RECTANGLE, POLYGON):
        message = f"the shape of class {quoted(shape['label'])} is a {plain(kind)}"
        raise SourceError("unsupported_shape", path, line, message)
    points = shape.get("points")
    if not isinstance(points, list):
        raise broken(path, line, "a shape has no points")
    pairs = [numbers(point, path, line, "a point of a shape") for point in points]
    if any(len(pair) != 2 for pair in pairs) or (kind == RECTANGLE and len(pairs) != 2):
        raise broken(path, line, f"a {kind} has the points {plain(points)}")
    if kind == RECTANGLE:  # any two opposite corners
        (x1, y1), (x2, y2) = pairs
        pairs = [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]
    if len(pairs) < 3:
        raise SourceError(
            "broken_mask", path, line, f"a polygon has {len(pairs)} points, not 3 or more"
        )
    flags = shape.get("flags")
    flags = flags if isinstance(flags, dict) else {}
    marks: Dict[str, Any] = {
        field: bool(flags[flag]) if flag in flags else None
        for flag, field in (
            ("difficult", "difficult"), ("crowd", "is_crowd"), ("group", "group_of"),
        )
    }  # fmt: skip
    polygon = [value for pair in pairs for value in pair]
    return AnnotatedObject(shape["label"], None, line, polygons=[polygon], **marks)


def _joined(first: AnnotatedObject, second: AnnotatedObject) -> AnnotatedObject:
    return first._replace(polygons=[*(first.polygons or ()), *(second.polygons or ())])
