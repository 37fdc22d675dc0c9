"""A model_dir with the checkpoints of another network: refused before anything changes there."""

from __future__ import annotations

import pathlib
from typing import Any, Callable, Dict, Optional

import pytest

from estimator_det.compat import slim, tf, tf1
from estimator_det.errors import RunError
from inputs import pipeline as input_pipeline
from inputs import schema
from model_fn.runs.options import LoopOptions, TpuOptions
from tests.model_fn import fake

_FIT = """
model { ssd {
  image_resizer { fixed_shape_resizer { height: 8 width: 8 } } inplace_batchnorm_update: true } }
train_config { unpad_groundtruth_tensors: false }
"""
_ANCHORS = 3


class _Detector(fake.FakeDetector):
    """Has the heads of an SSD, for the classes of the configuration."""

    def __init__(self, config: Any, is_training: bool, graph_rewriter: Any = None) -> None:
        super().__init__(config, is_training, graph_rewriter)
        self._num_columns = config.ssd.num_classes + 1

    def predict(self, inputs: Any, *arguments: Any, **options: Any) -> fake.FakePredictions:
        predictions = super().predict(inputs, *arguments, **options)
        with tf1.variable_scope("BoxPredictor_0"):
            heads = {"BoxEncodingPredictor": 4, "ClassPredictor": self._num_columns}
            for scope, columns in heads.items():
                inputs = slim.fully_connected(inputs, _ANCHORS * columns, scope=scope)
        nothing = 0.0 * tf.reduce_sum(inputs)
        return predictions._replace(scores=predictions.scores + nothing)


@pytest.fixture(autouse=True)
def _install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "FakeDetector", _Detector)
    fake.install(monkeypatch)

    def feed(params: Any = None, input_context: Any = None) -> tf.data.Dataset:
        del params, input_context
        features, labels = fake.arrays()
        features[schema.SOURCE_ID] = [b"one", b"two"]
        return tf.data.Dataset.from_tensors((features, labels)).repeat()

    def make(*_: Any, cursor: Optional[Any] = None, **__: Any) -> Callable[..., Any]:
        return feed if cursor is None else fake.make_train_input_fn(cursor=cursor)

    monkeypatch.setattr(input_pipeline, "build_train_input_fn", make)


def _contents(folder: pathlib.Path) -> Dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


_ADAM = "adam_optimizer { learning_rate { constant_learning_rate { learning_rate: 0.1 } } }"


# Backends share the comparison: one refusal shows that a backend makes it.
@pytest.mark.parametrize(
    ("backend", "change", "remedies"),
    [
        ({}, f"train_config {{ optimizer {{ {_ADAM} }} }}",
         ["/Adam is missing", "pipeline.config in its folder", "another model_dir"]),
        ({"loop": LoopOptions()}, "train_config { optimizer { use_moving_average: true } }",
         ["no moving averages", "train_config.optimizer.use_moving_average=false"]),
        (
            {"tpu": TpuOptions(num_shards=2, iterations_per_loop=2, rehearses=True)},
            "model { ssd { num_classes: 2 } }",
            ["ClassPredictor/biases has shape [12], the model needs [9]", "--set model.ssd.num_cl"],
        ),
    ],
    ids=["estimator", "loop", "tpu_estimator"],
)  # fmt: skip
def test_it_is_refused_and_nothing_changes(tmp_path, backend, change, remedies):
    fake.train(tmp_path, 2, fake.pipeline_config(_FIT), **backend)
    before = _contents(tmp_path)
    with pytest.raises(RunError) as refusal:
        fake.train(tmp_path, 4, fake.pipeline_config(_FIT + change), **backend)
    assert _contents(tmp_path) == before
    for text in [str(tmp_path / "model.ckpt-2"), *remedies]:
        assert text in str(refusal.value)
