"""Networks in their full depth."""

from __future__ import annotations

from typing import List, Set

import pytest

from tests.extractors.build import NORM, PENALIZED, TINY, build


@pytest.mark.parametrize(("layers", "units"), [(101, 23), (152, 36)])
@pytest.mark.slow
@pytest.mark.exhaustive
def test_deeper_resnets(layers: int, units: int) -> None:
    for kind, text in (("fpn", TINY), ("ppn", NORM)):
        names: Set[str] = set(build(f"ssd_resnet{layers}_v1_{kind}", text, (160, 192)).variables)
        scope = f"resnet_v1_{layers}/block3"
        assert f"{scope}/unit_{units}/bottleneck_v1/conv1/weights" in names
        assert f"{scope}/unit_{units + 1}/bottleneck_v1/conv1/weights" not in names


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("letter", "depths", "kernels"),
    [
        # Kernels of fused, inverted and separable layers, of ten edges and of the stem.
        ("s", [120, 168, 136, 136, 64], 24 + 57 + 16 + 10 + 1),
        ("m", [120, 168, 136, 136, 64], 29 + 60 + 20 + 10 + 1),
        ("l", [120, 168, 112, 128, 64], 24 + 87 + 8 + 10 + 1),
    ],
)
def test_spaghettinets(letter: str, depths: List[int], kernels: int) -> None:
    text = f"spaghettinet_arch_name: 'spaghettinet_edgetpu_{letter}' {PENALIZED}"
    built = build("ssd_spaghettinet", text, (320, 320))
    assert built.penalties == kernels
    assert built.maps == [(s, s, d) for s, d in zip([20, 10, 5, 3, 3], depths)]
