"""What an installation contains, and what an import costs."""

from __future__ import annotations

import email
import itertools
import json
import os
import pathlib
import re
import sys

import pytest

import estimator_det
import exporters
import inputs
import model_fn
from tests import audit, release
from tests.conftest import PROJECT, PYPROJECT, ROOT
from tests.processes import run_python

ROOMS = ("estimator_det", "exporters", "inputs", "model_fn")
COMMAND = pathlib.Path(sys.executable).parent / "estimator-det"


def test_inputs_is_ours():
    # An unrelated package on PyPI has the same name.
    assert pathlib.Path(inputs.__file__).resolve().parent == ROOT / "inputs"


@pytest.mark.parametrize(
    ("file", "start", "num_lines"),
    [
        ("model_fn.py", ["-m", "estimator_det.model_main", "--help"], 1),
        ("inputs.py", ["-m", "estimator_det", "--version"], 1),
        ("model_fn.py", [str(COMMAND), "--version"], 1),
        ("exporters/__init__.py", ["-c", "import estimator_det"], 7),
        ("inputs.py", ["-c", "import model_fn; model_fn.train_and_evaluate"], 99),
    ],
)
def test_a_file_with_the_name_of_a_package_is_named(file, start, num_lines, tmp_path):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.touch()
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = run_python(*start, cwd=tmp_path, env=environment)
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
    done = run_python("-c", program, *modules)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The files that `pip install` would put into site-packages."""
    folder = tmp_path_factory.mktemp("build")
    run_python("-W", "ignore", "setup.py", "-q", "build", f"--build-base={folder}", check=True)
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
    assert all((built / room / "py.typed").is_file() for room in ROOMS)
    configs = {path.name for path in (ROOT / "estimator_det" / "configs").glob("*.config")}
    assert configs == {path.name for path in (built / "estimator_det" / "configs").glob("*")}


@pytest.mark.parametrize("repository", ["", "https://example.org/us/estimator-det"])
def test_metadata(repository, tmp_path):
    command = ("-W", "ignore", "setup.py", "-q", "egg_info", f"-e{tmp_path}")
    run_python(*command, check=True, env={**os.environ, "REPOSITORY": repository})
    text = next(tmp_path.glob("*/PKG-INFO")).read_text()
    about = email.message_from_string(text)
    assert about["Version"] == estimator_det.__version__
    assert about["License-Expression"] == "Apache-2.0"
    assert about.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert all("Apache License" in (ROOT / name).read_text() for name in ("LICENSE", "NOTICE"))
    links = re.findall(r"\]\(([^)]*)\)", about.get_payload())
    assert all(link.startswith("https://") for link in links)
    if repository:
        assert any(link.startswith(f"{repository}/raw/main/docs/images/") for link in links)
        assert f"{repository}/blob/main/docs/tutorial.md" in links
        assert len(about.get_all("Project-URL")) == 4


def test_a_release_has_its_date_and_no_changes():
    text = (ROOT / "CHANGELOG.md").read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", each) for each in headings[1:])
    page = (ROOT / "docs/installation.md").read_text()
    published = page.replace("in no index yet", "on PyPI: `pip install estimator-det`")
    assert "pip install estimator-det`" in published, "words that the release looks for"
    assert len(release.faults(text, "is in no index yet", " M a.py", "9.9.9", "")) == 4
    dated = f"{text}\n## 9.9.9 - 2030-01-31\n"
    assert not release.faults(dated, published, "", "9.9.9", "https://a.b")


def test_an_audit_that_checks_nothing_is_no_clean_one():
    checked = {"name": "pip", "version": "23.0", "vulns": []}
    skipped = {"name": "numpy", "skip_reason": "not found"}
    found = {**checked, "vulns": [{"id": "CVE-1", "fix_versions": ["23.3"]}]}
    for packages, lines in (
        ([skipped], None),
        ([skipped, checked], []),
        ([checked, found], ["pip 23.0: CVE-1, fixed in 23.3"]),
    ):
        assert audit.vulnerabilities(json.dumps({"dependencies": packages})) == lines
    assert audit.vulnerabilities("no connection") is None


def test_the_public_api_is_one_import():
    stub = (ROOT / "estimator_det" / "__init__.pyi").read_text()
    assert sorted(re.findall(r"import (\w+) as \1\n", stub)) == estimator_det.__all__
    for room in (estimator_det, exporters, inputs, model_fn):
        assert set(room.__all__) <= {*estimator_det.__all__} & {*dir(room)}
        for name in room.__all__:
            assert getattr(estimator_det, name) is getattr(room, name)
        with pytest.raises(AttributeError, match=f"'{room.__name__}' has no attribute 'Detecter'"):
            _ = room.Detecter


def test_every_dependency_has_its_reason():
    reasons = (ROOT / "docs" / "dependencies.md").read_text()
    groups = [*PROJECT["optional-dependencies"].values(), *PYPROJECT["dependency-groups"].values()]
    requirements = {*PROJECT["dependencies"], *itertools.chain(*groups)}
    for name in {re.split(r"[<>=; []", requirement)[0] for requirement in requirements}:
        assert re.search(rf"\b{re.escape(name)}\b", reasons), name
