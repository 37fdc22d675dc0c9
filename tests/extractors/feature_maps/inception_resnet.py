"""Feature maps of Inception v2 and v3 and of ResNet."""

from __future__ import annotations

from tests.extractors.build import NORM, OVERRIDE, PENALIZED, SMALL, TINY
from tests.extractors.feature_maps.row import Row, squares, wide

RESNET_PPN = Row(
    "ssd_resnet50_v1_ppn",
    NORM,
    (160, 192),
    wide(1024, (10, 12), (5, 6), (3, 3), (2, 2), (1, 1), (1, 1)),
    scope="resnet_v1_50/",
    has={"Base_Conv2d_1x1_1024/weights": [1, 1, 1024, 1024]},
)

ROWS = [
    *(
        Row(  # padded to 128 x 192
            kind,
            f"""{OVERRIDE} {SMALL} num_layers: 5 pad_to_multiple: 64 use_explicit_padding: true
            use_depthwise: true""",
            (107, 139),
            maps,
            scope=scope,
            has={
                f"{last}_2_Conv2d_4_3x3_s2_25_depthwise/depthwise_weights": None,
                f"{last}_2_Conv2d_4_3x3_s2_25/weights": None,
            },
            is_exhaustive=True,
        )
        for kind, scope, last, maps in (
            (
                "ssd_inception_v2",
                "InceptionV2/",
                "Mixed_5c",
                [(8, 12, 55), (4, 6, 101), (2, 3, 51), (1, 2, 25), (1, 1, 25)],
            ),
            (
                "ssd_inception_v3",
                "InceptionV3/",
                "Mixed_7c",
                [(13, 21, 27), (6, 10, 76), (2, 4, 203), (1, 2, 51), (1, 1, 25)],
            ),
        )
    ),
    Row(
        "ssd_inception_v3",
        f"{OVERRIDE} {PENALIZED}",
        (300, 300),
        squares([288, 768, 2048, 512, 256, 128], [35, 17, 8, 4, 2, 1]),
        scope="InceptionV3/",
        has={
            "Mixed_7c_1_Conv2d_3_1x1_256/weights": [1, 1, 2048, 256],
            "Mixed_7c_2_Conv2d_5_3x3_s2_128/weights": [3, 3, 64, 128],
        },
        # 94 layers of the network and 6 more, each a kernel and four numbers per channel.
        variables=100 * 5,
        penalties=100,
        is_exhaustive=True,
    ),
    Row(
        "ssd_resnet50_v1_fpn",
        TINY,
        (160, 192),
        wide(12, (20, 24), (10, 12), (5, 6), (3, 3), (2, 2)),
        scope="resnet_v1_50/",
        has={
            "conv1/weights": [7, 7, 3, 64],
            "block4/unit_3/bottleneck_v1/conv1/weights": [1, 1, 100, 25],
            **{f"fpn/projection_{n}/biases": [12] for n in (1, 2, 3)},
            **{f"fpn/smoothing_{n}/weights": [3, 3, 12, 12] for n in (1, 2)},
            **{f"fpn/bottom_up_block{n}/weights": [3, 3, 12, 12] for n in (5, 6)},
        },
        lacks=("smoothing_1/biases", "smoothing_3", "projection_4", "block7"),
        is_exhaustive=True,
    ),
    Row(
        "ssd_resnet50_v1_fpn",
        f"{TINY} use_depthwise: true pad_to_multiple: 32",
        (130, 161),
        wide(12, (20, 24), (10, 12), (5, 6), (3, 3), (2, 2)),
        like=TINY,
        is_exhaustive=True,
    ),
    Row(  # the backbone is whole all the same
        "ssd_resnet50_v1_fpn",
        f"{TINY} fpn {{ min_level: 2 max_level: 4 additional_layer_depth: 100 }}",
        (160, 192),
        wide(5, (40, 48), (20, 24), (10, 12)),
        has={"resnet_v1_50/block4/unit_3/bottleneck_v1/conv3/weights": None},
        lacks=("bottom_up",),
        is_exhaustive=True,
    ),
    Row(
        "ssd_resnet50_v1_fpn",
        f"{TINY} fpn {{ min_level: 5 max_level: 6 }}",
        (160, 192),
        wide(12, (5, 6), (3, 3)),
        is_exhaustive=True,
    ),
    RESNET_PPN._replace(is_exhaustive=True),
    Row(
        "ssd_resnet50_v1_ppn",
        f"{NORM} min_depth: 200 use_depthwise: true use_explicit_padding: true",
        (160, 192),
        wide(1024, (10, 12), (5, 6), (3, 3), (2, 2), (1, 1), (1, 1)),
        like=NORM,
        is_exhaustive=True,
    ),
]
