"""BUILD has each file in one target, and packages that are locked; Bazel itself is not needed."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from typing import Any, Dict, List

import pytest
from packaging.requirements import Requirement

from tests.conftest import PROJECT, ROOT

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


def _name(package: str) -> str:
    return re.sub(r"[-_.]+", "_", package.lower())


def _locked(file: str, python: str, machine: str = "x86_64") -> Dict[str, str]:
    """Versions by name, with underscores, for a Python and a processor; each has hashes."""
    text = (ROOT / file).read_text()
    entries = re.findall(r"^(\w[^\\]*?)( \\\n    --hash=sha256:.*)?$", text, re.MULTILINE)
    assert entries and all(hashes for _, hashes in entries)
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    environment["platform_machine"] = machine
    wanted = [
        each
        for each in map(Requirement, (text for text, _ in entries))
        if each.marker is None or each.marker.evaluate(environment)
    ]
    versions = {_name(each.name): str(each.specifier)[2:] for each in wanted}
    assert len(versions) == len(wanted)
    return versions


@pytest.mark.parametrize("python", ["3.9", "3.10", "3.11", "3.12", "3.13"])
def test_packages_are_locked_for_every_python(python):
    assert f"Programming Language :: Python :: {python}" in PROJECT["classifiers"]
    product = _locked("requirements_lock.txt", python)
    tests = _locked("requirements_test_lock.txt", python)
    extras = _locked("requirements_extras_lock.txt", python)
    tools = _locked("requirements_tools_lock.txt", python)
    assert {"mkdocs", "pip_audit", "twine"} <= set(tools)
    for name in set(tools) & set(tests):
        assert tools[name] == tests[name], "one environment has both"
    assert product.items() <= tests.items()
    assert "pytest" not in product and {"pytest", "apache_beam", "av"} <= set(extras)
    for requirement in map(Requirement, PROJECT["dependencies"]):
        for locked in (product, extras):
            assert requirement.specifier.contains(locked[_name(requirement.name)]), requirement
    is_old = python in ("3.9", "3.10", "3.11")
    assert product["tensorflow"] == ("2.15.1" if is_old else "2.21.0")
    on_arm = _locked("requirements_lock.txt", python, machine="aarch64")
    assert set(on_arm) - set(product) == ({"tensorflow_cpu_aws"} if is_old else set())


def test_packages_of_build_are_locked():
    dependencies = {each for library in LIBRARIES.values() for each in library["deps"]}
    names = {each[len(PYPI) :] for each in dependencies if each.startswith(PYPI)}
    assert names <= set(_locked("requirements_test_lock.txt", "3.11"))
    assert {_name(Requirement(each).name) for each in PROJECT["dependencies"]} <= names


def test_the_environment_has_the_locked_versions():
    python = platform.python_version().rpartition(".")[0]
    locked = _locked("requirements_test_lock.txt", python, platform.machine())
    if importlib.metadata.version("tensorflow") != locked["tensorflow"]:
        pytest.skip("the lock is for another TensorFlow")
    installed = {name: importlib.metadata.version(name) for name in locked}
    assert installed == locked, "run make venv, or after a change of pyproject.toml make lock"
