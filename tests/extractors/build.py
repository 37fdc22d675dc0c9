"""Builds an extractor of some type with some options and says what it made."""

from __future__ import annotations

import collections
import functools
from typing import Any, Counter, Dict, List, NamedTuple, Tuple

from google.protobuf import text_format

import estimator_det.extractors  # noqa: F401  (fills the registry)
from estimator_det.compat import tf, tf1
from estimator_det.extractors.ssd.registry import make_extractor
from estimator_det.protos import ssd_pb2

NORM = "conv_hyperparams { batch_norm { scale: true } }"
PENALIZED = """conv_hyperparams { activation: RELU_6 batch_norm { scale: true }
    regularizer { l2_regularizer { weight: 0.00004 } } }"""
OVERRIDE = "override_base_feature_extractor_hyperparams: true"
SMALL = f"depth_multiplier: 0.1 min_depth: 4 {PENALIZED}"
TINY = f"depth_multiplier: 0.05 min_depth: 4 {NORM}"
EMBEDDED = "embedded_ssd_mobilenet_v1"
MNASFPN = "ssd_mobilenet_v2_mnasfpn"
MNASFPN_LEVELS = "fpn { min_level: 3 max_level: 6 additional_layer_depth: 48 }"


def make(kind: str, text: str = "", is_training: bool = True) -> Any:
    config = text_format.Parse(f"type: '{kind}' {text}", ssd_pb2.SsdFeatureExtractor())
    return make_extractor(config, is_training)


class Built(NamedTuple):
    maps: List[Tuple[int, ...]]  # height, width and channels
    variables: Dict[str, List[int]]
    penalties: int
    ops: Counter[str]  # how many of each type
    epsilons: Counter[float]  # of the batch norms


@functools.cache
def build(kind: str, text: str, size: Tuple[int, int], is_training: bool = True) -> Built:
    with tf.Graph().as_default() as graph:
        maps = make(kind, text, is_training).extract(tf.zeros([2, *size, 3]))
        variables = {v.op.name: v.shape.as_list() for v in tf1.global_variables()}
        assert len(variables) == len(tf1.global_variables())
        operations = graph.get_operations()
        norms = [op for op in operations if op.type == "FusedBatchNormV3"]
        return Built(
            [tuple(m.shape.as_list()[1:]) for m in maps],
            variables,
            len(tf1.losses.get_regularization_losses()),
            collections.Counter(op.type for op in operations),
            collections.Counter(round(op.get_attr("epsilon"), 6) for op in norms),
        )
