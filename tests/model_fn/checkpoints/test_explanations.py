from __future__ import annotations

import re
from typing import Any, Dict, List

import pytest

from estimator_det.protos import model_pb2
from model_fn.checkpoints.explanations import explain_shapes
from tests.detectors.configs import small_config

Shapes = Dict[str, List[int]]

HEAD = "BoxPredictor_0/"
LAYER = "FeatureExtractor/MobilenetV1/Conv2d_13_pointwise_2_Conv2d_2_3x3_s2_512"
SHAPES: Shapes = {  # of a part of the small detector
    "FeatureExtractor/MobilenetV1/Conv2d_0/weights": [3, 3, 3, 8],
    "FeatureExtractor/MobilenetV1/Conv2d_1_depthwise/depthwise_weights": [3, 3, 8, 1],
    "FeatureExtractor/MobilenetV1/Conv2d_13_pointwise/weights": [1, 1, 102, 102],
    f"{LAYER}/weights": [3, 3, 102, 512],
    f"{HEAD}BoxEncodingPredictor/weights": [1, 1, 102, 12],
    f"{HEAD}BoxEncodingPredictor/biases": [12],
    f"{HEAD}ClassPredictor/weights": [1, 1, 102, 9],
    f"{HEAD}ClassPredictor/biases": [9],
}


def _explained(changes: Dict[str, Any], overrides: str = "") -> List[str]:
    """The options for a checkpoint with changed shapes; None removes a variable."""
    stored = {name: shape for name, shape in {**SHAPES, **changes}.items() if shape is not None}
    sentences = explain_shapes(small_config(overrides), stored, SHAPES)
    return [re.search(r"--set (\S+)$", text)[1] for text in sentences]


def test_classes():
    changes = {
        f"{HEAD}ClassPredictor/weights": [1, 1, 102, 273],
        f"{HEAD}ClassPredictor/biases": [273],
    }
    assert _explained(changes) == ["model.ssd.num_classes=90"]
    (text,) = explain_shapes(small_config(), {**SHAPES, **changes}, SHAPES)
    assert text == (
        "The checkpoint has the shapes of model.ssd.num_classes=90, the configuration has 2: use "
        "--set model.ssd.num_classes=90"
    )
    # With other anchors the columns do not say how many classes there are.
    assert _explained({**changes, f"{HEAD}BoxEncodingPredictor/biases": [24]}) == []
    assert _explained({f"{HEAD}ClassPredictor/biases": [10]}) == []
    assert _explained({f"{HEAD}ClassPredictor/biases": None}) == []


def test_classes_of_two_stages():
    model = model_pb2.DetectionModel()
    model.faster_rcnn.num_classes = 37
    name = "SecondStageBoxPredictor/ClassPredictor/biases"
    (text,) = explain_shapes(model, {name: [91]}, {name: [38]})
    assert "--set model.faster_rcnn.num_classes=90" in text


PREDICTOR = "model.ssd.box_predictor.convolutional_box_predictor"
FURTHER = f"{LAYER}_further_depthwise/depthwise_weights"  # no other kind of layer
FIRST = "FeatureExtractor/MobilenetV1/Conv2d_0/weights"
HALF = {  # widths at half of the depth multiplier
    FIRST: [3, 3, 3, 40],
    "FeatureExtractor/MobilenetV1/Conv2d_13_pointwise/weights": [1, 1, 512, 512],
    f"{LAYER}/weights": [3, 3, 512, 512],
}


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, []),
        ({"other": [7]}, []),
        ({f"{HEAD}BoxEncodingPredictor/weights": [3, 3, 102, 12],
          f"{HEAD}ClassPredictor/weights": [3, 3, 102, 9]},
         [f"{PREDICTOR}.kernel_size=3"]),
        ({f"{HEAD}ClassPredictor_depthwise/depthwise_weights": [3, 3, 102, 1]},
         [f"{PREDICTOR}.use_depthwise=true"]),
        ({f"{LAYER}_depthwise/depthwise_weights": [3, 3, 102, 1],
          f"{LAYER}/weights": [1, 1, 102, 512]},
         ["model.ssd.feature_extractor.use_depthwise=true"]),
        ({FURTHER: [3, 3, 102, 1]}, []),
        (HALF, ["model.ssd.feature_extractor.depth_multiplier=0.5"]),
        ({**HALF, FIRST: [3, 3, 3, 4]}, []),  # no common factor: another network
    ],
)  # fmt: skip
def test_options_of_the_network(changes, options):
    assert _explained(changes) == options


def test_another_network_is_not_explained():
    other = {f"FeatureExtractor/InceptionV2/{i}/weights": [1, 1, 8, 8] for i in range(9)}
    assert explain_shapes(small_config(), other, SHAPES) == []
