"""labelme: a JSON file for each image, with rectangles and polygons (github.com/wkentaro/labelme).

Shapes with the same `group_id` and label are parts of one object. `imagePath` is relative to the
JSON file; the image in `imageData` is not used. The flags difficult, crowd and group of a shape
become marks of its object.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

from estimator_det.console.printing import plain, quoted
from estimator_det.files.json_values import Value
from inputs.datasets import paths, source
from inputs.datasets.converters.base import CONVERTERS, takes

RECTANGLE, POLYGON = "rectangle", "polygon"


@CONVERTERS.register("labelme")
@takes("images", "annotations", masks=True)
def read_labelme(options: source.SourceOptions) -> source.Source:
    """Reads all JSON files below the folder of annotations."""
    folder = paths.real_folder(options.annotations, "--annotations")
    images = paths.real_folder(options.images, "--images")
    files = paths.annotation_files(folder, (".json",))
    return source.Source(source.read_images(lambda path: _image(path, folder, images), files))


def _image(path: str, folder: str, images: str) -> source.AnnotatedImage:
    paths.check_annotation(path, folder)
    members: Dict[str, Value] = {}
    shapes: List[Value] = []
    for entry in paths.json_members(path):
        if entry.key == "shapes" and entry.in_list:
            shapes.append(entry)
        members[entry.key] = entry
    name = members["imagePath"].value if "imagePath" in members else None
    if not isinstance(name, str):
        raise source.SourceError("missing_key", path, 0, "there is no imagePath")
    objects, faults = _objects(shapes, path)
    name = name.replace("\\", "/")  # programs on Windows write backslashes
    if not os.path.isabs(name):
        name = os.path.relpath(os.path.join(os.path.dirname(os.path.realpath(path)), name), images)
    height, width = (
        source.optional_whole_number(members[key].value, path, members[key].line, key)
        if key in members
        else None
        for key in ("imageHeight", "imageWidth")
    )
    return source.AnnotatedImage(
        name, path, members["imagePath"].line, height=height, width=width, objects=objects,
        faults=faults,
    )  # fmt: skip


def _objects(
    shapes: Sequence[Value], path: str
) -> Tuple[List[source.AnnotatedObject], List[source.SourceFault]]:
    """The objects, one for each group or single shape, and the faults of other shapes."""
    groups: Dict[Any, source.AnnotatedObject] = {}

    def read_shape(shape: Value) -> Optional[source.AnnotatedObject]:
        annotated = _object(shape.value, path, shape.line)
        group = shape.value.get("group_id")
        key = len(groups) if group is None else (json.dumps(group), annotated.class_name)
        if key in groups:
            polygons = [*(groups[key].polygons or ()), *(annotated.polygons or ())]
            annotated = groups[key]._replace(polygons=polygons)
        groups[key] = annotated
        return None

    _, faults = source.read_objects(read_shape, shapes)
    return list(groups.values()), faults


def _object(shape: Any, path: str, line: int) -> source.AnnotatedObject:
    if not isinstance(shape, dict) or not isinstance(shape.get("label"), str):
        raise source.SourceError("missing_key", path, line, "a shape has no label")
    kind = shape.get("shape_type", POLYGON)
    if kind not in (RECTANGLE, POLYGON):
        message = f"the shape of class {quoted(shape['label'])} is a {plain(kind)}"
        raise source.SourceError("unsupported_shape", path, line, message)
    points = shape.get("points")
    if not isinstance(points, list):
        raise source.broken(path, line, "a shape has no points")
    pairs = [source.numbers(point, path, line, "a point of a shape") for point in points]
    if any(len(pair) != 2 for pair in pairs) or (kind == RECTANGLE and len(pairs) != 2):
        raise source.broken(path, line, f"a {kind} has the points {plain(points)}")
    if kind == RECTANGLE:  # any two opposite corners
        (x1, y1), (x2, y2) = pairs
        pairs = [[x1, y1], [x2, y1], [x2, y2], [x1, y2]]
    if len(pairs) < 3:
        raise source.SourceError(
            "broken_mask", path, line, f"a polygon has {len(pairs)} points, not 3 or more"
        )
    flags = shape.get("flags")
    flags = flags if isinstance(flags, dict) else {}
    fields = {"difficult": "difficult", "crowd": "is_crowd", "group": "group_of"}
    marks: Dict[str, Any] = {
        field: bool(flags[flag]) for flag, field in fields.items() if flag in flags
    }
    polygon = [value for pair in pairs for value in pair]
    return source.AnnotatedObject(shape["label"], None, line, polygons=[polygon], **marks)
