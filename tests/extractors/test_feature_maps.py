"""Feature maps by arithmetic, and variables, of extractors with options that no golden file has."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Tuple

import pytest

from tests.extractors.build import EMBEDDED, NORM, OVERRIDE, PENALIZED, SMALL, build


class Row(NamedTuple):
    """An extractor with some options, and what it makes."""

    kind: str  # the type
    text: str  # further fields of the message
    size: Tuple[int, int]  # height and width of the images
    maps: List[Tuple[int, ...]]  # shapes of the feature maps without the batch
    scope: str = ""  # scope of every variable
    # Variables below `scope` by name, with their shapes; None for any shape.
    has: Dict[str, Any] = {}  # noqa: RUF012
    lacks: Tuple[str, ...] = ()  # parts that no variable's name has
    variables: int = 0  # number of variables; 0 for any number
    fixtures: Tuple[str, ...] = ()  # names of fixtures that make networks small


LAST = "Conv2d_13_pointwise_2_Conv2d_4_2x2_s2_25"
DEPTH = "additional_layer_depth"
LEAVES = [f"BatchNorm/{n}" for n in ("beta", "gamma", "moving_mean", "moving_variance")]


def squares(depths: List[int], sides: List[int]) -> List[Tuple[int, ...]]:
    return [(side, side, depth) for side, depth in zip(sides, depths)]


def wide(depth: int, *sides: Tuple[int, int]) -> List[Tuple[int, ...]]:
    return [(*side, depth) for side in sides]


def split(layer: str) -> Dict[str, None]:
    """Variables of a separable convolution with one batch norm."""
    return {f"{layer}/{leaf}": None for leaf in ("depthwise_weights", "pointwise_weights", *LEAVES)}


ROWS = [
    Row("ssd_mobilenet_v1", f"{SMALL} num_layers: 3 pad_to_multiple: 32",
        (70, 33), [(6, 4, 51), (3, 2, 102), (2, 1, 51)]),  # padded to 96 x 64
    Row("ssd_mobilenet_v1", f"{SMALL} use_depthwise: true use_explicit_padding: true",
        (300, 300), squares([51, 102, 51, 25, 25, 12], [19, 10, 5, 3, 2, 1]),
        scope="MobilenetV1/",
        has={"Conv2d_13_pointwise_2_Conv2d_2_3x3_s2_51_depthwise/BatchNorm/beta": None}),
    Row("ssd_mobilenet_v1_fpn", f"{SMALL} fpn {{ min_level: 2 max_level: 6 {DEPTH}: 64 }}",
        (128, 160), wide(6, (32, 40), (16, 20), (8, 10), (4, 5), (2, 3)),
        scope="MobilenetV1/", has={"fpn/projection_1/weights": [1, 1, 12, 6]},
        lacks=("bottom_up_Conv2d_15",)),
    # The last two layers of the backbone are narrower.
    Row("ssd_mobilenet_v1_fpn", f"{SMALL} use_depthwise: true",
        (128, 160), wide(25, (16, 20), (8, 10), (4, 5), (2, 3), (1, 2)), scope="MobilenetV1/",
        has={"Conv2d_12_pointwise/weights": [1, 1, 51, 51],
             "Conv2d_13_pointwise/weights": [1, 1, 51, 25],
             **split("fpn/smoothing_1"), **split("fpn/smoothing_2"),
             **split("fpn/bottom_up_Conv2d_14"), **split("fpn/bottom_up_Conv2d_15")},
        variables=27 * 5 + 3 * 2 + 4 * 6),
    Row(EMBEDDED, f"{SMALL} use_depthwise: true",
        (256, 256), squares([51, 102, 51, 25, 25], [16, 8, 4, 2, 1]),
        scope="MobilenetV1/", has={f"{LAST}_depthwise/depthwise_weights": [2, 2, 12, 1],
                                   f"{LAST}/weights": [1, 1, 12, 25]}),
    # 72 * 0.55 / 8 = 4.95 and 144 * 0.55 / 8 = 9.9; extra layers are cut to integers instead.
    Row("tiny_mobiledet", f"depth_multiplier: 0.55 min_depth: 90 {PENALIZED}",
        (70, 40), [(5, 3, 40), (3, 2, 80), (2, 1, 281), (1, 1, 140), (1, 1, 140), (1, 1, 90)],
        fixtures=("tiny_mobiledet",)),
]  # fmt: skip
# Networks that `short_networks` makes short.
SHORT_ROWS = [
    Row("ssd_resnet50_v1_ppn", NORM,
        (160, 192), wide(1024, (10, 12), (5, 6), (3, 3), (2, 2), (1, 1), (1, 1)),
        scope="resnet_v1_50/", has={"Base_Conv2d_1x1_1024/weights": [1, 1, 1024, 1024]}),
    # Not even the padding has an effect: 300 pixels stay 300.
    Row("ssd_spaghettinet", f"""depth_multiplier: 0.1 min_depth: 4 use_depthwise: true
        pad_to_multiple: 256 use_explicit_padding: true {OVERRIDE} {PENALIZED}""",
        (300, 300), squares([120, 168, 136, 136, 64], [19, 10, 5, 3, 3]),
        scope="spaghettinet_edgetpu_m/",
        has=dict.fromkeys((
            "spaghetti_net/stem_node/stem/weights", "spaghetti_net/n1_0/slice_3/weights",
            "spaghetti_net/n1_0/concat/max", "spaghetti_net/n3_0/depthwise/BatchNorm/gamma",
            "spaghetti_net/n5_0/depthwise/biases", "edge_n4_c0n0/1x1_before_upsample/weights",
            "edge_c0n1_c0n2/1x1_after_downsampling/weights",
            "edge_n5_c0n4/1x1_no_resampling/weights",
        ))),
]  # fmt: skip
EVERY_ROW = [
    *ROWS,
    *(row._replace(fixtures=("short_networks", "fresh_builds")) for row in SHORT_ROWS),
]


@pytest.mark.parametrize("row", EVERY_ROW, ids=lambda row: f"{row.kind} {row.text}")
def test_variables_and_feature_maps_of_options(row, request):
    for name in row.fixtures:
        request.getfixturevalue(name)
    built = build(row.kind, row.text, row.size)
    assert built.maps == row.maps
    assert all(name.startswith(row.scope) for name in built.variables)
    for name, shape in row.has.items():
        found = built.variables[row.scope + name]
        assert shape is None or found == shape, name
    assert not [n for n in built.variables if any(part in n for part in row.lacks)]
    assert row.variables in (0, len(built.variables))


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
def test_spaghettinets(letter, depths, kernels):
    text = f"spaghettinet_arch_name: 'spaghettinet_edgetpu_{letter}' {PENALIZED}"
    built = build("ssd_spaghettinet", text, (320, 320))
    assert built.penalties == kernels
    assert built.maps == [(s, s, d) for s, d in zip([20, 10, 5, 3, 3], depths)]
