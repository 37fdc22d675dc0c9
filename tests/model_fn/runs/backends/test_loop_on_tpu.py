"""The TF2 loop on a TPU: what cores compute, run by the CPU in place of a core."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from typing import Any, Dict, List, Optional

import pytest

from estimator_det.compat import tf, tf1
from estimator_det.errors import ConfigError, NotFiniteLossError, UsageError
from inputs import pipeline as input_pipeline
from model_fn.checkpoints import positions
from model_fn.runs.backends import strategies
from model_fn.runs.cluster import SINGLE
from model_fn.runs.options import NONE, TPU, LoopOptions, TrainOptions
from model_fn.training import optimizers
from model_fn.training.loop_step import LoopStep
from tests.arrays import assert_same
from tests.checkpoints import stored
from tests.model_fn import fake
from tests.model_fn.runs.backends import tpu_stand_in
from tests.model_fn.runs.backends.test_loop import ADAM, AVERAGED, MOMENTUM, RMS

ON_TPU = {"strategy": TPU, "tpu_name": "local"}
FIXED = """model { ssd { inplace_batchnorm_update: true
  image_resizer { fixed_shape_resizer { height: 8 width: 8 } } } }"""
CLIPPED = "train_config { gradient_clipping_by_norm: 0.1 }"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> List[tpu_stand_in.Runnable]:
    """The functions of runs on the stand-in, which trains the fake detector."""
    functions: List[tpu_stand_in.Runnable] = []
    trace = LoopStep._traced

    def traced(self: LoopStep, call: Any) -> Any:
        function = trace(self, call)
        if not self._is_on_tpu:
            return function
        functions.append(tpu_stand_in.Runnable(function))
        return functions[-1]

    fake.install(monkeypatch)
    monkeypatch.setattr(input_pipeline, "build_train_input_fn", fake.make_train_input_fn)
    monkeypatch.setattr(LoopStep, "_traced", traced)
    monkeypatch.setattr(strategies, "_tpu", lambda _: tpu_stand_in.strategy())
    return functions


def _train(
    folder: pathlib.Path,
    config: Any,
    num_steps: int,
    precision: Optional[str] = None,
    **options: Any,
) -> Dict[str, Any]:
    loop = LoopOptions(**options)
    fake.train(folder, num_steps, config, seed=3, loop=loop, precision=precision)
    return stored(tf1.train.latest_checkpoint(str(folder)))


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (ADAM + AVERAGED, {"steps_per_call": 3}),
        pytest.param(MOMENTUM, {"accumulate_steps": 2}, marks=pytest.mark.exhaustive),
        pytest.param(RMS, {"precision": "mixed_bfloat16"}, marks=pytest.mark.exhaustive),
    ],
)
def test_a_core_takes_the_same_steps(tmp_path, made, optimizer, options):
    config = fake.pipeline_config(FIXED + CLIPPED + optimizer)
    # By turns: it resumes from another strategy's checkpoint, and another from its own.
    _train(tmp_path / "both", config, 2, **ON_TPU, **options)
    shutil.copytree(tmp_path / "both", tmp_path / "cpu")
    expected = _train(tmp_path / "cpu", config, 7, strategy=NONE, **options)
    found = _train(tmp_path / "both", config, 7, **ON_TPU, **options)
    assert_same(found, expected)
    files = [tmp_path / name / positions.POSITION_FILE for name in ("cpu", "both")]
    assert len({json.dumps(json.loads(file.read_text())["7"]) for file in files}) == 1
    # The cores do all of a step at once.
    assert made[-1].operations.count("TPUReplicateMetadata") == 1


def test_a_step_that_is_not_finite_is_rejected(tmp_path, made, monkeypatch):
    config = fake.pipeline_config(FIXED + MOMENTUM)
    before = _train(tmp_path, config, 2, **ON_TPU)
    monkeypatch.setattr(optimizers, "make_learning_rate", lambda *_: tf.constant(1e38))
    with pytest.raises(NotFiniteLossError):
        _train(tmp_path, config, 4, **ON_TPU)
    assert_same(stored(tf1.train.latest_checkpoint(str(tmp_path))), before, rtol=0, atol=0)


def test_shapes_must_be_fixed(tmp_path, made):
    open_shape = "model { ssd { image_resizer { keep_aspect_ratio_resizer {} } } }"
    with pytest.raises(ConfigError, match="the configuration cannot be run"):
        _train(tmp_path, fake.pipeline_config(open_shape + MOMENTUM), 2, **ON_TPU)
    assert not os.listdir(tmp_path) and not made


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tpu_name": None}, "needs tpu_name"),
        ({"num_replicas": 2}, "takes all cores"),
        ({"jit_compile": True}, "always compiles"),
        ({"strategy": NONE}, "tpu_name is .*'none' has no TPU"),
    ],
)
def test_options_that_a_tpu_does_not_have(options, message):
    with pytest.raises(UsageError, match=message):
        LoopOptions(**{**ON_TPU, **options})


def test_a_tpu_has_no_float16():
    with pytest.raises(UsageError, match="a TPU has mixed_bfloat16"):
        TrainOptions(loop=LoopOptions(**ON_TPU), precision="mixed_float16")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("local", "'local' has no cores that this machine can reach"),
        ("grpc://127.0.0.1:1", "nothing listens at 127.0.0.1:1"),
    ],
)
def test_a_tpu_that_cannot_be_reached(name, message):
    with pytest.raises(strategies.NoTpuError, match=message):
        strategies.set_up(LoopOptions(TPU, tpu_name=name), SINGLE, 9.0)
