"""What pytest prints, with `--reruns`, of tests that failed at first."""

from __future__ import annotations

from typing import Any, Iterator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    """The first failures, and at the very end the names of these tests."""
    reports = terminalreporter.stats.get("rerun", [])
    for report in reports:
        terminalreporter.section(f"first failure of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
    yield
    names = sorted({report.nodeid for report in reports})
    if names:
        terminalreporter.section(f"tests that were run again: {len(names)}")
    for name in names:
        terminalreporter.write_line(name)
