from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from inputs.augment.crop import Crop, Operation, Window, apply_crop, draw_crop
from inputs.augment.ssd_crop import (
    SSD_OPERATIONS,
    Padding,
    _crop_pad_parts,
    _operations,
    _ratios,
    _ssd_crop_pad_parts,
)
from tests.inputs.augment.helpers import (
    arrays,
    config_of,
    crops,
    make_augmentation,
    operation_text,
    run_in_dataset,
    run_step,
    sample_of,
    step,
)

SEEDS = [[seed, 5] for seed in range(60)]


def test_original_image_with_probability_random_coef() -> None:
    sample = sample_of("full")
    text = f"ssd_random_crop {{ operations {{ {operation_text(random_coef=1.0)} }} }}"
    for result in run_in_dataset(make_augmentation([step(text)]), sample, SEEDS[:3]):
        for name in ("image", "boxes", "masks", "keypoints", "area", "keypoint_visibilities"):
            np.testing.assert_array_equal(result[name], getattr(sample, name))
    half = operation_text(random_coef=0.5, max_area=0.6)
    sizes = [size for size, _ in crops(f"ssd_random_crop {{ operations {{ {half} }} }}", sample)]
    assert 18 <= sizes.count((24, 32)) <= 42  # of 60


def test_crops_have_the_area_and_shape_asked_for() -> None:
    settings = operation_text(
        min_area=0.2, max_area=0.5, min_aspect_ratio=0.8, max_aspect_ratio=1.2
    )
    sample = sample_of("bare")._replace(boxes=tf.zeros([0, 4]), classes=tf.zeros([0], tf.int64))
    sample = sample._replace(weights=tf.zeros([0]), image=tf.zeros([240, 320, 3], tf.uint8))
    for (height, width), _ in crops(f"ssd_random_crop {{ operations {{ {settings} }} }}", sample):
        assert 0.19 <= height * width / (240 * 320) <= 0.51
        assert 0.78 <= width / height <= 1.22


def test_operations_of_different_ranges_are_all_drawn() -> None:
    small = operation_text(min_area=0.1, max_area=0.2)
    large = operation_text(min_area=0.7, max_area=0.9)
    sample = sample_of("full")._replace(image=tf.zeros([240, 320, 3]), masks=None)
    text = f"ssd_random_crop {{ operations {{ {small} }} operations {{ {large} }} }}"
    shares = [size[0] * size[1] / (240 * 320) for size, _ in crops(text, sample)]
    smalls = [share for share in shares if share < 0.21]
    larges = [share for share in shares if share > 0.69]
    assert len(smalls) + len(larges) == 60 and 15 <= len(smalls) <= 45


def test_standard_operations_are_drawn_evenly() -> None:
    sample = sample_of("bare")
    assert [op.min_object_covered for op in SSD_OPERATIONS] == [0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]
    draws = tf.data.Dataset.range(1400).map(
        lambda i: draw_crop(sample, tf.stack([i, tf.ones_like(i)]), SSD_OPERATIONS)[:2]
    )
    indices, fractions = zip(*draws.as_numpy_iterator())
    counts = np.bincount(indices, minlength=7)
    assert len(counts) == 7 and counts.min() > 150 and counts.max() < 250
    assert 160 <= np.sum(np.array(fractions) <= 0.15) <= 260  # 15 percent are 210


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
    operations = _operations(fixed, (1.5, 1.5))
    assert {op.aspect_ratio for op in operations} == {(1.5, 1.5)}
    assert [op.min_object_covered for op in operations] == [0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]
    assert {(op.area, op.clip_boxes, op.random_coef) for op in operations} == {
        ((0.1, 1.0), True, 0.15)
    }
    fixed = config_of("ssd_random_crop_pad_fixed_aspect_ratio { aspect_ratio: 1.5 }")
    assert _operations(fixed) == list(SSD_OPERATIONS)
    assert _ratios(fixed) == Padding((1, 1), (2, 2), None)


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
    assert _crop_pad_parts(one) == ([expected], [dataclasses.replace(sizes, color=(4.0, 5.0, 6.0))])
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
        augment = make_augmentation([step(text)])
        for seed in SEEDS[:10]:
            result = arrays(augment(sample, tf.constant(seed)))
            height, width = result["image"].shape[:2]
            for box, mask in zip(result["boxes"], result["masks"]):
                rows, columns = np.where(mask > 0)
                extent = [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]
                np.testing.assert_allclose(box * ([height, width] * 2), extent, atol=1e-3)
                assert (result["image"][mask > 0] == 255).all()
                seen += 1
    assert seen > 50


@pytest.mark.parametrize("ratio", [1.0, 2.0])
def test_fixed_aspect_ratios(ratio: float) -> None:
    sample = sample_of("bare")
    for name in ("ssd_random_crop_fixed_aspect_ratio", "ssd_random_crop_pad_fixed_aspect_ratio"):
        augment = make_augmentation([step(f"{name} {{ aspect_ratio: {ratio} }}")])
        for seed in SEEDS[:15]:
            height, width, _ = augment(sample, tf.constant(seed)).image.shape
            assert abs(width - height * ratio) <= ratio


def test_listed_crop_pad_operations_use_their_own_color() -> None:
    settings = operation_text(random_coef=1.0) + (
        " min_padded_size_ratio: [2, 2] max_padded_size_ratio: [2, 2] pad_color_g: 9"
    )
    augment = make_augmentation([step(f"ssd_random_crop_pad {{ operations {{ {settings} }} }}")])
    sample = sample_of("bare")._replace(image=tf.ones([4, 5, 3], tf.uint8))
    image = np.array(augment(sample, tf.constant([1, 2])).image)
    assert image.shape == (8, 10, 3)
    assert (image == [0, 9, 0]).all(axis=-1).sum() == 60
    assert (image == 1).all(axis=-1).sum() == 20


def test_a_colour_must_suit_the_channels() -> None:
    """Crops that pad refuse a colour of 3 numbers for images of 5 channels."""
    sample = sample_of("bare")._replace(image=tf.ones([4, 5, 5], tf.uint8))
    bounds = operation_text()
    for text in (
        "random_crop_pad_image { pad_color: [1, 2, 3] }",
        f"ssd_random_crop_pad {{ operations {{ {bounds} }} }}",
    ):
        with pytest.raises(ConfigError, match=r"3 numbers for images of 5 channels"):
            run_step(text, sample)


def test_second_crop_clips_as_the_operation_says() -> None:
    """The reference clips there in any case."""
    bounds = "min_area: 0.3 max_area: 0.5 random_coef: 1"
    for clip in ("true", "false"):
        text = f"operations {{ {bounds} clip_boxes: {clip} }} aspect_ratio: 0.5"
        augment = make_augmentation([step(f"ssd_random_crop_fixed_aspect_ratio {{ {text} }}")])
        boxes = [np.array(augment(sample_of("bare"), tf.constant([i, 1])).boxes) for i in range(8)]
        is_inside = [((box >= 0) & (box <= 1)).all() for box in boxes]
        assert all(is_inside) == (clip == "true")


def test_images_are_left_whole_up_to_random_coef() -> None:
    """As the reference: at exactly that draw, too, but never where random_coef is 0."""
    sample = sample_of("full")
    window = Window(tf.constant([2, 4, 0]), tf.constant([5, 10, -1]), tf.constant([0.1] * 4))
    for coef, fraction, is_whole in ((0.15, 0.15, True), (0.15, 0.16, False), (0.0, 0.0, False)):
        drawn = Crop(tf.constant(0), tf.constant(fraction), window)
        result = apply_crop(sample, [Operation(random_coef=coef)], drawn)
        assert (result.image.shape == sample.image.shape) == is_whole
