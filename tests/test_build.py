"""BUILD has each file in one target, and packages that are locked; Bazel itself is not needed."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from typing import Any, Dict, List

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT

PYPI = "@pypi//"


def _glob(patterns: List[str], exclude: Any = ()) -> List[str]:
    paths = {path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}
    excluded = {path for pattern in exclude for path in ROOT.glob(pattern)}
    return sorted(str(path.relative_to(ROOT)) for path in paths - excluded)


def _read_build() -> Dict[str, List[Dict[str, Any]]]:
    """Arguments of all calls by rule; the language of BUILD is a part of Python."""
    rules = ("load", "package", "licenses", "exports_files", "py_library", "py_binary", "py_test")
    calls: Dict[str, List[Dict[str, Any]]] = {rule: [] for rule in rules}

    def recorder(rule: str) -> Any:
        return lambda *_, **arguments: calls[rule].append(arguments)

    names = {"glob": _glob, **{rule: recorder(rule) for rule in rules}}
    exec(compile((ROOT / "BUILD").read_text(), "BUILD", "exec"), names)
    return calls


BUILD = _read_build()
LIBRARIES = {call["name"]: call for call in BUILD["py_library"]}


def test_each_python_file_is_in_one_library():
    sources = [file for library in LIBRARIES.values() for file in library["srcs"]]
    folders = ("estimator_det", "inputs", "model_fn", "exporters", "benchmarks", "tests")
    assert sorted(sources) == _glob([f"{folder}/**/*.py" for folder in folders])


def _locked() -> Dict[str, str]:
    """Versions by name of requirements_lock.txt, names with underscores."""
    lines = (ROOT / "requirements_lock.txt").read_text().splitlines()
    pins = [line.partition("==") for line in lines if line and not line.startswith("#")]
    assert all(version for _, _, version in pins)
    return {name.lower().replace("-", "_").replace(".", "_"): version for name, _, version in pins}


def test_packages_are_locked_in_versions_of_setup():
    locked = _locked()
    dependencies = {each for library in LIBRARIES.values() for each in library["deps"]}
    assert {each[len(PYPI) :] for each in dependencies if each.startswith(PYPI)} <= set(locked)
    text = (ROOT / "setup.py").read_text()
    required = ast.literal_eval(re.search(r"^REQUIRED = (\[.*?^\])", text, re.M | re.S)[1])
    for requirement in map(Requirement, required):
        name = requirement.name.lower().replace("-", "_")
        assert requirement.specifier.contains(locked[name]), f"{requirement}: {locked[name]}"
        assert f"{PYPI}{name}" in dependencies


def test_the_environment_has_the_locked_versions():
    locked = _locked()
    pair = (sys.version_info[:2], importlib.metadata.version("tensorflow"))
    if pair != ((3, 11), locked["tensorflow"]):
        pytest.skip("the lock is for another Python or TensorFlow")
    installed = {name: importlib.metadata.version(name) for name in locked}
    assert installed == locked, "run make venv, or after a change of setup.py make lock"
