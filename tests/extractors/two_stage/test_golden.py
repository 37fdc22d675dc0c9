"""Variables and feature values as measured on the reference.

`tests/golden/extractors/two_stage/variables.json` has checksums over name, shape and trainability
of all variables of both stages.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import pathlib
import zlib
from typing import Any, Dict, List, NamedTuple

import numpy as np
import pytest

import estimator_det.extractors  # noqa: F401  (fills the registry)
from estimator_det.compat import tf, tf1
from estimator_det.extractors.two_stage.recipe import make_extractor
from estimator_det.protos import faster_rcnn_pb2
from tests.conftest import TESTS

GOLDEN: Dict[str, Dict[str, Any]] = json.loads(
    (TESTS / "golden" / "extractors" / "two_stage" / "variables.json").read_text()
)
QUICK = ("faster_rcnn_resnet50", "faster_rcnn_inception_v2")
KINDS = [
    pytest.param(kind, marks=() if kind in QUICK else pytest.mark.exhaustive) for kind in GOLDEN
]
# The published network's variables, as tests/nets/test_nasnet.py has them.
PNASNET_VARIABLES, PNASNET_CRC32 = 1177, 1002280089
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
        features = extractor.proposal_features(extractor.normalize(images))
        crops = tf1.placeholder(tf.float32, [None, crop, crop, features.shape[-1]])
        return Built(images, features, crops, extractor.box_features(crops))


def variable_lines(graph: tf.Graph) -> List[str]:
    with graph.as_default():
        trainable = {v.op.name for v in tf1.trainable_variables()}
        return sorted(
            f"{v.op.name} {v.shape.as_list()} {v.op.name in trainable}"
            for v in tf1.global_variables()
            if v is not tf1.train.get_global_step()
        )


def crc32(lines: List[str]) -> int:
    return zlib.crc32("\n".join(lines).encode())


@pytest.mark.parametrize("kind", KINDS)
def test_variables(kind: str) -> None:
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


@pytest.mark.exhaustive
def test_variables_of_pnasnet_are_those_of_the_classifier() -> None:
    model = built("faster_rcnn_pnas", 16, 7)
    lines = variable_lines(model.images.graph)
    stages = {line.partition("/")[0] for line in lines}
    assert stages == {"FirstStageFeatureExtractor", "SecondStageFeatureExtractor"}
    assert len(lines) == PNASNET_VARIABLES
    assert crc32(sorted(line.partition("/")[2] for line in lines)) == PNASNET_CRC32
    assert model.features.shape == [2, 16, 16, 2 * 2160]
    assert model.box_features.shape[1:] == [4, 4, 4320]


class Measured:
    """What was measured of one configuration, from ../shared."""

    def __init__(self, shared: pathlib.Path, name: str) -> None:
        folder = shared / "golden"
        document = json.loads((folder / "numeric" / f"{name}.json").read_text())
        self.maps, self.kind = document["feature_maps"], document["feature_extractor"]
        self.arrays = dict(np.load(folder / "numeric" / f"{name}.npz"))
        self.images = np.load(folder / "numeric" / "_inputs.npz")["images_300"]
        spec = importlib.util.spec_from_file_location("detinit", folder / "detinit.py")
        assert spec and spec.loader
        self.detinit = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.detinit)

    def resized(self) -> np.ndarray:
        images = self.images.astype(np.float32)
        return tf1.image.resize_images(images, [SIDE, SIDE]).numpy()

    def load(self, session: Any, ends: List[tf.Tensor]) -> None:
        """Gives the values of the measurement to the variables that `ends` depend on."""
        needed = {op.name for op in ancestors(ends)}
        variables = [v for v in tf1.global_variables() if v.op.name in needed]
        values = {
            variable.initial_value: self.detinit.det_value(variable.op.name, variable.shape)
            for variable in variables
        }
        session.run([variable.initializer for variable in variables], values)


def ancestors(ends: List[tf.Tensor]) -> List[tf.Operation]:
    waiting, seen = [end.op for end in ends], set()
    while waiting:
        op = waiting.pop()
        if op not in seen:
            seen.add(op)
            waiting += [tensor.op for tensor in op.inputs]
    return list(seen)


def assert_first_values(found: np.ndarray, key: str, measured: Measured) -> None:
    """The first values of a map, in units of its largest."""
    expected = measured.arrays[f"fm__{key.replace('/', '_')}__first8"]
    largest = measured.maps[key]["max_abs"]
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
def test_values(name: str, stride: int, crop: int, pooled: int, shared: pathlib.Path) -> None:
    """Of the whole feature map, and of one crop of it at the first box."""
    measured = Measured(shared, name)
    images, model = measured.resized(), built(measured.kind, stride, crop)
    first_box = measured.arrays["proposal_boxes_normalized"][0, :1]
    with model.images.graph.as_default(), tf1.Session() as session:
        measured.load(session, [model.features, model.box_features])
        features = session.run(model.features, {model.images: images})
        cropped = tf.image.crop_and_resize(features[:1], first_box, [0], [crop * pooled] * 2)
        cropped = session.run(tf.nn.max_pool2d(cropped, pooled, pooled, "VALID"))
        box_features = session.run(model.box_features, {model.crops: cropped})

    golden = measured.maps["rpn_features_to_crop/0"]
    assert list(features.shape) == golden["shape"]
    assert features.sum(dtype=np.float64) == pytest.approx(golden["sum"], rel=1e-5)
    assert np.abs(features).max() == pytest.approx(golden["max_abs"], rel=1e-5)
    assert_first_values(features, "rpn_features_to_crop/0", measured)
    assert list(box_features.shape[1:]) == measured.maps["box_classifier_features"]["shape"][1:]
    assert_first_values(box_features, "box_classifier_features", measured)
