"""Options of two-stage extractors: what they change, and what is refused."""

from __future__ import annotations

import re
from typing import Any, List

import pytest
from google.protobuf import text_format

import estimator_det.extractors  # noqa: F401  (fills the registry)
from estimator_det.compat import tf, tf1
from estimator_det.extractors.recipe import Recipe
from estimator_det.extractors.stages import (
    FIRST_STAGE_SCOPE,
    SECOND_STAGE_SCOPE,
    StageExtractor,
    StageOptions,
)
from estimator_det.extractors.two_stage.nasnet import stages as nasnet_stages
from estimator_det.extractors.two_stage.registry import EXTRACTORS, make_extractor
from estimator_det.nets import inception_resnet, nasnet, resnet
from estimator_det.protos import faster_rcnn_pb2
from tests.faults import faults

RESNET, INCEPTION = "faster_rcnn_resnet50", "faster_rcnn_inception_v2"
MOBILENET = "faster_rcnn_mobilenet_v1"
INCEPTION_RESNET, NAS = "faster_rcnn_inception_resnet_v2", "faster_rcnn_nas"
FIRST, SECOND = FIRST_STAGE_SCOPE, SECOND_STAGE_SCOPE
TINY_CELL = nasnet.Cell(
    ((nasnet.CellStep("max_pool", 3, 1), nasnet.CellStep("identity", 1, 0)),), (2,)
)
TINY_NASNET = nasnet.NasNet(
    TINY_CELL, num_cells=6, depth=8, stem_depth=4, keep_paths=0.7, halving_cell=TINY_CELL
)


def message(kind: str, text: str = "") -> Any:
    return text_format.Parse(f"type: '{kind}' {text}", faster_rcnn_pb2.FasterRcnnFeatureExtractor())


def ignored_fields(config: Any) -> Any:
    return EXTRACTORS.get(config.type).ignored_fields(config)


def make(kind: str, text: str = "", is_training: bool = True) -> Any:
    return make_extractor(message(kind, text), is_training)


@pytest.fixture(autouse=True)
def _short_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    for layers, table in resnet.V1_BLOCKS.items():
        monkeypatch.setitem(resnet.V1_BLOCKS, layers, tuple(b._replace(units=1) for b in table))
    for name in ("BLOCK35", "BLOCK17", "BLOCK8"):
        block = getattr(inception_resnet, name)
        monkeypatch.setattr(inception_resnet, name, block._replace(repeats=1))


def learning_norms(graph: tf.Graph) -> List[str]:
    """Batch norms that use batch statistics."""
    return [
        op.name
        for op in graph.get_operations()
        if op.type == "FusedBatchNormV3" and op.get_attr("is_training")
    ]


def test_a_pyramid_is_refused():
    pyramid = message("faster_rcnn_resnet50_keras", "fpn {}")
    assert "fpn: is not supported by faster_rcnn_resnet50_keras" in faults(pyramid)


@pytest.mark.parametrize("kind", sorted(EXTRACTORS))
def test_strides_and_fields(kind):
    found = faults(message(kind, "first_stage_features_stride: 4"))
    assert re.search("first_stage_features_stride: must be .*given: 4", found)
    assert make(kind).stride == 16
    assert ignored_fields(message(kind, "first_stage_features_stride: 16")) == ()


def test_stride_of_8():
    assert make(RESNET, "first_stage_features_stride: 8").stride == 8
    eighth = message(INCEPTION, "first_stage_features_stride: 8")
    assert make_extractor(eighth, True).stride == 16
    assert ignored_fields(eighth) == ("first_stage_features_stride",)
    nas = message(NAS, "first_stage_features_stride: 8")
    assert "must be 16 for faster_rcnn_nas; given: 8" in faults(nas)


def test_boxes_share_the_variables_of_their_stage():
    extractor = make(RESNET)
    with tf.Graph().as_default():
        images = tf1.placeholder(tf.float32, [1, None, None, 3])
        (features,) = extractor.proposal_features(images)
        assert features.shape.as_list() == [1, None, None, 1024]
        extractor.box_features(features)
        variables = {v.op.name for v in tf1.global_variables()}
        crops = tf.zeros([3, 7, 7, features.shape[-1]])
        assert extractor.box_features(crops).shape == [3, 7, 7, 2048]
        assert {v.op.name for v in tf1.global_variables()} == variables
        # The first stage has a block 4 of its own, which nothing uses.
        for scope in (FIRST, SECOND):
            assert f"{scope}/resnet_v1_50/block4/unit_1/bottleneck_v1/conv1/weights" in variables
        assert f"{SECOND}/resnet_v1_50/conv1/weights" not in variables


@pytest.mark.parametrize(
    ("trains", "is_training", "learns"),
    [
        (True, True, True),
        pytest.param(True, False, False, marks=pytest.mark.exhaustive),
        (False, True, False),
    ],
)
def test_batch_norm_learns_if_asked_and_training(trains, is_training, learns):
    extractor = make(RESNET, f"batch_norm_trainable: {str(trains).lower()}", is_training)
    with tf.Graph().as_default() as graph:
        (features,) = extractor.proposal_features(tf.zeros([2, 64, 64, 3]))
        extractor.box_features(features)
        norms = sum(op.type == "FusedBatchNormV3" for op in graph.get_operations())
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
    assert (len(learning_norms(graph)), len(updates)) == ((norms, 2 * norms) if learns else (0, 0))


@pytest.mark.parametrize("trains", [pytest.param(True, marks=pytest.mark.exhaustive), False])
def test_searched_networks_always_learn_in_the_first_stage(trains):
    recipe = Recipe("", nasnet.arg_scope, nasnet_stages(TINY_NASNET, ("Cell_2", "Cell_3")))
    options = StageOptions(is_training=True, train_batch_norm=trains)
    extractor = StageExtractor(recipe, options)
    with tf.Graph().as_default() as graph:
        tf1.train.create_global_step()
        (features,) = extractor.proposal_features(tf.zeros([2, 64, 96, 3]))
        assert features.shape == [2, 4, 6, 2 * 16]
        assert extractor.box_features(features).shape == [2, 2, 3, 32]
        stages = {name.partition("/")[0] for name in learning_norms(graph)}
        assert stages == ({FIRST, SECOND} if trains else {FIRST})
        drawn = [op.name for op in graph.get_operations() if op.type == "RandomUniform"]
        paths = {name.partition("/")[0] for name in drawn if "Initializer" not in name}
        assert paths == {FIRST, SECOND}  # dropped in both


def test_hyperparameters_of_the_configuration():
    text = "conv_hyperparams { batch_norm { decay: 0.9 train: %s } }"
    overrides = "override_base_feature_extractor_hyperparams: true"
    learns = "batch_norm_trainable: true"
    for train, used, count in (
        ("true", f"{learns} {overrides}", 27),
        ("false", f"{learns} {overrides}", 0),
        ("false", learns, 27),
    ):
        extractor = make(MOBILENET, f"{text % train} {used}")
        with tf.Graph().as_default() as graph:
            (features,) = extractor.proposal_features(tf.zeros([1, 64, 64, 3]))
            assert features.shape == [1, 4, 4, 512]
            assert extractor.box_features(tf.zeros([3, 7, 7, 512])).shape == [3, 4, 4, 1024]
            assert len(learning_norms(graph)) == count
            names = {extractor.classifier_name(v.op.name) for v in tf1.global_variables()}
        assert {f"MobilenetV1/Conv2d_{n}_depthwise/depthwise_weights" for n in (1, 13)} <= names
    assert ignored_fields(message(MOBILENET, text % "true")) == ("conv_hyperparams",)
    assert ignored_fields(message(MOBILENET, f"{text % 'true'} {overrides}")) == ()


def test_names_in_checkpoints_of_classifiers():
    assert make(RESNET).classifier_name("SecondStageBoxPredictor/weights") is None
    assert make(RESNET).classifier_name("global_step") is None
    found = make(RESNET).classifier_name(f"{FIRST}/resnet_v1_50/conv1/weights")
    assert found == "resnet_v1_50/conv1/weights"
    found = make(NAS).classifier_name(f"{SECOND}/cell_12/beginning_bn/beta")
    assert found == "cell_12/beginning_bn/beta/ExponentialMovingAverage"
    rename = make(INCEPTION_RESNET).classifier_name
    inside = "block8_1/Conv2d_1x1/biases"
    repeated = f"{SECOND}/InceptionResnetV2/Repeat/{inside}"
    assert rename(repeated) == f"InceptionResnetV2/Repeat_2/{inside}"
    for kept in ("Repeat/block35_1/Conv2d_1x1/biases", "Repeat_1/block17_1/Conv2d_1x1/biases"):
        assert rename(f"{FIRST}/InceptionResnetV2/{kept}") == f"InceptionResnetV2/{kept}"
    assert rename(f"{SECOND}/InceptionResnetV2/Block8/x") == "InceptionResnetV2/Block8/x"


@pytest.mark.parametrize(("is_training", "num_norms"), [(True, 0), (False, 1)])
def test_frozen_batch_norm_of_training_is_folded(is_training, num_norms):
    with tf.Graph().as_default() as graph:
        make(INCEPTION, is_training=is_training).box_features(tf.zeros([1, 7, 7, 576]))
        kinds = {op.type for op in graph.get_operations()}
    assert ("FusedBatchNormV3" in kinds) == bool(num_norms)
