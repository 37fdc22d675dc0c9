"""Warnings of the image decoders, by the record that caused them.

libjpeg decodes some damaged images and prints a warning to standard error, which names no file.
TensorFlow offers no way to receive it. `check-data` and `convert` decode one record at a time, so
that the text belongs to the last one. Programs that train or evaluate decode many at once, and let
the warnings through: they leave standard error as it is, for signals, crashes and terminals.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from typing import Callable, Iterator, List

STDERR = 2
# How lines of TensorFlow's own log begin; all others come from decoders.
_LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d |[IWEF]\d{4} |WARNING")


@contextlib.contextmanager
def capture() -> Iterator[Callable[[], List[str]]]:
    """Within, a function returns the lines that decoders have printed since its last call.

    Lines of TensorFlow's log are printed at the end.
    """
    if sys.stderr is not None:
        sys.stderr.flush()
    try:
        original = os.dup(STDERR)
    except OSError:  # the process has no standard error, so nothing is printed
        yield list
        return
    others: List[str] = []
    with tempfile.TemporaryFile() as file:
        position = 0

        def new_lines() -> List[str]:
            nonlocal position
            size = os.fstat(file.fileno()).st_size
            if size == position:
                return []
            text = os.pread(file.fileno(), size - position, position)
            position = size
            lines = text.splitlines(keepends=True)
            printed = [line.decode("utf-8", "replace") for line in lines]
            others.extend(line for line in printed if _LOG_LINE.match(line))
            return [line.rstrip() for line in printed if not _LOG_LINE.match(line)]

        os.dup2(file.fileno(), STDERR)
        try:
            yield new_lines
        finally:
            new_lines()
            os.dup2(original, STDERR)
            os.close(original)
            if others:
                os.write(STDERR, "".join(others).encode())
