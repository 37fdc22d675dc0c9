"""Reads JSON value by value, with lines, in memory that does not grow with the file.

A COCO file is an object with long arrays, a file of detections is a list or JSON lines: each entry
is decoded on its own.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, BinaryIO, Iterator, NamedTuple, Optional, Tuple

CHUNK = 2**20  # bytes read at once
MAX_VALUE = 64_000_000  # characters of one value
MAX_DIGITS = 40  # digits of an integer; more would take quadratic time

_SPACE = re.compile(r"[ \t\n\r]*")


class JsonError(ValueError):
    """Text that is not JSON; the message says why, without the file."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"not valid JSON: {message}")
        self.line = line


class Value(NamedTuple):
    """A value of a document."""

    value: Any
    line: int  # line of its first character, from 1
    text: str  # the same value as JSON
    in_list: bool
    key: str = ""  # key of the member, or of the list that contains the value


def read_members(file: BinaryIO) -> Iterator[Value]:
    """Reads the members of the object in a file, lists entry by entry; an empty list has none.

    Raises:
        JsonError: if the text is not a JSON object; earlier values were yielded.
    """
    text = _Text(file)
    for _ in text.entries("{", "}"):
        if text.peek() != '"':
            raise text.error(f"a key in quotes is expected; found {text.next_shown()}")
        key = text.value()[0]
        text.take(":")
        if text.peek() == "[":
            for _ in text.entries("[", "]"):
                yield Value(*text.value(), True, key)
        else:
            yield Value(*text.value(), False, key)
    text.check_end()


def read_values(file: BinaryIO) -> Iterator[Value]:
    """Reads the values of a list, or of JSON lines: values with white space between them.

    Raises:
        JsonError: if the text is neither; earlier values were yielded.
    """
    text = _Text(file)
    if text.peek() == "[":
        for _ in text.entries("[", "]"):
            yield Value(*text.value(), True)
        text.check_end()
    while text.peek():
        yield Value(*text.value(), False)


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number has more than {MAX_DIGITS} digits")
    return int(text)


# NaN and infinity become floats, which the caller refuses by the name of their field.
_DECODER = json.JSONDecoder(parse_int=_integer)


class _Text:
    """The text of a file from the current position on."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._part, self._position, self._line = "", 0, 1
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._ended = False

    def error(self, message: str, position: Optional[int] = None) -> JsonError:
        end = self._position if position is None else position
        return JsonError(message, self._line + self._part.count("\n", self._position, end))

    def next_shown(self) -> str:
        return repr(self.peek()) if self.peek() else "the end of the file"

    def peek(self) -> str:
        """Returns the next character that is not white space; "" at the end."""
        while True:
            space = _SPACE.match(self._part, self._position)
            assert space is not None
            self._advance(space.end())
            if self._position < len(self._part) or not self._read():
                return self._part[self._position : self._position + 1]

    def take(self, character: str) -> None:
        if self.peek() != character:
            raise self.error(f"{character!r} is expected; found {self.next_shown()}")
        self._advance(self._position + 1)

    def entries(self, opening: str, closing: str) -> Iterator[None]:
        """Yields before each entry between the brackets; the caller reads the entry."""
        self.take(opening)
        if self.peek() != closing:
            yield
            while self.peek() != closing:
                self.take(",")
                yield
        self.take(closing)

    def check_end(self) -> None:
        if self.peek():
            raise self.error(f"{self.peek()!r} follows the end of the document")

    def value(self) -> Tuple[Any, int, str]:
        """Reads a value; returns it with its line and its text."""
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
            except json.JSONDecodeError as error:  # perhaps cut off by the end of the part
                if len(self._part) - self._position > MAX_VALUE:
                    message = f"an entry has more than {MAX_VALUE:,} characters, or {error.msg}"
                    raise self.error(message) from None
                offset = error.pos - self._position  # `_read` moves the part
                if not self._read():
                    raise self.error(error.msg, self._position + offset) from None
            except RecursionError:
                raise self.error("it is nested too deeply") from None
            except ValueError as error:
                raise self.error(str(error)) from None

    def _advance(self, position: int) -> None:
        self._line += self._part.count("\n", self._position, position)
        self._position = position

    def _read(self) -> bool:
        """Reads more, and forgets what is done; False at the end of the file."""
        if self._ended:
            return False
        rest = self._part[self._position :]
        # Twice as much each time, so that a long value is not parsed many times.
        content = self._file.read(max(CHUNK, len(rest)))
        try:
            decoded = self._decoder.decode(content, final=not content)
        except UnicodeDecodeError as error:
            line = self._line + rest.count("\n") + error.object.count(b"\n", 0, error.start)
            message = f"byte {error.object[error.start]:#04x} is not UTF-8"
            raise JsonError(message, line) from None
        self._ended = not content
        self._part, self._position = rest + decoded, 0
        return bool(content)
