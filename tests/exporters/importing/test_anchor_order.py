"""The order of anchors of 2017, found and undone."""

import types

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import tf, tf1
from estimator_det.errors import UsageError
from estimator_det.protos import model_pb2
from exporters.formats.frozen_graph import publish
from exporters.importing import anchor_order, importer

SSD = """ssd {
  anchor_generator { ssd_anchor_generator {
    aspect_ratios: [1.0, 2.0, 0.5, 3.0, 0.3333] } }
  box_predictor { convolutional_box_predictor {} } }"""


def _layouts(text=SSD, places=(2, 1)):
    return anchor_order.layouts_of(text_format.Parse(text, model_pb2.DetectionModel()), places)


def test_order_of_each_feature_map():
    assert [layout.order for layout in _layouts()] == [[0, 1, 2], [0, 2, 3, 4, 5, 1]]
    whole = SSD.replace("aspect_ratios:", "reduce_boxes_in_lowest_layer: false aspect_ratios:")
    assert [layout.order for layout in _layouts(whole)] == [[0, 2, 3, 4, 5, 1]] * 2
    plain = SSD.replace("aspect_ratios:", "interpolated_scale_aspect_ratio: 0 aspect_ratios:")
    assert [layout.order for layout in _layouts(plain)] == [[0, 1, 2], [0, 1, 2, 3, 4]]


def test_heads_are_permuted_as_the_anchors_are():
    layouts = _layouts()
    random = np.random.default_rng(0)
    ours = random.uniform(size=(12, 4)).astype(np.float32)  # 2 places of 3, 1 of 6
    theirs = ours.copy()
    theirs[6:] = ours[6:][[0, 5, 1, 2, 3, 4]]  # the last is second
    assert anchor_order.find_order(theirs, ours, layouts) == (anchor_order.ORDER_2017, 0.0)
    assert anchor_order.find_order(ours, ours, layouts) == (anchor_order.LAST, 0.0)
    assert anchor_order.find_order(theirs + 0.1, ours, layouts)[0] is None
    assert anchor_order.find_order(theirs[:6], ours, layouts)[0] is None
    boxes, classes = random.uniform(size=(1, 1, 8, 24)), random.uniform(size=(18,))
    values = {
        "BoxPredictor_1/BoxEncodingPredictor/weights": boxes,
        "BoxPredictor_1/ClassPredictor/biases": classes,
        "BoxPredictor_0/ClassPredictor/biases": np.arange(9.0),
        "other/weights": np.arange(3.0),
    }
    permuted = anchor_order.permute_heads(values, layouts)
    assert sorted(permuted) == [
        "BoxPredictor_1/BoxEncodingPredictor/weights",
        "BoxPredictor_1/ClassPredictor/biases",
    ]
    for position, source in enumerate([0, 2, 3, 4, 5, 1]):
        np.testing.assert_array_equal(
            values["BoxPredictor_1/BoxEncodingPredictor/weights"][..., 4 * position :][..., :4],
            boxes[..., 4 * source :][..., :4],
        )
        np.testing.assert_array_equal(
            values["BoxPredictor_1/ClassPredictor/biases"][3 * position :][:3],
            classes[3 * source :][:3],
        )
    np.testing.assert_array_equal(values["BoxPredictor_0/ClassPredictor/biases"], np.arange(9.0))


def test_models_of_one_order_are_refused():
    text = "ssd { anchor_generator { multiscale_anchor_generator {} } }"
    with pytest.raises(UsageError, match="--anchor_order 2017: is for models with ssd_anchor"):
        anchor_order.permute_heads({}, _layouts(text))


@pytest.mark.parametrize("computed", [False, True])
def test_anchors_in_a_graph(computed):
    expected = np.arange(8, dtype=np.float32).reshape(2, 4)
    with tf.Graph().as_default() as graph:
        corners = tf.constant(expected)
        if computed:
            halves = tf.constant(expected / 2)
            corners = tf.stack([halves + halves, halves * 2.0])[0]
            corners = tf.tile(corners[None], [1, 1, 1])
        tiled = tf.reshape(corners, [-1, 4])
        tf.transpose(tiled, name="Postprocessor/Decode/get_center_coordinates_and_sizes/transpose")
    graph_def = graph.as_graph_def()
    published = publish(graph_def, "a.pb")
    np.testing.assert_array_equal(published.anchors, expected)


def test_anchors_that_need_other_operations_are_not_computed():
    with tf.Graph().as_default() as graph:
        read = tf.reshape(tf.io.decode_raw(tf.io.read_file("/etc/hostname"), tf.float32), [-1, 4])
        tf.transpose(read + 1.0, name="Decode/get_center_coordinates_and_sizes/transpose")
    graph_def = tf1.GraphDef.FromString(graph.as_graph_def().SerializeToString())
    assert publish(graph_def, "a.pb").anchors is None


def _compared(shift, order, count=12):
    """Notes and warnings on anchors of a file, which are `shift` from ours in the order "last"."""
    ours = np.random.default_rng(0).uniform(size=(12, 4))
    own = types.SimpleNamespace(places=(2, 1), anchors=ours)
    published = types.SimpleNamespace(anchors=ours[:count] + shift)
    mapped = types.SimpleNamespace(values={})
    model = text_format.Parse(SSD, model_pb2.DetectionModel())
    return importer._apply_anchor_order(own, published, mapped, model, order)


def test_anchors_of_the_file_are_compared_with_ours():
    (equal,), warnings = _compared(2e-6, None)
    assert "are equal (largest difference 2e-06" in equal and not warnings
    _, (other,) = _compared(0.5, "2017")
    assert "they differ by up to 0.5 of an image's side" in other
    _, (fewer,) = _compared(0.0, None, 6)
    assert "the 6 anchors of the file are not the 12 anchors of the configuration. Correct" in fewer
    with pytest.raises(UsageError, match=r"--anchor_order 2017: .* have the order last"):
        _compared(0.0, "2017")
