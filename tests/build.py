"""Writes BUILD from the tree, its imports and the import contracts: `python -m tests.build`.

`test_build.py` holds BUILD against the tree, and checks that this program would write it.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import re
from typing import Dict, Iterator, List, Sequence, Set, Tuple

ROOT = pathlib.Path(__file__).parent.parent
ROOMS = ("estimator_det", "exporters", "inputs", "model_fn", "benchmarks")
COMPAT = "estimator_det/compat"
# Modules that lie in another layer than the rest of their folder.
OWN_TARGETS = (
    "estimator_det/console",
    "estimator_det/demo",
    "estimator_det/model_flags",
    "estimator_det/nets/spaghettinet",
    "estimator_det/tpu_environment",
    "estimator_det/verbs/legacy_cluster",
    "inputs/label_map",
    "inputs/machine",
    "inputs/schema",
    "model_fn/model_fn",
    "model_fn/runs/backends/base",
    "model_fn/runs/backends/cluster_tasks",
    "model_fn/runs/backends/estimator",
    "model_fn/runs/backends/tpu_options",
    "model_fn/runs/backends/tpu_resolver",
    "model_fn/runs/cluster",
    "model_fn/runs/data_split",
    "model_fn/runs/data_cursor",
    "model_fn/runs/evaluation_report",
    "model_fn/runs/history",
    "model_fn/runs/loop_options",
    "model_fn/runs/options",
    "model_fn/runs/progress",
    "model_fn/runs/signals",
    "model_fn/runs/summaries",
    "model_fn/runs/task_watch",
)
PROGRAMS = {"estimator-det": "estimator_det/cli.py", "model_main": "estimator_det/model_main.py"}
DATA = {"estimator_det": "configs/*.config", "estimator_det/protos": "*.proto"}

# Packages of requirements_lock.txt by what imports them; longer names first.
PYPI = {
    "google.cloud.storage": "google_cloud_storage",
    "google.api_core": "google_api_core",
    "google.auth": "google_auth",
    "google.protobuf": "protobuf",
    "google_crc32c": "google_crc32c",
    "absl": "absl_py",
    "matplotlib": "matplotlib",
    "numpy": "numpy",
    "PIL": "pillow",
    "pycocotools": "pycocotools",
    "pytest": "pytest",
    "requests": "requests",
    "tensorboard": "tensorboard",
    "tensorflow": "tensorflow",
    "tensorflow_estimator": "tensorflow_estimator",
    "tf_keras": "tf_keras",
    "tf_slim": "tf_slim",
    "tqdm": "tqdm",
}
# What TensorFlow and this package import by name only.
BY_NAME = {COMPAT: ("tensorboard", "tensorflow_estimator", "tf_keras", "tf_slim")}

HEAD = """\
# One library for each folder, and a test for each file of tests. `python -m tests.build` writes
# this file, tests/test_build.py holds it against the tree and the layers. Dependencies are in the
# order of the layers, top first, then packages of requirements_lock.txt.

load("@rules_python//python:defs.bzl", "py_binary", "py_library", "py_test")

package(default_visibility = ["//visibility:public"])

licenses(["notice"])  # Apache-2.0

exports_files([
    "LICENSE",
    "requirements_lock.txt",
])
"""

TESTS = """\
py_library(
    name = "tests",
    testonly = True,
    srcs = glob(["tests/**/*.py"]),
    data = glob([
        "*.md",
        "*.toml",
        "docs/**",
        "estimator_det/**",
        "tests/golden/**",
    ]) + [
        ".dockerignore",
        "BUILD",
        "Dockerfile",
        "LICENSE",
        "MANIFEST.in",
        "MODULE.bazel",
        "noxfile.py",
        "requirements_lock.txt",
        "setup.py",
    ],
    deps = [
{deps}
    ],
)

[
    py_test(
        name = file[:-len(".py")],
        srcs = [
            file,
            "tests/run_pytest.py",
        ],
        args = [file],
        main = "tests/run_pytest.py",
        deps = [":tests"],
    )
    for file in glob(["tests/**/test_*.py"])
]
"""


def text() -> str:
    """The content of BUILD."""
    order = _layers()
    files = [
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
    ]
    targets: Dict[str, List[str]] = {}
    for file in files:
        targets.setdefault(target_of(file), []).append(file)

    def rank(name: str) -> Tuple[bool, int, str]:
        room = name
        while room not in order and "/" in room:
            room = room.rpartition("/")[0]
        if room in order:
            return True, order.index(room), name
        return room != "benchmarks", order.index("inputs/datasets"), name

    names = sorted(targets, key=rank)
    parts = [HEAD]
    for name in names:
        own = sorted({target_of(o) for f in targets[name] for o in imported(f)} - {name}, key=rank)
        others = {package for file in targets[name] for package in packages(file)}
        deps = [f":{dep}" for dep in own]
        deps += [f"@pypi//{package}" for package in sorted(others | set(BY_NAME.get(name, ())))]
        parts.append(_library(name, deps))
    parts += [_binary(name, file) for name, file in PROGRAMS.items()]
    deps = [f":{name}" for name in names] + ["@pypi//gcp_storage_emulator", "@pypi//pytest"]
    parts.append(TESTS.replace("{deps}", "\n".join(f'        "{dep}",' for dep in deps)))
    return "\n".join(parts)


def target_of(file: str) -> str:
    """The target that a file of the rooms is in."""
    if file == "estimator_det/__init__.py":
        return COMPAT  # Almost empty; every other one would need it.
    return file[: -len(".py")] if file[: -len(".py")] in OWN_TARGETS else file.rpartition("/")[0]


def imported(file: str) -> Set[str]:
    """Files of our own that a file imports by name, anywhere in it."""
    found: Set[str] = set()
    for module, names in _imports(file):
        for full in [f"{module}.{name}" for name in names] or [module]:
            found.update(_module_file(full) or _module_file(module))
    return found


def packages(file: str) -> Set[str]:
    """Packages of PyPI that a file imports by name."""
    found = set()
    for module, names in _imports(file):
        for full in [module, *(f"{module}.{name}" for name in names)]:
            found.update(
                package
                for name, package in PYPI.items()
                if full == name or full.startswith(f"{name}.")
            )
    return found


@functools.cache
def _imports(file: str) -> Tuple[Tuple[str, List[str]], ...]:
    """(module, names imported from it) of all imports in a file."""
    return tuple(_read_imports(file))


def _read_imports(file: str) -> Iterator[Tuple[str, List[str]]]:
    for node in ast.walk(ast.parse((ROOT / file).read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, []
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module, [alias.name for alias in node.names]


def _module_file(module: str) -> List[str]:
    path = module.replace(".", "/")
    names = (f"{path}.py", f"{path}/__init__.py")
    return [name for name in names if path.split("/")[0] in ROOMS and (ROOT / name).is_file()]


def _layers() -> List[str]:
    """Targets in the order of the import contracts, top first."""
    contracts = [
        [name for layer in ast.literal_eval(found) for name in _names(layer)]
        for found in re.findall(
            r'^type = "layers"\nlayers = (\[.+?^\])',
            (ROOT / "pyproject.toml").read_text(),
            re.MULTILINE | re.DOTALL,
        )
    ]
    order: List[str] = []
    for name in contracts[0]:
        target = name if _is_target(name) else name.rpartition("/")[0]
        inner = [
            room
            for rooms in contracts[1:]
            for room in rooms
            if room.startswith(f"{target}/") and _is_target(room)
        ]
        order += [each for each in (target, *inner) if each not in order]
    return order


def _names(layer: str) -> List[str]:
    return [module.strip("() ").replace(".", "/") for module in re.split("[|:]", layer)]


def _is_target(name: str) -> bool:
    return name in OWN_TARGETS or (ROOT / name).is_dir()


def _library(name: str, deps: Sequence[str]) -> str:
    lines = ["py_library(", f'    name = "{name}",']
    if name.startswith("benchmarks"):
        lines.append("    testonly = True,")
    lines += _sources(name)
    if name in DATA:
        lines.append(f'    data = glob(["{name}/{DATA[name]}"]),')
    if len(deps) == 1:
        lines.append(f'    deps = ["{deps[0]}"],')
    elif deps:
        lines += ["    deps = [", *(f'        "{dep}",' for dep in deps), "    ],"]
    return "\n".join([*lines, ")", ""])


def _sources(name: str) -> List[str]:
    if name in OWN_TARGETS:
        return [f'    srcs = ["{name}.py"],']
    if name == COMPAT:
        files = ("estimator_det/__init__.py", f"{COMPAT}/*.py")
        return ["    srcs = glob([", *(f'        "{file}",' for file in files), "    ]),"]
    excluded = [f"{own}.py" for own in OWN_TARGETS if own.rpartition("/")[0] == name]
    if name == "estimator_det":
        excluded.append("estimator_det/__init__.py")
    if not excluded:
        return [f'    srcs = glob(["{name}/*.py"]),']
    if len(excluded) == 1:
        tail = [f'        exclude = ["{excluded[0]}"],']
    else:
        files = [f'            "{file}",' for file in sorted(excluded)]
        tail = ["        exclude = [", *files, "        ],"]
    return ["    srcs = glob(", f'        ["{name}/*.py"],', *tail, "    ),"]


def _binary(name: str, file: str) -> str:
    lines = [f'    name = "{name}",', f'    srcs = ["{file}"],', f'    main = "{file}",']
    return "\n".join(["py_binary(", *lines, '    deps = [":estimator_det"],', ")", ""])


if __name__ == "__main__":
    (ROOT / "BUILD").write_text(text())
