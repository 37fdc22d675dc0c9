"""Moving averages of batch norm: updated in place or by operations of the collection."""

from __future__ import annotations

import contextlib
import zlib
from typing import Dict, Iterator, Tuple

import numpy as np
import pytest

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets.normalization import BATCH_NORMS
from tests.extractors.build import TINY, make


@contextlib.contextmanager
def batch_norms(in_place: bool) -> Iterator[None]:
    """A graph in which batch norm learns and updates its averages as the detector says."""
    collection = None if in_place else tf1.GraphKeys.UPDATE_OPS
    with (
        tf.Graph().as_default(),
        slim.arg_scope(list(BATCH_NORMS), is_training=True, updates_collections=collection),
    ):
        yield


def extract_small(kind: str) -> Tuple[tf.Tensor, ...]:
    """Feature maps of a narrow network of the type, in the current graph."""
    side = 160 if "resnet" in kind else 64
    pixels = np.random.default_rng(0).uniform(-1, 1, [2, side, side, 3])
    return make(kind, TINY).extract(tf.constant(pixels, tf.float32))


# One type of each way to make layers; the others are made alike, or compared below.
NETWORKS = ("ssd_pnasnet", "ssd_spaghettinet")


@pytest.mark.usefixtures("short_networks")
@pytest.mark.parametrize("in_place", [True, False], ids=["in_place", "later"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_updates_are_in_place_or_in_the_collection(kind: str, in_place: bool) -> None:
    with batch_norms(in_place):
        extract_small(kind)
        averages = [v for v in tf1.global_variables() if "/moving_" in v.op.name]
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
    assert averages
    assert len(updates) == (0 if in_place else len(averages))


def averages_after_a_pass(kind: str, in_place: bool) -> Dict[str, np.ndarray]:
    """Moving averages after one forward pass from weights that depend on their names alone."""
    with batch_norms(in_place), tf1.Session() as session:
        maps = extract_small(kind)
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        start = {}
        for variable in tf1.trainable_variables():
            random = np.random.default_rng(zlib.crc32(variable.op.name.encode()))
            start[variable.initial_value] = random.normal(0, 0.1, variable.shape.as_list())
        session.run(tf1.global_variables_initializer(), start)
        averages = {v.op.name: v for v in tf1.global_variables() if "/moving_" in v.op.name}
        before = session.run(averages)
        session.run([maps, updates])
        after = session.run(averages)
    assert all(np.any(after[name] != before[name]) for name in averages)
    return after


@pytest.mark.usefixtures("short_networks")
def test_averages_move_the_same_both_ways() -> None:
    in_place = averages_after_a_pass("ssd_resnet50_v1_fpn", in_place=True)
    collected = averages_after_a_pass("ssd_resnet50_v1_fpn", in_place=False)
    assert in_place.keys() == collected.keys()
    for name, value in in_place.items():
        np.testing.assert_allclose(value, collected[name], rtol=1e-5, atol=1e-7, err_msg=name)
