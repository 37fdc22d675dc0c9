"""Steps on single records, beside their golden results and distributions."""

from __future__ import annotations

import re

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.protos import pipeline_pb2
from estimator_det.protos.preprocessor_pb2 import SSDRandomCropOperation
from inputs.augment.color import compress
from inputs.augment.crop import Crop, Window, apply_crop, crop
from inputs.augment.geometry import _target_pixels, resize
from inputs.augment.pad import pad, random_pad_to_aspect_ratio
from inputs.augment.square import Frame, border_size, frame_by_scale, to_square
from inputs.augment.ssd_crop import (
    SSD_OPERATIONS,
)
from tests.faults import faults
from tests.inputs.augment.helpers import (
    config_of,
    in_graph,
    make_augmentation,
    run_step,
    sample_of,
    small_sample,
    step,
)

BOUNDS = "min_aspect_ratio: 0.5 max_aspect_ratio: 2"


@pytest.mark.parametrize(
    ("text", "reader", "message"),
    [
        ("rgb_to_gray {}", "num_additional_channels: 2", "3 channels; given: 5"),
        ("rgb_to_gray {}", "", "or use random_rgb_to_gray"),
        ("subtract_channel_mean { means: [1, 2] }", "", "2 means for images of 3"),
        ("random_pad_image { pad_color: [1, 2] }", "", "2 numbers for images of 3"),
        ("random_crop_pad_image { pad_color: [1, 2, 3] }", "num_additional_channels: 2",
         "3 numbers .* of 5"),
        (f"ssd_random_crop_pad {{ operations {{ {BOUNDS} min_area: 1 max_area: 1 }} }}",
         "num_additional_channels: 2", "3 numbers for images of 5 channels"),
        ("random_horizontal_flip {}", "num_keypoints: 2", "flip: .*flip_permutation is not set"),
        ("random_vertical_flip {}", "num_keypoints: 2", "flip: .*flip_permutation is not set"),
        ("random_vertical_flip { keypoint_flip_permutation: [0, 1, 2] }", "num_keypoints: 2",
         "has 3 keypoints, but the samples have 2"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_the_records(text, reader, message):
    config = pipeline_pb2.TrainEvalPipelineConfig()
    steps = f"train_config {{ data_augmentation_options {{ {text} }} }}"
    found = faults(config, f"{steps} train_input_reader {{ {reader} }}", at="")
    assert re.search(rf"options\[0\]\.{text.split()[0]}.*{message[-20:]}", found), found
    assert re.search(message, found)


# Crops.


def test_a_crop_that_keeps_all_leaves_areas_as_they_are():
    """Unless it clips: then they shrink with their boxes, as in a mosaic."""
    sample, box = sample_of("full"), tf.constant([0.1, 0.1, 0.3, 0.5])
    window = Window(tf.constant([2, 3]), tf.constant([5, 13]), box)
    result = crop(sample, window, tf.constant(1.0), tf.constant(False), tf.constant(True))
    np.testing.assert_array_equal(result.classes, sample.classes)
    np.testing.assert_array_equal(result.area, sample.area)


def test_images_are_left_whole_up_to_random_coef():
    """As the Object Detection API: at exactly that draw, too, but never where random_coef is 0."""
    sample = sample_of("full")
    window = Window(tf.constant([2, 4]), tf.constant([5, 10]), tf.constant([0.1] * 4))
    for coef, fraction, is_whole in ((0.15, 0.15, True), (0.15, 0.16, False), (0.0, 0.0, False)):
        drawn = Crop(tf.constant(0), tf.constant(fraction), window)
        result = apply_crop(sample, [SSDRandomCropOperation(random_coef=coef)], drawn)
        assert (result.image.shape == sample.image.shape) == is_whole


def test_standard_operations_are_those_of_the_object_detection_api():
    covered = np.array([op.min_object_covered for op in SSD_OPERATIONS], np.float32)
    assert covered.tolist() == np.float32([0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]).tolist()
    for operation in SSD_OPERATIONS:
        assert operation.overlap_thresh == operation.min_object_covered
        assert (operation.min_aspect_ratio, operation.max_aspect_ratio) == (0.5, 2.0)
        assert (operation.min_area, operation.max_area) == (np.float32(0.1), 1.0)
        assert (operation.clip_boxes, operation.random_coef) == (True, np.float32(0.15))


def test_second_crop_clips_as_the_operation_says():
    """The Object Detection API clips there in any case."""
    bounds = "min_area: 0.3 max_area: 0.5 random_coef: 1"
    for clip in ("true", "false"):
        text = f"operations {{ {bounds} clip_boxes: {clip} }} aspect_ratio: 0.5"
        augment = make_augmentation([step(f"ssd_random_crop_fixed_aspect_ratio {{ {text} }}")])
        boxes = [np.array(augment(sample_of("bare"), tf.constant([i, 1])).boxes) for i in range(8)]
        is_inside = [((box >= 0) & (box <= 1)).all() for box in boxes]
        assert all(is_inside) == (clip == "true")


# Sizes.


def test_masks_and_image_align_their_corners_alike():
    """By hand: of 4 columns, 2 with aligned corners are the first and the last one."""
    row = np.array([[0.0, 0.0, 0.0, 1.0]], np.float32)
    sample = small_sample()._replace(
        image=tf.constant(row[..., np.newaxis]), masks=tf.constant(row[np.newaxis])
    )
    size = tf.constant([1, 2])
    aligned = resize(sample, size, tf.image.ResizeMethod.NEAREST_NEIGHBOR, align_corners=True)
    assert aligned.image[0, :, 0].numpy().tolist() == aligned.masks[0, 0].numpy().tolist() == [0, 1]
    by_pixels = resize(sample, size, tf.image.ResizeMethod.NEAREST_NEIGHBOR)
    assert by_pixels.masks[0, 0].numpy().tolist() == [0, 0]


def test_a_tiny_image_keeps_a_pixel():
    sample = small_sample()._replace(image=tf.zeros([1, 3, 3]), masks=None)
    text = "random_image_scale { min_scale_ratio: 0.1 max_scale_ratio: 0.2 }"
    assert run_step(text, sample).image.shape == (1, 1, 3)


def test_default_of_target_pixels_is_that_of_the_object_detection_api():
    """Up to 800,000, although the schema says 500,000."""
    unset = config_of("random_downscale_to_target_pixels {}")
    assert _target_pixels(unset) == (300_000, 800_000)
    given = config_of("random_downscale_to_target_pixels { max_target_pixels: 500000 }")
    assert _target_pixels(given) == (300_000, 500_000)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (
            "random_pad_image { pad_color: 0 min_image_height: 5 min_image_width: 7 "
            "max_image_height: 5 max_image_width: 7 }",
            {(5, 7)},
        ),
        # As large as the default maximum.
        ("random_pad_image { min_image_height: 4 min_image_width: 8 }", {(4, 8)}),
        ("random_pad_image { min_image_height: 6 min_image_width: 9 }", {(4, 8)}),
    ],
)
def test_padding_whose_maximum_is_the_minimum(text, sizes):
    run = in_graph(make_augmentation([step(text)]), small_sample())
    assert {run(small_sample(), [i, 0])["image"].shape[:2] for i in range(60)} == sizes


def test_largest_ratio_of_one_side_limits_both():
    """2 x 4 pixels have the aspect ratio already; half more is the most in height."""
    for seed in range(9):
        bounds = (1.0, 2.0), (1.5, 3.0)
        found = random_pad_to_aspect_ratio(small_sample(), tf.constant([seed, 0]), 2.0, *bounds)
        assert found.image.shape[:2] == (3, 6)


def test_colors_around_whole_numbers_are_rounded():
    padded = pad(small_sample(), _pair(3, 4), _pair(0, 0), tf.constant([1.6]))
    assert padded.image.dtype == tf.uint8 and (padded.image[2].numpy() == 2).all()


def _pair(*values: int) -> tf.Tensor:
    return tf.constant(values, tf.int32)


def test_boxes_outside_a_square_are_dropped():
    frame = Frame(tf.constant(2), _pair(0, 3), _pair(2, 4))
    outside = to_square(small_sample(), frame)
    assert outside.boxes.shape == (0, 4) and outside.masks.shape == (0, 2, 2)


def test_a_tiny_square_has_a_pixel():
    frame = frame_by_scale(_pair(3, 4), tf.constant(0.1), _pair(1, 1))
    assert int(frame.side) == 1


def test_border_shrinks_with_the_image():
    for size, border in ((1000, 128), (257, 128), (255, 64), (100, 32), (24, 8), (1, 1)):
        np.testing.assert_array_equal(border_size(_pair(size, 600), 128), [border, 128])
    np.testing.assert_array_equal(border_size(_pair(24, 32), 0), [0, 0])


# Pixels.


def test_compression_is_that_of_tf_image():
    """Of the whole part of values; channels beyond RGB, and one channel alone, too."""
    image = np.float32(sample_of().image) * 0.9
    expected = np.array(tf.image.adjust_jpeg_quality(image.astype(np.uint8), 30))
    five = np.concatenate([image, image[..., :2]], axis=-1)
    found = np.array(compress(tf.constant(five), tf.constant(30)))
    np.testing.assert_array_equal(found[..., :3], expected)
    np.testing.assert_array_equal(found[..., 3:], image[..., :2])
    gray = tf.constant(image[..., :1])
    assert compress(gray, tf.constant(30)).shape == (24, 32, 1)


def test_without_means_nothing_is_subtracted():
    sample = sample_of("bare", np.float32)
    result = run_step("subtract_channel_mean {}", sample)
    np.testing.assert_array_equal(result.image, sample.image)
