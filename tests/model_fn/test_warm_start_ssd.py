"""Real extractors start from classification and from detection checkpoints, with their tables."""

from __future__ import annotations

import logging
import pathlib
from typing import Any, Callable, Dict, List

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import tf, tf1
from estimator_det.detectors import make_detector
from estimator_det.nets import inverted_residual
from estimator_det.protos import train_pb2
from model_fn.training import warm_start
from tests.detectors.configs import small_config

# Few channels: the tables and names are those of the whole networks.
V2 = """
  anchor_generator { ssd_anchor_generator { num_layers: 3 } }
  feature_extractor {
    type: "ssd_mobilenet_v2" depth_multiplier: 0.1 min_depth: 4 num_layers: 3
  }
"""
EXTRACTOR = "FeatureExtractor/"

Shapes = Dict[str, List[int]]


def detector_of(overrides: str) -> Any:
    config = small_config()
    config.ssd.feature_extractor.ClearField("num_layers")
    text_format.Merge(f"ssd {{ {overrides} }}", config)
    return make_detector(config, is_training=True)


def build(overrides: str) -> Any:
    """The detector, and its network in the current graph."""
    detector = detector_of(overrides)
    detector.predict(tf.zeros([1, 64, 64, 3]))
    return detector


def classify_with_mobilenet_v2() -> None:
    with tf1.variable_scope("MobilenetV2"), inverted_residual.arg_scope():
        inverted_residual.inverted_residual_net(
            tf.zeros([1, 64, 64, 3]),
            inverted_residual.V2_LAYERS,
            inverted_residual.depth_function(0.1, 4),
        )


def save(network: Callable[[], Any], folder: pathlib.Path, scope: str) -> str:
    """A checkpoint of a network with a number of its own in each variable, and a head."""
    with tf.Graph().as_default(), tf1.Session() as session:
        network()
        tf1.get_variable(f"{scope}/Logits/weights", [1, 1, 5, 7])
        tf1.train.create_global_step()
        starts = {}
        for number, variable in enumerate(tf1.global_variables()):
            value = np.full(variable.shape, number + 1, variable.dtype.as_numpy_dtype)
            starts[variable.initializer.inputs[1]] = value
        session.run(tf1.global_variables_initializer(), starts)
        return tf1.train.Saver().save(session, str(folder / "model.ckpt"))


def start_from(checkpoint: str, overrides: str, **settings: Any) -> Any:
    """The table, and the variables outside the extractor, once restored values were compared."""
    config = train_pb2.TrainConfig(fine_tune_checkpoint=checkpoint, **settings)
    with tf.Graph().as_default(), tf1.Session() as session:
        detector = build(overrides)
        table = warm_start.plan_warm_start(detector, config, None)
        assert table is not None
        warm_start.initialize_from(table)
        session.run(tf1.global_variables_initializer())
        reader = tf1.train.NewCheckpointReader(checkpoint)
        for name, value in session.run(table.restored).items():
            np.testing.assert_array_equal(value, reader.get_tensor(name), name)
        extra = [v.op.name for v in tf1.global_variables() if not v.op.name.startswith(EXTRACTOR)]
    return table, extra


@pytest.mark.slow
def test_classification_checkpoint(tmp_path, caplog):
    scope = "MobilenetV2"
    checkpoint = save(classify_with_mobilenet_v2, tmp_path, scope)
    names = {name for name, _ in tf1.train.list_variables(checkpoint)}
    assert not [name for name in names if name.startswith(EXTRACTOR)]
    with caplog.at_level(logging.WARNING):
        table, _ = start_from(checkpoint, V2, fine_tune_checkpoint_type="classification")
    # All of the classifier but its head; missing is what the detector has on top of it.
    assert set(table.restored) == names - {f"{scope}/Logits/weights", "global_step"}
    assert table.mismatched == []
    assert table.missing
    assert all(name.startswith(f"{scope}/layer_19_") for name in table.missing)
    assert table.unused == [f"{scope}/Logits/weights"]
    assert table.unused_slots == ["global_step"]
    assert table.backbone == len(table.restored) + len(table.missing)
    assert table.backbone_restored == len(table.restored) > 100
    assert f"{len(table.restored)} restored, 0 of another shape" in caplog.text
