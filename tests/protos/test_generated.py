"""The committed modules are what protoc makes of the .proto files."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys

import pytest

from tests.conftest import PROJECT, ROOT

PROTOS = ROOT / "estimator_det" / "protos"


def test_generated_modules_are_current(tmp_path):
    # Other versions write other headers.
    (requirement,) = PROJECT["optional-dependencies"]["protos"]
    pinned = re.fullmatch(r"grpcio-tools==([\d.]+);.*", requirement)[1]
    try:
        installed = importlib.metadata.version("grpcio-tools")
    except importlib.metadata.PackageNotFoundError:
        installed = "none"
    if installed != pinned:
        pytest.skip(f"needs grpcio-tools {pinned} (pip install -e .[protos]), found {installed}")
    sources = sorted(str(path.relative_to(ROOT)) for path in PROTOS.glob("*.proto"))
    options = ["-I.", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", *options, *sources], cwd=ROOT, check=True
    )
    fresh = {path.name: path for path in (tmp_path / "estimator_det" / "protos").iterdir()}
    committed = {path.name: path for path in PROTOS.glob("*_pb2.py*")}
    assert set(fresh) == set(committed)
    stale = [name for name in fresh if fresh[name].read_text() != committed[name].read_text()]
    assert not stale, f"run `make protos`: {', '.join(sorted(stale))}"
