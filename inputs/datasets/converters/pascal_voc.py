"""PASCAL VOC: one XML file for each image (host.robots.ox.ac.uk/pascal/VOC/voc2012/devkit_doc.pdf).

The pixels of a box are numbered from 1 and the last one belongs to it. The numbers are
used as corners, as the Object Detection API does, so that the records of both are the same.
"""

from __future__ import annotations

from inputs.datasets import paths, source
from inputs.datasets.converters.base import CONVERTERS, takes
from inputs.datasets.converters.xml_tree import Element, parse_xml

SIDES = ("ymin", "xmin", "ymax", "xmax")


@CONVERTERS.register("pascal_voc")
@takes("images", "annotations")
def read_pascal_voc(options: source.SourceOptions) -> source.Source:
    """Reads all XML files below the folder of annotations; images are named in `filename`."""
    folder = paths.real_folder(options.annotations, "--annotations")
    files = paths.annotation_files(folder, (".xml",))
    return source.Source(source.read_images(lambda path: _image(path, folder), files))


def _image(path: str, folder: str) -> source.AnnotatedImage:
    root = parse_xml(paths.read_annotation(path, folder), path)
    objects, faults = source.read_objects(
        lambda element: _object(element, path), root.all("object")
    )
    height = width = None
    size = root.find("size")
    if size is not None:
        height, width = size.whole_number("height"), size.whole_number("width")
    name = root.need("filename")
    return source.AnnotatedImage(
        name.text.strip(), path, name.line, height=height, width=width, objects=objects,
        faults=faults,
    )  # fmt: skip


def _object(element: Element, path: str) -> source.AnnotatedObject:
    box = element.need("bndbox")
    name = element.need("name")
    if not name.text.strip():
        raise source.SourceError("missing_key", path, name.line, "<name> is empty")
    return source.AnnotatedObject(
        name.text.strip(), [box.number(side) for side in SIDES], element.line,
        difficult=element.mark("difficult"),
    )  # fmt: skip
