"""Variables of the Object Detection API: a checksum over name, shape and trainability of all.

tests/benchmarks/test_golden_graphs.py compares the values of whole networks.
"""

from __future__ import annotations

import json
from typing import Any, Dict

import pytest

import estimator_det.extractors  # noqa: F401  (fills the registry)
from estimator_det.compat import tf, tf1
from estimator_det.extractors.two_stage.registry import make_extractor
from estimator_det.protos import faster_rcnn_pb2
from tests.conftest import TESTS
from tests.nets.variables import crc32, variable_lines

GOLDEN: Dict[str, Dict[str, Any]] = json.loads(
    (TESTS / "golden" / "extractors" / "two_stage" / "variables.json").read_text()
)
QUICK = "faster_rcnn_resnet50"
KINDS = [
    pytest.param(kind, marks=() if kind == QUICK else pytest.mark.exhaustive) for kind in GOLDEN
]


@pytest.mark.parametrize("kind", KINDS)
def test_variables(kind):
    """Of both stages in training."""
    config = faster_rcnn_pb2.FasterRcnnFeatureExtractor(type=kind, first_stage_features_stride=16)
    with tf.Graph().as_default() as graph:
        tf1.train.create_global_step()
        extractor = make_extractor(config, is_training=True)
        (features,) = extractor.proposal_features(tf.zeros([2, 256, 256, 3]))
        box_features = extractor.box_features(tf.zeros([2, 7, 7, features.shape[-1]]))
        lines = variable_lines(graph)
        assert GOLDEN[kind] == {
            "variables": len(lines),
            "variables_crc32": crc32(lines),
            "channels": [features.shape[-1], box_features.shape[-1]],
            "update_ops": len(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)),
            "regularization_losses": len(tf1.losses.get_regularization_losses()),
        }
