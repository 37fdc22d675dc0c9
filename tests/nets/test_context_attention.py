"""Attention to context features: numbers by numpy, padding, variables, and what is refused."""

from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.detectors import Context
from estimator_det.nets.context_attention import (
    POST_BOX_CLASSIFIER,
    POST_RPN,
    AttentionContext,
    ContextAttention,
    make_context_attention,
)
from tests.detectors.two_stage import configs

RANDOM = np.random.default_rng(0)
BOXES = RANDOM.normal(size=[2, 3, 4]).astype(np.float32)  # [B, N, C]
SEEN = RANDOM.normal(size=[2, 5, 6]).astype(np.float32)  # [B, S, F]
NUM_BOXES, NUM_SEEN = [3, 2], [5, 2]
CONTEXT = """context_config {
  max_num_context_features: 4 context_feature_length: 6 attention_bottleneck_dimension: 5 %s
}"""


def attention(**options: Any) -> ContextAttention:
    """By default of one head and layer, to context features; D is 5, F is 6."""
    defaults = {"position": POST_BOX_CLASSIFIER, "temperature": 0.1}
    return ContextAttention(**{**defaults, "bottleneck": 5, "feature_length": 6, **options})


def run(
    one: ContextAttention, seen: np.ndarray = SEEN, num_seen: List[int] = NUM_SEEN
) -> Dict[str, np.ndarray]:
    """The features of boxes after attention under "", and the weights by name."""
    features = np.stack([BOXES.reshape(6, 4)] * 4, axis=1).reshape(6, 2, 2, 4)
    features[:, 0, 0] += 1.0
    features[:, 1, 1] -= 1.0  # the mean over cells stays
    with tf.Graph().as_default(), tf1.Session() as session:
        attention_context = AttentionContext(
            tf.sequence_mask(NUM_BOXES, 3), Context(tf.constant(seen), tf.constant(num_seen))
        )
        found = one(tf.constant(features), attention_context)
        assert found.shape == (6, 2, 2, 4)
        weights = {v.op.name: v for v in tf1.global_variables() if v.op.name.endswith("weights")}
        for name, variable in weights.items():
            values = np.random.default_rng(len(name) + ord(name[-9])).normal(size=variable.shape)
            session.run(variable.initializer, {variable.initializer.inputs[1]: values})
        others = [v for v in tf1.global_variables() if v.op.name not in weights]
        session.run([v.initializer for v in others])
        result = session.run({"": found, **weights})
    result[""] = (result[""] - features)[:, 0, 0].reshape(2, 3, 4)
    return result


def expected(weights: Dict[str, np.ndarray], block: str, output: str, boxes: Any, seen: Any) -> Any:
    """What boxes [B, N, C] find in seen, one array [M, F] for each image."""

    def layer(rows: np.ndarray, name: str) -> np.ndarray:
        return np.clip(rows @ weights[f"{name}/weights"] / np.sqrt(1.001), 0.0, 6.0)

    def unit(rows: np.ndarray) -> np.ndarray:
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)

    found = np.zeros_like(boxes)
    for image, (rows, shown) in enumerate(zip(boxes, seen)):
        queries, keys, values = (
            unit(layer(of, f"{block}/fully_connected{suffix}"))
            for of, suffix in ((rows, ""), (shown, "_1"), (shown, "_2"))
        )
        queries[NUM_BOXES[image] :] = 0.0
        weighed = np.exp(queries @ keys.T / 0.1)
        found[image] = layer(weighed / weighed.sum(axis=1, keepdims=True) @ values, output)
    return found


def real(rows: np.ndarray, counts: List[int]) -> List[np.ndarray]:
    return [one[:count] for one, count in zip(rows, counts)]


@pytest.mark.parametrize("sequential", [False, True])
def test_heads_layers_and_attention_among_boxes(sequential):
    heads, layers = (1, 2) if sequential else (2, 1)
    found = run(attention(heads=heads, layers=layers, self_attention=True, sequential=sequential))
    among = expected(found, "SelfAttentionBlock", "fully_connected", BOXES, real(BOXES, NUM_BOXES))
    start = (BOXES + among) / 2 if sequential else BOXES
    net, number = start, 0
    for layer in range(layers):
        answers = []
        for head in range(heads):
            number += 1
            block = f"AttentionBlock{head}_AttentionLayer{layer}"
            output = f"fully_connected_{number}"
            answers.append(expected(found, block, output, net, real(SEEN, NUM_SEEN)))
        net = net + sum(answers) / heads
    answer = net + start + (0 if sequential else among)
    np.testing.assert_allclose(found[""], answer, rtol=1e-4, atol=1e-4)


def test_attention_among_boxes_alone_needs_no_context():
    one = attention(self_attention=True, context_attention=False)
    found = run(one)
    answer = expected(found, "SelfAttentionBlock", "fully_connected", BOXES, real(BOXES, NUM_BOXES))
    np.testing.assert_allclose(found[""], answer, rtol=1e-4, atol=1e-5)
    with tf.Graph().as_default():
        found = one(tf.zeros([6, 2, 2, 4]), AttentionContext(tf.ones([2, 3], bool)))
    assert found.shape == (6, 2, 2, 4)


def test_without_context_features_boxes_find_nothing():
    found = run(attention(), num_seen=[5, 0])[""]
    np.testing.assert_allclose(found[1], 2 * BOXES[1], rtol=1e-5)


def test_bfloat16():
    with tf.Graph().as_default(), tf1.Session() as session, tf1.tpu.bfloat16_scope():
        context = Context(tf.constant(SEEN), tf.constant(NUM_SEEN))
        attention_context = AttentionContext(tf.sequence_mask(NUM_BOXES, 3), context)
        features = tf.cast(tf.ones([6, 1, 1, 4]), tf.bfloat16)
        found = attention(temperature=0.01, is_training=True)(features, attention_context)
        assert found.dtype == tf.bfloat16
        assert {v.dtype.base_dtype for v in tf1.trainable_variables()} == {tf.float32}
        norms = [op for op in session.graph.get_operations() if op.type == "FusedBatchNormV3"]
        moves = [op.get_attr("exponential_avg_factor") for op in norms]
        np.testing.assert_allclose(moves, [1 - 0.97] * 4, rtol=1e-5)
        session.run(tf1.global_variables_initializer())
        assert np.isfinite(session.run(tf.cast(found, tf.float32))).all()


def test_attention_as_configured():
    text = """attention_position: POST_RPN attention_temperature: 0.25 num_attention_heads: 3
        num_attention_layers: 2 use_self_attention: true self_attention_in_sequence: true"""
    model = configs.small_config(CONTEXT % text).faster_rcnn
    assert make_context_attention(model, is_training=True) == attention(
        position=POST_RPN, temperature=0.25, heads=3, layers=2, self_attention=True,
        sequential=True, is_training=True,
    )  # fmt: skip
    model.context_config.use_self_attention = False
    assert not make_context_attention(model, is_training=True).sequential


def names_and_shapes(overrides: str, is_training: bool) -> Dict[str, List[int]]:
    detector = configs.small_detector(f"{CONTEXT % overrides} {configs.MASKS}", is_training)
    with tf.Graph().as_default():
        context = Context(tf.constant(SEEN), tf.constant(NUM_SEEN))
        labels = configs.groundtruth() if is_training else None
        predictions = detector.predict(tf.zeros([2, 64, 64, 3]), None, labels, context)
        assert predictions.second_stage.class_logits.shape.is_fully_defined()
        detections = detector.postprocess(predictions)
        output = predictions.mask_output if is_training else detections.mask_output
        assert output.logits.shape.is_fully_defined()
        assert len(detector.updates()) == (8 if is_training else 0)
        return {v.op.name: v.shape.as_list() for v in tf1.global_variables()}


@pytest.mark.parametrize(
    ("position", "channels"),
    [("POST_BOX_CLASSIFIER", 12), pytest.param("POST_RPN", 8, marks=pytest.mark.exhaustive)],
)
def test_variables(position, channels):
    """Names of the published model; masks of detections share them with regions."""
    trained = names_and_shapes(f"attention_position: {position}", is_training=True)
    assert trained == names_and_shapes(f"attention_position: {position}", is_training=False)
    block = "AttentionBlock0_AttentionLayer0/fully_connected"
    layers = {
        f"{block}": [channels, 5],
        f"{block}_1": [6, 5],
        f"{block}_2": [6, 5],
        "fully_connected": [5, channels],
    }
    norms = ("beta", "gamma", "moving_mean", "moving_variance")
    assert {n: shape for n, shape in trained.items() if "fully_connected" in n} == {
        **{f"{name}/weights": shape for name, shape in layers.items()},
        **{f"{n}/BatchNorm/{part}": shape[1:] for n, shape in layers.items() for part in norms},
    }
