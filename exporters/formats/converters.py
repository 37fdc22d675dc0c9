"""Converters of other packages, run as programs: in this environment, or in one of their own.

Some converters need other releases of packages than TensorFlow here. They are then installed in an
environment of their own, whose interpreter CONVERTERS_VARIABLE or `--converter_python` names.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import Optional, Sequence, Tuple

from estimator_det.config.text import ConfigError
from exporters.formats.base import ExportFormat, missing_runtime
from model_fn.checkpoints.errors import RunError

CONVERTERS_VARIABLE = "ESTIMATOR_DET_CONVERTERS"
_SHOWN_LINES = 15  # last lines of a failed converter's output that are shown
_FIND = (
    "import importlib.util, sys; "
    "sys.path = [p for p in sys.path if p]; "  # not a folder of this name in the current one
    "sys.exit(','.join(n for n in sys.argv[1:] if importlib.util.find_spec(n) is None) or 0)"
)


def python_of(interpreter: Optional[str]) -> str:
    """The interpreter for converters: the given one, that of CONVERTERS_VARIABLE, or this one.

    The variable may also name the folder of a virtual environment.
    """
    named = interpreter or os.environ.get(CONVERTERS_VARIABLE) or sys.executable
    path = os.path.join(named, "bin", "python") if os.path.isdir(named) else named
    if not os.access(path, os.X_OK):
        flag = "--converter_python" if interpreter else CONVERTERS_VARIABLE
        raise ConfigError(
            None,
            f"{flag}: {named} is no Python interpreter and no virtual environment",
            f"make one with python3 -m venv {shlex.quote(named)}, then install converters there",
        )
    return path


def find_converter(chosen: ExportFormat, given_python: Optional[str]) -> str:
    """The interpreter of `python_of`, or this one if only it has the converter of a format."""
    python, missing = _find(chosen, given_python)
    if missing:
        raise ConfigError(None, missing)
    return python


def check_installed(chosen: Sequence[ExportFormat], given_python: Optional[str]) -> None:
    """Refuses formats that cannot be written or run; the text lists all, with what to install."""
    unwritable = {each.name: _find(each, given_python)[1] for each in chosen if each.converter}
    missing = [unwritable.get(each.name) or missing_runtime(each) for each in chosen]
    text = "\n".join(filter(None, missing))
    if any(unwritable.values()):
        raise ConfigError(None, text)
    if text:
        raise RunError(text)


def _find(chosen: ExportFormat, given_python: Optional[str]) -> Tuple[str, str]:
    """The interpreter that has the converter of a format, or what is missing."""
    named = python_of(given_python)
    missing = ""
    # The named interpreter first, then this one; once if they are the same.
    for python in dict.fromkeys((named, sys.executable)):
        command = [python, "-c", _FIND, *chosen.converter]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if not result.returncode:
            return python, ""
        missing = missing or "".join(result.stderr.strip().splitlines()[-1:])
    return "", (
        f"--format {chosen.name}: its converter is not installed: {named} has no module {missing}; "
        f"run pip install 'estimator-det[{chosen.extra}]', or set {CONVERTERS_VARIABLE} to an "
        "environment that has it"
    )


def run_converter(
    chosen: ExportFormat, arguments: Sequence[str], given_python: Optional[str], output: str
) -> None:
    """Runs the converter of a format with the interpreter of `find_converter`."""
    python = find_converter(chosen, given_python)
    command = [python, *arguments]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    result = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace", check=False,
    )  # fmt: skip
    # Some converters end with code 0 although they have written nothing.
    has_output = os.path.isfile(output) or (os.path.isdir(output) and os.listdir(output))
    if result.returncode or not has_output:
        what = f"fails with code {result.returncode}" if result.returncode else "writes no model"
        lines = result.stdout.strip().splitlines()[-_SHOWN_LINES:] or ["(it prints nothing)"]
        raise RunError(
            f"the converter to {chosen.name}, {chosen.converter[0]} of {python}, {what}; its last "
            "lines:\n  " + "\n  ".join(lines)
        )
