"""PASCAL VOC: one XML file for each image (host.robots.ox.ac.uk/pascal/VOC/voc2012/devkit_doc.pdf).

The pixels of a box are numbered from 1 and the last one belongs to it. The numbers are
used as corners, as the Object Detection API does, so that the records of both are the same.
"""

from __future__ import annotations

from typing import Iterator, List

from inputs.datasets import paths
from inputs.datasets.converters.base import CONVERTERS, takes
from inputs.datasets.converters.xml_tree import Element, parse_xml
from inputs.datasets.source import (
    AnnotatedImage,
    AnnotatedObject,
    Source,
    SourceError,
    SourceFault,
    SourceOptions,
    collect_faults,
    fault_image,
)

SIDES = ("ymin", "xmin", "ymax", "xmax")


@CONVERTERS.register("pascal_voc")
@takes("images", "annotations")
def read_pascal_voc(options: SourceOptions) -> Source:
    """Reads all XML files below the folder of annotations; images are named in `filename`."""
    return Source(_images(paths.real_folder(options.annotations, "--annotations")))


def _images(folder: str) -> Iterator[AnnotatedImage]:
    for path in paths.annotation_files(folder, (".xml",)):
        try:
            root = parse_xml(paths.read_annotation(path, folder), path)
            yield _image(root, path)
        except SourceError as error:
            yield fault_image(error)


def _image(root: Element, path: str) -> AnnotatedImage:
    objects: List[AnnotatedObject] = []
    faults: List[SourceFault] = []
    for element in root.all("object"):
        with collect_faults(faults):
            objects.append(_object(element, path))
    height = width = None
    size = root.find("size")
    if size is not None:
        height, width = size.whole_number("height"), size.whole_number("width")
    name = root.need("filename")
    return AnnotatedImage(
        name.text.strip(), path, name.line, height=height, width=width, objects=objects,
        faults=faults,
    )  # fmt: skip


def _object(element: Element, path: str) -> AnnotatedObject:
    box = element.need("bndbox")
    name = element.need("name")
    if not name.text.strip():
        raise SourceError("missing_key", path, name.line, "<name> is empty")
    return AnnotatedObject(
        name.text.strip(), [box.number(side) for side in SIDES], element.line,
        difficult=element.mark("difficult"),
    )  # fmt: skip
