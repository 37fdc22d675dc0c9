from __future__ import annotations

import io
from typing import Any

import pytest

from estimator_det.config import bars, printing


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _counted(stream: Any, total: Any = 5000, **settings: Any) -> str:
    """What a stream gets while 1200 are done at 0, 9, 10, 15 and 20 seconds."""
    times = iter([0.0, 0.0, 9.0, 10.0, 10.0, 15.0, 20.0, 20.0])
    with bars.ProgressBar(
        "reading", total, "records", stream=stream, clock=lambda: next(times), **settings
    ) as bar:
        for _ in range(5):
            bar.update(1200)
    return stream.getvalue()


def test_lines_now_and_then_where_there_is_no_terminal() -> None:
    assert _counted(io.StringIO()).splitlines() == [
        "reading: 3,600 of 5,000 records",
        "reading: 6,000 of 5,000 records",
    ]
    assert _counted(io.StringIO(), None).splitlines()[0] == "reading: 3,600 records"
    assert _counted(io.StringIO(), shown=False) == ""


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    text = _counted(_Terminal())
    assert "%|" in text and "reading: 3,600" not in text
    assert _counted(_Terminal(), shown=False) == ""
    monkeypatch.setattr(printing, "is_json", lambda: True)
    assert "%|" not in _counted(_Terminal())
