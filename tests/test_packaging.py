"""What an installation contains, and what an import costs."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

import estimator_det
import inputs
from tests.conftest import ROOT

ROOMS = ("estimator_det", "exporters", "inputs", "model_fn")


def test_inputs_is_ours():
    # An unrelated package on PyPI has the same name.
    assert pathlib.Path(inputs.__file__).resolve().parent == ROOT / "inputs"


@pytest.mark.parametrize(
    ("file", "start", "num_lines"),
    [
        ("model_fn.py", ["-m", "estimator_det.model_main", "--help"], 1),
        ("inputs.py", ["-m", "estimator_det.cli", "--version"], 1),
        ("exporters/__init__.py", ["-c", "import estimator_det"], 7),
        ("inputs.py", ["-c", "import model_fn; model_fn.train_and_evaluate"], 99),
    ],
)
def test_a_file_with_the_name_of_a_package_is_named(file, start, num_lines, tmp_path):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.touch()
    done = subprocess.run(
        [sys.executable, *start],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 1
    told = done.stderr.splitlines()
    name = file.partition(".")[0].partition("/")[0]
    assert f"{path} has the name of the package {name!r} of estimator-det" in told[-1], told
    assert "Remedy: rename the file" in told[-1] and len(told) <= num_lines


def test_import_without_tensorflow():
    program = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
    heavy = sorted({'tensorflow', 'keras', 'tf_slim'} & set(sys.modules))
    if heavy:
        sys.exit(f"import {module} loads {', '.join(heavy)}")
"""
    modules = [
        "estimator_det",
        "estimator_det.config.pipeline",
        "estimator_det.config.registry",
        "estimator_det.protos.pipeline_pb2",
        "inputs.label_map",
    ]
    done = subprocess.run(
        [sys.executable, "-c", program, *modules],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The files that `pip install` would put into site-packages."""
    folder = tmp_path_factory.mktemp("build")
    subprocess.run(
        [sys.executable, "-W", "ignore", "setup.py", "-q", "build", f"--build-base={folder}"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return folder / "lib"


def test_only_our_rooms_are_installed(built):
    assert sorted(path.name for path in built.iterdir()) == sorted(ROOMS)
    assert not list(built.rglob("*test*.py"))


def test_every_module_is_installed(built):
    for room in ROOMS:
        sources = {path.relative_to(ROOT) for path in (ROOT / room).rglob("*.py")}
        assert sources == {path.relative_to(built) for path in (built / room).rglob("*.py")}


def test_data_files_are_installed(built):
    protos = built / "estimator_det" / "protos"
    assert len(list(protos.glob("*.proto"))) == len(list(protos.glob("*_pb2.pyi"))) == 37
    configs = {path.name for path in (ROOT / "estimator_det" / "configs").glob("*.config")}
    assert configs == {path.name for path in (built / "estimator_det" / "configs").glob("*")}


def test_metadata():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "setup.py", "-q", "--name", "--version", "--license"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["estimator-det", estimator_det.__version__, "Apache-2.0"]
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_every_dependency_has_its_reason():
    reasons = (ROOT / "docs" / "dependencies.md").read_text()
    requirements = re.findall(r"[\"']([a-z][\w-]*[<>=]=?[^\"']+)", (ROOT / "setup.py").read_text())
    names = {re.split(r"[<>=; ]", requirement)[0] for requirement in requirements}
    assert {"tensorflow", "pytest", "grpcio-tools"} <= names
    for name in names:
        assert re.search(rf"\b{re.escape(name)}\b", reasons), name
