"""The speed of training steps, by which `init` plans and `--precision auto` chooses."""

from __future__ import annotations

import math
from typing import Any, Dict, List

import pytest

from estimator_det.programs import cli, console, step_speed
from estimator_det.programs.step_speed import Speed
from model_fn.runs import runner
from tests.programs.forking import small_config

# Losses and norms of gradients are those of float32 within what bfloat16 rounds.
FAST = Speed(seconds=0.1, batch_size=8, num_bytes=10**9, losses=[(2.0, 5.0), (1.0, 4.0)])
CONVOLUTIONS = FAST._replace(
    seconds=0.08, precision="bfloat16_convolutions", losses=[(2.01, 5.3), (0.99, 4.4)]
)
MIXED = FAST._replace(seconds=0.05, precision="mixed_bfloat16", losses=[(1.98, 6.0), (1.0, 3.0)])


@pytest.mark.parametrize(
    ("others", "taken", "text"),
    [
        ((), FAST, "float32 0.10 s"),
        ((CONVOLUTIONS, MIXED), MIXED, "0.08 s; mixed_bfloat16 0.05 s"),
        ((CONVOLUTIONS, MIXED._replace(seconds=0.09)), CONVOLUTIONS, "mixed_bfloat16 0.09 s"),
        ((CONVOLUTIONS._replace(seconds=0.096),), FAST, "bfloat16_convolutions 0.10 s"),
        # Another loss, other gradients, and a step that was not finite.
        ((MIXED._replace(losses=[(2.1, 5.0)]),), FAST, "mixed_bfloat16 0.05 s, other losses"),
        ((MIXED._replace(losses=[(2.0, 8.0)]),), FAST, "mixed_bfloat16 0.05 s, other losses"),
        ((MIXED._replace(seconds=math.inf, losses=[]),), FAST, "inf s, other losses"),
    ],
)
def test_the_fastest_precision_with_the_losses_of_float32(others, taken, text):
    speeds = [FAST, *others]
    assert step_speed.fastest(speeds) == taken
    described = step_speed.describe(speeds)
    assert described.startswith(f"precision: {taken.precision}; a step in float32 0.10 s")
    assert described.endswith(text)


def test_a_training_takes_the_fastest_precision(tmp_path, monkeypatch, capsys):
    taken: List[Any] = []

    def train(_: Any, folder: str, options: Any, **__: Any) -> Dict[str, float]:
        taken.append(options.precision)
        return {}

    monkeypatch.setattr(runner, "run", train)
    monkeypatch.setattr(step_speed, "measure", lambda *_: [FAST, MIXED])
    command = ["train", small_config(tmp_path, 1), "--model_dir", str(tmp_path / "run")]
    command += ["--precision", "auto"]
    assert cli.main(command) == console.EXIT_OK
    assert taken == [MIXED.precision]
    assert step_speed.describe([FAST, MIXED]) in capsys.readouterr().out
    assert cli.main([*command, "--strategy", "none"]) == console.EXIT_USAGE
