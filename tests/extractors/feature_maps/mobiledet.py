"""Feature maps of MobileDet, whose network `tiny_mobiledet` makes small."""

from __future__ import annotations

from tests.extractors.build import PENALIZED
from tests.extractors.feature_maps.row import LEAVES, Row, squares

ROWS = [
    Row(  # 72 * 0.55 / 8 = 4.95 and 144 * 0.55 / 8 = 9.9; extra layers are cut to integers instead
        "tiny_mobiledet",
        f"depth_multiplier: 0.55 min_depth: 90 {PENALIZED}",
        (70, 40),
        [(5, 3, 40), (3, 2, 80), (2, 1, 281), (1, 1, 140), (1, 1, 140), (1, 1, 90)],
    ),
    Row(
        "tiny_mobiledet",
        f"pad_to_multiple: 64 {PENALIZED}",
        (70, 40),
        [(8, 4, 72), (4, 2, 144), (2, 1, 512), (1, 1, 256), (1, 1, 256), (1, 1, 128)],
    ),
    Row(
        "tiny_mobiledet",
        f"use_depthwise: true depth_multiplier: 0.25 {PENALIZED}",
        (64, 64),
        squares([16, 40, 128, 64, 64, 32], [4, 2, 1, 1, 1, 1]),
        scope="Tiny/",
        has={
            f"C5_2_Conv2d_{row}_3x3_s2_{depth}_depthwise/{leaf}": None
            for row, depth in ((2, 128), (3, 64), (4, 64), (5, 32))
            for leaf in ("depthwise_weights", *LEAVES)
        },
    ),
]
