"""CSV: a row for each box, with a header that names the columns.

Required columns: `filename`, `class`, `xmin`, `ymin`, `xmax`, `ymax` (pixels). Optional columns:
`width`, `height`, `difficult`, `is_crowd`, `group_of` and `area`. The rows of an image may be
anywhere. A row without class and box lists an image, which may have no object.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from inputs.datasets import source
from inputs.datasets.converters.base import CONVERTERS, takes
from inputs.datasets.grouping import Groups, Part
from inputs.datasets.paths import require_file

MARKS = ("difficult", "is_crowd", "group_of")


@CONVERTERS.register("csv")
@takes("images", "annotations")
def read_csv(options: source.SourceOptions) -> source.Source:
    """Reads one file; images come in the order of their first rows."""
    path = require_file(options.annotations, "--annotations")
    groups = Groups(options.scratch)
    groups.add_rows(path, "filename", "row", ("filename", "class", *source.SIDES))
    groups.finish()
    return source.Source(_image(path, name, parts) for name, parts in groups.all())


def _image(path: str, name: str, parts: List[Part]) -> source.AnnotatedImage:
    sizes: Dict[str, Optional[int]] = {"height": None, "width": None}

    def read_part(part: Part) -> Optional[source.AnnotatedObject]:
        if "" in part.value:
            raise source.broken(path, part.line, part.value[""])
        for side, before in sizes.items():
            stated = _optional(part, side, path)
            if stated is not None and before not in (None, stated):
                message = f"{side} is {stated}, and {before} above"
                raise source.SourceError("length_mismatch", path, part.line, message)
            sizes[side] = before if stated is None else stated
        has_object = any(part.value[key].strip() for key in ("class", *source.SIDES))
        return _object(part, path) if has_object else None

    objects, faults = source.read_objects(read_part, parts)
    return source.AnnotatedImage(
        name, path, parts[0].line, height=sizes["height"], width=sizes["width"], objects=objects,
        faults=faults,
    )  # fmt: skip


def _object(part: Part, path: str) -> source.AnnotatedObject:
    row, line = part.value, part.line
    name = row["class"].strip()
    if not name:
        raise source.SourceError("missing_key", path, line, "the class is empty")
    area = row.get("area", "").strip()
    marks: Dict[str, Any] = {}
    for key in MARKS:
        value = _optional(part, key, path)
        marks[key] = None if value is None else bool(value)
    return source.AnnotatedObject(
        name,
        [source.number(row[side].strip(), path, line, side) for side in source.SIDES],
        line,
        area=source.number(area, path, line, "area") if area else None,
        **marks,
    )


def _optional(part: Part, key: str, path: str) -> Any:
    text = part.value.get(key, "").strip()
    return source.whole_number(text, path, part.line, key) if text else None
