"""What holds for every registered extractor."""

from __future__ import annotations

import contextlib
import zlib
from typing import Any, Dict, Iterator

import numpy as np
import pytest
from estimator_det.extractors.base import EXTRACTORS, make_extractor
from google.protobuf import text_format

import estimator_det.extractors  # noqa: F401  (fills the registry)
from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.normalization import BATCH_NORMS
from estimator_det.protos import ssd_pb2

NORM = "conv_hyperparams { batch_norm { scale: true } }"
# What a type needs beside its name to be built small.
SMALL = "depth_multiplier: 0.05 min_depth: 4"
OVERRIDE = "override_base_feature_extractor_hyperparams: true"
NEEDED = {
    "embedded_ssd_mobilenet_v1": SMALL,
    "ssd_inception_v2": f"{SMALL} {OVERRIDE}",
    "ssd_inception_v3": f"{SMALL} {OVERRIDE}",
    "ssd_mobilenet_v2_mnasfpn": f"{SMALL} fpn {{ min_level: 3 max_level: 6 }}",
}
TYPES = sorted({EXTRACTORS.get(name): name for name in EXTRACTORS}.values())


def extract(kind: str, image: Any) -> Any:
    options = NEEDED.get(kind, "" if kind.endswith("_ppn") and "resnet" in kind else SMALL)
    message = text_format.Parse(f"type: '{kind}' {options} {NORM}", ssd_pb2.SsdFeatureExtractor())
    return make_extractor(message, is_training=True).extract(image)


def side(kind: str) -> int:
    if kind == "embedded_ssd_mobilenet_v1":
        return 256
    if "resnet" in kind:
        return 160
    return 96 if kind == "ssd_inception_v3" else 64


@contextlib.contextmanager
def batch_norms(in_place: bool) -> Iterator[None]:
    """A graph in which batch norm learns and updates its averages as the detector says."""
    collection = None if in_place else tf1.GraphKeys.UPDATE_OPS
    with (
        tf.Graph().as_default(),
        slim.arg_scope(list(BATCH_NORMS), is_training=True, updates_collections=collection),
    ):
        yield


@pytest.mark.usefixtures("short_networks")
@pytest.mark.parametrize("kind", TYPES)
def test_updates_are_in_place_or_in_the_collection(kind: str) -> None:
    for in_place in (True, False):
        with batch_norms(in_place):
            extract(kind, tf.zeros([1, side(kind), side(kind), 3]))
            averages = [v for v in tf1.global_variables() if "/moving_" in v.op.name]
            updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        assert averages
        assert len(updates) == (0 if in_place else len(averages))


def averages_after_a_pass(kind: str, in_place: bool) -> Dict[str, np.ndarray]:
    """Moving averages after one forward pass from weights that depend on their names alone."""
    pixels = np.random.default_rng(0).uniform(-1, 1, [2, side(kind), side(kind), 3])
    with batch_norms(in_place), tf1.Session() as session:
        maps = extract(kind, tf.constant(pixels, tf.float32))
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        session.run(tf1.global_variables_initializer())
        for variable in tf1.trainable_variables():
            random = np.random.default_rng(zlib.crc32(variable.op.name.encode()))
            variable.load(random.normal(0, 0.1, variable.shape.as_list()), session)
        averages = {v.op.name: v for v in tf1.global_variables() if "/moving_" in v.op.name}
        before = session.run(averages)
        session.run([maps, updates])
        after = session.run(averages)
    assert all(np.any(after[name] != before[name]) for name in averages)
    return after


@pytest.mark.usefixtures("short_networks")
@pytest.mark.parametrize("kind", ["ssd_mobilenet_v1", "ssd_resnet50_v1_fpn"])
def test_averages_move_the_same_both_ways(kind: str) -> None:
    in_place = averages_after_a_pass(kind, in_place=True)
    collected = averages_after_a_pass(kind, in_place=False)
    assert in_place.keys() == collected.keys()
    for name, value in in_place.items():
        np.testing.assert_allclose(value, collected[name], rtol=1e-5, atol=1e-7, err_msg=name)
