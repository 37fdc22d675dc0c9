"""Warnings of the image decoders: which record caused them, or how many there were.

libjpeg decodes some damaged images and prints a warning to standard error, which names no file.
TensorFlow offers no way to receive it. `check-data` examines one record at a time, so there the
text belongs to the record that was decoded last. A training run decodes many at once and every
record in each epoch: there the warnings are counted.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from typing import Callable, Iterator, List

from inputs.checks import stderr_filter

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


@contextlib.contextmanager
def count() -> Iterator[None]:
    """Within, the first decoder warning is printed, the others are counted; the count comes last.

    All other text passes unchanged. A process of its own does it, so that what the program prints
    in a crash is not lost.
    """
    if sys.stderr is not None:
        sys.stderr.flush()
    try:
        original = os.dup(STDERR)
    except OSError:  # the process has no standard error, so nothing is printed
        yield
        return
    reading_end, writing_end = os.pipe()
    command = [sys.executable, "-I", "-S", stderr_filter.__file__]
    # In a session of its own, Ctrl-C does not end it before the program's last words.
    process = subprocess.Popen(command, stdin=reading_end, stdout=original, start_new_session=True)
    os.close(reading_end)
    os.dup2(writing_end, STDERR)
    os.close(writing_end)
    try:
        yield
    finally:
        if sys.stderr is not None:
            sys.stderr.flush()
        os.dup2(original, STDERR)
        os.close(original)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a child of ours has the pipe open
            process.wait(timeout=5)
