from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import Tuple

from tests.conftest import TESTS

FLAKY = """
import pathlib

def fails_once(name):
    path = pathlib.Path(name)
    if not path.exists():
        path.touch()
        raise AssertionError(f"the race of {name}")

def test_first(): fails_once("first")
def test_second(): fails_once("second")
def test_steady(): pass
"""
HANGING = """
import os, pytest

@pytest.mark.timeout(1)
def test_hangs(): os.read(os.pipe()[0], 1)
def test_steady(): pass
"""


def _pytest(folder: pathlib.Path, program: str, *arguments: str) -> Tuple[int, str]:
    """Exit code and output of pytest on a file, in two processes."""
    (folder / "test_them.py").write_text(program)
    command = [sys.executable, "-m", "pytest", "-p", "tests.reruns", "-n", "2", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent), "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def test_tests_that_were_run_again_are_listed_at_the_end(tmp_path: pathlib.Path) -> None:
    code, printed = _pytest(tmp_path, FLAKY, "--reruns=1", "-ra")
    assert code == 0, printed
    assert "first failure of test_them.py::test_first" in printed and "the race of first" in printed
    *_, title, first, second, total = printed.splitlines()
    assert "tests that were run again: 2" in title
    assert (first, second) == ("test_them.py::test_first", "test_them.py::test_second")
    assert "3 passed, 2 rerun" in total


def test_a_test_that_hangs_fails(tmp_path: pathlib.Path) -> None:
    code, printed = _pytest(tmp_path, HANGING, "-o", "timeout_method=thread")
    assert code == 1 and "1 failed, 1 passed" in printed, printed
    assert "test_them.py::test_hangs" in printed
