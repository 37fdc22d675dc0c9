"""Feature maps of networks that `short_networks` makes short."""

from __future__ import annotations

from tests.extractors.build import MNASFPN, OVERRIDE, PENALIZED, SMALL
from tests.extractors.feature_maps.inception_resnet import RESNET_PPN
from tests.extractors.feature_maps.row import Row, squares, wide

ROWS = [
    RESNET_PPN,
    Row(  # padded to 96 x 160; the multiplier applies to the extra layers alone
        "ssd_pnasnet",
        f"{SMALL} num_layers: 4 pad_to_multiple: 32",
        (96, 130),
        [(6, 10, 16), (3, 5, 32), (2, 3, 51), (1, 2, 25)],
        has={
            "conv0/weights": [3, 3, 3, 6],
            "cell_stem_0/comb_iter_0/left/bn_sep_3x3_1/gamma": None,
            "SSD_feature_maps/Cell_11_1_Conv2d_2_1x1_25/weights": [1, 1, 32, 25],
            "SSD_feature_maps/Cell_11_2_Conv2d_2_3x3_s2_51/weights": [3, 3, 25, 51],
        },
        lacks=("conv0/BatchNorm", "cell_stem_0/BatchNorm"),
    ),
    Row(  # 44 channels make 48, and sides of 100 and 60 make 128 and 64
        MNASFPN,
        """use_explicit_padding: true pad_to_multiple: 64 depth_multiplier: 0.5 min_depth: 8
        fpn { max_level: 6 additional_layer_depth: 88 }""",
        (100, 60),
        wide(48, (16, 8), (8, 4), (4, 2), (2, 1)),
        is_exhaustive=True,
    ),
    Row(  # not even the padding has an effect: 300 pixels stay 300
        "ssd_spaghettinet",
        f"""depth_multiplier: 0.1 min_depth: 4 use_depthwise: true pad_to_multiple: 256 {OVERRIDE}
        {PENALIZED}""",
        (300, 300),
        squares([120, 168, 136, 136, 64], [19, 10, 5, 3, 3]),
        scope="spaghettinet_edgetpu_m/",
        has={
            "spaghetti_net/stem_node/stem/weights": None,
            "spaghetti_net/n1_0/slice_3/weights": None,
            "spaghetti_net/n1_0/concat/max": None,
            "spaghetti_net/n3_0/depthwise/BatchNorm/gamma": None,
            "spaghetti_net/n5_0/depthwise/biases": None,
            "edge_n4_c0n0/1x1_before_upsample/weights": None,
            "edge_c0n1_c0n2/1x1_after_downsampling/weights": None,
            "edge_n5_c0n4/1x1_no_resampling/weights": None,
        },
    ),
]
