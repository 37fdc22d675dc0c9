"""The examples of docs/distributed.md."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from typing import Any, Dict, List

import pytest

from estimator_det.config import pipeline
from estimator_det.programs import demo
from inputs.datasets import shapes
from tests.checkpoints import trained_steps
from tests.conftest import ROOT
from tests.programs.clusters import free_addresses

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "distributed.md"
TEXT = PAGE.read_text()
NAMES = ("async", "data-workers", "mirrored", "multi-worker")  # in their order
BLOCKS: List[str] = re.findall(r"^```bash\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
EXAMPLES: Dict[str, str] = dict(zip(NAMES, BLOCKS))
# The page has these as options of the first example.
for _name, _options in re.findall(r"^The (same )?commands .*with `(--.*)`\.$", TEXT, re.MULTILINE):
    EXAMPLES["sync" if _name else "coordinator"] = EXAMPLES["async"].replace(
        "--model_dir run", f"--model_dir run {_options}"
    )
COMMAND = 'estimator-det() { "$PYTHON" -m estimator_det "$@"; }\n'


def _run(example: str, folder: pathlib.Path, config: Any) -> str:
    """Runs an example with other ports; what its tasks printed."""
    (folder / "my.config").write_text(pipeline.format_pipeline(config))
    if "data-worker" in example:  # The second one has a port that nobody else names.
        example = example.replace("--port 5051", f"--port {free_addresses(1)[0].partition(':')[2]}")
    ports = sorted(set(re.findall(r"127\.0\.0\.1:\d{4}", example)))
    for port, free in zip(ports, free_addresses(len(ports))):
        example = example.replace(port, free)
        example = example.replace(f"--port {port[-4:]}", f"--port {free.partition(':')[2]}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable}
    shell = subprocess.run(
        ["bash", "-mc", COMMAND + example],
        cwd=folder,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return shell.stdout + "".join(path.read_text() for path in folder.glob("*.log"))


def test_there_are_examples():
    assert len(BLOCKS) == len(NAMES)
    assert "evaluator" in EXAMPLES["async"] and "sync_replicas=true" in EXAMPLES["sync"]
    assert "data-worker --host" in EXAMPLES["data-workers"]
    assert "--strategy mirrored" in EXAMPLES["mirrored"]
    assert "--strategy multi_worker_mirrored" in EXAMPLES["multi-worker"]
    assert "--strategy parameter_server" in EXAMPLES["coordinator"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "batch_size", "text"),
    [
        ("async", 2, "Training has ended: ps 0 ends"),
        ("sync", 2, "Training has ended: ps 0 ends"),
        ("data-workers", 2, "each record is read once an epoch as long as no data worker fails"),
        ("mirrored", 4, "evaluation"),
        ("multi-worker", 4, "evaluation"),
        ("coordinator", 4, "evaluation"),
    ],
)
def test_examples_run(tmp_path, name, batch_size, text):
    files = shapes.make_dataset(str(tmp_path / "data"), seed=0, size="tiny")
    settings = [f"train_config.batch_size={batch_size}"]
    if name == "async":
        settings += ["train_config.startup_delay_steps=1"]
    output = _run(EXAMPLES[name], tmp_path, demo.demo_config(files, 6, settings))
    most = 8 if name in ("async", "sync") else 6
    assert 6 <= trained_steps(str(tmp_path / "run")) <= most, output
    assert text in output and "step 6" in output and "error" not in output, output
