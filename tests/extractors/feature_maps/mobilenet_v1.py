"""Feature maps of MobileNet v1 in all its pyramids."""

from __future__ import annotations

from tests.extractors.build import EMBEDDED, SMALL
from tests.extractors.feature_maps.row import Row, split, squares, wide

ROWS = [
    Row(
        "ssd_mobilenet_v1",
        "",
        (300, 300),
        squares([512, 1024, 512, 256, 256, 128], [19, 10, 5, 3, 2, 1]),
        scope="MobilenetV1/",
        is_exhaustive=True,
    ),
    Row(
        "ssd_mobilenet_v1",
        f"{SMALL} num_layers: 3 pad_to_multiple: 32",
        (70, 33),  # padded to 96 x 64
        [(6, 4, 51), (3, 2, 102), (2, 1, 51)],
    ),
    Row(
        "ssd_mobilenet_v1",
        f"{SMALL} use_depthwise: true use_explicit_padding: true",
        (300, 300),
        squares([51, 102, 51, 25, 25, 12], [19, 10, 5, 3, 2, 1]),
        has={"MobilenetV1/Conv2d_13_pointwise_2_Conv2d_2_3x3_s2_51_depthwise/BatchNorm/beta": None},
    ),
    Row(
        "ssd_mobilenet_v1_fpn",
        SMALL,
        (128, 160),
        wide(25, (16, 20), (8, 10), (4, 5), (2, 3), (1, 2)),
        scope="MobilenetV1/",
        has={
            "fpn/projection_1/weights": [1, 1, 25, 25],
            "fpn/projection_2/weights": [1, 1, 51, 25],
            "fpn/projection_3/weights": [1, 1, 102, 25],
            "fpn/smoothing_1/weights": [3, 3, 25, 25],
            "fpn/smoothing_2/weights": [3, 3, 25, 25],
            "fpn/bottom_up_Conv2d_14/weights": [3, 3, 25, 25],
            "fpn/bottom_up_Conv2d_15/weights": [3, 3, 25, 25],
        },
        variables=27 * 5 + 3 * 2 + 4 * 5,
        is_exhaustive=True,
    ),
    Row(
        "ssd_mobilenet_v1_fpn",
        f"{SMALL} fpn {{ min_level: 2 max_level: 6 additional_layer_depth: 64 }}",
        (128, 160),
        wide(6, (32, 40), (16, 20), (8, 10), (4, 5), (2, 3)),
        has={"MobilenetV1/fpn/projection_1/weights": [1, 1, 12, 6]},
        lacks=("bottom_up_Conv2d_15",),
        is_exhaustive=True,
    ),
    Row(  # the last two layers of the backbone are narrower
        "ssd_mobilenet_v1_fpn",
        f"{SMALL} use_depthwise: true",
        (128, 160),
        wide(25, (16, 20), (8, 10), (4, 5), (2, 3), (1, 2)),
        scope="MobilenetV1/",
        has={
            "Conv2d_12_pointwise/weights": [1, 1, 51, 51],
            "Conv2d_13_pointwise/weights": [1, 1, 51, 25],
            **split("fpn/smoothing_1"),
            **split("fpn/smoothing_2"),
            **split("fpn/bottom_up_Conv2d_14"),
            **split("fpn/bottom_up_Conv2d_15"),
        },
        variables=27 * 5 + 3 * 2 + 4 * 6,
    ),
    Row(
        "ssd_mobilenet_v1_fpn",
        f"{SMALL} use_explicit_padding: true",
        (100, 90),
        wide(25, (13, 12), (7, 6), (4, 3), (2, 2), (1, 1)),
        like=SMALL,
        is_exhaustive=True,
    ),
    Row(
        "ssd_mobilenet_v1_ppn",
        SMALL,
        (128, 160),
        wide(51, (8, 10), (4, 5), (2, 3), (1, 2), (1, 1), (1, 1)),
        scope="MobilenetV1/Conv2d_",  # no layers of its own
        has={"13_pointwise/weights": None},
        variables=27 * 5,
        is_exhaustive=True,
    ),
    Row(
        "ssd_mobilenet_v1_ppn",
        f"{SMALL} use_depthwise: true",
        (128, 160),
        wide(51, (8, 10), (4, 5), (2, 3), (1, 2), (1, 1), (1, 1)),
        like=SMALL,
        is_exhaustive=True,
    ),
    *(
        Row(
            EMBEDDED,
            f"{SMALL} {option}",
            (256, 256),
            squares([51, 102, 51, 25, 25], [16, 8, 4, 2, 1]),
            scope="MobilenetV1/",
            has={"Conv2d_13_pointwise_2_Conv2d_4_2x2_s2_25/weights": [2, 2, 12, 25]},
            is_exhaustive=True,
        )
        for option in ("", "use_explicit_padding: true")
    ),
    Row(
        EMBEDDED,
        f"{SMALL} use_depthwise: true",
        (256, 256),
        squares([51, 102, 51, 25, 25], [16, 8, 4, 2, 1]),
        scope="MobilenetV1/",
        has={
            "Conv2d_13_pointwise_2_Conv2d_4_2x2_s2_25_depthwise/depthwise_weights": [2, 2, 12, 1],
            "Conv2d_13_pointwise_2_Conv2d_4_2x2_s2_25/weights": [1, 1, 12, 25],
        },
    ),
]
