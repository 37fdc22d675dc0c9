"""Networks of one layer of each kind, so that every extractor builds in about a second."""

from __future__ import annotations

from typing import Any, Dict

import pytest

from estimator_det.nets import nasnet, resnet, spaghettinet
from estimator_det.nets.necks import mnasfpn

PNASNET = nasnet.Network(
    nasnet.Cell(
        (nasnet.Block(nasnet.Step("separable", 3, 1), nasnet.Step("identity", 1, 0)),), (2,)
    ),
    num_cells=12,
    depth=8,
    stem_depth=6,
    keep_paths=0.6,
)


@pytest.fixture
def short_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One unit a ResNet block, one layer a SpaghettiNet node, one MnasFPN cell, a tiny PNASNet."""
    blocks = {
        layers: tuple(block._replace(units=1) for block in table)
        for layers, table in resnet.V1_BLOCKS.items()
    }
    monkeypatch.setattr(resnet, "V1_BLOCKS", blocks)
    nodes = {
        name: tuple(node._replace(layers=node.layers[:1]) for node in table)
        for name, table in spaghettinet.NETWORKS.items()
    }
    monkeypatch.setattr(spaghettinet, "NETWORKS", nodes)
    monkeypatch.setattr(mnasfpn, "NUM_CELLS", 1)
    defaults: Dict[str, Any] = {"network": PNASNET}
    real = nasnet.searched_network
    monkeypatch.setattr(nasnet, "searched_network", lambda *a, **k: real(*a, **{**defaults, **k}))
