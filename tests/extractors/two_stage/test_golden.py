"""Variables and feature values as measured on the reference.

`tests/golden/extractors/two_stage/variables.json` has checksums over name, shape and trainability
of all variables of both stages.
"""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any, Dict, List, NamedTuple

import numpy as np
import pytest

import estimator_det.extractors  # noqa: F401  (fills the registry)
from benchmarks.conformance import goldens
from estimator_det.compat import tf, tf1
from estimator_det.extractors.two_stage.registry import make_extractor
from estimator_det.protos import faster_rcnn_pb2
from tests.conftest import MODELS, TESTS
from tests.nets.variables import crc32, variable_lines

GOLDEN: Dict[str, Dict[str, Any]] = json.loads(
    (TESTS / "golden" / "extractors" / "two_stage" / "variables.json").read_text()
)
QUICK = ("faster_rcnn_resnet50", "faster_rcnn_inception_v2")
KINDS = [
    pytest.param(kind, marks=() if kind in QUICK else pytest.mark.exhaustive) for kind in GOLDEN
]
SIDE = 256  # of images


class Built(NamedTuple):
    images: tf.Tensor
    features: tf.Tensor
    crops: tf.Tensor
    box_features: tf.Tensor


@functools.cache
def built(kind: str, stride: int, crop: int) -> Built:
    """Both stages of a type in training, in a graph of their own; `crop` is the side of a crop."""
    config = faster_rcnn_pb2.FasterRcnnFeatureExtractor(
        type=kind, first_stage_features_stride=stride
    )
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        extractor = make_extractor(config, is_training=True)
        images = tf1.placeholder(tf.float32, [2, SIDE, SIDE, 3])
        (features,) = extractor.proposal_features(extractor.recipe.normalize(images))
        crops = tf1.placeholder(tf.float32, [None, crop, crop, features.shape[-1]])
        return Built(images, features, crops, extractor.box_features(crops))


@pytest.mark.parametrize("kind", KINDS)
def test_variables(kind):
    model = built(kind, 16, 7)
    graph = model.images.graph
    lines = variable_lines(graph)
    with graph.as_default():
        assert GOLDEN[kind] == {
            "variables": len(lines),
            "variables_crc32": crc32(lines),
            "channels": [model.features.shape[-1], model.box_features.shape[-1]],
            "update_ops": len(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)),
            "regularization_losses": len(tf1.losses.get_regularization_losses()),
        }


def load(session: Any, ends: List[tf.Tensor], folder: pathlib.Path) -> None:
    """Gives the values of the measurement to the variables that `ends` depend on."""
    value = goldens.seeded_value(MODELS / "detinit.py", "det_value")
    needed = {op.name for op in ancestors(ends)}
    variables = [v for v in tf1.global_variables() if v.op.name in needed]
    values = {v.initial_value: value(v.op.name, v.shape) for v in variables}
    session.run([variable.initializer for variable in variables], values)


def ancestors(ends: List[tf.Tensor]) -> List[tf.Operation]:
    waiting, seen = [end.op for end in ends], set()
    while waiting:
        op = waiting.pop()
        if op not in seen:
            seen.add(op)
            waiting += [tensor.op for tensor in op.inputs]
    return list(seen)


def assert_first_values(found: np.ndarray, key: str, golden: goldens.Case) -> None:
    """The first values of a map, in units of its largest."""
    expected = golden.arrays[f"fm__{key.replace('/', '_')}__first8"]
    largest = golden.numeric["feature_maps"][key]["max_abs"]
    np.testing.assert_allclose(found.ravel()[:8] / largest, expected / largest, atol=1e-6)
    assert np.abs(expected).max() > 1e-3 * largest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stride", "crop", "pooled"),
    [
        ("faster_rcnn_resnet50_coco", 16, 7, 2),
        ("faster_rcnn_inception_v2_coco", 16, 7, 2),
        *(
            pytest.param(*row, marks=pytest.mark.exhaustive)
            for row in (
                ("faster_rcnn_resnet101_atrous_coco", 8, 7, 2),
                ("faster_rcnn_inception_resnet_v2_atrous_coco", 8, 17, 1),
            )
        ),
    ],
)
def test_values(name, stride, crop, pooled):
    """Of the whole feature map, and of one crop of it at the first box."""
    golden = goldens.read(MODELS, name)
    maps = golden.numeric["feature_maps"]
    model = built(golden.numeric["feature_extractor"], stride, crop)
    pixels = golden.images().astype(np.float32)
    images = tf1.image.resize_images(pixels, [SIDE, SIDE]).numpy()
    first_box = golden.arrays["proposal_boxes_normalized"][0, :1]
    with model.images.graph.as_default(), tf1.Session() as session:
        load(session, [model.features, model.box_features], MODELS)
        features = session.run(model.features, {model.images: images})
        cropped = tf.image.crop_and_resize(features[:1], first_box, [0], [crop * pooled] * 2)
        cropped = session.run(tf.nn.max_pool2d(cropped, pooled, pooled, "VALID"))
        box_features = session.run(model.box_features, {model.crops: cropped})

    expected = maps["rpn_features_to_crop/0"]
    assert list(features.shape) == expected["shape"]
    assert features.sum(dtype=np.float64) == pytest.approx(expected["sum"], rel=1e-5)
    assert np.abs(features).max() == pytest.approx(expected["max_abs"], rel=1e-5)
    assert_first_values(features, "rpn_features_to_crop/0", golden)
    assert list(box_features.shape[1:]) == maps["box_classifier_features"]["shape"][1:]
    assert_first_values(box_features, "box_classifier_features", golden)
