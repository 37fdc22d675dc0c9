"""The examples of docs/distributed.md, and the shapes demo trained by them."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any, List

import pytest

from estimator_det import demo
from estimator_det.config import pipeline
from inputs.datasets import shapes
from tests.checkpoints import trained_steps
from tests.messages import ROOT
from tests.programs.clusters import free_addresses

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "distributed.md"
EXAMPLES: List[str] = re.findall(
    r"^```bash\n(.*?cluster=.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
)
COMMAND = 'estimator-det() { "$PYTHON" -m estimator_det.cli "$@"; }\n'


def _run(example: str, folder: pathlib.Path, config: Any) -> str:
    """Runs an example with other ports; what its tasks printed."""
    (folder / "my.config").write_text(pipeline.format_pipeline(config))
    ports = sorted(set(re.findall(r"127\.0\.0\.1:22\d\d", example)))
    for port, free in zip(ports, free_addresses(len(ports))):
        example = example.replace(port, free)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable}
    subprocess.run(["bash", "-c", COMMAND + example], cwd=folder, env=environment, check=True)
    return "".join(path.read_text() for path in folder.glob("*.log"))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(2), ids=["async", "sync"])
def test_examples_run(tmp_path: pathlib.Path, number: int) -> None:
    files = shapes.make_dataset(str(tmp_path / "data"), seed=0, size="tiny")
    settings = ["train_config.batch_size=2", "train_config.startup_delay_steps=1"]
    output = _run(EXAMPLES[number], tmp_path, demo.demo_config(files, 6, settings))
    assert 6 <= trained_steps(str(tmp_path / "run")) <= 8, output
    assert "Training has ended: ps 0 ends" in output and "error" not in output, output


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(2), ids=["async", "sync"])
def test_the_demo_is_trained_by_a_cluster(tmp_path: pathlib.Path, number: int) -> None:
    files = shapes.make_dataset(str(tmp_path / "data"), seed=0, size="small")
    output = _run(EXAMPLES[number], tmp_path, demo.demo_config(files))
    if number:  # This example has no evaluator.
        command = [sys.executable, "-m", "estimator_det.cli", "evaluate", "--checkpoint_dir"]
        subprocess.run([*command, str(tmp_path / "run")], cwd=ROOT, check=True)
    lines = (tmp_path / "run" / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["metrics"][demo.MAP_50] >= 0.85, output
