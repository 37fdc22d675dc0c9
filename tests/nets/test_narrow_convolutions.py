"""Convolutions in bfloat16: all of a network's."""

from __future__ import annotations

import pytest

from estimator_det.compat import tf
from estimator_det.nets import inception_resnet, layers, nasnet, spaghettinet
from estimator_det.nets.hyperparams import no_scope
from estimator_det.nets.necks import mnasfpn
from estimator_det.predictors import two_stage

PNASNET = nasnet.NasNet(nasnet.PNASNET_CELL, num_cells=3, depth=8, stem_depth=6, keep_paths=1.0)
MNASFPN = mnasfpn.Options(depth=8, scale_depth=int)
SPAGHETTI = spaghettinet.DEFAULT_NETWORK


def _pnasnet() -> None:
    with nasnet.arg_scope():
        nasnet.searched_network(tf.zeros([1, 33, 33, 3]), PNASNET)


@pytest.mark.parametrize(
    "build",
    [
        _pnasnet,
        lambda: mnasfpn.mnasfpn([tf.zeros([1, side, side, 4]) for side in (16, 8, 4)], MNASFPN),
        lambda: spaghettinet.spaghettinet(tf.zeros([1, 64, 64, 3]), SPAGHETTI, is_training=True),
        lambda: inception_resnet.second_part(tf.zeros([1, 7, 7, 1088])),
        lambda: two_stage.ProposalHead(no_scope).predict([tf.zeros([1, 4, 4, 8])], [3]),
        lambda: two_stage.MaskHead(3, no_scope).predict(tf.zeros([1, 4, 4, 8])),
    ],
    ids=["PNASNet", "MnasFPN", "SpaghettiNet", "Inception ResNet", "proposals", "masks"],
)
def test_all_convolutions_compute_in_bfloat16(build):
    with tf.Graph().as_default() as graph, layers.convolutions_of_type(tf.bfloat16):
        build()
    kinds = ("Conv2D", "DepthwiseConv2dNative")
    types = [op.get_attr("T") for op in graph.get_operations() if op.type in kinds]
    assert set(types) == {tf.bfloat16}
