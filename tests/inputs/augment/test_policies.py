from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np
import pytest

from estimator_det.compat import tf
from inputs.augment.policies import OPERATIONS, POLICIES, apply_policy
from inputs.sample import Sample
from tests.inputs.augment.goldens import load
from tests.inputs.augment.helpers import run_step, sample_of

SEEDS = [[seed, 2] for seed in range(40)]


def test_tables_are_those_of_the_object_detection_api():
    golden = load().document["autoaugment_policies"]
    own = {
        name: [[list(step) for step in sub] for sub in table] for name, table in POLICIES.items()
    }
    assert own == golden


MAGNITUDES = (
    ("Posterize", 8, 3), ("Posterize", 2, 0), ("Solarize", 10, 256), ("SolarizeAdd", 6, 66),
    ("Color", 5, 1.0), ("Cutout", 8, 80), ("Cutout_Only_BBoxes", 6, 30), ("BBox_Cutout", 4, 0.3),
    ("TranslateX_BBox", 4, 100), ("TranslateY_Only_BBoxes", 10, 120), ("ShearX_BBox", 10, 0.3),
    ("Rotate_BBox", 8, 24),
)  # fmt: skip


def test_magnitudes():
    for name, level, magnitude in MAGNITUDES:
        assert OPERATIONS[name].magnitude(level) == pytest.approx(magnitude), (name, level)


def _after(policy: Any, sample: Sample, count: int = len(SEEDS)) -> List[Sample]:
    return [apply_policy(sample, tf.constant(seed, tf.int64), policy) for seed in SEEDS[:count]]


def test_steps_of_a_sub_policy_apply_in_order_with_their_probability():
    sample = sample_of("bare")
    image = np.array(sample.image)
    policy = ((("Solarize", 1.0, 5), ("Brightness", 0.5, 10)), (("Posterize", 0.0, 4),))
    solarized = np.where(image < 128, image, 255 - image)
    brighter = np.minimum(solarized * np.float32(1.9), 255).astype(np.uint8)
    seen = {"unchanged": 0, "solarized": 0, "both": 0}
    for result in _after(policy, sample):
        for name, expected in zip(seen, (image, solarized, brighter)):
            seen[name] += int(np.array_equal(result.image, expected))
    assert sum(seen.values()) == len(SEEDS)
    assert 10 <= seen["unchanged"] <= 30 and min(seen["solarized"], seen["both"]) >= 3


def test_cutouts_fall_into_boxes():
    sample = sample_of("full")._replace(boxes=tf.constant([[0.5, 0.5, 0.75, 0.75]] * 3))
    for result in _after(((("BBox_Cutout", 1.0, 10),),), sample, 10):
        rows, columns = np.where((np.array(result.image) != np.array(sample.image)).any(axis=-1))
        assert rows.min() >= 10 and columns.min() >= 13 and len(rows) > 4
    empty = sample_of("empty")
    for result in _after(((("BBox_Cutout", 1.0, 10),),), empty, 3):
        np.testing.assert_array_equal(result.image, empty.image)


def test_operations_in_boxes_apply_to_a_third():
    """Each box is chosen by itself; pixels outside boxes stay."""
    sample = sample_of("bare")
    image, first, last = np.array(sample.image), np.s_[3:12, 4:16], np.s_[0:6, 24:32]
    changed = np.zeros(2)
    for result in _after(((("Cutout_Only_BBoxes", 1.0, 10),),), sample):
        pixels = np.array(result.image)
        changed += [not np.array_equal(pixels[part], image[part]) for part in (first, last)]
        assert np.array_equal(pixels[:3, :20], image[:3, :20])
    assert (changed >= 4).all() and (changed <= 24).all()  # 13 expected


def test_floats_are_cut_to_whole_numbers():
    sample = sample_of("bare", np.float32)
    sample = sample._replace(image=sample.image + 0.75)
    result: Tuple[Any, ...] = run_step("autoaugment_image { policy_name: 'test' }", sample)
    image = np.array(result[0])
    assert image.dtype == np.float32 and (image == np.floor(image)).all()
