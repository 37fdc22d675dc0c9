"""PASCAL VOC: one XML file for each image (host.robots.ox.ac.uk/pascal/VOC/voc2012/devkit_doc.pdf).

The pixels of a box are numbered from 1 and the last one belongs to it. The numbers are
used as corners, as the Object Detection API does, so that the records of both are the same.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional
from xml.parsers import expat

from inputs.datasets import paths, source
from inputs.datasets.converters.base import CONVERTERS, takes

MAX_DEPTH = 50  # nested elements


@CONVERTERS.register("pascal_voc")
@takes("images", "annotations")
def read_pascal_voc(options: source.SourceOptions) -> source.Source:
    """Reads all XML files below the folder of annotations; images are named in `filename`."""
    folder = paths.real_folder(options.annotations, "--annotations")
    files = paths.annotation_files(folder, (".xml",))
    return source.Source(source.read_images(lambda path: _image(path, folder), files))


def _image(path: str, folder: str) -> source.AnnotatedImage:
    root = _parse(paths.read_annotation(path, folder), path)
    elements = [part for part in root.parts if part.tag == "object"]
    objects, faults = source.read_objects(lambda element: _object(element, path), elements)
    height = width = None
    size = root.find("size")
    if size is not None:
        height, width = (size.number(side, source.whole_number) for side in ("height", "width"))
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
    mark = element.find("difficult")
    has_mark = mark is not None and mark.text.strip()
    return source.AnnotatedObject(
        name.text.strip(), [box.number(side) for side in source.SIDES], element.line,
        difficult=bool(element.number("difficult", source.whole_number)) if has_mark else None,
    )  # fmt: skip


class Element:
    """An element of a document; its text is without that of its parts."""

    def __init__(self, tag: str, line: int, file: str) -> None:
        self.tag = tag
        self.line = line
        self.text = ""
        self.parts: List[Element] = []
        self._file = file

    def find(self, tag: str) -> Optional[Element]:
        """The first part with a tag; None without one."""
        return next((part for part in self.parts if part.tag == tag), None)

    def need(self, tag: str) -> Element:
        """The first part with a tag, which must exist."""
        child = self.find(tag)
        if child is None:
            message = f"<{self.tag}> has no <{tag}>"
            raise source.SourceError("missing_key", self._file, self.line, message)
        return child

    def number(self, tag: str, parse: Callable[..., Any] = source.number) -> Any:
        """The number in a part that must exist; `parse` may be `source.whole_number`."""
        child = self.need(tag)
        return parse(child.text.strip(), self._file, child.line, f"<{tag}>")


def _parse(text: str, file: str) -> Element:
    """The root element of a document; `file` is named in errors."""
    parser = expat.ParserCreate()
    root = Element("", 0, file)
    open_elements = [root]

    def start(tag: str, attributes: Dict[str, str]) -> None:
        del attributes
        if len(open_elements) > MAX_DEPTH:
            raise source.broken(
                file, parser.CurrentLineNumber, f"more than {MAX_DEPTH} nested elements"
            )
        element = Element(tag, parser.CurrentLineNumber, file)
        open_elements[-1].parts.append(element)
        open_elements.append(element)

    def end(tag: str) -> None:
        del tag
        open_elements.pop()

    def characters(part: str) -> None:
        open_elements[-1].text += part

    def refuse(*_: Any) -> None:
        message = "a document type, which could define entities, is not allowed"
        raise source.broken(file, parser.CurrentLineNumber, message)

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    parser.StartDoctypeDeclHandler = refuse
    parser.buffer_text = True
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        message = f"not valid XML: {expat.errors.messages[error.code]}"
        raise source.broken(file, error.lineno, message) from None
    return root.parts[0]
