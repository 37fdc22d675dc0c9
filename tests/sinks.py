"""Standard streams that take no text."""

from __future__ import annotations

import os

SINKS = ("closed", "full disk", "dead pipe", "full pipe")


def use(kind: str) -> None:
    """Replaces standard output and error of this process, which is a test's own."""
    if kind == "closed":
        os.close(1)
        os.close(2)
        return
    if kind == "full disk":
        sink = os.open("/dev/full", os.O_WRONLY)
    else:
        reading_end, sink = os.pipe()
        if kind == "dead pipe":
            os.close(reading_end)
        else:  # Nobody reads; the reading end stays open.
            _fill(sink)
    os.dup2(sink, 1)
    os.dup2(sink, 2)


def _fill(pipe: int) -> None:
    os.set_blocking(pipe, False)
    try:
        while True:
            os.write(pipe, bytes(4096))
    except BlockingIOError:
        os.set_blocking(pipe, True)
