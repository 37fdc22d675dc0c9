import math

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.boxes.coders import (
    CODERS,
    CenterSizeCoder,
    CornerCoder,
    KeypointCoder,
    SquareCoder,
    make_box_coder,
)
from estimator_det.compat import tf
from estimator_det.protos import box_coder_pb2
from tests.conftest import golden_component
from tests.faults import faults

SETTINGS, ARRAYS = golden_component("box_coders")
SCALES = (10.0, 10.0, 5.0, 5.0)
BOX_CASES = {
    "frcnn_scaled": CenterSizeCoder(*SCALES),
    "frcnn_noscale": CenterSizeCoder(),
    "mean_stddev_0.1": CornerCoder(0.1),
    "square_scaled": SquareCoder(10.0, 10.0, 5.0),
}
KEYPOINT_CASES = {
    "keypoint_scaled": KeypointCoder(3, CenterSizeCoder(*SCALES)),
    "keypoint_noscale": KeypointCoder(3),
}
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.mark.parametrize("case", sorted(BOX_CASES))
def test_golden_boxes(case):
    coder, boxes, anchors = BOX_CASES[case], ARRAYS["boxes"], ARRAYS["anchors"]
    codes = coder.encode(tf.constant(boxes), tf.constant(anchors))
    np.testing.assert_allclose(codes, ARRAYS[f"{case}__encode"], **CLOSE)
    relative = tf.constant(ARRAYS["rel_codes"][:, : coder.code_size])
    decoded = coder.decode(relative, tf.constant(anchors))
    np.testing.assert_allclose(decoded.boxes, ARRAYS[f"{case}__decode"], **CLOSE)
    assert decoded.keypoints is None


@pytest.mark.parametrize("case", sorted(KEYPOINT_CASES))
def test_golden_keypoints(case):
    coder, boxes, anchors = KEYPOINT_CASES[case], ARRAYS["boxes"], ARRAYS["anchors"]
    keypoints = tf.constant(ARRAYS[f"{case}__keypoints"])
    codes = coder.encode(tf.constant(boxes), tf.constant(anchors), keypoints)
    np.testing.assert_allclose(codes, ARRAYS[f"{case}__encode"], **CLOSE)
    decoded = coder.decode(tf.constant(ARRAYS[f"{case}__rel"]), tf.constant(anchors))
    np.testing.assert_allclose(decoded.boxes, ARRAYS[f"{case}__decode_boxes"], **CLOSE)
    np.testing.assert_allclose(decoded.keypoints, ARRAYS[f"{case}__decode_keypoints"], **CLOSE)


def test_every_scale_is_that_of_its_own_number():
    anchor = tf.constant([[0.0, 0.0, 2.0, 4.0]])
    box = tf.constant([[1.0, 0.0, 7.0, 8.0]])
    # Centers (1, 2) and (4, 4); sizes 2 x 4 and 6 x 8.
    offsets = [2 * 1.5, 3 * 0.5, 5 * math.log(3), 7 * math.log(2)]
    point = tf.constant([[[2.0, 6.0]]])  # half a height and one width off the center
    plain = CenterSizeCoder(2, 3, 5, 7)
    np.testing.assert_allclose(plain.encode(box, anchor), [offsets], rtol=1e-6)
    codes = KeypointCoder(1, plain).encode(box, anchor, point)
    np.testing.assert_allclose(codes, [[*offsets, 2 * 0.5, 3 * 1.0]], rtol=1e-6)
    square = SquareCoder(2, 3, 5)
    codes = square.encode(tf.constant([[2.0, 0.0, 6.0, 4.0]]), tf.constant([[0.0, 0.0, 2.0, 2.0]]))
    np.testing.assert_allclose(codes, [[2 * 1.5, 3 * 0.5, 5 * math.log(2)]], rtol=1e-6)


# Fields of a message, its coder, and the coder of a message that sets nothing.
ALL = {
    "faster_rcnn_box_coder": (
        "y_scale: 2 x_scale: 3 height_scale: 4 width_scale: 6",
        CenterSizeCoder(2.0, 3.0, 4.0, 6.0), CenterSizeCoder(*SCALES),
    ),
    "keypoint_box_coder": (
        "num_keypoints: 2 y_scale: 3 x_scale: 2 height_scale: 4 width_scale: 6",
        KeypointCoder(2, CenterSizeCoder(3.0, 2.0, 4.0, 6.0)),
        KeypointCoder(2, CenterSizeCoder(*SCALES)),
    ),
    "square_box_coder": (
        "y_scale: 2 x_scale: 3 length_scale: 4",
        SquareCoder(2.0, 3.0, 4.0), SquareCoder(10.0, 10.0, 5.0),
    ),
    "mean_stddev_box_coder": (
        "stddev: 0.5", CornerCoder(0.5), CornerCoder(float(np.float32(0.01))),
    ),
}  # fmt: skip


def make(text):
    return make_box_coder(text_format.Parse(text, box_coder_pb2.BoxCoder()))


@pytest.mark.parametrize("kind", sorted(CODERS))
def test_every_coder_is_made_from_its_message(kind):
    text, coder, default = ALL[kind]
    assert make(f"{kind} {{ {text} }}") == coder
    assert make(f"{kind} {{ {'num_keypoints: 2' if 'keypoint' in kind else ''} }}") == default


@pytest.mark.parametrize("kind", sorted(CODERS))
def test_every_coder_decodes_what_it_encodes_on_any_batch(kind):
    coder = ALL[kind][1]
    random = np.random.default_rng(1)

    def boxes(*shape, square):
        corner = random.random([*shape, 2], np.float32)
        sizes = random.uniform(0.1, 1.0, [*shape, 1 if square else 2])
        return tf.constant(np.concatenate([corner, corner + sizes], -1), tf.float32)

    square = kind == "square_box_coder"
    anchors, given = boxes(7, square=square), boxes(2, 7, square=square)
    keypoints = tf.constant(random.random([2, 7, 2, 2], np.float32))
    codes = coder.encode(given, anchors, keypoints)
    assert codes.shape == [2, 7, coder.code_size]
    decoded = coder.decode(codes, anchors)
    np.testing.assert_allclose(decoded.boxes, given, atol=1e-5)
    if decoded.keypoints is not None:
        np.testing.assert_allclose(decoded.keypoints, keypoints, atol=1e-5)


@pytest.mark.parametrize("kind", sorted(CODERS))
def test_every_coder_survives_padding(kind):
    coder = ALL[kind][1]
    boxes = tf.zeros([3, 4])
    for anchors in (tf.constant([[0.1, 0.1, 0.4, 0.5]]), tf.zeros([1, 4])):
        codes = coder.encode(boxes, tf.repeat(anchors, 3, axis=0), tf.zeros([3, 2, 2]))
        assert np.isfinite(codes).all()


def test_errors():
    coders = box_coder_pb2.BoxCoder()
    assert "num_keypoints: must be 1 or more" in faults(coders, "keypoint_box_coder {}")
