"""A whole run as on TPU, rehearsed: warm start, training, evaluation, export, detection."""

from __future__ import annotations

import json
import pathlib
from typing import Dict, List

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline
from estimator_det.programs import cli, demo, model_main
from exporters.detect_files import DETECTIONS_FILE
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


def _check_starts_at(checkpoint: pathlib.Path, source: pathlib.Path) -> None:
    """Checks that a checkpoint of step 0 holds the network of another one."""
    found, given = (tf1.train.load_checkpoint(str(path)) for path in (checkpoint, source))
    assert found.get_tensor("global_step") == 0
    names = [
        name
        for name in found.get_variable_to_shape_map()
        if name.startswith(("FeatureExtractor", "BoxPredictor")) and "/Adam" not in name
    ]
    assert len(names) > 10
    for name in names:
        np.testing.assert_array_equal(found.get_tensor(name), given.get_tensor(name), name)


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


@pytest.mark.exhaustive  # the test above has the loop, tests/model_fn what surrounds it
def test_from_a_checkpoint_to_a_model_that_detects(common, tmp_path, capsys):
    source, folder = tmp_path / "source", tmp_path / "rehearsed"
    first = [f"--model_dir={source}", "--mode=train", "--num_train_steps=1"]
    assert model_main.main([*common, *first]) == 0
    capsys.readouterr()

    common += [f"--model_dir={folder}"]
    start = f"--config_override=train_config {{ fine_tune_checkpoint: '{source}' }}"
    assert model_main.main([*common, *TPU, start]) == 0
    assert "mAP@.50IOU" in capsys.readouterr().out

    _check_starts_at(folder / "model.ckpt-0", source)
    _check_reports(folder)
    assert _scalars(folder / "eval_0", "events.*")["DetectionBoxes_Precision/mAP"] == [4]
    (evaluation,) = (folder / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(evaluation)["step"] == 4

    image = tmp_path / "shape.png"
    shapes.Image.fromarray(shapes.make_image((5, 0)).pixels).save(image)
    found = tmp_path / "found"
    arguments = ["detect", str(image), "--output_dir", str(found), "--min_score=0"]
    assert cli.main([*arguments, "--model", str(folder / "export" / "Servo")]) == 0
    (line,) = (found / DETECTIONS_FILE).read_text().splitlines()
    detections = json.loads(line)["detections"]
    assert detections and {entry["name"] for entry in detections} <= set(shapes.CLASS_NAMES)

    # And goes on without a TPU, and without what it started from.
    gone = "--config_override=train_config { fine_tune_checkpoint: 'PATH_TO_BE_CONFIGURED' }"
    assert model_main.main([*common, gone, "--mode=train", "--num_train_steps=5"]) == 0
    assert tf.train.latest_checkpoint(str(folder)).endswith("model.ckpt-5")
