"""Reads the values of a JSON list, or of JSON lines, one by one, whatever the size of the file.

A list may be indented; JSON lines are values with white space between them.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Any, Iterator, NamedTuple, NoReturn

from estimator_det.compat import tf
from estimator_det.config import files
from estimator_det.config.printing import plain, quoted
from model_fn.checkpoints.errors import RunError

CHUNK = 1 << 20  # bytes read at once
LONGEST_VALUE = 64_000_000  # characters of one value
LONGEST_NUMBER = 40  # digits
_SPACE = re.compile(r"[ \t\n\r]*")


class Value(NamedTuple):
    """One value of a file."""

    number: int  # from 1
    line: int  # where it begins, from 1
    in_list: bool  # whether the file is a list
    value: Any


class _OverlongNumberError(Exception):
    """A number of more digits than any program writes."""


def _integer(text: str) -> int:
    if len(text) > LONGEST_NUMBER:
        raise _OverlongNumberError
    return int(text)


# NaN and infinity become floats, which the caller refuses by the name of their field.
_DECODER = json.JSONDecoder(parse_int=_integer)


def read_values(path: str) -> Iterator[Value]:
    """The values of a local or remote file in UTF-8.

    Raises:
        FileNotFoundError: if there is no such file.
        RunError: if it is not a regular file, or not JSON; with the line.
    """
    if kind := files.special_kind(path):
        raise RunError(f"{plain(path)}: is {kind}, not a file of detections")
    if not files.exists(path):
        raise FileNotFoundError(f"no such file of detections: {path}")
    with tf.io.gfile.GFile(path, "rb") as file:
        yield from _Scanner(path, file).values()


class _Scanner:
    def __init__(self, path: str, file: Any) -> None:
        self._path, self._file = path, file
        self._decode = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._position, self._line = "", 0, 1
        self._ended = False

    def values(self) -> Iterator[Value]:
        """All values."""
        is_list = self._next() == "["
        if is_list:
            self._skip()
        number = 0
        while True:
            following = self._next()
            if is_list and following == "]":
                self._skip()
                if self._next():
                    self._refuse("text follows the end of the list")
                return
            if not following and not is_list:
                return
            if is_list and number:
                if following != ",":
                    self._refuse("between two entries of the list a comma is missing")
                self._skip()
                self._next()
            line, value = self._line, self._value()
            number += 1
            yield Value(number, line, is_list, value)

    def _next(self) -> str:
        """The next character that is not white space; "" at the end."""
        while True:
            end = _SPACE.match(self._text, self._position).end()  # type: ignore[union-attr]
            self._line += self._text.count("\n", self._position, end)
            self._position = end
            if end < len(self._text) or not self._read():
                return self._text[end : end + 1]

    def _skip(self) -> None:
        self._position += 1

    def _value(self) -> Any:
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._position)
            except json.JSONDecodeError as error:
                # It may only be cut off by the end of what is read.
                if len(self._text) - self._position <= LONGEST_VALUE and self._read():
                    continue
                self._line += self._text.count("\n", self._position, error.pos)
                self._refuse(
                    f"is not JSON ({error.msg}), ends too early, or is an entry of more than "
                    f"{LONGEST_VALUE:,} characters"
                )
            except RecursionError:
                self._refuse("is nested too deeply")
            except _OverlongNumberError:
                self._refuse(f"has a number of more than {LONGEST_NUMBER} digits")
            # A number at the end of the text may have more digits.
            if end < len(self._text) or not self._read():
                self._line += self._text.count("\n", self._position, end)
                self._position = end
                return value

    def _read(self) -> bool:
        """Reads more; False at the end of the file."""
        if self._ended:
            return False
        self._text, self._position = self._text[self._position :], 0
        # As much again as is waiting, so that a long value is not parsed many times.
        content = self._file.read(max(CHUNK, len(self._text)))
        self._ended = not content
        try:
            self._text += self._decode.decode(content, final=self._ended)
        except UnicodeDecodeError as error:
            self._refuse(f"is not a text file: {quoted(error.reason)} in UTF-8")
        return True

    def _refuse(self, what: str) -> NoReturn:
        raise RunError(f"{plain(self._path)}, line {self._line}: {what}")
