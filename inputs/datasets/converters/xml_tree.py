"""Small XML files with the line of each element; documents that define entities are refused."""

from __future__ import annotations

from typing import Any, Dict, List, Optional
from xml.parsers import expat

from inputs.datasets.source import SourceError, broken, number, whole_number

MAX_DEPTH = 50


class Element:
    """An element of a document; its text is without that of its parts."""

    def __init__(self, tag: str, line: int, file: str) -> None:
        self.tag = tag
        self.line = line
        self.text = ""
        self.parts: List[Element] = []
        self._file = file

    def all(self, tag: str) -> List[Element]:
        """The parts with a tag."""
        return [part for part in self.parts if part.tag == tag]

    def find(self, tag: str) -> Optional[Element]:
        """The first part with a tag; None without one."""
        return next((part for part in self.parts if part.tag == tag), None)

    def need(self, tag: str) -> Element:
        """The first part with a tag, which must exist."""
        child = self.find(tag)
        if child is None:
            message = f"<{self.tag}> has no <{tag}>"
            raise SourceError("missing_key", self._file, self.line, message)
        return child

    def words(self, tag: str) -> str:
        """The text of a part without spaces around it; "" if there is no such part."""
        child = self.find(tag)
        return child.text.strip() if child is not None else ""

    def number(self, tag: str) -> float:
        """The number in a part that must exist."""
        child = self.need(tag)
        return number(child.text.strip(), self._file, child.line, f"<{tag}>")

    def whole_number(self, tag: str) -> int:
        """The whole number in a part that must exist."""
        child = self.need(tag)
        return whole_number(child.text.strip(), self._file, child.line, f"<{tag}>")

    def mark(self, tag: str) -> Optional[bool]:
        """Whether the number in a part is not 0; None if there is no such part."""
        return bool(self.whole_number(tag)) if self.words(tag) else None


def parse_xml(text: str, file: str) -> Element:
    """The root element of a document; `file` is named in errors."""
    parser = expat.ParserCreate()
    root = Element("", 0, file)
    open_elements = [root]

    def start(tag: str, attributes: Dict[str, str]) -> None:
        del attributes
        if len(open_elements) > MAX_DEPTH:
            raise broken(file, parser.CurrentLineNumber, f"more than {MAX_DEPTH} nested elements")
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
        raise broken(file, parser.CurrentLineNumber, message)

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = characters
    parser.StartDoctypeDeclHandler = refuse
    parser.buffer_text = True
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        message = f"not valid XML: {expat.errors.messages[error.code]}"
        raise broken(file, error.lineno, message) from None
    return root.parts[0]
