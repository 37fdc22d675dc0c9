"""Progress of long commands: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Callable, Optional, TextIO

from estimator_det.config import printing

LINE_SECS = 10.0  # between two lines


def has_room(stream: TextIO) -> bool:
    """Whether a bar can be drawn: some terminals, as of containers, say that they have no size."""
    if printing.is_json() or not stream.isatty():
        return False
    try:
        return all(size > 0 for size in os.get_terminal_size(stream.fileno()))
    except OSError:  # No terminal of the system's, as in a notebook.
        return True


class ProgressBar:
    """Counts what is done, on standard error; a context manager.

    Args:
        title: What is being done.
        total: How many there are; None if it is not known.
        unit: What is counted, in the plural.
        shown: False for no output at all.
        stream: Where to write; standard error by default.
        clock: Gives the time in seconds.
    """

    def __init__(
        self,
        title: str,
        total: Optional[int],
        unit: str,
        *,
        shown: bool = True,
        stream: Optional[TextIO] = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._total, self._unit, self._shown = title, total, unit, shown
        self._stream = stream or sys.stderr
        self._clock = clock
        self._done, self._printed = 0, clock()
        self._bar: Any = None
        if shown and has_room(self._stream):
            from tqdm import tqdm

            self._bar = tqdm(
                total=total, desc=title, unit=f" {unit}", file=self._stream, dynamic_ncols=True
            )

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, count: int) -> None:
        """Adds to the number done."""
        self._done += count
        if self._bar is not None:
            self._bar.update(count)
        elif self._shown and self._clock() - self._printed >= LINE_SECS:
            self._printed = self._clock()
            of = "" if self._total is None else f" of {self._total:,}"
            printing.report(f"{self._title}: {self._done:,}{of} {self._unit}", self._stream)
