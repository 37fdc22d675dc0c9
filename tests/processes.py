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
    """How it ended and what it printed; options are those of `subprocess.run`."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, **options
    )


def messages(done: subprocess.CompletedProcess[str]) -> List[str]:
    """What it printed as errors, without what cannot be kept from that."""
    return [line for line in done.stderr.splitlines() if not line.startswith(EARLY)]
