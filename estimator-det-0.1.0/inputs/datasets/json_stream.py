"""Reads a JSON document piece by piece, with line numbers, in memory that does not grow with it.

A COCO file has one object with long arrays: each of their entries is decoded on its own.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, BinaryIO, Iterator, NamedTuple, Optional, Tuple

from inputs.datasets.source import broken

CHUNK = 2**20  # characters read at once
MAX_ENTRY = 64 * 2**20  # characters of one entry

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


class Entry(NamedTuple):
    """A member of the document's object, or one entry of a member that is an array."""

    key: str
    value: Any
    line: int  # where the value begins
    text: str  # the same value as JSON
    is_in_array: bool


def read_entries(path: str) -> Iterator[Entry]:
    """The members of the object in a file, arrays entry by entry; an empty array gives none.

    Raises:
        SourceError: if the text is no JSON object; the entries before have been given.
    """
    with open(path, "rb") as file:
        text = _Text(file, path)
        text.take("{")
        if text.peek() == "}":
            text.take("}")
        else:
            yield from _members(text)
        if text.peek():
            raise text.error(f"{text.peek()!r} follows the end of the document")


def _members(text: _Text) -> Iterator[Entry]:
    while True:
        if text.peek() != '"':
            raise text.error(f"a key in quotes is expected; found {text.found()}")
        key = text.value()[0]
        text.take(":")
        if text.peek() == "[":
            yield from _array(text, key)
        else:
            yield Entry(key, *text.value(), False)
        if text.peek() == "}":
            text.take("}")
            return
        text.take(",")


def _array(text: _Text, key: str) -> Iterator[Entry]:
    text.take("[")
    if text.peek() == "]":
        text.take("]")
        return
    while True:
        yield Entry(key, *text.value(), True)
        if text.peek() == "]":
            text.take("]")
            return
        text.take(",")


class _Text:
    """A part of the text, from the current position on."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file, self._path = file, path
        self._part, self._position, self._line = "", 0, 1
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._ended = False

    def error(self, message: str, position: Optional[int] = None) -> Exception:
        end = self._position if position is None else position
        line = self._line + self._part.count("\n", self._position, end)
        return broken(self._path, line, f"not valid JSON: {message}")

    def found(self) -> str:
        return repr(self.peek()) if self.peek() else "the end of the file"

    def peek(self) -> str:
        """The next character that is no space; "" at the end."""
        while True:
            space = _SPACE.match(self._part, self._position)
            assert space is not None
            self._advance(space.end())
            if self._position < len(self._part):
                return self._part[self._position]
            if not self._read():
                return ""

    def take(self, character: str) -> None:
        if self.peek() != character:
            raise self.error(f"{character!r} is expected; found {self.found()}")
        self._advance(self._position + 1)

    def value(self) -> Tuple[Any, int, str]:
        """The value at the current position, its line and its text."""
        if not self.peek():
            raise self.error("the file ends where a value is expected")
        line = self._line
        while True:
            try:
                value, end = _DECODER.raw_decode(self._part, self._position)
                # A number at the end of the part may have more digits.
                if end < len(self._part) or not self._read():
                    start = self._position
                    self._advance(end)
                    return value, line, self._part[start:end]
            except json.JSONDecodeError as error:
                if len(self._part) - self._position > MAX_ENTRY:
                    raise self.error(
                        f"an entry has more than {MAX_ENTRY:,} characters or {error.msg.lower()}"
                    ) from None
                if not self._read():
                    raise self.error(error.msg, error.pos) from None
            except (RecursionError, ValueError) as error:  # the latter: thousands of digits
                raise self.error(str(error)) from None

    def _advance(self, position: int) -> None:
        self._line += self._part.count("\n", self._position, position)
        self._position = position

    def _read(self) -> bool:
        """Reads more, and forgets what is done; False at the end of the file."""
        if self._ended:
            return False
        rest = self._part[self._position :]
        read = self._file.read(max(CHUNK, len(rest)))
        try:
            more = self._decoder.decode(read, final=not read)
        except UnicodeDecodeError as error:
            line = self._line + rest.count("\n") + error.object.count(b"\n", 0, error.start)
            message = f"not valid JSON: byte {error.object[error.start]:#04x} is not UTF-8"
            raise broken(self._path, line, message) from None
        self._ended = not read
        self._part, self._position = rest + more, 0
        return bool(read)
