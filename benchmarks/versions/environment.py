"""Commands of estimator-det in another interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent import futures
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from benchmarks.speed import __main__ as speed

# The name of a function in `benchmarks.versions.tasks`, and its arguments.
Task = List[str]

_ABOUT = """
import json, platform
from estimator_det.compat import tf
print(json.dumps({"tensorflow": tf.__version__, "python": platform.python_version()}))
"""


class Environment(NamedTuple):
    """An interpreter, and a name for its reports and folders: "2.15.1 on 3.11.7"."""

    python: str
    name: str

    @property
    def folder(self) -> str:
        return self.name.replace(" ", "_")


def run(python: str, *arguments: str) -> str:
    """Output of `python arguments…` in the checkout; RuntimeError with its stderr if it fails."""
    process = subprocess.run(
        [python, *arguments],
        cwd=speed.ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    if process.returncode:
        command = " ".join([python, *arguments])[:300]
        raise RuntimeError(f"{command} ended with {process.returncode}:\n{process.stderr[-4000:]}")
    return process.stdout


def run_tasks(work: Sequence[Tuple[Environment, List[Task]]]) -> None:
    """Runs the tasks of each environment in one process, and these at the same time."""
    arguments = ("-m", "benchmarks.versions.tasks")
    with futures.ThreadPoolExecutor() as pool:
        started = [
            pool.submit(run, env.python, *arguments, json.dumps(tasks)) for env, tasks in work
        ]
        for future in started:
            future.result()


def find(python: str) -> Environment:
    """Asks an interpreter for its versions."""
    about: Dict[str, Any] = json.loads(run(python, "-c", _ABOUT).splitlines()[-1])
    return Environment(python, "{tensorflow} on Python {python}".format(**about))


def find_two(pythons: List[str]) -> Tuple[Environment, Environment]:
    """Both environments; ValueError if their versions are the same."""
    with futures.ThreadPoolExecutor() as pool:
        first, second = pool.map(find, pythons)
    if first.name == second.name:
        raise ValueError(f"both interpreters run {first.name}: nothing to compare")
    return first, second


def log(text: str) -> None:
    """Prints progress to stderr; the report goes to stdout."""
    print(text, file=sys.stderr, flush=True)
