"""A whole run as on TPU, rehearsed: warm start, training, evaluation, export, detection."""

from __future__ import annotations

import pathlib
from typing import Dict, List

import pytest

from estimator_det.compat import tf1
from estimator_det.config import pipeline
from estimator_det.programs import demo, model_main
from inputs.datasets import shapes
from model_fn.training import tpu_step
from tests import small_extractor
from tests.programs.test_runs import PLAIN, SMALL

pytestmark = pytest.mark.slow

FIT = [
    "train_config.batch_size=4",
    "train_config.fine_tune_checkpoint_type=detection",
    "train_config.load_all_detection_checkpoint_vars=true",
    "model.ssd.inplace_batchnorm_update=true",
]
FIGURES = {
    "Loss/classification_loss",
    "Loss/localization_loss",
    "Loss/regularization_loss",
    "Loss/total_loss",
    "learning_rate",
    "gradient_norm",
}


def _scalars(folder: pathlib.Path, pattern: str) -> Dict[str, List[int]]:
    """Steps by tag, of the event files of a folder."""
    steps: Dict[str, List[int]] = {}
    for path in folder.glob(pattern):
        for event in tf1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                steps.setdefault(value.tag, []).append(event.step)
    return steps


def _check_reports(folder: pathlib.Path) -> None:
    """Checks what two loops of two steps report."""
    assert tf1.train.load_variable(str(folder), "global_step") == 4
    found = _scalars(folder, f"events.*{tpu_step.FILE_SUFFIX}")
    assert set(found) == FIGURES and all(steps == [2, 4] for steps in found.values())
    assert _scalars(folder, "events.*")["global_step/sec"] == [3], "one entry a loop"


@pytest.fixture
def common(tmp_path, monkeypatch):
    """Arguments of `model_main` for a small network and small data."""
    small_extractor.use(monkeypatch)
    files = shapes.make_dataset(str(tmp_path / "data"), seed=0, size="tiny")
    config_path = tmp_path / "small.config"
    config = demo.demo_config(files, 4, [*SMALL, PLAIN, *FIT])
    config_path.write_text(pipeline.format_pipeline(config))
    return ["model_main", f"--pipeline_config_path={config_path}"]


TPU = ["--rehearse_tpu", "--num_shards=2", "--iterations_per_loop=2"]


def test_training(common, tmp_path):
    folder = tmp_path / "rehearsed"
    assert model_main.main([*common, f"--model_dir={folder}", "--mode=train", *TPU]) == 0
    _check_reports(folder)
