"""Networks of one layer of each kind, so that every extractor builds in about a second."""

from __future__ import annotations

from typing import Any, Dict, Iterator

import pytest

from estimator_det.extractors.ssd import nas
from estimator_det.extractors.ssd.registry import EXTRACTORS
from estimator_det.nets import mobiledet, nasnet, resnet, spaghettinet
from estimator_det.nets.necks import mnasfpn
from tests.extractors.build import build

PNASNET = nasnet.NasNet(
    nasnet.Cell(((nasnet.CellStep("separable", 3, 1), nasnet.CellStep("identity", 1, 0)),), (2,)),
    num_cells=12,
    depth=8,
    stem_depth=6,
    keep_paths=0.6,
)
# One layer of every kind, and no more.
TINY_MOBILEDET = mobiledet.MobileDet(
    stem=8,
    squeeze_excite=True,
    stages=(
        (mobiledet.MobileDetLayer("IBNNoExpansion", 8, skip=False),),
        (mobiledet.MobileDetLayer("TuckerConv", 16, stride=2, skip=False),),
        (mobiledet.MobileDetLayer("FusedConv", 24, stride=2, skip=False, expansion=2),),
        (mobiledet.MobileDetLayer("IBN", 72, 5, stride=2, skip=False, expansion=2),),
        (mobiledet.MobileDetLayer("IBN", 144, stride=2, skip=False, expansion=2),),
    ),
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


@pytest.fixture
def fresh_builds() -> Iterator[None]:
    """Networks built in a test that replaces them are not kept."""
    build.cache_clear()
    yield
    build.cache_clear()


@pytest.fixture
def tiny_mobiledet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A MobileDet of five layers, registered while the test runs."""
    monkeypatch.setattr(EXTRACTORS, "_makers", {})
    EXTRACTORS.register("tiny_mobiledet")(nas.mobiledet_recipe("Tiny", TINY_MOBILEDET))
