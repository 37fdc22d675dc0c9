"""The speed of training steps, by which `init` plans and `--precision auto` chooses."""

from __future__ import annotations

import math
from typing import Any, Dict, List
from unittest import mock

import pytest

from estimator_det.compat import tf
from estimator_det.errors import RunError
from estimator_det.programs import cli, console, step_speed
from estimator_det.programs.step_speed import Speed
from estimator_det.protos import pipeline_pb2
from inputs import machine
from model_fn.runs import runner
from tests.programs.forking import small_config

# Losses and norms of gradients differ from float32 by the rounding of bfloat16.
FAST = Speed(seconds=0.1, batch_size=8, num_bytes=10**9, losses=[(2.0, 5.0), (1.0, 4.0)])
CONVOLUTIONS = FAST._replace(
    seconds=0.08, precision="bfloat16_convolutions", losses=[(2.01, 5.3), (0.99, 4.4)]
)


@pytest.mark.parametrize(
    ("others", "taken", "text"),
    [
        ((), FAST, "float32 0.10 s"),
        ((CONVOLUTIONS,), CONVOLUTIONS, "bfloat16_convolutions 0.08 s"),
        ((CONVOLUTIONS._replace(seconds=0.096),), FAST, "bfloat16_convolutions 0.10 s"),
        # Another loss, other gradients, and a step that was not finite.
        ((CONVOLUTIONS._replace(losses=[(2.1, 5.0)]),), FAST, "0.08 s, other losses"),
        ((CONVOLUTIONS._replace(losses=[(2.0, 8.0)]),), FAST, "0.08 s, other losses"),
        (
            (CONVOLUTIONS._replace(seconds=math.inf, losses=[]),),
            FAST,
            "; bfloat16_convolutions fails here",
        ),
    ],
)
def test_the_fastest_precision_with_the_losses_of_float32(others, taken, text):
    speeds = [FAST, *others]
    assert step_speed.fastest(speeds) == taken
    described = step_speed.describe(speeds)
    assert described.startswith(f"precision: {taken.precision}; a step in float32 0.10 s")
    assert described.endswith(text)


def test_auto_measures_only_precisions_that_train_as_well_as_float32(monkeypatch):
    monkeypatch.setattr(machine, "has_bfloat16", lambda: True)
    config = pipeline_pb2.TrainEvalPipelineConfig()
    assert step_speed.own_precisions(config) == [FAST.precision, CONVOLUTIONS.precision]
    config.graph_rewriter.quantization.SetInParent()
    assert step_speed.own_precisions(config) == [FAST.precision]


def test_an_error_of_a_measured_run_says_what_is_wrong(tmp_path, monkeypatch):
    error = tf.errors.DataLossError(None, None, "Graph execution error:\n\nrecord 3 is damaged")
    monkeypatch.setattr(runner, "run", mock.Mock(side_effect=error))
    monkeypatch.setattr(step_speed.logging, "disable", mock.Mock())  # else for all later tests
    with pytest.raises(RunError, match="record 3 is damaged"):
        step_speed._measure_alone((b"", [], str(tmp_path / "turns"), 1), FAST.precision)


def test_a_training_takes_the_fastest_precision(tmp_path, monkeypatch, capsys):
    taken: List[Any] = []

    def train(_: Any, folder: str, options: Any, **__: Any) -> Dict[str, float]:
        taken.append(options.precision)
        return {}

    monkeypatch.setattr(runner, "run", train)
    monkeypatch.setattr(machine, "has_bfloat16", lambda: True)
    monkeypatch.setattr(step_speed, "measure", lambda *_: [FAST, CONVOLUTIONS])
    command = ["train", small_config(tmp_path, 1), "--model_dir", str(tmp_path / "run")]
    command += ["--precision", "auto"]
    assert cli.main(command) == console.EXIT_OK
    assert taken == [CONVOLUTIONS.precision]
    assert step_speed.describe([FAST, CONVOLUTIONS]) in capsys.readouterr().out
    assert cli.main([*command, "--strategy", "none"]) == console.EXIT_USAGE
    monkeypatch.setattr(machine, "has_bfloat16", lambda: False)
    assert cli.main(command) == console.EXIT_OK
    assert taken[1:] == [FAST.precision]
