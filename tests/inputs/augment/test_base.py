from __future__ import annotations

import re

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.config.registry import Registry
from estimator_det.errors import UsageError
from estimator_det.protos import pipeline_pb2, preprocessor_pb2
from inputs.augment import base, operations
from inputs.sample import Sample
from tests.faults import faults
from tests.inputs.augment.helpers import (
    make_augmentation,
    run_step,
    sample_of,
    small_sample,
    step,
)


def test_steps_apply_in_order_each_with_its_own_seed():
    flip = step("random_horizontal_flip { probability: 1 }")
    pad = step("random_absolute_pad_image { max_width_padding: 20 pad_color: 0 }")
    image = tf.reshape(tf.range(1, 9, dtype=tf.float32), [1, 8, 1])
    sample = sample_of("bare")._replace(image=image)
    result = make_augmentation([flip, pad])(sample, tf.constant([5, 6]))
    values = np.array(result.image).ravel()
    np.testing.assert_array_equal(values[values > 0], np.arange(8, 0, -1))

    noise = step("random_pixel_value_scale { }")
    once = make_augmentation([noise])(sample, tf.constant([5, 6])).image / image
    twice = make_augmentation([noise, noise])(sample, tf.constant([5, 6])).image / image
    assert np.abs(np.array(twice - once * once)).max() > 1e-3


def test_later_changes_of_the_configuration_have_no_effect():
    message = step("random_horizontal_flip { probability: 1 }")
    augment = make_augmentation([message])
    message.random_horizontal_flip.probability = 0
    sample = sample_of("bare")
    mirrored = augment(sample, tf.constant([1, 2])).image
    np.testing.assert_array_equal(mirrored, np.array(sample.image)[:, ::-1])


def test_a_step_without_a_function_is_refused():
    config = pipeline_pb2.TrainEvalPipelineConfig()
    text = "train_config { data_augmentation_options {} }"
    assert "options[0]: is empty. Remedy: set one of" in faults(config, text, at="")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("random_vertical_flip { keypoint_flip_permutation: [0, 2] }", "each of 0 to 1 once"),
        ("resize_image { new_height: 10 }", "new_width is 0; allowed are 1 to 16,384"),
        ("random_image_scale { min_scale_ratio: 3 }", "min_scale_ratio <= max_scale_ratio"),
        ("random_pad_image { min_image_height: 3 }", "set both or neither"),
        (
            "random_pad_image { min_image_height: 9 min_image_width: 9 "
            "max_image_height: 9 max_image_width: 3 }",
            "min_image_width is 9 and max_image_width is 3. Remedy: set min_image_width <=",
        ),
        ("ssd_random_crop { operations { } }", r"operations\[0\].min_aspect_ratio is 0"),
        ("ssd_random_crop_pad_fixed_aspect_ratio { min_padded_size_ratio: 1 }", "give 2 numbers"),
        ("random_crop_pad_image { max_padded_size_ratio: [0.5, 2] }", "min_padded_size_ratio <="),
        ("random_jitter_boxes { ratio: 1.5 }", "at most 1 except in modes that EXPAND"),
        ("autoaugment_image { policy_name: 'v9' }", "policy_name: 'v9' is not known"),
        ("remap_labels { new_label: 1 }", "original_labels is empty"),
        ("random_jpeg_quality { max_jpeg_quality: 0 }", "set min_jpeg_quality < max_jpeg_quality"),
        ("mosaic { height: 100 }", "only one of height and width is set"),
        ("mosaic { height: 1 width: 9 }", "height is 1. Remedy: set it to 2 or more"),
    ],
)
def test_impossible_settings_fail_at_construction(text, message):
    found = faults(preprocessor_pb2.PreprocessingStep(), text)
    assert re.search(message, found.replace(": is ", " is ")), found
    assert f"at.{text.split()[0]}" in found


@pytest.mark.parametrize(
    "change",
    [
        lambda sample: run_step("drop_label_probabilistically { label: 2 }", sample).classes,
        lambda sample: run_step("remap_labels { original_labels: 3 new_label: 1 }", sample).classes,
        lambda sample: operations.equalize(sample.image),
    ],
    ids=["drop_label", "remap_labels", "equalize"],
)
def test_a_session_gives_what_eager_does(change):
    """There `==` compares tensors as objects."""
    expected = change(sample_of("bare")).numpy()
    with tf.Graph().as_default(), tf1.Session() as session:
        np.testing.assert_array_equal(session.run(change(sample_of("bare"))), expected)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "'mine' returns NoneType, not a Sample: return sample._replace"),
        (small_sample()._replace(boxes=tf.zeros([2, 2])), r"boxes of the shape \(2, 2\), not"),
        (small_sample()._replace(image=tf.zeros([9, 9, 1])), r"\(9, 9, 1\), not \(None, None, 3\)"),
        (small_sample()._replace(classes=tf.zeros([9], "int64")), "different numbers of boxes, cl"),
    ],
)
def test_results_of_plug_ins(monkeypatch, result, message):
    monkeypatch.setattr(base.AUGMENTATIONS, "_customs", Registry("custom augmentation"))
    base.AUGMENTATIONS.custom("mine")(lambda sample, seed: result)
    with pytest.raises((UsageError, tf.errors.InvalidArgumentError), match=message):
        run_step('custom { name: "mine" }', small_sample())
    base.AUGMENTATIONS.custom("of_numpy")(
        lambda sample, seed: Sample(*(tf.numpy_function(np.flip, [x], x.dtype) for x in sample[:4]))
    )
    with tf.Graph().as_default():  # numpy_function forgets the shape
        assert run_step('custom { name: "of_numpy" }', small_sample()).image.shape[2] == 3
