"""Open Images: CSV files of boxes, of classes of whole images, and of names of classes.

Boxes have the columns ImageID, LabelName, XMin, XMax, YMin, YMax (fractions), and mostly
IsOccluded, IsTruncated, IsGroupOf and others. Labels of images have ImageID, LabelName and
Confidence: 1 somebody has seen the class, 0 it is certainly absent
(storage.googleapis.com/openimages/web/download_v7.html). Masks are PNG files, which a file of
segmentations names by image, class and box: MaskPath, ImageID, LabelName, BoxXMin, BoxXMax, BoxYMin
and BoxYMax. A mask belongs to the box of the same class with these sides.
"""

from __future__ import annotations

import csv
from typing import Dict, List, NamedTuple, Tuple

from estimator_det import files
from estimator_det.console.printing import quoted
from estimator_det.errors import UsageError
from inputs.datasets import paths, source
from inputs.datasets.converters.base import CONVERTERS, takes
from inputs.datasets.grouping import Groups, Part

BOX_COLUMNS = ("ImageID", "LabelName", "XMin", "XMax", "YMin", "YMax")
LABEL_COLUMNS = ("ImageID", "LabelName", "Confidence")
SIDES = ("YMin", "XMin", "YMax", "XMax")
MASK_SIDES = ("BoxYMin", "BoxXMin", "BoxYMax", "BoxXMax")
MASK_COLUMNS = ("MaskPath", "ImageID", "LabelName", *MASK_SIDES)
SAME_SIDE = 1e-4  # difference between a box in the two files: they round differently
GROUP, SCORE = "IsGroupOf", "Confidence"


class _Files(NamedTuple):
    tables: Dict[str, str]  # name of a table -> path of its file
    images: str  # real folder
    names: Dict[str, str]  # id of a class -> its name
    masks: str  # real folder; "" without masks


@CONVERTERS.register("open_images")
@takes(
    "images", "annotations", optional=("classes", "image_labels", "segmentations", "mask_images"),
    masks=True, masks_from="segmentations",
)  # fmt: skip
def read_open_images(options: source.SourceOptions) -> source.Source:
    """Reads the files of boxes, masks, image labels and names; images are `ImageID.jpg`.

    Classes have the names of `classes`, or their ids such as /m/01g317 without that file.
    """
    if bool(options.segmentations) != bool(options.mask_images):
        raise UsageError(
            "--segmentations and --mask_images belong together: the file that names masks, and "
            "their folder; add the other one"
        )
    boxes = paths.require_file(options.annotations, "--annotations")
    images = paths.real_folder(options.images, "--images")
    names = _names(options.classes) if options.classes else {}
    tables = {"boxes": boxes}
    groups = Groups(options.scratch)
    groups.add_rows(boxes, "ImageID", "boxes", BOX_COLUMNS)
    for table, option, columns in (
        ("labels", "image_labels", LABEL_COLUMNS), ("masks", "segmentations", MASK_COLUMNS),
    ):  # fmt: skip
        if getattr(options, option):
            tables[table] = paths.require_file(getattr(options, option), f"--{option}")
            groups.add_rows(tables[table], "ImageID", table, columns)
    groups.finish()
    masks = options.mask_images and paths.real_folder(options.mask_images, "--mask_images")
    data = _Files(tables, images, names, masks)
    return source.Source(source.read_images(lambda group: _image(group, data), groups.all()))


def _names(path: str) -> Dict[str, str]:
    """Id of a class -> its name, from a file without header."""
    text = files.read_text(paths.require_file(path, "--classes"))
    names: Dict[str, str] = {}
    for row in csv.reader(text.splitlines()):
        if len(row) != 2:
            raise UsageError(f"{path}: a row {row}; each has the id of a class and its name")
        names[row[0]] = row[1]
    if len(set(names.values())) < len(names):
        twice = sorted({name for name in names.values() if list(names.values()).count(name) > 1})
        raise UsageError(f"{path}: several classes have the names {twice[:5]}")
    return names


def _image(group: Tuple[str, List[Part]], data: _Files) -> source.AnnotatedImage:
    identifier, parts = group
    file, line = data.tables[parts[0].table], parts[0].line
    image = paths.find_image(data.images, identifier, file, line)
    objects: List[source.AnnotatedObject] = []
    labels: List[Tuple[str, float]] = []

    def read_part(part: Part) -> None:
        file = data.tables[part.table]
        if "" in part.value:
            raise source.broken(file, part.line, part.value[""])
        name = part.value["LabelName"]
        name = data.names.get(name, name)
        if part.table == "boxes":
            objects.append(_object(name, part, file))
        elif part.table == "masks":
            _add_mask(objects, name, part, data)
        else:
            labels.append((name, source.number(part.value[SCORE], file, part.line, SCORE)))

    _, faults = source.read_objects(read_part, parts)
    absent = [name for name, confidence in labels if confidence == 0]
    return source.AnnotatedImage(
        image, file, line, identifier, normalized=True, objects=objects, image_classes=labels,
        absent_classes=absent, faults=faults,
    )  # fmt: skip


def _add_mask(objects: List[source.AnnotatedObject], name: str, part: Part, data: _Files) -> None:
    """Gives the object of a row of segmentations its mask."""
    file, line = data.tables["masks"], part.line
    sides = [source.number(part.value[side].strip(), file, line, side) for side in MASK_SIDES]
    candidates = [
        index
        for index, candidate in enumerate(objects)
        if candidate.class_name == name
        and candidate.mask_file is None
        and candidate.box is not None
        and all(abs(a - b) <= SAME_SIDE for a, b in zip(candidate.box, sides))
    ]  # fmt: skip
    if not candidates:
        message = f"no box of class {quoted(name)} without a mask has the sides {sides}"
        raise source.SourceError("broken_mask", file, line, message)
    path = part.value["MaskPath"].strip()
    try:
        status = paths.image_status(data.masks, path, file, line, "mask")
    except source.SourceError as error:
        raise source.SourceError("broken_mask", file, line, error.fault.message) from None
    mask_file = (path, status.st_size, status.st_mtime_ns)
    objects[candidates[0]] = objects[candidates[0]]._replace(mask_file=mask_file)


def _object(name: str, part: Part, file: str) -> source.AnnotatedObject:
    row, line = part.value, part.line
    group = row.get(GROUP, "").strip()
    # -1 says that nobody looked.
    mark = source.whole_number(group, file, line, GROUP) if group else -1
    box = [source.number(row[side].strip(), file, line, side) for side in SIDES]
    return source.AnnotatedObject(name, box, line, group_of=None if mark < 0 else mark > 0)
