"""PASCAL VOC: one XML file for each image (host.robots.ox.ac.uk/pascal/VOC/voc2012/devkit_doc.pdf).

Pixels are numbered from 1, and a box includes its last pixel. These numbers become corners
unchanged, as in the Object Detection API, so that both write the same records.
"""

from __future__ import annotations

from typing import Any, Callable
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from inputs.datasets import paths, source
from inputs.datasets.converters.base import CONVERTERS, takes

_LINE = "line"  # the only attribute that elements keep


@CONVERTERS.register("pascal_voc")
@takes("images", "annotations")
def read_pascal_voc(options: source.SourceOptions) -> source.Source:
    """Reads all XML files below the folder of annotations; images are named in `filename`."""
    folder = paths.real_folder(options.annotations, "--annotations")
    files = paths.annotation_files(folder, (".xml",))
    return source.Source(source.read_images(lambda path: _image(path, folder), files))


def _image(path: str, folder: str) -> source.AnnotatedImage:
    root = _parse(paths.read_annotation(path, folder), path)
    objects, faults = source.read_objects(
        lambda element: _object(element, path), root.findall("object")
    )
    height = width = None
    size = root.find("size")
    if size is not None:
        height, width = (
            _number(size, side, path, source.whole_number) for side in ("height", "width")
        )
    name = _need(root, "filename", path)
    return source.AnnotatedImage(
        _text(name), path, _line(name), height=height, width=width, objects=objects, faults=faults
    )


def _object(element: Element, path: str) -> source.AnnotatedObject:
    box = _need(element, "bndbox", path)
    name = _need(element, "name", path)
    if not _text(name):
        raise source.SourceError("missing_key", path, _line(name), "<name> is empty")
    has_mark = _text(element.find("difficult"))
    mark = _number(element, "difficult", path, source.whole_number) if has_mark else None
    return source.AnnotatedObject(
        _text(name), [_number(box, side, path) for side in source.SIDES], _line(element),
        difficult=None if mark is None else bool(mark),
    )  # fmt: skip


def _line(element: Element) -> int:
    return int(element.attrib[_LINE])


def _text(element: Any) -> str:
    return (element.text or "").strip() if element is not None else ""


def _need(element: Element, tag: str, path: str) -> Element:
    """The first part with a tag, which must exist."""
    part = element.find(tag)
    if part is None:
        message = f"<{element.tag}> has no <{tag}>"
        raise source.SourceError("missing_key", path, _line(element), message)
    return part


def _number(
    element: Element, tag: str, path: str, parse: Callable[..., Any] = source.number
) -> Any:
    """The number in a part that must exist; `parse` may be `source.whole_number`."""
    part = _need(element, tag, path)
    return parse(_text(part), path, _line(part), f"<{tag}>")


def _parse(text: str, file: str) -> Element:
    """The root element of a document; `file` is named in errors."""
    parser, builder = expat.ParserCreate(), TreeBuilder()

    def refuse(*_: Any) -> None:
        message = "a document type, which could define entities, is not allowed"
        raise source.broken(file, parser.CurrentLineNumber, message)

    parser.StartElementHandler = lambda tag, _: builder.start(
        tag, {_LINE: str(parser.CurrentLineNumber)}
    )
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        message = f"not valid XML: {expat.errors.messages[error.code]}"
        raise source.broken(file, error.lineno, message) from None
    return builder.close()
