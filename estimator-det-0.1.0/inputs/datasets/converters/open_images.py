"""Open Images: CSV files of boxes, of classes of whole images, and of names of classes.

Boxes have the columns ImageID, LabelName, XMin, XMax, YMin, YMax (fractions), and mostly
IsOccluded, IsTruncated, IsGroupOf and others. Labels of images have ImageID, LabelName and
Confidence: 1 somebody has seen the class, 0 it is certainly absent
(storage.googleapis.com/openimages/web/download_v7.html).
"""

from __future__ import annotations

import csv
import json
from typing import Dict, Iterator, List, Tuple

from estimator_det.config import files
from estimator_det.config.text import ConfigError
from inputs.datasets import paths
from inputs.datasets.converters.base import CONVERTERS, takes
from inputs.datasets.converters.lookup import ImageFinder
from inputs.datasets.converters.rows import read_rows
from inputs.datasets.grouping import Groups, Part
from inputs.datasets.source import (
    AnnotatedImage,
    AnnotatedObject,
    Source,
    SourceError,
    SourceFault,
    SourceOptions,
    broken,
    number,
    whole_number,
)

BOX_COLUMNS = ("ImageID", "LabelName", "XMin", "XMax", "YMin", "YMax")
LABEL_COLUMNS = ("ImageID", "LabelName", "Confidence")
SIDES = ("YMin", "XMin", "YMax", "XMax")
GROUP, SCORE = "IsGroupOf", "Confidence"


@CONVERTERS.register("open_images")
@takes("images", "annotations", optional=("classes", "image_labels"))
def read_open_images(options: SourceOptions) -> Source:
    """Reads the file of boxes, and those of image labels and names; images are `ImageID.jpg`.

    Classes have the names of `classes`, or their ids such as /m/01g317 without that file.
    """
    boxes = paths.require_file(options.annotations, "--annotations")
    finder = ImageFinder(paths.real_folder(options.images, "--images"))
    names = _names(options.classes) if options.classes else {}
    tables = {"boxes": boxes}
    groups = Groups(options.scratch)
    for line, row in read_rows(boxes, BOX_COLUMNS):
        groups.add(row.get("ImageID", ""), "boxes", line, json.dumps(row))
    if options.image_labels:
        tables["labels"] = paths.require_file(options.image_labels, "--image_labels")
        for line, row in read_rows(tables["labels"], LABEL_COLUMNS):
            groups.add(row.get("ImageID", ""), "labels", line, json.dumps(row))
    groups.finish()
    return Source(_images(groups, tables, finder, names))


def _names(path: str) -> Dict[str, str]:
    """Id of a class -> its name, from a file without header."""
    text = files.read_text(paths.require_file(path, "--classes"))
    names: Dict[str, str] = {}
    for row in csv.reader(text.splitlines()):
        if len(row) != 2:
            raise ConfigError(f"{path}: a row {row}; each has the id of a class and its name")
        names[row[0]] = row[1]
    if len(set(names.values())) < len(names):
        twice = sorted({name for name in names.values() if list(names.values()).count(name) > 1})
        raise ConfigError(f"{path}: several classes have the names {twice[:5]}")
    return names


def _images(
    groups: Groups, tables: Dict[str, str], finder: ImageFinder, names: Dict[str, str]
) -> Iterator[AnnotatedImage]:
    for identifier, parts in groups.all():
        file = tables[parts[0].table]
        try:
            image = finder.find(identifier, file)
        except SourceError as error:
            found = error.fault._replace(line=parts[0].line)
            yield AnnotatedImage("", file, parts[0].line, faults=[found])
            continue
        yield _image(image, identifier, parts, tables, names)
    groups.close()


def _image(
    image: str, identifier: str, parts: List[Part], tables: Dict[str, str], names: Dict[str, str]
) -> AnnotatedImage:
    objects: List[AnnotatedObject] = []
    labels: List[Tuple[str, float]] = []
    faults: List[SourceFault] = []
    for part in parts:
        file = tables[part.table]
        try:
            if "" in part.value:
                raise broken(file, part.line, part.value[""])
            name = part.value["LabelName"]
            name = names.get(name, name)
            if part.table == "boxes":
                objects.append(_object(name, part, file))
            else:
                labels.append((name, number(part.value[SCORE], file, part.line, SCORE)))
        except SourceError as error:
            faults.append(error.fault)
    absent = [name for name, confidence in labels if confidence == 0]
    return AnnotatedImage(
        image, tables[parts[0].table], parts[0].line, identifier, normalized=True, objects=objects,
        image_classes=labels, absent_classes=absent, faults=faults,
    )  # fmt: skip


def _object(name: str, part: Part, file: str) -> AnnotatedObject:
    row, line = part.value, part.line
    group = row.get(GROUP, "").strip()
    # -1 says that nobody looked.
    mark = whole_number(group, file, line, GROUP) if group else -1
    box = [number(row[side].strip(), file, line, side) for side in SIDES]
    return AnnotatedObject(name, box, line, group_of=None if mark < 0 else mark > 0)
