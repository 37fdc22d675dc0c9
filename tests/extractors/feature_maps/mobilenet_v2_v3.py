"""Feature maps of MobileNet v2, v3 and EdgeTPU."""

from __future__ import annotations

from tests.extractors.build import OVERRIDE, PENALIZED
from tests.extractors.feature_maps.row import Row, squares

ROWS = [
    Row(  # padded to 128 x 192; the backbone's channels are multiples of 8, the others cut
        "ssd_mobilenet_v2",
        f"depth_multiplier: 0.1 min_depth: 8 {PENALIZED} num_layers: 5 pad_to_multiple: 64",
        (107, 139),
        [(8, 12, 96), (4, 6, 128), (2, 3, 51), (1, 2, 25), (1, 1, 25)],
        scope="MobilenetV2/",
        is_exhaustive=True,
    ),
    Row(
        "ssd_mobilenet_v2",
        f"depth_multiplier: 0.1 min_depth: 8 {PENALIZED} use_explicit_padding: true",
        (96, 96),
        squares([96, 128, 51, 25, 25, 12], [6, 3, 2, 1, 1, 1]),
        is_exhaustive=True,
    ),
    Row(
        "ssd_mobilenet_v2_fpn",
        f"depth_multiplier: 0.5 {PENALIZED}",
        (128, 128),
        squares([128] * 5, [16, 8, 4, 2, 1]),
        scope="MobilenetV2/",
        has={
            "Conv_1/weights": [1, 1, 160, 640],
            "fpn/projection_3/weights": [1, 1, 640, 128],
            "fpn/projection_3/biases": [128],
            "fpn/smoothing_2/weights": [3, 3, 128, 128],
            "fpn/bottom_up_Conv2d_20/weights": [3, 3, 128, 128],
            "fpn/bottom_up_Conv2d_21/BatchNorm/beta": None,
        },
        variables=52 * 5 + 3 * 2 + 4 * 5,
    ),
    Row(
        "ssd_mobilenet_v2_fpn_keras",
        f"""depth_multiplier: 0.5 {PENALIZED} use_depthwise: true
        fpn {{ min_level: 2 max_level: 6 additional_layer_depth: 64 }}""",
        (128, 128),
        squares([32] * 5, [32, 16, 8, 4, 2]),
        scope="MobilenetV2/",
        has={
            "Conv_1/weights": [1, 1, 160, 128],
            "fpn/projection_1/weights": [1, 1, 16, 32],
            "fpn/smoothing_3/depthwise_weights": [3, 3, 32, 1],
            "fpn/smoothing_3/pointwise_weights": [1, 1, 32, 32],
            "fpn/bottom_up_Conv2d_20/pointwise_weights": None,
        },
        lacks=("Conv2d_21",),
        is_exhaustive=True,
    ),
    Row(
        "ssd_mobilenet_v3_large",
        f"depth_multiplier: 0.1 min_depth: 8 {PENALIZED} pad_to_multiple: 64",
        (107, 139),
        [(8, 12, 96), (4, 6, 48), (2, 3, 51), (1, 2, 25), (1, 1, 25), (1, 1, 12)],
        scope="MobilenetV3/",
        is_exhaustive=True,
    ),
    Row(
        "ssd_mobilenet_v3_small",
        f"depth_multiplier: 0.1 min_depth: 8 {PENALIZED} pad_to_multiple: 64",
        (107, 139),
        [(8, 12, 48), (4, 6, 32), (2, 3, 51), (1, 2, 25), (1, 1, 25), (1, 1, 12)],
        is_exhaustive=True,
    ),
    Row(
        "ssd_mobilenet_v3_small",
        f"depth_multiplier: 0.1 min_depth: 8 {PENALIZED} use_explicit_padding: true",
        (64, 64),
        squares([48, 32, 51, 25, 25, 12], [28, 22, 11, 6, 3, 2]),
        is_exhaustive=True,
    ),
    Row(
        "ssd_mobilenet_v3_small",
        f"use_depthwise: true {OVERRIDE} min_depth: 16 {PENALIZED}",
        (320, 320),
        squares([288, 288, 512, 256, 256, 128], [20, 10, 5, 3, 2, 1]),
        scope="MobilenetV3/",
        has={
            "expanded_conv/squeeze_excite/Conv/weights": [1, 1, 16, 8],
            "expanded_conv_8/expand/weights": [1, 1, 48, 288],
            "expanded_conv_8/depthwise/depthwise_weights": [5, 5, 288, 1],
            "expanded_conv_8/squeeze_excite/Conv/weights": [1, 1, 288, 72],
            "expanded_conv_10/project/weights": [1, 1, 288, 48],
            "Conv_1/weights": [1, 1, 48, 288],
            "layer_13_2_Conv2d_5_3x3_s2_128_depthwise/depthwise_weights": [3, 3, 64, 1],
        },
        # 34 backbone layers and 12 extra ones with batch norm, 9 gates of two layers with biases.
        variables=5 * (34 + 12) + 4 * 9,
        penalties=34 + 12 + 2 * 9,
        is_exhaustive=True,
    ),
    Row(
        "ssd_mobilenet_edgetpu",
        f"depth_multiplier: 0.1 min_depth: 8 {PENALIZED} pad_to_multiple: 64",
        (107, 139),
        [(8, 12, 64), (4, 6, 24), (2, 3, 51), (1, 2, 25), (1, 1, 25), (1, 1, 12)],
        scope="MobilenetEdgeTPU/",
        is_exhaustive=True,
    ),
]
