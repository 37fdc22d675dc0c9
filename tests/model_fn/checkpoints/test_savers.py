"""Checkpoints of the Object Detection API's quantized models are restored, every variable."""

from __future__ import annotations

import logging
import pathlib
import types
from typing import Any, Dict

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.detectors.variables import variables_to_restore
from estimator_det.nets import layers
from estimator_det.nets.quantization import STEP_VARIABLE, Quantization, Quantizer, quantized_by
from estimator_det.protos import train_pb2
from model_fn.checkpoints import savers
from model_fn.checkpoints.variables import inference_variables
from model_fn.training import warm_start
from tests.checkpoints import save

STEPS = (tf1.GraphKeys.GLOBAL_STEP, STEP_VARIABLE)
HEAD = "BoxPredictor_0/BoxEncodingPredictor"


def _checkpoint(folder: pathlib.Path, values: Dict[str, np.ndarray]) -> str:
    prefix = str(folder / "model.ckpt-7")
    tensors, slices = list(map(tf.constant, values.values())), [""] * len(values)
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=list(values), shape_and_slices=slices, tensors=tensors
    )
    return prefix


def _build(is_training: bool) -> Any:
    """A detector with one quantized layer, and its network in the current graph."""
    tf1.train.get_or_create_global_step()
    quantizer = Quantizer(Quantization(), is_training)
    with tf1.variable_scope("BoxPredictor_0"), quantized_by(quantizer):
        layers.conv2d(tf.zeros([1, 4, 4, 3]), 2, 1, scope="BoxEncodingPredictor")

    def restore_map(kind: str, load_all: bool = False) -> Dict[str, tf.Variable]:
        return variables_to_restore(kind, load_all, ["BoxPredictor_0"], lambda name: name)

    return types.SimpleNamespace(restore_map=restore_map, is_tf2_line=False)


def test_every_variable_of_a_quantized_layer_is_restored(tmp_path, caplog):
    """By a training that resumes, by fine-tuning and by an evaluation."""
    ends = [f"{kind}_quant/{end}" for kind in ("weights", "act") for end in ("min", "max")]
    averages = [
        f"act_quant/{HEAD}/act_quant/{end}/{part}"
        for end in ("min", "max")
        for part in ("biased", "local_step")
    ]
    layer = {f"{HEAD}/{name}": np.float32(i) for i, name in enumerate([*averages, *ends])}
    layer[f"{HEAD}/weights"] = np.ones([1, 1, 3, 2], np.float32)
    layer[f"{HEAD}/biases"] = np.ones([2], np.float32)
    stored = {**layer, **{step: np.int64(9) for step in STEPS}}
    checkpoint = _checkpoint(tmp_path, stored)
    config = train_pb2.TrainConfig(
        fine_tune_checkpoint=checkpoint, fine_tune_checkpoint_type="full"
    )
    with tf.Graph().as_default(), tf1.Session() as session:
        detector = _build(True)
        saver = savers.make_saver(config)
        session.run(tf1.global_variables_initializer())
        saver.restore(session, checkpoint)
        variables = {v.op.name: v for v in tf1.global_variables()}
        np.testing.assert_equal(session.run(variables), stored)
        table = warm_start.plan_warm_start(detector, config, None)
        assert table is not None and sorted(table.restored) == sorted(layer)
        assert (table.missing, table.mismatched, table.unused, table.new_ranges) == ([], [], [], [])
        assert sorted(table.unused_slots) == sorted(STEPS)
        warm_start.initialize_from(table)
        session.run(tf1.global_variables_initializer())
        np.testing.assert_equal(session.run(variables), {**layer, **dict.fromkeys(STEPS, 0)})
    with tf.Graph().as_default(), tf1.Session() as session:
        _build(False)
        saver = savers.EvaluationSaver(inference_variables(False), None, {})
        with caplog.at_level(logging.WARNING):
            saver.restore(session, checkpoint)
        assert "no place for" not in caplog.text
        found = session.run({v.op.name: v for v in tf1.global_variables()})
    parts_of_training = ("/biased", "/local_step", STEP_VARIABLE)
    expected = {n: v for n, v in stored.items() if not n.endswith(parts_of_training)}
    np.testing.assert_equal(found, expected)


@pytest.mark.parametrize("is_fed", [False, True])
def test_layers_share_weights_and_their_penalty(tmp_path, is_fed):
    prefix = save(tmp_path, {"net/w": [[2.0]], "net/half": np.float16([2])})
    weights = savers.CheckpointWeights(prefix, False, is_fed=is_fed)
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        with tf1.variable_scope("net", reuse=tf1.AUTO_REUSE, custom_getter=weights):
            first = tf1.get_variable("w", [1, 1], regularizer=lambda w: 3.0 * tf.reduce_sum(w))
            again = tf1.get_variable("w", [1, 1])
            other = tf1.get_variable("not_stored", [1, 1])
            half = tf1.get_variable("half", [1])
        assert first is again and first.op.name == "net/w"
        assert tf1.global_variables() == [other, half]
        assert tf1.trainable_variables() == [first, other, half]
        penalties = graph.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)
        assert session.run(penalties, weights.feeds) == [6.0]
