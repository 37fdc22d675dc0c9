"""BUILD has a target for each folder, and its dependencies tell the truth and go downward.

A module that its folder and another one both need from opposite sides, such as `inputs.schema`
with `inputs.augment`, has a target of its own, named after it. `tests/build.py` writes the file.
"""

from __future__ import annotations

import ast
import functools
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Set

import pytest
from packaging.requirements import Requirement

import estimator_det
from tests import build
from tests.conftest import TESTS

ROOT = TESTS.parent
ROOMS = ("estimator_det", "exporters", "inputs", "model_fn", "benchmarks")
COMPAT = "estimator_det/compat"


class Target(NamedTuple):
    name: str
    srcs: Set[str]  # files, relative to the root
    deps: List[str]  # of our own
    packages: Set[str]  # of PyPI


PYPI = "@pypi//"


def _files(pattern: str) -> Set[str]:
    return {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)}


def _sources(node: ast.expr) -> Set[str]:
    if not isinstance(node, ast.Call):
        return set(ast.literal_eval(node))
    assert isinstance(node.func, ast.Name) and node.func.id == "glob"
    arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
    found = {name for pattern in ast.literal_eval(node.args[0]) for name in _files(pattern)}
    return found - {name for pattern in arguments.get("exclude", []) for name in _files(pattern)}


def _read_build() -> Dict[str, Target]:
    targets: Dict[str, Target] = {}
    for statement in ast.parse((ROOT / "BUILD").read_text()).body:
        call = getattr(statement, "value", None)
        if not isinstance(call, ast.Call) or getattr(call.func, "id", "") != "py_library":
            continue
        arguments: Dict[str, Any] = {keyword.arg or "": keyword.value for keyword in call.keywords}
        name = ast.literal_eval(arguments["name"])
        deps = ast.literal_eval(arguments["deps"]) if "deps" in arguments else []
        assert all(dep.startswith((":", PYPI)) for dep in deps), name
        packages = {dep[len(PYPI) :] for dep in deps if dep.startswith(PYPI)}
        assert name not in targets, f"two targets {name}"
        own = [dep[1:] for dep in deps if dep.startswith(":")]
        targets[name] = Target(name, _sources(arguments["srcs"]), own, packages)
    return targets


TARGETS = _read_build()


def _python_files() -> Set[str]:
    return {name for room in ROOMS for name in _files(f"{room}/**/*.py")}


def _folder(file: str) -> str:
    return file.rpartition("/")[0]


def _owner(file: str) -> str:
    owners = [target.name for target in TARGETS.values() if file in target.srcs]
    assert len(owners) == 1, f"{file} is in {owners or 'no target'} of BUILD"
    return owners[0]


def _names(layer: str) -> Set[str]:
    return {module.strip("() ").replace(".", "/") for module in re.split("[|:]", layer)}


def _layers() -> List[Set[str]]:
    """Layers of the import contracts as BUILD targets, top first; programs share one target.

    The rooms inside a package stand where the package does, below its own target.
    """
    text = (ROOT / "pyproject.toml").read_text()
    contracts = [
        [_names(layer) for layer in ast.literal_eval(found)]
        for found in re.findall(
            r'^type = "layers"\nlayers = (\[.+?^\])', text, re.MULTILINE | re.DOTALL
        )
    ]
    assert contracts
    layers = []
    for names in contracts[0]:
        layers.append({name if name in TARGETS else _folder(name) for name in names})
        for rooms in contracts[1:]:
            if {_folder(room) for layer in rooms for room in layer} <= names:
                layers += [layer & set(TARGETS) for layer in rooms]
    return layers


LAYERS = _layers()


def _layer(target: str) -> int:
    """Index of a target's layer; what lies inside a room belongs to the room's layer."""
    for index, layer in enumerate(LAYERS):
        if target in layer:
            return index
    assert "/" in target, f"{target} is in no layer of pyproject.toml"
    return _layer(_folder(target))


def test_every_folder_has_its_target() -> None:
    assert {_folder(file) for file in _python_files()} <= set(TARGETS)


def test_every_file_is_in_one_target_of_its_folder() -> None:
    for file in _python_files():
        # The almost empty top package comes along with what knows TensorFlow.
        own = {COMPAT} if file == "estimator_det/__init__.py" else {file[: -len(".py")]}
        assert _owner(file) in {_folder(file)} | own, file


def test_targets_have_files() -> None:
    for target in TARGETS.values():
        assert target.srcs and all((ROOT / file).is_file() for file in target.srcs), target.name


def test_dependencies_exist_and_form_no_circle() -> None:
    done: Set[str] = set()

    def visit(name: str, above: List[str]) -> None:
        assert name not in above, f"circle: {' -> '.join([*above, name])}"
        assert name in TARGETS, f"{above[-1]} depends on {name}, which BUILD does not have"
        if name not in done:
            for dep in TARGETS[name].deps:
                visit(dep, [*above, name])
            done.add(name)

    for name in TARGETS:
        visit(name, [])


def _installed() -> Iterator[Target]:
    for target in TARGETS.values():
        if target.name.split("/")[0] not in ("benchmarks", "tests"):
            yield target


def test_dependencies_obey_the_layers() -> None:
    assert len(LAYERS) >= 11
    for target in _installed():
        for dep in target.deps:
            within_a_room = _layer(target.name) == _layer(dep)
            assert _layer(target.name) < _layer(dep) or within_a_room, (
                f"{target.name} may not depend on {dep}"
            )


def test_dependencies_stand_in_the_order_of_the_layers() -> None:
    for target in _installed():
        order = [_layer(dep) for dep in target.deps]
        assert order == sorted(order), f"{target.name}: {target.deps}"


def _module_file(module: str) -> List[str]:
    path = module.replace(".", "/")
    names = (f"{path}.py", f"{path}/__init__.py")
    return [name for name in names if path.split("/")[0] in ROOMS and (ROOT / name).is_file()]


@functools.cache
def _imported(file: str) -> Set[str]:
    """Files of our own that a file imports by name, anywhere in it."""
    found: Set[str] = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.update(_module_file(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                submodule = _module_file(f"{node.module}.{alias.name}")
                found.update(submodule or _module_file(node.module))
    return found


@pytest.mark.parametrize("name", sorted(set(TARGETS) - {"tests"}))
def test_dependencies_are_what_the_files_import(name: str) -> None:
    target = TARGETS[name]
    needed = {_owner(other) for file in target.srcs for other in _imported(file)} - {name}
    assert set(target.deps) == needed, f"deps of {name} should be {sorted(needed)}"


@pytest.mark.parametrize("name", sorted(set(TARGETS) - {"tests"}))
def test_packages_are_what_the_files_import(name: str) -> None:
    needed = {package for file in TARGETS[name].srcs for package in build.packages(file)}
    assert TARGETS[name].packages == needed | set(build.BY_NAME.get(name, ()))


def test_it_is_what_the_generator_writes() -> None:
    assert build.text() == (ROOT / "BUILD").read_text(), "run: python -m tests.build"


def _statements(kind: str) -> List[Dict[str, Any]]:
    """The arguments of all calls of a rule at the top of BUILD."""
    return [
        {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in call.keywords}
        for statement in ast.parse((ROOT / "BUILD").read_text()).body
        if isinstance(call := getattr(statement, "value", None), ast.Call)
        and getattr(call.func, "id", "") == kind
    ]


def test_both_programs_have_their_target() -> None:
    programs = {each["name"]: each for each in _statements("py_binary")}
    assert set(programs) == {"estimator-det", "model_main"}
    for each in programs.values():
        assert each["srcs"] == [each["main"]] and each["deps"] == [":estimator_det"]
        assert 'if __name__ == "__main__":' in (ROOT / each["main"]).read_text()


def _locked() -> Dict[str, str]:
    """Versions by name of requirements_lock.txt, names with underscores."""
    lines = (ROOT / "requirements_lock.txt").read_text().splitlines()
    pins = [line.partition("==") for line in lines if line and not line.startswith("#")]
    assert all(version for _, _, version in pins)
    return {name.lower().replace("-", "_").replace(".", "_"): version for name, _, version in pins}


def test_packages_are_locked() -> None:
    locked = _locked()
    for target in TARGETS.values():
        assert target.packages <= set(locked), target.name


def test_locked_versions_are_those_of_setup() -> None:
    locked = _locked()
    text = (ROOT / "setup.py").read_text()
    required = ast.literal_eval(re.search(r"^REQUIRED = (\[.*?^\])", text, re.M | re.S)[1])
    for requirement in map(Requirement, required):
        name = requirement.name.lower().replace("-", "_")
        assert requirement.specifier.contains(locked[name]), f"{requirement}: {locked[name]}"


def test_the_module_has_the_version_of_the_package() -> None:
    text = (ROOT / "MODULE.bazel").read_text()
    calls = {
        statement.value.func.id: {
            keyword.arg: ast.literal_eval(keyword.value) for keyword in statement.value.keywords
        }
        for statement in ast.parse(text).body
        if isinstance(getattr(statement, "value", None), ast.Call)
        and isinstance(statement.value.func, ast.Name)
    }
    assert calls["module"]["version"] == estimator_det.__version__
    assert calls["bazel_dep"]["name"] == "rules_python"
    assert "//:requirements_lock.txt" in text and (ROOT / "requirements_lock.txt").is_file()
