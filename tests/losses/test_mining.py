from __future__ import annotations

from typing import Any, Dict, Tuple

import numpy as np
import pytest

from estimator_det.boxes.matching import UNMATCHED
from estimator_det.compat import tf
from estimator_det.losses import mining
from estimator_det.protos import losses_pb2
from tests.conftest import golden_component

SETTINGS, ARRAYS = golden_component("hard_example_miner")


def miner_of(setting: Dict[str, Any]) -> mining.HardExampleMiner:
    return mining.HardExampleMiner(
        num_hard_examples=setting["num_hard_examples"],
        iou_threshold=setting["iou_threshold"],
        loss_type=setting["loss_type"],
        cls_weight=setting.get("cls_loss_weight", 0.05),
        loc_weight=setting.get("loc_loss_weight", 0.06),
        max_negatives_per_positive=setting.get("max_negatives_per_positive"),
        min_negatives=setting.get("min_negatives_per_image", 0),
    )


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_golden(name):
    miner = miner_of(SETTINGS[name])
    names = ("location_losses", "cls_losses", "boxes", "match_results")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        mined = session.run(miner(*(tf.constant(ARRAYS[key]) for key in names)))
    np.testing.assert_allclose(mined.localization, ARRAYS[f"{name}__loc_loss"], rtol=1e-5)
    np.testing.assert_allclose(mined.classification, ARRAYS[f"{name}__cls_loss"], rtol=1e-5)
    counts = ARRAYS[f"{name}__npos_nneg_per_image"]
    if counts.size:
        np.testing.assert_array_equal(
            np.concatenate([mined.num_positives, mined.num_negatives]), counts
        )


def select(miner: mining.HardExampleMiner, losses: Any, boxes: Any, matches: Any) -> Any:
    chosen = miner.select(
        tf.constant(np.float32(losses)), tf.constant(np.float32(boxes)), tf.constant(matches)
    )
    return chosen.numpy()


def test_any_overlap_suppresses_at_threshold_0_without_a_limit():
    boxes = [[[0, 0, 1, 1], [0.9, 0.9, 2, 2], [1, 0, 2, 0.5]]]
    miner = mining.HardExampleMiner(None, 0.0, "cls")
    chosen = select(miner, [[2.0, 3.0, 1.0]], boxes, np.int32([[UNMATCHED] * 3]))
    assert chosen.tolist() == [[False, True, True]]


def scene(kind: str) -> Tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    if kind == "grid":
        centers = np.stack(np.meshgrid(*[np.arange(12) / 12.0] * 2), -1).reshape(1, -1, 2)
        boxes = np.concatenate([centers - 0.1, centers + 0.1], -1) + rng.normal(
            0, 5e-4, (2, 144, 4)
        )
    elif kind == "clusters":
        base = rng.uniform(0, 1, (2, 6, 4)).repeat(25, axis=1)
        base[..., 2:] += base[..., :2]
        boxes = base + rng.normal(0, 0.005, base.shape)
    elif kind == "equal":
        boxes = np.tile([0.1, 0.1, 0.5, 0.5], (2, 80, 1))
    else:
        boxes = rng.uniform(-1, 1, (2, 120, 4))  # corners in any order
        boxes[:, :20, 2:] = boxes[:, :20, :2]
        boxes[0, 20:24] = np.nan
        boxes[0, 24:28, 1] = np.inf
        boxes[1, 20:24] = 1e30
    return np.float32(boxes), rng.random(boxes.shape[:2]) < 0.9


@pytest.mark.parametrize("kind", ["grid", "clusters", "equal", "odd"])
@pytest.mark.parametrize("iou_threshold", [0.99, 0.9, 0.6])
def test_sparse_suppression_is_that_of_all_pairs(monkeypatch, kind, iou_threshold):
    monkeypatch.setattr(mining, "PAIRS", 700)
    boxes, usable = scene(kind)
    order = np.random.default_rng(4).random(usable.shape).argsort(axis=1).astype(np.int32)
    for limit in (30, 1000):
        arguments = (tf.constant(boxes), tf.constant(order), usable, iou_threshold, limit)
        sparse = mining.suppress_sparse(*arguments).numpy()
        np.testing.assert_array_equal(sparse, mining.suppress_all_pairs(*arguments))
        assert (sparse.sum(axis=1) <= limit).all()


def test_gradient_reaches_chosen_anchors_only_and_nan_is_never_chosen():
    losses = tf.constant([[3.0, np.nan, 2.0, 1.0]])
    boxes = tf.constant([[[0.0, 0, 1, 1], [2, 2, 3, 3], [0, 0, 1, 1], [4, 4, 5, 5]]])
    matches = tf.constant([[0, 0, 0, UNMATCHED]])
    miner = mining.HardExampleMiner(2, 0.7, "both", cls_weight=1.0, loc_weight=1.0)
    with tf.GradientTape() as tape:
        tape.watch(losses)
        mined = miner(losses, losses, boxes, matches)
        total = mined.localization + mined.classification
    np.testing.assert_array_equal(tape.gradient(total, losses), [[2.0, 0.0, 0.0, 2.0]])
    assert float(total) == 8.0
    assert (int(mined.num_positives[0]), int(mined.num_negatives[0])) == (1, 1)


def test_made_from_proto():
    config = losses_pb2.HardExampleMiner()
    assert mining.make_hard_example_miner(config, 2.0, 3.0) == mining.HardExampleMiner(
        64, float(np.float32(0.7)), "both", cls_weight=3.0, loc_weight=2.0
    )
    config = losses_pb2.HardExampleMiner(
        num_hard_examples=0,
        iou_threshold=0.5,
        loss_type="LOCALIZATION",
        max_negatives_per_positive=3,
        min_negatives_per_image=4,
    )
    assert mining.make_hard_example_miner(config, 1.0, 1.0) == mining.HardExampleMiner(
        None, 0.5, "loc", 1.0, 1.0, 3, 4
    )
