"""Dockerfile and .dockerignore: what is copied, installed and run; nothing is built."""

from __future__ import annotations

import fnmatch
import pathlib
import re
import subprocess
from typing import List, NamedTuple

from packaging.requirements import Requirement

from tests.conftest import PROJECT, ROOT

ROOMS = ("estimator_det", "inputs", "model_fn", "exporters")


class Step(NamedTuple):
    stage: str  # "" before the first one
    keyword: str
    value: str


def _steps() -> List[Step]:
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text())
    found, stage = [], ""
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        keyword, _, value = line.partition(" ")
        if keyword == "FROM":
            stage = value.split(" AS ")[1]
        found.append(Step(stage, keyword, value))
    return found


STEPS = _steps()


def _values(stage: str, keyword: str) -> List[str]:
    return [step.value for step in STEPS if (step.stage, step.keyword) == (stage, keyword)]


def test_everything_that_is_installed_is_copied_and_not_ignored():
    copied = [name for value in _values("train", "COPY") for name in value.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    needed = {"setup.py", "pyproject.toml", "LICENSE", "NOTICE", "README.md"}
    needed |= {"requirements_lock.txt", "requirements_extras_lock.txt"}
    assert needed | set(ROOMS) == set(copied)

    sources = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    sources += (ROOT / "estimator_det").rglob("*.proto")
    sources += (ROOT / "estimator_det").rglob("*.config")
    names = [str(path.relative_to(ROOT)) for path in sources]
    exports = [f"{folder}exported/saved_model/saved_model.pb" for folder in ("", "demo_output/")]
    assert not [name for name in [*copied, *names, *exports] if _is_ignored(name)]
    assert all(map(_is_ignored, ["demo_output/train.record", "tests/__init__.py", ".venv/bin/pip"]))


def _is_ignored(name: str) -> bool:
    """True if the last line of .dockerignore that matches a file, or its folder, excludes it."""
    path, ignored = pathlib.PurePath(name), False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.lstrip("!").replace("**/", "")
        if line and not line.startswith("#"):
            parts = [str(path), *map(str, list(path.parents)[:-1])]
            parts += path.parts if "**/" in line else []  # at any depth
            if any(fnmatch.fnmatchcase(part, pattern) for part in parts):
                ignored = not line.startswith("!")
    return ignored


def test_a_change_of_code_keeps_the_layers_of_its_dependencies():
    steps = [step for step in STEPS if step.stage == "train"]
    first_code = next(i for i, step in enumerate(steps) if step.value.startswith("setup.py"))
    installed = [step.value for step in steps[:first_code] if step.keyword == "RUN"]
    assert "--require-hashes --requirement requirements_lock.txt" in installed[0]
    install, extras = [step.value for step in steps[first_code:] if step.keyword == "RUN"]
    assert "--no-deps" in install and '"estimator-det[${EXTRAS}]"' in extras
    assert _values("train", "ARG")[-1] == "EXTRAS=", "none by default"


def test_extras_have_the_versions_of_their_lock():
    extras = _values("train", "RUN")[-1]
    command = re.fullmatch(r'\[ -z "\$\{EXTRAS\}" \] \|\| (.*?) +\| pip install .*', extras)
    constraints = subprocess.run(
        command[1], shell=True, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    names = {Requirement(line).name for line in constraints}
    assert {"starlette", "onnxruntime", "av", "tensorflow"} <= names


def test_the_image_runs_verbs_and_not_as_root():
    assert _values("train", "ENTRYPOINT") == ['["estimator-det"]']
    assert PROJECT["scripts"] == {"estimator-det": "estimator_det.__main__:main"}
    (user,) = _values("train", "USER")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)
