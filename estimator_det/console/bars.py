"""Progress of long commands: a bar on a terminal, elsewhere a line now and then.

A bar is one line, whatever the width of the terminal. `printing.report` and `printing.LogHandler`
print above it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from typing import Any, Callable, Iterator, Optional, Sequence, TextIO

from estimator_det.console import printing

LINE_SECS = 10.0  # between two lines
_STEPS_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"


def has_room(stream: TextIO) -> bool:
    """Whether a bar can be drawn: some terminals, as of containers, say that they have no size."""
    if printing.is_json() or not stream.isatty():
        return False
    try:
        return all(size > 0 for size in os.get_terminal_size(stream.fileno()))
    except OSError:  # No terminal of the system's, as in a notebook.
        return True


def make_steps_bar(total: Optional[int], done: int, stream: TextIO) -> Any:
    """A tqdm bar of the width of the terminal, for steps; see `set_figures`."""
    from tqdm import tqdm

    return tqdm(
        total=total, initial=done, file=stream, dynamic_ncols=True, bar_format=_STEPS_FORMAT
    )


def set_figures(bar: Any, figures: Sequence[str]) -> None:
    """Shows as many of the figures, the first ones, as fit beside a bar of ten characters."""
    now = bar.format_dict
    others = bar.format_meter(**{**now, "ncols": None, "postfix": ""})
    room = (now["ncols"] or sys.maxsize) - len(others) - 2  # two for numbers that get longer
    ends = itertools.accumulate(len(f", {figure}") for figure in figures)
    num_shown = sum(end <= room for end in ends)
    bar.set_postfix_str(", ".join(figures[:num_shown]), refresh=False)


@contextlib.contextmanager
def closed_at_end() -> Iterator[None]:
    """Context manager: ends the lines of bars that an error leaves open."""
    try:
        yield
    finally:
        for bar in printing.drawn_bars():
            bar.close()


@contextlib.contextmanager
def progress_bar(
    title: str, total: Optional[int], unit: str, *, shown: bool = True
) -> Iterator[Callable[[int], Any]]:
    """Context manager: a function that adds to the number done, which standard error shows.

    Args:
        total: None if it is not known.
        unit: The things that are counted, in the plural.
        shown: False for no output at all.
    """
    if shown and has_room(sys.stderr):
        from tqdm import tqdm

        with tqdm(
            total=total,
            desc=title,
            unit=f" {unit}",
            unit_scale=unit == "bytes",
            file=sys.stderr,
            dynamic_ncols=True,
        ) as bar:
            yield bar.update
        return
    done, printed = 0, time.monotonic()

    def update(count: int) -> None:
        nonlocal done, printed
        done += count
        if shown and time.monotonic() - printed >= LINE_SECS:
            printed = time.monotonic()
            of = "" if total is None else f" of {total:,}"
            printing.report(f"{title}: {done:,}{of} {unit}", sys.stderr)

    yield update
