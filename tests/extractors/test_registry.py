"""Every registered extractor: feature maps, variables, settings, and what it refuses."""

from __future__ import annotations

import collections
import contextlib
import functools
import pathlib
import zlib
from typing import Any, Counter, Dict, Iterator, List, NamedTuple, Set, Tuple

import numpy as np
import pytest
from google.protobuf import text_format

import estimator_det.extractors  # noqa: F401  (fills the registry)
from estimator_det.compat import slim, tf, tf1
from estimator_det.config import pipeline
from estimator_det.config.text import ConfigError
from estimator_det.detectors import Groundtruth, make_detector
from estimator_det.extractors.ssd import mobiledet, recipe
from estimator_det.extractors.ssd.recipe import EXTRACTORS, make_extractor
from estimator_det.nets import searched
from estimator_det.nets.normalization import BATCH_NORMS
from estimator_det.protos import ssd_pb2

NORM = "conv_hyperparams { batch_norm { scale: true } }"
PENALIZED = """conv_hyperparams { activation: RELU_6 batch_norm { scale: true }
    regularizer { l2_regularizer { weight: 0.00004 } } }"""
OVERRIDE = "override_base_feature_extractor_hyperparams: true"
SMALL = f"depth_multiplier: 0.1 min_depth: 4 {PENALIZED}"
TINY = f"depth_multiplier: 0.05 min_depth: 4 {NORM}"
EMBEDDED = "embedded_ssd_mobilenet_v1"
MNASFPN = "ssd_mobilenet_v2_mnasfpn"
MNASFPN_LEVELS = "fpn { min_level: 3 max_level: 6 additional_layer_depth: 48 }"
TYPES = sorted(name for name in EXTRACTORS if not name.endswith("_keras"))
LEAVES = [f"BatchNorm/{n}" for n in ("beta", "gamma", "moving_mean", "moving_variance")]
# One layer of every kind, and no more.
TINY_MOBILEDET = searched.Network(
    stem=8,
    squeeze_excite=True,
    stages=(
        (searched.Layer("IBNNoExpansion", 8, skip=False),),
        (searched.Layer("TuckerConv", 16, stride=2, skip=False),),
        (searched.Layer("FusedConv", 24, stride=2, skip=False, expansion=2),),
        (searched.Layer("IBN", 72, 5, stride=2, skip=False, expansion=2),),
        (searched.Layer("IBN", 144, stride=2, skip=False, expansion=2),),
    ),
)


def make(kind: str, text: str = "", is_training: bool = True) -> Any:
    config = text_format.Parse(f"type: '{kind}' {text}", ssd_pb2.SsdFeatureExtractor())
    return make_extractor(config, is_training)


class Built(NamedTuple):
    maps: List[Tuple[int, ...]]  # height, width and channels
    variables: Dict[str, List[int]]
    penalties: int
    updates: int
    ops: Counter[str]  # how many of each type
    epsilons: Counter[float]  # of the batch norms


@functools.cache
def build(kind: str, text: str, size: Tuple[int, int], is_training: bool = True) -> Built:
    with tf.Graph().as_default() as graph:
        maps = make(kind, text, is_training).extract(tf.zeros([2, *size, 3]))
        variables = {v.op.name: v.shape.as_list() for v in tf1.global_variables()}
        assert len(variables) == len(tf1.global_variables())
        operations = graph.get_operations()
        norms = [op for op in operations if op.type == "FusedBatchNormV3"]
        return Built(
            [tuple(m.shape.as_list()[1:]) for m in maps],
            variables,
            len(tf1.losses.get_regularization_losses()),
            len(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)),
            collections.Counter(op.type for op in operations),
            collections.Counter(round(op.get_attr("epsilon"), 6) for op in norms),
        )


class Row(NamedTuple):
    """An extractor with some options, and what it makes.

    Attributes:
        kind: The type.
        text: Further fields of the message.
        size: Height and width of the images.
        maps: Shapes of the feature maps without the batch.
        has: Variables below `scope` by name, with their shapes; None for any shape.
        lacks: Parts that no variable's name has.
        scope: Of every variable.
        variables: How many; 0 for any number.
        penalties: How many regularization losses; None for any number.
        like: Options that give the same variables.
    """

    kind: str
    text: str
    size: Tuple[int, int]
    maps: List[Tuple[int, ...]]
    scope: str = ""
    has: Dict[str, Any] = {}  # noqa: RUF012
    lacks: Tuple[str, ...] = ()
    variables: int = 0
    penalties: Any = None
    like: str = ""


def squares(depths: List[int], sides: List[int]) -> List[Tuple[int, ...]]:
    return [(side, side, depth) for side, depth in zip(sides, depths)]


def wide(depth: int, *sides: Tuple[int, int]) -> List[Tuple[int, ...]]:
    return [(*side, depth) for side in sides]


def split(layer: str) -> Dict[str, None]:
    """Variables of a separable convolution with one batch norm."""
    return {f"{layer}/{leaf}": None for leaf in ("depthwise_weights", "pointwise_weights", *LEAVES)}


ROWS = [
    Row(
        "ssd_mobilenet_v1",
        "",
        (300, 300),
        squares([512, 1024, 512, 256, 256, 128], [19, 10, 5, 3, 2, 1]),
        scope="MobilenetV1/",
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
    ),
    Row(
        "ssd_mobilenet_v1_fpn",
        f"{SMALL} fpn {{ min_level: 2 max_level: 6 additional_layer_depth: 64 }}",
        (128, 160),
        wide(6, (32, 40), (16, 20), (8, 10), (4, 5), (2, 3)),
        has={"MobilenetV1/fpn/projection_1/weights": [1, 1, 12, 6]},
        lacks=("bottom_up_Conv2d_15",),
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
    ),
    Row(
        "ssd_mobilenet_v1_ppn",
        SMALL,
        (128, 160),
        wide(51, (8, 10), (4, 5), (2, 3), (1, 2), (1, 1), (1, 1)),
        scope="MobilenetV1/Conv2d_",  # no layers of its own
        has={"13_pointwise/weights": None},
        variables=27 * 5,
    ),
    Row(
        "ssd_mobilenet_v1_ppn",
        f"{SMALL} use_depthwise: true",
        (128, 160),
        wide(51, (8, 10), (4, 5), (2, 3), (1, 2), (1, 1), (1, 1)),
        like=SMALL,
    ),
    *(
        Row(
            EMBEDDED,
            f"{SMALL} {option}",
            (256, 256),
            squares([51, 102, 51, 25, 25], [16, 8, 4, 2, 1]),
            scope="MobilenetV1/",
            has={"Conv2d_13_pointwise_2_Conv2d_4_2x2_s2_25/weights": [2, 2, 12, 25]},
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
    Row(  # padded to 128 x 192; the backbone's channels are multiples of 8, the others cut
        "ssd_mobilenet_v2",
        f"depth_multiplier: 0.1 min_depth: 8 {PENALIZED} num_layers: 5 pad_to_multiple: 64",
        (107, 139),
        [(8, 12, 96), (4, 6, 128), (2, 3, 51), (1, 2, 25), (1, 1, 25)],
        scope="MobilenetV2/",
    ),
    Row(
        "ssd_mobilenet_v2",
        f"depth_multiplier: 0.1 min_depth: 8 {PENALIZED} use_explicit_padding: true",
        (96, 96),
        squares([96, 128, 51, 25, 25, 12], [6, 3, 2, 1, 1, 1]),
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
    ),
    Row(
        "ssd_mobilenet_v3_large",
        f"depth_multiplier: 0.1 min_depth: 8 {PENALIZED} pad_to_multiple: 64",
        (107, 139),
        [(8, 12, 96), (4, 6, 48), (2, 3, 51), (1, 2, 25), (1, 1, 25), (1, 1, 12)],
        scope="MobilenetV3/",
    ),
    Row(
        "ssd_mobilenet_v3_small",
        f"depth_multiplier: 0.1 min_depth: 8 {PENALIZED} pad_to_multiple: 64",
        (107, 139),
        [(8, 12, 48), (4, 6, 32), (2, 3, 51), (1, 2, 25), (1, 1, 25), (1, 1, 12)],
    ),
    Row(
        "ssd_mobilenet_v3_small",
        f"depth_multiplier: 0.1 min_depth: 8 {PENALIZED} use_explicit_padding: true",
        (64, 64),
        squares([48, 32, 51, 25, 25, 12], [28, 22, 11, 6, 3, 2]),
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
    ),
    Row(
        "ssd_mobilenet_edgetpu",
        f"depth_multiplier: 0.1 min_depth: 8 {PENALIZED} pad_to_multiple: 64",
        (107, 139),
        [(8, 12, 64), (4, 6, 24), (2, 3, 51), (1, 2, 25), (1, 1, 25), (1, 1, 12)],
        scope="MobilenetEdgeTPU/",
    ),
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
    ),
    Row(
        "ssd_resnet50_v1_fpn",
        f"{TINY} use_depthwise: true pad_to_multiple: 32",
        (130, 161),
        wide(12, (20, 24), (10, 12), (5, 6), (3, 3), (2, 2)),
        like=TINY,
    ),
    Row(  # the backbone is whole all the same
        "ssd_resnet50_v1_fpn",
        f"{TINY} fpn {{ min_level: 2 max_level: 4 additional_layer_depth: 100 }}",
        (160, 192),
        wide(5, (40, 48), (20, 24), (10, 12)),
        has={"resnet_v1_50/block4/unit_3/bottleneck_v1/conv3/weights": None},
        lacks=("bottom_up",),
    ),
    Row(
        "ssd_resnet50_v1_fpn",
        f"{TINY} fpn {{ min_level: 5 max_level: 6 }}",
        (160, 192),
        wide(12, (5, 6), (3, 3)),
    ),
    Row(
        "ssd_resnet50_v1_ppn",
        NORM,
        (160, 192),
        wide(1024, (10, 12), (5, 6), (3, 3), (2, 2), (1, 1), (1, 1)),
        scope="resnet_v1_50/",
        has={"Base_Conv2d_1x1_1024/weights": [1, 1, 1024, 1024]},
    ),
    Row(
        "ssd_resnet50_v1_ppn",
        f"{NORM} min_depth: 200 use_depthwise: true use_explicit_padding: true",
        (160, 192),
        wide(1024, (10, 12), (5, 6), (3, 3), (2, 2), (1, 1), (1, 1)),
        like=NORM,
    ),
]
# Networks that `short_networks` makes short.
SHORT_ROWS = [
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
MOBILEDET_ROWS = [
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


def check(row: Row) -> None:
    built = build(row.kind, row.text, row.size)
    assert built.maps == row.maps
    assert all(name.startswith(row.scope) for name in built.variables)
    for name, shape in row.has.items():
        found = built.variables[row.scope + name]
        assert shape is None or found == shape, name
    assert not [n for n in built.variables if any(part in n for part in row.lacks)]
    assert row.variables in (0, len(built.variables))
    assert row.penalties in (None, built.penalties)
    if row.like:
        plain = next(r for r in ROWS if (r.kind, r.text) == (row.kind, row.like))
        assert built.variables == build(plain.kind, plain.text, plain.size).variables


def row_name(row: Row) -> str:
    return row.kind


@pytest.mark.parametrize("row", ROWS, ids=row_name)
def test_row(row: Row) -> None:
    check(row)


@pytest.fixture
def fresh_builds() -> Iterator[None]:
    """Networks built in a test that replaces them are not kept."""
    build.cache_clear()
    yield
    build.cache_clear()


@pytest.mark.usefixtures("short_networks", "fresh_builds")
@pytest.mark.parametrize("row", SHORT_ROWS, ids=row_name)
def test_short_row(row: Row) -> None:
    check(row)


@pytest.fixture
def tiny_mobiledet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A MobileDet of five layers, registered while the test runs."""
    monkeypatch.setattr(recipe.EXTRACTORS, "_makers", {})
    network = mobiledet.mobiledet_recipe("Tiny", TINY_MOBILEDET)
    recipe.register_recipe("tiny_mobiledet", network)


@pytest.mark.usefixtures("tiny_mobiledet")
@pytest.mark.parametrize("row", MOBILEDET_ROWS, ids=lambda row: row.text)
def test_mobiledet_row(row: Row) -> None:
    check(row)


def test_every_type_has_a_row_or_a_golden() -> None:
    others = {f"ssd_mobiledet_{name}" for name in ("cpu", "dsp", "edgetpu", "gpu")}
    deep = {f"ssd_resnet{layers}_v1_{neck}" for layers in (101, 152) for neck in ("fpn", "ppn")}
    in_rows = {row.kind.replace("_keras", "") for row in (*ROWS, *SHORT_ROWS)}
    assert in_rows | others | deep == set(TYPES)


def test_keras_names_mean_the_same() -> None:
    keras = {name for name in EXTRACTORS if name.endswith("_keras")}
    v1_v2 = {f"ssd_mobilenet_{kind}_keras" for kind in ("v1", "v1_fpn", "v2", "v2_fpn")}
    assert keras == v1_v2 | {f"ssd_resnet{layers}_v1_fpn_keras" for layers in (50, 101, 152)}
    for name in keras:
        assert EXTRACTORS.get(name) is EXTRACTORS.get(name[: -len("_keras")])


# --- Pixels and images


@pytest.mark.parametrize("kind", TYPES)
def test_pixels(kind: str) -> None:
    """Minus one to one, but for ResNets, which subtract the means of color images."""
    needed = {"ssd_inception_v2": OVERRIDE, "ssd_inception_v3": OVERRIDE}.get(kind, "")
    pixels = tf.constant([[[[123.68, 116.779, 103.939], [0.0, 127.5, 255.0]]]])
    found = make(kind, needed).normalize(pixels)
    if "resnet" not in kind:
        np.testing.assert_allclose(found, pixels / 127.5 - 1.0, atol=1e-6)
        return
    np.testing.assert_allclose(
        found, [[[[0, 0, 0], [-123.68, 127.5 - 116.779, 255 - 103.939]]]], atol=1e-4
    )
    gray = tf.constant([[[[7.0]]]])
    np.testing.assert_array_equal(make(kind).normalize(gray), gray)


@pytest.mark.parametrize(
    ("kind", "text", "right", "wrong", "message"),
    [
        ("ssd_mobilenet_v1", "num_layers: 1", (40, 33), (40, 32), "at least 33 x 33"),
        (EMBEDDED, "", (256, 256), (256, 255), "must be 256 x 256"),
    ],
)
def test_unknown_sizes_are_checked_at_run_time(
    kind: str, text: str, right: Tuple[int, int], wrong: Tuple[int, int], message: str
) -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        fed = tf1.placeholder(tf.float32, [1, None, None, 3])
        features = make(kind, f"{SMALL} {text}").extract(fed)
        if kind == EMBEDDED:
            assert features[-1].shape == (1, 1, 1, 25)
        session.run(tf1.global_variables_initializer())
        found = session.run(features[0], {fed: np.zeros([1, *right, 3])})
        assert found.shape == (1, -(-right[0] // 16), -(-right[1] // 16), 51)
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(features[0], {fed: np.zeros([1, *wrong, 3])})


# --- Refusals


def unsupported(kind: str, *texts: str) -> Iterator[Tuple[str, str, Tuple[int, int], str]]:
    for text in texts:
        field = text.split()[0].rstrip(":")
        yield kind, text, (64, 64), rf"feature_extractor\.{field} is not supported by {kind}"


REFUSALS = [
    *unsupported(
        "ssd_mobilenet_v1", "fpn {}", "spaghettinet_arch_name: 'a'", "use_hardswish: true"
    ),
    *unsupported("ssd_mobilenet_v1", "replace_preprocessor_with_placeholder: true", "bifpn {}"),
    *unsupported("ssd_mobilenet_v1_fpn", "num_layers: 5"),
    *unsupported("ssd_mobilenet_v1_ppn", "fpn {}", "num_layers: 5"),
    *unsupported(EMBEDDED, "num_layers: 4"),
    *unsupported("ssd_mobilenet_v2", "fpn {}"),
    *unsupported("ssd_mobilenet_v2_fpn", "num_layers: 4"),
    *unsupported("ssd_mobilenet_v3_large", "num_layers: 4"),
    *unsupported("ssd_mobilenet_v3_small", "use_hardswish: true"),
    *unsupported("ssd_mobiledet_cpu", "num_layers: 4"),
    *unsupported("ssd_mobiledet_gpu", MNASFPN_LEVELS),
    *unsupported(MNASFPN, "num_layers: 4"),
    *unsupported("ssd_spaghettinet", MNASFPN_LEVELS),
    *unsupported("ssd_resnet50_v1_ppn", "fpn {}", "num_layers: 4"),
    *unsupported("ssd_resnet50_v1_fpn", "bifpn {}"),
    *(
        (kind, text, (256, 256), message)
        for kind, text, message in (
            ("ssd_mobilenet_v1", "num_layers: 7", "num_layers: 7 is more than the 6 feature maps"),
            ("ssd_mobilenet_v1", "pad_to_multiple: 0", "pad_to_multiple must be 1 or more; got 0"),
            ("ssd_mobilenet_v2", "depth_multiplier: 0", "depth_multiplier must be above 0"),
            ("ssd_mobilenet_v2_fpn", "fpn { min_level: 6 }", "min_level must be 2 to 5.*got 6"),
            ("ssd_mobilenet_edgetpu", "use_explicit_padding: true", "must be False for .*edgetpu"),
            ("ssd_mobiledet_cpu", "use_explicit_padding: true", "must be False for .*_cpu"),
            (MNASFPN, "fpn {}", "min_level 3 and max_level 6; got 3 and 7"),
            (
                "ssd_spaghettinet",
                "spaghettinet_arch_name: 'spaghettinet_edgetpu_x'",
                r"no 'spaghettinet_edgetpu_x'; did you mean 'spaghettinet_edgetpu_[sml]'\?",
            ),
            ("ssd_inception_v2", NORM, "override.* must be true for ssd_inception_v2"),
            ("ssd_inception_v3", NORM, "override.* must be true for ssd_inception_v3"),
            (EMBEDDED, "pad_to_multiple: 32", f"pad_to_multiple must be 1 for {EMBEDDED}"),
            ("ssd_resnet50_v1_fpn", "use_explicit_padding: true", "must be False for .*_fpn"),
            ("ssd_resnet50_v1_fpn", "num_layers: 6", r"not supported .* it takes \['fpn'\]"),
            ("ssd_resnet50_v1_fpn", "fpn { min_level: 4 max_level: 3 }", "not be below min_level"),
            ("ssd_resnet50_v1_fpn", "fpn { additional_layer_depth: 0 }", "must be 1 or more"),
            (
                "ssd_resnet50_v1_ppn",
                "depth_multiplier: 0.5",
                r"depth_multiplier must be 1\.0 for .*_ppn; got 0\.5",
            ),
        )
    ),
    ("ssd_mobilenet_v1", SMALL, (32, 40), r"at least 33 x 33 pixels; got \[32, 40\]"),
    ("ssd_mobilenet_v3_small", SMALL, (32, 64), "at least 33 x 33 pixels"),
    ("ssd_inception_v2", f"{SMALL} {OVERRIDE}", (32, 40), r"at least 33 x 33 .* \[32, 40\]"),
    ("ssd_inception_v3", f"{SMALL} {OVERRIDE}", (32, 40), r"at least 33 x 33 .* \[32, 40\]"),
    *(
        (kind, "", (64, 32), "at least 33 x 33 pixels")
        for kind in (*(f"ssd_mobiledet_{n}" for n in ("cpu", "dsp", "edgetpu", "gpu")), MNASFPN)
    ),
    ("ssd_spaghettinet", "", (64, 32), "at least 33 x 33 pixels"),
    (EMBEDDED, SMALL, (256, 300), r"must be 256 x 256 pixels for .*; got \[256, 300\]"),
    ("ssd_resnet50_v1_ppn", NORM, (128, 200), r"at least 129 x 129 pixels; got \[128, 200\]"),
    ("ssd_resnet50_v1_fpn", TINY, (150, 160), "pad_to_multiple: 32"),
    ("ssd_mobilenet_v1_fpn", SMALL, (100, 90), "use_explicit_padding"),
]


@pytest.mark.usefixtures("short_networks")
@pytest.mark.parametrize(("kind", "text", "size", "message"), REFUSALS)
def test_refusals(kind: str, text: str, size: Tuple[int, int], message: str) -> None:
    with tf.Graph().as_default(), pytest.raises(ConfigError, match=message):
        make(kind, text).extract(tf.zeros([1, *size, 3]))


def test_unknown_type() -> None:
    with pytest.raises(ValueError, match="'ssd_mobilenet_v1'"):
        make("ssd_mobilenet_v11")


def test_a_flag_set_to_false_is_no_error() -> None:
    make("ssd_mobilenet_v1", "replace_preprocessor_with_placeholder: false use_hardswish: false")


# --- Hyperparameters of the message


def gammas(built: Built) -> int:
    return len([name for name in built.variables if name.endswith("gamma")])


def test_override_of_mobilenet_v1() -> None:
    text = """depth_multiplier: 0.1 min_depth: 4 conv_hyperparams {
        initializer { truncated_normal_initializer { stddev: 0 } }
        regularizer { l2_regularizer { weight: 0 } } batch_norm { scale: false } }"""
    plain = build("ssd_mobilenet_v1", text, (64, 64))
    overridden = build("ssd_mobilenet_v1", f"{text} {OVERRIDE}", (64, 64))
    assert (gammas(plain), plain.penalties) == (27, 27)
    assert (gammas(overridden), overridden.penalties) == (0, 0)


@pytest.mark.parametrize(
    ("option", "penalties", "decay"), [("", 2 + 17 + 16, 0.9997), (OVERRIDE, 0, 0.999)]
)
def test_override_of_mobilenet_v2_keeps_the_network(
    option: str, penalties: int, decay: float
) -> None:
    text = f"""depth_multiplier: 0.1 min_depth: 8 num_layers: 2 {option}
        conv_hyperparams {{ activation: NONE batch_norm {{ scale: false center: false }} }}"""
    with tf.Graph().as_default() as graph:
        make("ssd_mobilenet_v2", text).extract(tf.zeros([1, 64, 64, 3]))
        assert len([v for v in tf1.global_variables() if v.op.name.endswith("gamma")]) == 52
        assert len(tf1.losses.get_regularization_losses()) == penalties
        norms = [op for op in graph.get_operations() if "FusedB" in op.type]
    for norm in norms:
        assert norm.get_attr("exponential_avg_factor") == pytest.approx(1 - decay, rel=1e-4)


@pytest.mark.parametrize(("option", "penalties", "relu6"), [("", 53, 4), (OVERRIDE, 0, 37)])
def test_override_of_resnet_keeps_the_numbers_of_its_norms(
    option: str, penalties: int, relu6: int
) -> None:
    text = f"""conv_hyperparams {{ activation: RELU_6
        regularizer {{ l2_regularizer {{ weight: 0 }} }}
        batch_norm {{ scale: false epsilon: 0.5 }} }}
        depth_multiplier: 0.05 min_depth: 4 {option}"""
    built = build("ssd_resnet50_v1_fpn", text, (160, 160))
    assert (built.epsilons[1e-5], built.epsilons[0.5]) == (53, 4)
    assert (built.ops["Relu6"], built.penalties) == (relu6, penalties)


@pytest.mark.parametrize("kind", ["ssd_inception_v2", "ssd_inception_v3"])
def test_inception_takes_every_setting_of_the_message(kind: str) -> None:
    text = f"""{OVERRIDE} depth_multiplier: 0.1 min_depth: 4 num_layers: 2
        conv_hyperparams {{ activation: NONE }}"""
    built = build(kind, text, (107, 139))
    assert not [op for op in built.ops if "Relu" in op]
    assert not [name for name in built.variables if "BatchNorm" in name]


@pytest.mark.parametrize("option", ["", OVERRIDE])
def test_embedded_keeps_the_settings_of_its_network(option: str) -> None:
    """As in the reference, an override has no effect; depthwise kernels are not regularized."""
    text = "depth_multiplier: 0.1 min_depth: 4 conv_hyperparams { batch_norm { scale: false } }"
    built = build(EMBEDDED, f"{text} {option}", (256, 256))
    # Regularized: the first convolution and the pointwise ones.
    assert (gammas(built), built.penalties) == (27, 14)


@pytest.mark.usefixtures("tiny_mobiledet")
def test_override_has_no_effect_on_a_mobiledet_backbone() -> None:
    text = f"""{OVERRIDE} conv_hyperparams {{ regularizer {{ l2_regularizer {{ weight: 0 }} }}
        batch_norm {{ scale: false train: false }} }}"""
    built = build("tiny_mobiledet", text, (64, 64))
    # Stem 1; 2, 3, 2, 3 and 3 kernels of the layers; two more for each of five gates.
    assert built.penalties == 1 + 2 + 3 + 2 + 3 + 3 + 10
    # Gates have no batch norm; each of the others moves two averages, the extra layers none.
    assert built.updates == 2 * 14


@pytest.mark.usefixtures("short_networks", "fresh_builds")
def test_override_adds_the_message_to_the_norms_of_pnasnet() -> None:
    text = f"""{OVERRIDE} num_layers: 2 conv_hyperparams {{ activation: NONE
        batch_norm {{ train: false epsilon: 0.25 }} }}"""
    with tf.Graph().as_default() as graph:
        make("ssd_pnasnet", text).extract(tf.zeros([2, 64, 64, 3]))
        names = {v.op.name for v in tf1.global_variables()}
        norms = [op for op in graph.get_operations() if op.type == "FusedBatchNormV3"]
        assert not tf1.losses.get_regularization_losses()
    assert {"conv0/BatchNorm/beta", "conv0_bn/beta"} <= names
    assert {op.get_attr("epsilon") for op in norms} == {0.25}
    assert all(op.get_attr("is_training") for op in norms)


@pytest.mark.usefixtures("short_networks", "fresh_builds")
def test_spaghettinet_evaluation_keeps_no_averages_of_its_own() -> None:
    counts = [
        len(build("ssd_spaghettinet", NORM, (64, 64), is_training).variables)
        for is_training in (True, False)
    ]
    # Two for each end of the ranges of n0 and n1.
    assert counts[0] - counts[1] == 2 * 2 * 2


# --- Moving averages


@contextlib.contextmanager
def batch_norms(in_place: bool) -> Iterator[None]:
    """A graph in which batch norm learns and updates its averages as the detector says."""
    collection = None if in_place else tf1.GraphKeys.UPDATE_OPS
    with (
        tf.Graph().as_default(),
        slim.arg_scope(list(BATCH_NORMS), is_training=True, updates_collections=collection),
    ):
        yield


def extract_small(kind: str, pixels: Any = None) -> Tuple[tf.Tensor, ...]:
    """Feature maps of a narrow network of the type, in the current graph."""
    text = {
        "ssd_inception_v2": f"{TINY} {OVERRIDE}",
        "ssd_inception_v3": f"{TINY} {OVERRIDE}",
    }.get(kind, NORM if kind.endswith("_ppn") and "resnet" in kind else TINY)
    side = 64
    if "resnet" in kind:
        side = 160
    elif kind in (EMBEDDED, "ssd_inception_v3"):
        side = 256 if kind == EMBEDDED else 96
    if pixels is None:
        pixels = np.random.default_rng(0).uniform(-1, 1, [2, side, side, 3])
    return make(kind, text).extract(tf.constant(pixels, tf.float32))


@pytest.mark.usefixtures("short_networks")
@pytest.mark.parametrize("kind", TYPES)
def test_updates_are_in_place_or_in_the_collection(kind: str) -> None:
    for in_place in (True, False):
        with batch_norms(in_place):
            extract_small(kind)
            averages = [v for v in tf1.global_variables() if "/moving_" in v.op.name]
            updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        assert averages
        assert len(updates) == (0 if in_place else len(averages))


def averages_after_a_pass(kind: str, in_place: bool) -> Dict[str, np.ndarray]:
    """Moving averages after one forward pass from weights that depend on their names alone."""
    with batch_norms(in_place), tf1.Session() as session:
        maps = extract_small(kind)
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        session.run(tf1.global_variables_initializer())
        for variable in tf1.trainable_variables():
            random = np.random.default_rng(zlib.crc32(variable.op.name.encode()))
            variable.load(random.normal(0, 0.1, variable.shape.as_list()), session)
        averages = {v.op.name: v for v in tf1.global_variables() if "/moving_" in v.op.name}
        before = session.run(averages)
        session.run([maps, updates])
        after = session.run(averages)
    assert all(np.any(after[name] != before[name]) for name in averages)
    return after


@pytest.mark.usefixtures("short_networks")
@pytest.mark.parametrize("kind", ["ssd_mobilenet_v1", "ssd_resnet50_v1_fpn"])
def test_averages_move_the_same_both_ways(kind: str) -> None:
    in_place = averages_after_a_pass(kind, in_place=True)
    collected = averages_after_a_pass(kind, in_place=False)
    assert in_place.keys() == collected.keys()
    for name, value in in_place.items():
        np.testing.assert_allclose(value, collected[name], rtol=1e-5, atol=1e-7, err_msg=name)


# --- Whole networks


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
def test_mobiledet_gpu() -> None:
    built = build("ssd_mobiledet_gpu", PENALIZED, (320, 320))
    assert built.maps[:3] == [(20, 20, 128), (10, 10, 384), (5, 5, 512)]
    root = "MobileDetGPU"
    assert built.variables[f"{root}/TuckerConv/Conv_1/weights"] == [3, 3, 8, 8]
    assert built.variables[f"{root}/TuckerConv_3/Conv_2/weights"] == [1, 1, 8, 32]
    assert built.variables[f"{root}/FusedConv_16/Conv/weights"] == [3, 3, 128, 512]
    assert built.variables[f"{root}/IBN/Conv_1/weights"] == [1, 1, 1024, 384]
    assert f"{root}/FusedConv_17/Conv/weights" not in built.variables


@pytest.mark.slow
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
    assert built.maps == squares(depths, [20, 10, 5, 3, 3])


@pytest.mark.slow
@pytest.mark.exhaustive
def test_pnasnet_trains() -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        tf1.train.create_global_step()
        maps = make("ssd_pnasnet", f"{PENALIZED} num_layers: 3").extract(
            tf.random.normal([2, 64, 64, 3])
        )
        shapes = [features.shape.as_list()[1:] for features in maps]
        assert shapes == [[4, 4, 2160], [2, 2, 4320], [1, 1, 512]]
        loss = tf.add_n([tf.reduce_mean(tf.square(features - 1.0)) for features in maps])
        variables = tf1.trainable_variables()
        gradients = tf1.gradients(loss, variables)
        assert None not in gradients
        step = tf1.train.GradientDescentOptimizer(0.01).apply_gradients(zip(gradients, variables))
        session.run(tf1.global_variables_initializer())
        assert np.isfinite(session.run([loss, step])[0])


@pytest.mark.slow
def test_keras_configuration_trains(shared: pathlib.Path) -> None:
    config = pipeline.read_pipeline(
        shared / "data" / "configs" / "ssd_mobilenet_v2_pets_keras.config"
    )
    config.model.ssd.feature_extractor.depth_multiplier = 0.25
    boxes = np.array([[[0.1, 0.1, 0.5, 0.5], [0.2, 0.3, 0.9, 0.8]]] * 2, np.float32)
    images = np.random.default_rng(0).uniform(0, 255, [2, 300, 300, 3]).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(0)
        groundtruth = Groundtruth(
            boxes=tf.constant(boxes),
            classes=tf.one_hot([[1, 2], [3, 4]], 37),
            weights=tf.ones([2, 2]),
            valid=tf.ones([2, 2], tf.bool),
        )
        detector = make_detector(config.model, is_training=True)
        inputs, true_shapes = detector.preprocess(tf.constant(images))
        predictions = detector.predict(inputs, true_shapes)
        total = tf.add_n(list(detector.loss(predictions, groundtruth).terms.values()))
        with tf1.control_dependencies(detector.updates()):
            step = tf1.train.MomentumOptimizer(0.01, 0.9).minimize(total)
        session.run(tf1.global_variables_initializer())
        losses = [session.run([total, step])[0] for _ in range(8)]
    assert losses[-1] < 0.8 * losses[0]
