"""Variables and feature maps as measured on the Object Detection API, tests/golden/extractors."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Dict, List, Tuple

import pytest
from google.protobuf import text_format

import estimator_det.extractors  # noqa: F401  (fills the registry)
from estimator_det.compat import tf, tf1
from estimator_det.extractors.ssd.registry import make_extractor
from estimator_det.protos import ssd_pb2
from tests.conftest import TESTS
from tests.nets.variables import crc32, variable_lines

HYPERPARAMS = """conv_hyperparams { activation: RELU_6 batch_norm { scale: true }
    regularizer { l2_regularizer { weight: 0.00004 } } }"""
OVERRIDE = "override_base_feature_extractor_hyperparams: true"
LITE = f"use_depthwise: true {OVERRIDE} min_depth: 16"
GOLDEN = {
    path.stem: json.loads(path.read_text())
    for path in sorted((TESTS / "golden" / "extractors").glob("*.json"))
}
# Of the files without the message: type, fields and side of the images.
MESSAGES: Dict[str, Tuple[str, str, int]] = {
    "embedded_ssd_mobilenet_v1_coco": (
        "embedded_ssd_mobilenet_v1",
        "depth_multiplier: 0.125 min_depth: 16",
        256,
    ),
    "ssd_inception_v2_coco": ("ssd_inception_v2", f"{OVERRIDE} min_depth: 16", 300),
    "ssd_mobiledet_cpu": ("ssd_mobiledet_cpu", "use_depthwise: true", 320),
    "ssd_mobiledet_dsp": ("ssd_mobiledet_dsp", "use_depthwise: true", 320),
    "ssd_mobiledet_edgetpu": ("ssd_mobiledet_edgetpu", "use_depthwise: true", 320),
    "ssd_mobilenet_v2_coco": ("ssd_mobilenet_v2", "min_depth: 16", 300),
    "ssd_mobilenet_v2_mnasfpn": ("ssd_mobilenet_v2_mnasfpn", "use_depthwise: true", 320),
    "ssdlite_mobilenet_edgetpu_320x320_coco": ("ssd_mobilenet_edgetpu", LITE, 320),
    "ssdlite_mobilenet_v2_coco": ("ssd_mobilenet_v2", "use_depthwise: true", 300),
    "ssdlite_mobilenet_v3_large_320x320_coco": ("ssd_mobilenet_v3_large", LITE, 320),
}
# Networks with the same kinds of layers as others, here or in
# tests/benchmarks/test_golden_graphs.py and tests/extractors/two_stage/test_golden.py.
ALIKE = {
    "ssd_inception_v2_coco",
    "ssd_mobiledet_cpu",
    "ssd_mobiledet_edgetpu",
    "ssd_mobilenet_v1_ppn_shared_box_predictor_300x300_coco14_sync",
    "ssd_mobilenet_v2_mnasfpn",  # has the network of ssd_mobilenet_v2_coco
    "ssd_resnet50_v1_fpn_shared_box_predictor_640x640_coco14_sync",
    "ssdlite_mobilenet_edgetpu_320x320_coco",
    "ssdlite_mobilenet_v2_coco",
}
NAMES = [
    pytest.param(name, marks=pytest.mark.exhaustive if name in ALIKE else ()) for name in GOLDEN
]


def measured(config: str, images: List[int], scope: str) -> Dict[str, Any]:
    """Everything that a golden file may hold."""
    message = text_format.Parse(config, ssd_pb2.SsdFeatureExtractor())
    with tf.Graph().as_default() as graph:
        with tf1.variable_scope(scope) if scope else contextlib.nullcontext():
            maps = make_extractor(message, is_training=True).extract(tf.zeros(images))
        shapes = [features.shape.as_list() for features in maps]
        lines = variable_lines(graph)
        checksum = crc32(lines)
        return {
            "feature_map_shapes": shapes,
            "feature_maps": [shape[1:] for shape in shapes],
            "variables": len(lines),
            "num_variables": len(lines),
            "checksum": checksum,
            "variables_crc32": checksum,
            "update_ops": len(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)),
            "regularization_losses": len(tf1.losses.get_regularization_losses()),
        }


@pytest.mark.parametrize("name", NAMES)
def test_variables_and_feature_maps(name):
    golden = dict(GOLDEN[name])
    if name in MESSAGES:
        kind, fields, side = MESSAGES[name]
        config, scope = f"type: '{kind}' {fields} {HYPERPARAMS}", "FeatureExtractor"
        found = measured(config, [2, side, side, 3], scope)
    else:
        size = golden.pop("image_size")
        found = measured(golden.pop("feature_extractor"), [1, *size, 3], "")
    assert golden == {key: found[key] for key in golden}
