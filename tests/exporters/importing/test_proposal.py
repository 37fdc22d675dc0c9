"""Configurations that are proposed from the shapes in a file."""

import numpy as np
import pytest

from estimator_det.errors import UsageError
from exporters.importing.proposal import explain_shapes, propose_config
from exporters.reading.published import Convolution, Named, Published, Structure

BODY = "FeatureExtractor/MobilenetV2"


def _layer(name, kind, *shape):
    return Convolution(name, kind, Named(f"{name}/weights", np.zeros(shape)), None, None, None)


def _published(*layers, size=None):
    structure = Structure(layers, {layer.name: layer.token for layer in layers}, {})
    return Published({}, structure, has_names=True, image_size=size)


def _heads(first=3, classes=5, kernel=1):
    layers = []
    for level, anchors in enumerate((first, 6)):
        scope = f"BoxPredictor_{level}"
        for name, size in (("BoxEncodingPredictor", 4), ("ClassPredictor", classes + 1)):
            layers.append(_layer(f"{scope}/{name}", "conv", kernel, kernel, 64, anchors * size))
    return layers


def test_plain_ssd():
    extra = _layer(f"{BODY}/layer_19_2_Conv2d_2_3x3_s2_512", "conv", 3, 3, 256, 512)
    wide = _layer(f"{BODY}/Conv_1", "conv", 1, 1, 240, 1280)
    ssd = propose_config(_published(wide, extra, *_heads(kernel=3), size=(320, 256))).model.ssd
    assert ssd.num_classes == 5
    assert ssd.feature_extractor.type == "ssd_mobilenet_v2"
    assert ssd.feature_extractor.depth_multiplier == 0.75
    assert not ssd.feature_extractor.use_depthwise
    predictor = ssd.box_predictor.convolutional_box_predictor
    assert (predictor.kernel_size, predictor.use_depthwise) == (3, False)
    assert ssd.image_resizer.fixed_shape_resizer.height == 320
    assert ssd.image_resizer.fixed_shape_resizer.width == 256
    generator = ssd.anchor_generator.ssd_anchor_generator
    assert (generator.num_layers, generator.reduce_boxes_in_lowest_layer) == (2, True)


def test_depthwise_heads_and_six_anchors_everywhere():
    wide = _layer("FeatureExtractor/MobilenetV1/Conv2d_13_pointwise", "conv", 1, 1, 512, 512)
    depthwise = _layer("BoxPredictor_0/BoxEncodingPredictor_depthwise", "depthwise", 3, 3, 64, 1)
    ssd = propose_config(_published(wide, depthwise, *_heads(first=6))).model.ssd
    assert ssd.feature_extractor.type == "ssd_mobilenet_v1"
    assert ssd.feature_extractor.depth_multiplier == 0.5
    assert ssd.feature_extractor.use_depthwise
    predictor = ssd.box_predictor.convolutional_box_predictor
    assert (predictor.kernel_size, predictor.use_depthwise) == (3, True)
    assert not ssd.anchor_generator.ssd_anchor_generator.reduce_boxes_in_lowest_layer
    assert ssd.image_resizer.fixed_shape_resizer.height == 300


def test_other_models():
    with pytest.raises(UsageError, match="MobileNet v1 or v2 only"):
        propose_config(_published(*_heads()))
    wide = _layer(f"{BODY}/Conv_1", "conv", 1, 1, 320, 1280)
    with pytest.raises(UsageError, match=r"\[4, 6\] anchors"):
        propose_config(_published(wide, *_heads(first=4)))


@pytest.mark.parametrize(
    ("field", "value", "was"),
    [
        ("num_classes", 7, "5"),
        ("feature_extractor.depth_multiplier", 1.0, "0.75"),
        ("feature_extractor.use_depthwise", True, "false"),
        ("box_predictor.convolutional_box_predictor.kernel_size", 1, "3"),
        ("box_predictor.convolutional_box_predictor.use_depthwise", True, "false"),
    ],
)
def test_options_that_explain_shapes(field, value, was):
    extra = _layer(f"{BODY}/layer_19_2_Conv2d_2_3x3_s2_512", "conv", 3, 3, 256, 512)
    wide = _layer(f"{BODY}/Conv_1", "conv", 1, 1, 240, 1280)
    published = _published(wide, extra, *_heads(kernel=3))
    model = propose_config(published).model
    assert explain_shapes(published, model) == []
    *parts, last = field.split(".")
    message = model.ssd
    for part in parts:
        message = getattr(message, part)
    setattr(message, last, value)
    (text,) = explain_shapes(published, model)
    assert text.endswith(f"use --set model.ssd.{field}={was}")
    model.ssd.feature_extractor.type = "ssd_inception_v2"
    assert explain_shapes(published, model) == []
