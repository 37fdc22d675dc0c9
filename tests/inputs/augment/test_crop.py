from __future__ import annotations

import dataclasses
from typing import List, Tuple

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from inputs.augment import make_augmentation
from inputs.augment.crop import (
    SSD_OPERATIONS,
    Operation,
    Padding,
    Window,
    _crop_pad_parts,
    _draw,
    _fixed_parts,
    _operations,
    _pad_fixed_parts,
    _ssd_crop_pad_parts,
    crop,
)
from inputs.schema import Sample
from tests.inputs.augment.helpers import config_of, run_in_dataset, sample_of, step

# Rows 2 to 7 and columns 4 to 14 of an image of 10 x 20.
WINDOW = Window(tf.constant([2, 4, 0]), tf.constant([5, 10, -1]), tf.constant([0.2, 0.2, 0.7, 0.7]))
SEEDS = [[seed, 5] for seed in range(60)]


def _sample() -> Sample:
    return Sample(
        image=tf.constant(np.arange(600).reshape(10, 20, 3), tf.float32),
        boxes=tf.constant(
            [
                [0.2, 0.2, 0.7, 0.7],  # the window itself
                [0.0, 0.0, 0.2, 0.2],  # touches its corner
                [0.1, 0.2, 0.5, 0.6],  # three quarters inside
                [0.3, 0.3, 0.3, 0.5],  # no area
            ]
        ),
        classes=tf.constant([1, 2, 3, 4], tf.int64),
        weights=tf.ones([4]),
        masks=tf.constant(np.arange(800).reshape(4, 10, 20), tf.float32),
        keypoints=tf.constant([[[0.45, 0.3], [0.1, 0.3]]] * 4),
        keypoint_visibilities=tf.ones([4, 2], tf.bool),
        area=tf.constant([100.0, 200.0, 1000.0, 0.0]),
    )


def test_crop_by_hand() -> None:
    sample = _sample()
    result = crop(sample, WINDOW, tf.constant(0.7), tf.constant(True))
    np.testing.assert_array_equal(result.classes, [1, 3])
    np.testing.assert_array_equal(result.image, sample.image[2:7, 4:14])
    np.testing.assert_array_equal(result.masks, np.array(sample.masks)[[0, 2], 2:7, 4:14])
    np.testing.assert_allclose(result.boxes, [[0, 0, 1, 1], [0, 0, 0.6, 0.8]], atol=1e-6)
    np.testing.assert_allclose(result.keypoints[0], [[0.5, 0.2], [np.nan] * 2], atol=1e-6)
    np.testing.assert_array_equal(result.keypoint_visibilities, [[True, False]] * 2)
    np.testing.assert_allclose(result.area, [100.0, 750.0], rtol=1e-5)


def test_crop_keeps_boxes_from_the_threshold_on() -> None:
    for thresh, classes in [(0.0, [1, 3]), (0.8, [1]), (1.0, [1])]:
        result = crop(_sample(), WINDOW, tf.constant(thresh), tf.constant(True))
        np.testing.assert_array_equal(result.classes, classes)


def test_crop_without_clipping() -> None:
    result = crop(_sample(), WINDOW, tf.constant(0.0), tf.constant(False))
    np.testing.assert_allclose(result.boxes[1], [-0.2, 0.0, 0.6, 0.8], atol=1e-6)
    np.testing.assert_allclose(result.keypoints[0], [[0.5, 0.2], [-0.2, 0.2]], atol=1e-6)
    assert np.array(result.keypoint_visibilities).all()
    np.testing.assert_allclose(result.area, [100.0, 1000.0])


def test_keep_all_keeps_even_boxes_outside() -> None:
    result = crop(
        _sample(), WINDOW, tf.constant(1.0), tf.constant(False), keep_all=tf.constant(True)
    )
    np.testing.assert_array_equal(result.classes, [1, 2, 3, 4])


def _operation(**settings: float) -> str:
    values = {
        "min_aspect_ratio": 0.5,
        "max_aspect_ratio": 2.0,
        "min_area": 0.1,
        "max_area": 1.0,
        **settings,
    }
    return " ".join(f"{name}: {value}" for name, value in values.items())


def _crops(text: str, sample: Sample) -> List[Tuple[Tuple[int, int], int]]:
    """Size of the image and number of boxes for each seed."""
    results = run_in_dataset(make_augmentation([step(text)]), sample, SEEDS)
    return [(result["image"].shape[:2], len(result["boxes"])) for result in results]


def test_original_image_with_probability_random_coef() -> None:
    sample = sample_of("full")
    text = f"ssd_random_crop {{ operations {{ {_operation(random_coef=1.0)} }} }}"
    for result in run_in_dataset(make_augmentation([step(text)]), sample, SEEDS[:3]):
        for name in ("image", "boxes", "masks", "keypoints", "area", "keypoint_visibilities"):
            np.testing.assert_array_equal(result[name], getattr(sample, name))
    half = _operation(random_coef=0.5, max_area=0.6)
    sizes = [size for size, _ in _crops(f"ssd_random_crop {{ operations {{ {half} }} }}", sample)]
    assert 18 <= sizes.count((24, 32)) <= 42  # of 60


def test_crops_have_the_area_and_shape_asked_for() -> None:
    settings = _operation(min_area=0.2, max_area=0.5, min_aspect_ratio=0.8, max_aspect_ratio=1.2)
    sample = sample_of("bare")._replace(boxes=tf.zeros([0, 4]), classes=tf.zeros([0], tf.int64))
    sample = sample._replace(weights=tf.zeros([0]), image=tf.zeros([240, 320, 3], tf.uint8))
    for (height, width), _ in _crops(f"ssd_random_crop {{ operations {{ {settings} }} }}", sample):
        assert 0.19 <= height * width / (240 * 320) <= 0.51
        assert 0.78 <= width / height <= 1.22


def test_min_object_covered_keeps_an_object() -> None:
    settings = _operation(min_object_covered=1.0, overlap_thresh=0.99)
    one = sample_of("bare")
    one = one._replace(boxes=one.boxes[:1], classes=one.classes[:1], weights=one.weights[:1])
    crops = _crops(f"random_crop_image {{ {settings} }}", one)
    assert {count for _, count in crops} == {1}
    assert len({size for size, _ in crops}) > 10


def test_operations_of_different_ranges_are_all_drawn() -> None:
    small = _operation(min_area=0.1, max_area=0.2)
    large = _operation(min_area=0.7, max_area=0.9)
    sample = sample_of("full")._replace(image=tf.zeros([240, 320, 3]), masks=None)
    text = f"ssd_random_crop {{ operations {{ {small} }} operations {{ {large} }} }}"
    shares = [size[0] * size[1] / (240 * 320) for size, _ in _crops(text, sample)]
    smalls = [share for share in shares if share < 0.21]
    larges = [share for share in shares if share > 0.69]
    assert len(smalls) + len(larges) == 60 and 15 <= len(smalls) <= 45


def test_standard_operations_are_drawn_evenly() -> None:
    assert [op.min_object_covered for op in SSD_OPERATIONS] == [0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]
    draws = tf.data.Dataset.range(1400).map(
        lambda i: _draw(SSD_OPERATIONS, tf.stack([i, tf.ones_like(i)]))
    )
    indices, unchanged = zip(*draws.as_numpy_iterator())
    counts = np.bincount(indices, minlength=7)
    assert len(counts) == 7 and counts.min() > 150 and counts.max() < 250
    assert 160 <= sum(unchanged) <= 260  # 15 percent are 210


def test_standard_operations_are_those_of_the_reference() -> None:
    plain, padded = config_of("ssd_random_crop {}"), config_of("ssd_random_crop_pad {}")
    operations, paddings = _ssd_crop_pad_parts(padded)
    assert _operations(plain) == list(SSD_OPERATIONS)
    assert [op.min_object_covered for op in operations] == [0.1, 0.3, 0.5, 0.7, 0.9, 1.0]
    assert paddings == [Padding((1.0, 1.0), (2.0, 2.0), None)] * 6
    for operation in (*operations, *SSD_OPERATIONS):
        assert operation.overlap_thresh == operation.min_object_covered
        assert (operation.aspect_ratio, operation.area) == ((0.5, 2.0), (0.1, 1.0))
        assert (operation.clip_boxes, operation.random_coef) == (True, 0.15)
    fixed = config_of("ssd_random_crop_fixed_aspect_ratio { aspect_ratio: 1.5 }")
    ratio, operations = _fixed_parts(fixed)
    assert ratio == 1.5 and {op.aspect_ratio for op in operations} == {(1.5, 1.5)}
    assert [op.min_object_covered for op in operations] == [0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]
    assert {(op.area, op.clip_boxes, op.random_coef) for op in operations} == {
        ((0.1, 1.0), True, 0.15)
    }
    fixed = config_of("ssd_random_crop_pad_fixed_aspect_ratio { aspect_ratio: 1.5 }")
    assert _pad_fixed_parts(fixed) == (1.5, list(SSD_OPERATIONS), Padding((1, 1), (2, 2), None))


def test_every_field_of_an_operation_is_read() -> None:
    settings = """min_object_covered: 0.25 min_aspect_ratio: 0.75 max_aspect_ratio: 1.25
        min_area: 0.125 max_area: 0.5 overlap_thresh: 0.375 random_coef: 0.625"""
    expected = Operation(0.25, (0.75, 1.25), (0.125, 0.5), 0.375, True, 0.625)
    padding = "min_padded_size_ratio: [1.25, 1.5] max_padded_size_ratio: [2, 3]"
    sizes = Padding((1.25, 1.5), (2.0, 3.0))
    listed = f"operations {{ {settings} }} operations {{ {settings} clip_boxes: false }}"
    both = [expected, dataclasses.replace(expected, clip_boxes=False)]
    assert _operations(config_of(f"ssd_random_crop {{ {listed} }}")) == both
    colors = "pad_color_r: 1 pad_color_g: 2 pad_color_b: 3"
    operations, paddings = _ssd_crop_pad_parts(
        config_of(f"ssd_random_crop_pad {{ operations {{ {settings} {padding} {colors} }} }}")
    )
    assert operations == [expected]
    assert paddings == [dataclasses.replace(sizes, color=(1.0, 2.0, 3.0))]
    one = config_of(f"random_crop_pad_image {{ {settings} {padding} pad_color: [4, 5, 6] }}")
    assert _crop_pad_parts(one) == (
        [expected],
        [dataclasses.replace(sizes, color=(4.0, 5.0, 6.0))],
    )
    plain = config_of(f"random_crop_pad_image {{ {settings} }}")
    assert _crop_pad_parts(plain)[1] == [Padding()]


def test_painted_rectangles_stay_under_their_boxes() -> None:
    """Pixels, masks and boxes move together through every crop and pad."""
    sample = sample_of("full")
    painted = tf.cast(tf.reduce_max(sample.masks, axis=0), tf.float32)[..., tf.newaxis] * 255.0
    sample = sample._replace(image=tf.repeat(painted, 3, axis=-1))
    steps = [
        "ssd_random_crop {}",
        "ssd_random_crop_pad {}",
        "ssd_random_crop_fixed_aspect_ratio {}",
        "ssd_random_crop_pad_fixed_aspect_ratio {}",
        "random_crop_pad_image { random_coef: 0.2 pad_color: [0, 0, 0] }",
    ]
    seen = 0
    for text in steps:
        for result in run_in_dataset(make_augmentation([step(text)]), sample, SEEDS[:15]):
            height, width = result["image"].shape[:2]
            for box, mask in zip(result["boxes"], result["masks"]):
                rows, columns = np.where(mask > 0)
                extent = [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]
                np.testing.assert_allclose(box * ([height, width] * 2), extent, atol=1e-3)
                assert (result["image"][mask > 0] == 255).all()
                seen += 1
    assert seen > 60


@pytest.mark.parametrize("ratio", [1.0, 2.0])
def test_fixed_aspect_ratios(ratio: float) -> None:
    sample = sample_of("full")
    cropped = _crops(f"ssd_random_crop_fixed_aspect_ratio {{ aspect_ratio: {ratio} }}", sample)
    padded = _crops(f"ssd_random_crop_pad_fixed_aspect_ratio {{ aspect_ratio: {ratio} }}", sample)
    for (height, width), _ in cropped + padded:
        assert abs(width - height * ratio) <= ratio


def test_listed_crop_pad_operations_use_their_own_color() -> None:
    settings = _operation(random_coef=1.0) + (
        " min_padded_size_ratio: [2, 2] max_padded_size_ratio: [2, 2] pad_color_g: 9"
    )
    augment = make_augmentation([step(f"ssd_random_crop_pad {{ operations {{ {settings} }} }}")])
    sample = sample_of("bare")._replace(image=tf.ones([4, 5, 3], tf.uint8))
    image = np.array(augment(sample, tf.constant([1, 2])).image)
    assert image.shape == (8, 10, 3)
    assert (image == [0, 9, 0]).all(axis=-1).sum() == 60
    assert (image == 1).all(axis=-1).sum() == 20


def test_operation_checks_its_ranges() -> None:
    with pytest.raises(ConfigError, match="min_aspect_ratio <= max_aspect_ratio"):
        Operation(aspect_ratio=(2.0, 1.0))
    with pytest.raises(ConfigError, match="at most 1"):
        Operation(area=(0.5, 1.5))
    with pytest.raises(ConfigError, match=r"random_coef is -0\.1; it must lie within"):
        Operation(random_coef=-0.1)
