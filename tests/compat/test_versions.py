from __future__ import annotations

import importlib
import os
import re
import types
from typing import Any

import pytest

from estimator_det.compat import versions
from tests.conftest import PROJECT
from tests.processes import run_python


@pytest.mark.parametrize("version", ["2.14.1", "2.22.0", "3.0.0", "1.15.5"])
def test_other_tensorflows_are_refused_with_a_remedy(version):
    with pytest.raises(
        ImportError, match=rf"{version} is not supported.*2\.15 to 2\.21.*pip install 'tensor"
    ):
        versions.check_tensorflow(version)
    for supported in ("2.15.1", "2.16.0-rc0", "2.21.0"):
        versions.check_tensorflow(supported)


def test_range_is_that_of_the_package():
    required = "\n".join(PROJECT["dependencies"])
    (oldest, newest) = re.findall(r"^tensorflow>=([\d.]+),<([\d.]+)$", required, re.MULTILINE)[0]
    assert versions.release(oldest) == versions.OLDEST_TENSORFLOW
    major, minor = versions.NEWEST_TENSORFLOW
    assert newest == f"{major}.{minor + 1}"
    assert f"tensorflow>={oldest},<{newest}" in versions.PACKAGES


def test_import_of_tensorflow_spares_setuptools():
    script = (
        "import estimator_det.compat, sys; assert not {'setuptools', 'distutils'} & {*sys.modules}"
    )
    run_python("-c", script, check=True)


def test_keras_of_another_release():
    versions.check_keras("2.15.1", None)
    versions.check_keras("2.19.1", "2.19.0")
    with pytest.raises(ImportError, match=r"missing for .*2\.19\.1.*'tf-keras~=2\.19\.0'"):
        versions.check_keras("2.19.1", None)
    with pytest.raises(ImportError, match=r"tf-keras 2\.20\.1 does not fit"):
        versions.check_keras("2.19.1", "2.20.1")


def _breaks(monkeypatch: pytest.MonkeyPatch, broken: str, error: Exception) -> None:
    imported = importlib.import_module

    def import_module(name: str, package: Any = None) -> types.ModuleType:
        if name.startswith(broken):
            raise error
        return imported(name, package)

    monkeypatch.setattr(importlib, "import_module", import_module)


def test_broken_estimator_and_missing_slim(monkeypatch):
    _breaks(monkeypatch, "tensorflow_estimator", AttributeError("no attribute 'x'"))
    remedy = r"pip install --force-reinstall --no-deps 'tensorflow-estimator==2\.15\.0'"
    with pytest.raises(ImportError, match=rf"tensorflow-estimator 2.*does not work here.*{remedy}"):
        versions.import_estimator()
    _breaks(monkeypatch, "tf_slim", ModuleNotFoundError("No module named 'tf_slim'"))
    monkeypatch.setattr(versions, "installed", lambda package: None)
    with pytest.raises(ImportError, match=r"tf-slim is missing.*'tf-slim==1\.1\.0'"):
        versions.import_slim()


def test_missing_and_broken_tensorflow(monkeypatch):
    _breaks(monkeypatch, "tensorflow", ImportError("libx.so"))
    monkeypatch.setattr(versions, "installed", lambda package: "2.19.1")
    with pytest.raises(
        ImportError,
        match=r"TensorFlow 2\.19\.1 is installed but broken \(libx\.so\).*--force-reinstall",
    ):
        versions.import_tensorflow()
    monkeypatch.setattr(versions, "installed", lambda package: None)
    with pytest.raises(ImportError, match="TensorFlow is not installed"):
        versions.import_tensorflow()


def test_the_commands_tell_what_is_wrong_in_a_line():
    program = (
        "import sys\n"
        "sys.modules['tensorflow_estimator'] = None\n"
        "from estimator_det.programs import cli\n"
        "sys.exit(cli.main(['demo', '--output_dir', sys.argv[1]]))"
    )
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = run_python("-c", program, "nowhere", env=environment)
    assert done.returncode == 1
    # Native libraries may print lines before it.
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert re.fullmatch(r"error: tensorflow-estimator .* Remedy: pip install .*", line)
    assert "Traceback" not in done.stderr
