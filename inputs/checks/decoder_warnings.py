"""Warnings of the image decoders, with the record that caused them.

libjpeg decodes some damaged images and prints a warning to standard error, which names no file.
TensorFlow offers no way to receive it. `check-data` examines one record at a time, so there the
text belongs to the record that was decoded last; a training run decodes many at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from typing import Callable, Iterator, List

STDERR = 2
_WARNING = re.compile(
    r"Corrupt JPEG data|Premature end of JPEG|Invalid SOS|Inconsistent progression"
    r"|Unknown Adobe|Warning: |libpng warning|Application transferred too"
)


@contextlib.contextmanager
def capture() -> Iterator[Callable[[], List[str]]]:
    """Within, a function returns the lines that decoders have printed since its last call.

    Other lines are printed at the end.
    """
    if sys.stderr is not None:
        sys.stderr.flush()
    try:
        original = os.dup(STDERR)
    except OSError:  # the process has no standard error, so nothing is printed
        yield list
        return
    others: List[bytes] = []
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
            others.extend(line for line in lines if not _WARNING.match(line.decode("latin-1")))
            decoded = (line.decode("utf-8", "replace").rstrip() for line in lines)
            return [line for line in decoded if _WARNING.match(line)]

        os.dup2(file.fileno(), STDERR)
        try:
            yield new_lines
        finally:
            new_lines()
            os.dup2(original, STDERR)
            os.close(original)
            if others:
                os.write(STDERR, b"".join(others))
