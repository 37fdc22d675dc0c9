"""What pytest prints, with `--reruns`, of tests that failed at first, and their connection."""

from __future__ import annotations

import socket
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


def pytest_sessionstart(session: pytest.Session) -> None:
    """Sends at once what pytest-rerunfailures tells the main process before and after each test.

    Its two short messages in a row otherwise wait for an acknowledgement: 40 ms a test, a fifth of
    the whole run.
    """
    if hasattr(session.config, "workerinput") and hasattr(session.config, "failures_db"):
        session.config.failures_db.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
