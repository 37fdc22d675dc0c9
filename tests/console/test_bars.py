from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import os
import pty
import struct
import sys
import termios
from types import SimpleNamespace
from typing import Any, Callable, Iterator, List, TextIO, Tuple

import pytest

from estimator_det.console import bars, printing

FIGURES = ["total 4.203", "58.2 images/s", "localization 1.03", "classification 2.001", "1.20 GB"]


@contextlib.contextmanager
def terminal(columns: int) -> Iterator[Tuple[TextIO, Callable[[], str]]]:
    """A terminal of so many columns, and a function that returns all it has received."""
    reading_end, writing_end = pty.openpty()
    fcntl.ioctl(writing_end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    os.set_blocking(reading_end, False)

    def received() -> str:
        texts = []
        with contextlib.suppress(BlockingIOError, OSError):
            while True:
                texts.append(os.read(reading_end, 65536))
        return b"".join(texts).decode().replace("\r\n", "\n")

    with os.fdopen(writing_end, "w") as stream:
        yield stream, received
    os.close(reading_end)


def rows(text: str) -> List[str]:
    """Lines of a terminal, and each state of a bar."""
    return [state.rstrip() for state in text.replace("\r", "\n").split("\n") if state.strip()]


@pytest.mark.parametrize(("columns", "num_figures"), [(80, 2), (110, 4), (200, 5)])
def test_a_bar_is_one_line_of_whole_figures(columns, num_figures):
    with terminal(columns) as (stream, received):
        bar = bars.make_steps_bar(5000, 0, stream)
        bars.set_figures(bar, FIGURES)
        bar.update(40)
        bar.refresh()
        bar.close()
        text = received()
    assert text.count("\n") == 1
    last = rows(text)[-1]
    assert len(last) == columns - 1 and f", {', '.join(FIGURES[:num_figures])}]" in last
    assert all(len(row) <= columns for row in rows(text))


def test_lines_are_printed_above_a_bar(monkeypatch):
    record = logging.LogRecord("a", logging.INFO, "a", 1, "from the log", (), None)
    with terminal(80) as (stream, received):
        monkeypatch.setattr(sys, "stderr", stream)
        with bars.closed_at_end():
            bar = bars.make_steps_bar(5000, 40, stream)
            printing.report("reported", stream)
            printing.LogHandler(stream).emit(record)
        assert bar.disable and not printing.drawn_bars()
        shown = [row.split("\r")[-1].strip() for row in received().split("\n")]
    assert shown[:2] == ["reported", "from the log"]
    assert "40/5000" in shown[2] and shown[3:] == [""]


def test_a_line_at_once_takes_the_place_of_a_bar(monkeypatch):
    with terminal(80) as (stream, received):
        monkeypatch.setattr(printing, "_STDERR", stream.fileno())
        bar = bars.make_steps_bar(5000, 40, stream)
        printing.report_at_once("once more stops", "WARNING")
        assert received().endswith("\r\x1b[Konce more stops\n")
        bar.close()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _counted(stream: Any, total: Any = 5000, **settings: Any) -> str:
    """What standard error gets while 1200 are done at 0, 9, 10, 15 and 20 seconds."""
    times = iter([0.0, 0.0, 9.0, 10.0, 10.0, 15.0, 20.0, 20.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        patch.setattr(bars, "time", SimpleNamespace(monotonic=lambda: next(times)))
        with bars.progress_bar("reading", total, "records", **settings) as update:
            for _ in range(5):
                update(1200)
    return stream.getvalue()


def test_lines_now_and_then_where_there_is_no_terminal():
    assert _counted(io.StringIO()).splitlines() == [
        "reading: 3,600 of 5,000 records",
        "reading: 6,000 of 5,000 records",
    ]
    assert _counted(io.StringIO(), None).splitlines()[0] == "reading: 3,600 records"
    assert _counted(io.StringIO(), shown=False) == ""


def test_a_bar_on_a_terminal(monkeypatch):
    text = _counted(_Terminal())
    assert "%|" in text and "reading: 3,600" not in text
    assert _counted(_Terminal(), shown=False) == ""
    monkeypatch.setattr(printing, "is_json", lambda: True)
    assert "%|" not in _counted(_Terminal())
