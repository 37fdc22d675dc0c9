"""Python in a process of its own."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any, List

from tests.conftest import ROOT

# From 2.18 on, TensorFlow's native libraries print these before it reads its level.
EARLY = ("WARNING: All log messages before absl", "I0000 ")


def run_python(
    *arguments: str, cwd: pathlib.Path = ROOT, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Result and output of a new Python process; `options` go to `subprocess.run`."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, **options
    )


def messages(done: subprocess.CompletedProcess[str]) -> List[str]:
    """Lines on stderr without the lines that TensorFlow always prints."""
    return [line for line in done.stderr.splitlines() if not line.startswith(EARLY)]
