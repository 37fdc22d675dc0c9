"""The page of all extractors is that of the command, and the counts behind it are right."""

from __future__ import annotations

import pathlib
from typing import Dict, List

import pytest

from benchmarks.extractors import graphs, speed, table, two_stage, usual, worker
from estimator_det.compat import tf, tf1
from estimator_det.detectors import make_detector
from estimator_det.extractors.ssd.recipe import EXTRACTORS, make_extractor
from estimator_det.extractors.two_stage.recipe import EXTRACTORS as TWO_STAGE_EXTRACTORS

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "extractors.md"


@pytest.fixture(scope="module")
def listed() -> Dict[str, List[str]]:
    """Cells of the page's rows by type."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
    return {row[0].strip("`"): row for row in cells}


def test_page_lists_every_type(listed: Dict[str, List[str]]) -> None:
    aliases = {name.strip("`") for row in listed.values() for name in row[1].split("<br>") if name}
    assert set(listed) | aliases == {*EXTRACTORS, *TWO_STAGE_EXTRACTORS}
    assert set(listed) == {*usual.types(), *two_stage.types()}
    assert "ssd_mobilenet_v2_keras" in aliases


def test_page_begins_as_the_command_writes_it() -> None:
    text = PAGE.read_text()
    assert text.startswith(table.head([]))
    assert two_stage.INTRODUCTION in text
    assert table.line(list(two_stage.COLUMNS)) in text.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["ssd_mobilenet_v1", pytest.param("ssd_mobilenet_v3_small", marks=pytest.mark.exhaustive)],
)
def test_page_has_the_numbers_of_the_command(kind: str) -> None:
    row = table.line(table.cells(kind, usual.types()[kind], graphs.facts(kind)))
    assert row in PAGE.read_text().splitlines()


@pytest.mark.slow
@pytest.mark.exhaustive  # the test above has a row of the other table
def test_page_has_the_numbers_of_two_stages() -> None:
    kind = "faster_rcnn_resnet50"
    found = two_stage.facts(kind)
    assert found.parameters == [23508032, 14964736]
    row = table.line(two_stage.cells(kind, two_stage.types()[kind], found))
    assert row in PAGE.read_text().splitlines()
    assert two_stage._strides("faster_rcnn_inception_v2") == [16]


def test_multiply_adds() -> None:
    with tf.Graph().as_default():
        image = tf1.placeholder(tf.float32, [1, 8, 6, 3])
        plain = tf.nn.conv2d(image, tf.zeros([3, 3, 3, 5]), strides=2, padding="SAME")
        assert graphs.multiply_adds([plain.op]) == 4 * 3 * (3 * 3 * 3 * 5)
        split = tf.nn.depthwise_conv2d(image, tf.zeros([3, 3, 3, 2]), [1, 1, 1, 1], "VALID")
        assert graphs.multiply_adds([plain.op, split.op]) == 1620 + 6 * 4 * (3 * 3 * 3 * 2)
        product = tf.matmul(tf.zeros([7, 2]), tf.zeros([2, 4]))
        assert graphs.multiply_adds([product.op]) == 56
        later = tf.nn.conv2d(plain, tf.zeros([1, 1, 5, 2]), strides=1, padding="SAME")
        assert graphs.multiply_adds([later.op]) == 1620 + 12 * 10


def test_xla_obstacles() -> None:
    with tf.Graph().as_default():
        values = tf1.placeholder(tf.float32, [4, 4, 4, 2])
        weights = tf1.get_variable("w", [1, 1, 2, 2], use_resource=True)
        fine = tf.nn.conv2d(values, weights, strides=1, padding="SAME")
        assert graphs.xla_obstacles([fine.op]) == []
        larger = tf1.image.resize_nearest_neighbor(fine, [8, 8])
        gradient = tf.gradients(larger, weights)[0]
        assert graphs.xla_obstacles([gradient.op]) == [
            "ResizeNearestNeighborGrad has no XLA kernel"
        ]
        picked = tf.boolean_mask(fine, tf.greater(fine, 0.0))
        assert "Where has no static shape" in graphs.xla_obstacles([picked.op])
        # What hangs below is no part of it.
        assert graphs.xla_obstacles([fine.op]) == []


def test_refused_fields() -> None:
    assert graphs.refused("embedded_ssd_mobilenet_v1") == ["pad_to_multiple", "num_layers", "fpn"]
    assert graphs.refused("ssd_inception_v2") == ["fpn", "override_base_… unset"]


@pytest.mark.parametrize("kind", sorted(usual.types()))
def test_usual_settings_are_taken(kind: str) -> None:
    make_extractor(usual.extractor_message(kind), is_training=True)
    config = usual.pipeline_message(kind, 320, 8)
    assert config.model.ssd.feature_extractor.type == kind
    assert config.model.ssd.box_predictor.WhichOneof("box_predictor_oneof")


@pytest.mark.slow
@pytest.mark.exhaustive  # golden graphs have all kinds of heads
@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("embedded_ssd_mobilenet_v1", 256),
        ("ssd_mobilenet_v1_fpn", 128),
        ("ssd_mobilenet_v1_ppn", 128),
        ("ssd_mobilenet_v2_mnasfpn", 64),
        ("ssd_mobilenet_v3_small", 64),
    ],
)
def test_heads_fit_their_maps(kind: str, size: int) -> None:
    config = usual.pipeline_message(kind, size, 1)
    with tf.Graph().as_default():
        detector = make_detector(config.model, is_training=False)
        predictions = detector.predict(tf.zeros([1, size, size, 3]))
    assert len(predictions.feature_maps) == usual.usual(kind).maps


def test_images_are_made_smaller_until_they_are_cheap() -> None:
    assert speed._side(300, 1e9) == 300
    assert speed._side(640, 30e9) == 320
    assert speed._side(640, 100e9) == 160
    assert speed._side(300, 100e9) == 150


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("part", speed.PARTS)
def test_parts_run_the_network(part: str) -> None:
    runs = worker.Worker("ssd_mobilenet_v1_ppn", part)
    assert set(worker.PARTS) == set(speed.PARTS)
    for build in (runs.train, runs.infer):
        assert build(64, 2)["operations"] > 500
        # Whatever the graph optimizer may leave out, convolutions must be run.
        assert len([name for name in runs.executed() if "Conv" in name]) > 40
        clock, processors = runs.step()
        assert clock > 0 and processors > 0
