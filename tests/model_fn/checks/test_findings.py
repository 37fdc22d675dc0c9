from __future__ import annotations

import math

import pytest

from estimator_det.errors import error, warning
from estimator_det.files import json_lines
from estimator_det.protos import pipeline_pb2
from model_fn.checks import data_check, findings
from model_fn.events import PROGRESS_FILE


@pytest.mark.parametrize(
    ("step", "evaluated", "found"),
    [
        (60, 0.41, True),  # the median of steps 20 to 60 is .2
        (60, 0.4, False),
        (30, 1.5, False),  # the median of steps 10 to 30 is .9
        (5, 9.0, False),  # before the first report
        (60, math.nan, False),
    ],
)
def test_overfitting(tmp_path, step, evaluated, found):
    losses = {10: 1.0, 20: 0.9, 30: 0.3, 40: 0.2, 50: 0.1, 60: 0.15}
    for at, loss in [(60, 7.0), *losses.items(), (70, 0.01)]:  # Step 60 is repeated.
        json_lines.append(
            str(tmp_path / PROGRESS_FILE), {"step": at, "time": 1.0, findings.LOSS: loss}
        )
    config = pipeline_pb2.TrainEvalPipelineConfig()
    norm = config.model.ssd.feature_extractor.conv_hyperparams.batch_norm
    for norm.decay, weights, cause in [
        (0.89, "", "overfitting"),
        (0.9, "", "short training"),
        (0.95, "", "short training"),
        (0.9, "c", "overfitting"),
    ]:
        config.train_config.fine_tune_checkpoint = weights
        lines = findings.overfitting(config, str(tmp_path), step, evaluated)
        start = f"{cause}: the loss is 0.2 in training and 0."
        assert [line[: len(start)] for line in lines] == [start] * found
        # 0.9 cannot be lowered to 0.9.
        assert all(line.endswith("batch_norm.decay to 0.9") == (norm.decay > 0.9) for line in lines)


@pytest.mark.parametrize(
    ("precisions", "dots", "found"),
    [
        ({"big": 0.8, "dot": 0.016}, 5, True),
        ({"big": 0.8, "dot": 0.016}, 4, False),  # too few boxes to tell
        ({"big": 0.8, "dot": 0.2}, 5, False),  # weak, but found
        ({"big": 0.2, "dot": 0.0}, 5, False),  # nothing is learnt yet
        ({}, 5, False),
    ],
)
def test_classes_without_anchors(monkeypatch, precisions, dots, found):
    problems = [warning("a", "is small", "b"), error("model", "is missing", "add it")]
    monkeypatch.setattr(data_check, "anchor_problems", lambda config, max_records: problems)
    lines = findings.classes_without_anchors(None, precisions, {"big": 9, "dot": dots})
    text = "class 'dot' has an average precision of 0.016, the best class 0.800"
    assert lines == ([text, str(problems[0])] if found else [])
