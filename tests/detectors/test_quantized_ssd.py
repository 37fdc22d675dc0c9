"""Single-shot detectors with simulated quantization."""

from __future__ import annotations

import re
from typing import Any, List

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline
from estimator_det.detectors import make_detector, ssd
from estimator_det.errors import ConfigError
from estimator_det.extractors.ssd.registry import num_maps
from estimator_det.nets import layers
from estimator_det.nets.normalization import batch_norm
from estimator_det.nets.quantization import STEP_VARIABLE, is_range, quantized_scopes
from estimator_det.programs import demo
from estimator_det.protos import graph_rewriter_pb2, pipeline_pb2
from tests import small_extractor
from tests.detectors.configs import groundtruth, small_config

LIGHT_PYRAMID = """
feature_extractor {
  type: "ssd_mobilenet_v1_fpn" use_depthwise: true min_depth: 4
  fpn { min_level: 4 max_level: 6 additional_layer_depth: 8 }
}
box_predictor {
  weight_shared_convolutional_box_predictor {
    depth: 8 num_layers_before_predictor: 1 use_depthwise: true
    conv_hyperparams { batch_norm {} }
  }
}
anchor_generator {
  multiscale_anchor_generator { min_level: 4 max_level: 6 scales_per_octave: 1 aspect_ratios: 1 }
}
"""


def rewriter(text: str = "") -> Any:
    return text_format.Parse(f"quantization {{ {text} }}", graph_rewriter_pb2.GraphRewriter())


def _scopes(config: Any) -> List[str]:
    """Of a graph for inference."""
    with tf.Graph().as_default() as graph:
        detector = make_detector(config, False, rewriter())
        predictions = detector.predict(tf.zeros([1, 64, 64, 3]))
        scopes = quantized_scopes(graph.get_operations())
        assert scopes == [each.scope for each in predictions.quantized]
        ranges = {v.op.name for v in tf1.global_variables() if is_range(v.op.name)}
        assert ranges == {f"{scope}/{end}" for scope in scopes for end in ("min", "max")}
        assert not tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        return scopes


def test_names_of_ranges_in_a_light_pyramid():
    """Sums, separable convolutions, and one kernel of the heads for all feature maps."""
    fpn, head = "FeatureExtractor/MobilenetV1/fpn", "WeightSharedConvolutionalBoxPredictor"
    tower = "BoxPredictionTower/conv2d_0"
    config = small_config(LIGHT_PYRAMID)
    config.ssd.feature_extractor.ClearField("num_layers")
    scopes = _scopes(config)
    projections, smoothed, lower = (
        [f"{layer}/{kind}_quant" for layer in layers for kind in ("weights", "act")]
        for layers in (
            ["top_down/projection_2", "top_down/projection_1"],
            ["top_down/smoothing_1/separable_conv2d", "top_down/smoothing_1"],
            ["bottom_up_Conv2d_14/separable_conv2d", "bottom_up_Conv2d_14"],
        )
    )
    expected = [*projections, "top_down/add/activation_AddV2_quant", *smoothed, *lower]
    found = [scope for scope in scopes if scope.startswith(fpn)]
    assert found == [f"{fpn}/{name}" for name in expected]
    assert [scope for scope in scopes if scope.startswith(f"{head}_1/Box")] == [
        f"{head}_1/{tower}/separable_conv2d/act_quant",
        f"{head}_1/{tower}/weights_quant",  # with a batch norm of its own
        f"{head}_1/{tower}/act_quant",
        f"{head}_1/BoxPredictor/separable_conv2d/act_quant",
        f"{head}_1/BoxPredictor/act_quant",
    ]
    assert f"{head}/BoxPredictor/weights_quant" in scopes


def _losses(rewritten: Any) -> Any:
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        detector = make_detector(small_config(), True, rewritten)
        pixels = np.random.default_rng(0).uniform(-1, 1, (2, 64, 64, 3)).astype(np.float32)
        predictions = detector.predict(tf.constant(pixels))
        terms = detector.loss(predictions, groundtruth()).terms
        values = {**terms, "penalty": tf.add_n(detector.regularization_losses())}
        model = [v for v in tf1.global_variables() if "quant" not in v.op.name]
        start = {}
        for variable in model:
            random = np.random.default_rng(sum(variable.op.name.encode()))
            start[variable.initial_value] = 0.5 + random.random(variable.shape.as_list()) / 9
        session.run(tf1.global_variables_initializer(), start)
        names = {v.op.name for v in tf1.global_variables()}
        return session.run(values), names, len(detector.updates())


class _TwoLayers(small_extractor.SmallExtractor):
    """Two layers that can be quantized."""

    def extract(self, inputs: tf.Tensor) -> List[tf.Tensor]:
        first = layers.conv2d(inputs, 8, 5, stride=16, scope="First", normalizer_fn=batch_norm)
        return [first, layers.conv2d(first, 8, 3, stride=2, scope="Second")]


def test_training_before_and_after_the_delay(monkeypatch):
    monkeypatch.setattr(ssd, "make_extractor", lambda *_: _TwoLayers())
    plain, names, num_updates = _losses(None)
    before, quantized_names, num_quantized_updates = _losses(rewriter("delay: 2"))
    after, _, _ = _losses(rewriter("delay: 1"))
    for name, value in plain.items():
        assert before[name] == pytest.approx(value, rel=1e-5)
    assert any(abs(after[name] / value - 1) > 1e-4 for name, value in plain.items())
    assert STEP_VARIABLE in quantized_names
    num_tensors = 2 * (2 + 4)
    assert len(quantized_names - names) == 2 * num_tensors + 4 * num_tensors // 2 + 1
    # Of each kernel its two ends, of each output its two ends and what they are made of.
    assert num_quantized_updates - num_updates == (2 + 6) * num_tensors // 2 + 1


def _small_pipeline(extractor: str) -> Any:
    pipeline_config = pipeline_pb2.TrainEvalPipelineConfig(model=small_config())
    extractor_config = pipeline_config.model.ssd.feature_extractor
    extractor_config.ClearField("num_layers")
    extractor_config.type = extractor
    anchors = pipeline_config.model.ssd.anchor_generator.ssd_anchor_generator
    anchors.num_layers = num_maps(extractor_config)
    if extractor == "ssd_spaghettinet":
        extractor_config.spaghettinet_arch_name = "spaghettinet_edgetpu_s"
    return pipeline_config


REFUSED = {
    "ssd_pnasnet": "by this type of feature_extractor",
    "ssd_spaghettinet": "by this type of feature_extractor",
    "ssd_mobilenet_v2_mnasfpn": "by this type of feature_extractor",
    "faster_rcnn_resnet50_pets": "in faster_rcnn models, only in ssd",
    "mask_rcnn_mobilenet_v1_shapes": "in faster_rcnn models, only in ssd",
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_cannot_be_quantized_are_refused_with_a_remedy_that_works(name):
    if name.startswith("ssd"):
        config = _small_pipeline(name)
    else:
        config = pipeline.read_pipeline(str(demo.CONFIG_FILE.parent / f"{name}.config"))
    config = pipeline.apply_overrides(config, ["graph_rewriter.quantization={ delay: 5 }"])
    with pytest.raises(ConfigError) as refused:
        make_detector(config.model, True, config.graph_rewriter)
    message = str(refused.value)
    assert message.startswith("graph_rewriter.quantization: is not supported yet")
    assert REFUSED[name] in message
    (assignment,) = re.findall(r"--set (\S+)\)", message)
    remedied = pipeline.apply_overrides(config, [assignment])
    assert make_detector(remedied.model, True, remedied.graph_rewriter)
