from __future__ import annotations

import numpy as np
import pytest
from google.protobuf import text_format

import estimator_det.predictors  # noqa: F401  (fills the registry)
from estimator_det.compat import tf, tf1
from estimator_det.errors import UsageError
from estimator_det.predictors.base import make_box_head
from estimator_det.protos import box_predictor_pb2
from tests.faults import faults
from tests.graphs import evaluate, shapes


def make_head(text: str, training: bool, background=True, num_classes=5, learns=None):
    config = text_format.Parse(text, box_predictor_pb2.BoxPredictor())
    flags = {"is_training": training, "norm_is_training": training if learns is None else learns}
    return make_box_head(config, num_classes, add_background_class=background, **flags)


def predict(text: str, depths=(8, 8), anchors=(3, 6), training: bool = False, **options):
    random = np.random.default_rng(0)
    maps = [
        tf.constant(random.normal(size=(2, side, side, depth)), tf.float32)
        for side, depth in zip([4, 2, 2, 1], depths)
    ]
    return make_head(text, training, **options).predict(maps, list(anchors))


def test_depthwise_head():
    text = "use_depthwise: true kernel_size: 3 conv_hyperparams { batch_norm {} }"
    with tf.Graph().as_default():
        predict(f"convolutional_box_predictor {{ {text} }}", depths=[8], anchors=[3])
        assert shapes("weights") == {
            "BoxEncodingPredictor_depthwise/depthwise_weights": [3, 3, 8, 1],
            "BoxEncodingPredictor/weights": [1, 1, 8, 12],
            "ClassPredictor_depthwise/depthwise_weights": [3, 3, 8, 1],
            "ClassPredictor/weights": [1, 1, 8, 18],
        }


def test_layers_before_the_head():
    text = (
        "convolutional_box_predictor { num_layers_before_predictor: 2 min_depth: %d max_depth: %d }"
    )
    for low, high, depth in ((0, 4, 4), (0, 16, 8), (12, 16, 12), (12, 4, 12), (12, 0, 12)):
        with tf.Graph().as_default():
            predict(text % (low, high))
            assert shapes()[f"BoxPredictor_1/Conv2d_1_1x1_{depth}/weights"] == [1, 1, depth, depth]
    with tf.Graph().as_default():
        predict(text % (0, 0))
        assert not [name for name in shapes() if "Conv2d" in name]


@pytest.mark.parametrize("head", ["convolutional", "weight_shared_convolutional"])
def test_clip_range(head):
    more = "depth: 8" if head.startswith("weight") else ""
    text = f"""{head}_box_predictor {{ box_encodings_clip_range {{ min: -0.1 max: 0.2 }} {more}
        conv_hyperparams {{ initializer {{ random_normal_initializer {{ stddev: 1 }} }} }} }}"""
    with tf.Graph().as_default():
        boxes = evaluate(predict(text, anchors=(3, 3))).box_encodings
    assert (boxes.min(), boxes.max()) == (pytest.approx(-0.1), pytest.approx(0.2))


@pytest.mark.parametrize(
    "text",
    [
        "convolutional_box_predictor { apply_sigmoid_to_scores: true %s }",
        "weight_shared_convolutional_box_predictor { score_converter: SIGMOID %s }",
    ],
)
def test_scores_instead_of_logits(text):
    with tf.Graph().as_default():
        found = predict(text % "class_prediction_bias_init: -20", anchors=(3, 3))
        scores = evaluate(found).class_logits
    assert 0 <= scores.min() <= scores.max() < 1e-3


def test_the_shared_head_converts_scores_outside_training_only():
    text = """weight_shared_convolutional_box_predictor { score_converter: SIGMOID
        class_prediction_bias_init: -20 }"""
    with tf.Graph().as_default():
        logits = evaluate(predict(text, anchors=(3, 3), training=True)).class_logits
    assert logits.max() < -10
    text = "convolutional_box_predictor { apply_sigmoid_to_scores: true use_dropout: false }"
    with tf.Graph().as_default():
        assert evaluate(predict(text, anchors=(3, 3), training=True)).class_logits.min() > 0


@pytest.mark.parametrize(
    ("activation", "ops"),
    [("", ["Relu6"] * 2), ("activation: RELU", ["Relu"] * 2), ("activation: NONE", [])],
)
def test_tower_layers_end_with_their_activation_or_relu6(activation, ops):
    text = f"""weight_shared_convolutional_box_predictor {{ depth: 8 kernel_size: 1
        num_layers_before_predictor: 1 conv_hyperparams {{ {activation}
        initializer {{ random_normal_initializer {{ stddev: 9 }} }} }} }}"""
    with tf.Graph().as_default() as graph:
        found = predict(text, depths=[8], anchors=[1])
        assert [op.type for op in graph.get_operations() if "Relu" in op.type] == ops
        assert evaluate(found).box_encodings.shape == (2, 16, 4)


@pytest.mark.parametrize("head", ["convolutional", "weight_shared_convolutional"])
@pytest.mark.parametrize(("wanted", "training"), [(True, True), (True, False), (False, True)])
def test_dropout_drops_in_training_where_asked_for(head, wanted, training):
    text = f"use_dropout: {str(wanted).lower()} dropout_keep_probability: 0.5"
    text = f"{head}_box_predictor {{ {text} }}"
    with tf.Graph().as_default():
        found = predict(text, anchors=(3, 3), training=training)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            first, second = session.run(found), session.run(found)
    np.testing.assert_array_equal(first.box_encodings, second.box_encodings)
    drops = wanted and training
    assert np.array_equal(first.class_logits, second.class_logits) != drops


@pytest.mark.parametrize("head", ["convolutional", "weight_shared_convolutional"])
def test_share_that_dropout_keeps(head):
    text = f"{head}_box_predictor {{ use_dropout: true dropout_keep_probability: 0.75 }}"
    assert make_head(text, training=True).head.dropout_keep_probability == 0.75


SHARED = "WeightSharedConvolutionalBoxPredictor"


def test_maps_of_unequal_depth_are_projected_to_the_most_frequent_one():
    depths = (8, 4, 4, 6)
    with tf.Graph().as_default() as graph:
        text = "weight_shared_convolutional_box_predictor { conv_hyperparams { batch_norm {} } }"
        predict(text, depths=depths, anchors=[2] * 4)
        for number, depth in enumerate(depths):
            scope = f"{SHARED}/ProjectionLayer/conv2d_{number}"
            assert shapes()[f"{scope}/weights"] == [1, 1, depth, 4]
            assert shapes()[f"{scope}/BatchNorm/beta"] == [4]
        assert not [op.name for op in graph.get_operations() if "Relu" in op.type]


@pytest.mark.parametrize("shared", [True, False])
def test_classes_have_a_tower_of_their_own_unless_they_share_it(shared):
    text = f"""weight_shared_convolutional_box_predictor {{ depth: 8
        num_layers_before_predictor: 1 share_prediction_tower: {str(shared).lower()} }}"""
    with tf.Graph().as_default():
        found = predict(text, depths=[8], anchors=[1])
        (tower,) = (
            v
            for v in tf1.trainable_variables()
            if v.op.name.endswith("nTower/conv2d_0/weights") and "Class" not in v.op.name
        )
        assert (tf1.gradients(found.class_logits, tower)[0] is not None) == shared


@pytest.mark.parametrize("depthwise", ["true", "false"])
@pytest.mark.parametrize("forced", ["true", "false"])
def test_biases_before_batch_norm_only_where_forced(forced, depthwise):
    text = f"""weight_shared_convolutional_box_predictor {{ depth: 8 use_depthwise: {depthwise}
        num_layers_before_predictor: 1 share_prediction_tower: true
        conv_hyperparams {{ batch_norm {{ }} force_use_bias: {forced} }} }}"""
    with tf.Graph().as_default():
        predict(text, depths=[8, 8], anchors=[1, 1])
        biases = [name for name in shapes() if name.endswith("conv2d_0/biases")]
        scope = "WeightSharedConvolutionalBoxPredictor/PredictionTower"
        assert biases == ([f"{scope}/conv2d_0/biases"] if forced == "true" else [])


@pytest.mark.parametrize(
    "text", ["convolutional_%s max_depth: 8", "weight_shared_convolutional_%s depth: 8"]
)
@pytest.mark.parametrize("learns", [True, False])
def test_batch_norm_of_a_head_may_be_frozen_while_it_trains(text, learns):
    text %= "box_predictor { num_layers_before_predictor: 1 conv_hyperparams { batch_norm {} }"
    with tf.Graph().as_default():
        predict(f"{text} }}", depths=[8], anchors=[1], training=True, learns=learns)
        assert bool(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)) == learns


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weight_shared_convolutional_box_predictor { num_layers_before_predictor: 1 }", "more"),
        ("convolutional_box_predictor { box_encodings_clip_range { min: 1 max: 0 } }", "above max"),
    ],
)
def test_errors(text, message):
    assert message in faults(box_predictor_pb2.BoxPredictor(), text)


@pytest.mark.parametrize("text", ["convolutional_%s {}", "weight_shared_convolutional_%s {}"])
def test_each_map_has_anchors(text):
    message = "makes 2 feature maps, and the anchor generator has 1 layer; set equal numbers"
    with tf.Graph().as_default(), pytest.raises(UsageError, match=message):
        predict(text % "box_predictor", anchors=[1])


def test_unknown_sizes():
    with tf.Graph().as_default():
        fed = tf1.placeholder(tf.float32, [None, None, None, 4])
        found = make_head("convolutional_box_predictor {}", False).predict([fed], [3])
        values = evaluate(found, {fed: np.zeros([5, 2, 3, 4])})
    assert values.box_encodings.shape == (5, 18, 4)
    assert values.class_logits.shape == (5, 18, 6)
