"""Whole runs as on TPU, rehearsed: checkpoints, evaluations, exports, reports, a resumed run."""

from __future__ import annotations

import json
from typing import Any, Callable, List

import pytest

from estimator_det.compat import tf, tf1
from inputs import pipeline as input_pipeline
from inputs import schema
from model_fn.runs import exports, runner
from model_fn.runs.options import CheckpointOptions, EvaluationOptions
from model_fn.training import tpu_step
from tests.model_fn import fake
from tests.model_fn.runs.backends.test_tpu_estimator import FIT, REHEARSAL

CONFIG = FIT + "eval_config { batch_size: 2 num_examples: 6 }"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> List[Any]:
    """Puts the fake detector and its data in place; collects configurations of readers."""
    configs: List[Any] = []

    def feed(num_batches: int) -> Callable[..., Any]:
        def input_fn(params: Any = None, input_context: Any = None) -> tf.data.Dataset:
            del params, input_context
            features, labels = fake.arrays()
            features[schema.SOURCE_ID] = [b"one", b"two"]
            return tf.data.Dataset.from_tensors((features, labels)).repeat(num_batches)

        return input_fn

    def make_train(config: Any, *_: Any, cursor: Any, **__: Any) -> Callable[..., Any]:
        configs.append(config)
        on_tpu = cursor is None
        return feed(-1) if on_tpu else fake.make_train_input_fn(cursor=cursor)

    fake.install(monkeypatch)
    monkeypatch.setattr(input_pipeline, "build_train_input_fn", make_train)
    monkeypatch.setattr(input_pipeline, "build_eval_input_fn", lambda *_, **__: feed(3))
    monkeypatch.setattr(exports.serving, "create_predict_input_fn", fake.make_receiver)
    return configs


# Evaluations on a TPU's core are in tests/model_fn/runs/backends/test_tpu_estimator.py.
def test_run_and_resume(seen, tmp_path, caplog):
    config = fake.pipeline_config(CONFIG)
    arguments: Any = {
        "checkpoints": CheckpointOptions(steps=2),
        "evaluation": EvaluationOptions(every_steps=2),
        "progress": False,
        "tpu": REHEARSAL,
    }
    metrics = runner.train_and_evaluate(config, str(tmp_path), num_train_steps=4, **arguments)
    assert metrics["global_step"] == 4 and metrics["Loss/total_loss"] > 0
    assert seen[0].train_input_reader.drop_remainder
    assert not config.train_input_reader.HasField("drop_remainder")
    assert "position in the data" not in caplog.text
    again = runner.train_and_evaluate(config, str(tmp_path), num_train_steps=6, **arguments)
    assert again["global_step"] == 6
    assert "the position in the data is not saved" in caplog.text
    assert again["Loss/total_loss"] < metrics["Loss/total_loss"]
    lines = (tmp_path / "progress.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 4, 4, 5, 6, 6]  # and two ends
    assert json.loads(lines[-2])["gradient_norm"] > 0
    assert len(list(tmp_path.glob(f"events.*{tpu_step.FILE_SUFFIX}"))) == 2
    assert (tmp_path / "eval_0").is_dir() and (tmp_path / "export" / "Servo").is_dir()
    state = tf1.train.get_checkpoint_state(str(tmp_path))
    steps = [path.rsplit("-", 1)[1] for path in state.all_model_checkpoint_paths]
    assert steps == ["0", "2", "4", "6"]
    assert tf1.control_flow_v2_enabled()


def test_a_run_goes_on_without_a_tpu(seen, tmp_path):
    config = fake.pipeline_config(CONFIG)
    runner.train(config, str(tmp_path), num_train_steps=2, progress=False, tpu=REHEARSAL)
    runner.train(config, str(tmp_path), num_train_steps=3, progress=False)
    runner.train(config, str(tmp_path), num_train_steps=5, progress=False, tpu=REHEARSAL)
    path = tf1.train.latest_checkpoint(str(tmp_path))
    assert tf1.train.load_variable(path, "global_step") == 5
