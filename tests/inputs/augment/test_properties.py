"""What holds for every augmentation in the registry."""

from __future__ import annotations

import re
from typing import Any, Dict, Optional

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.config import rules
from estimator_det.protos import pipeline_pb2
from inputs.augment import AUGMENTATIONS, make_steps
from inputs.augment.base import STEPS
from inputs.sample import PER_BOX_FIELDS, Sample
from tests.inputs.augment.helpers import arrays, in_graph, make_augmentation, sample_of, step

# Steps that need more than an empty message, or whose defaults have golden results.
SETTINGS = {
    "normalize_image": "original_maxval: 255",
    "resize_image": "new_height: 20 new_width: 30",
    "random_horizontal_flip": "keypoint_flip_permutation: [1, 0, 2]",
    "random_vertical_flip": "keypoint_flip_permutation: [0, 2, 1]",
    "random_rotation90": "keypoint_rot_permutation: [2, 0, 1]",
    "random_absolute_pad_image": "max_height_padding: 9 max_width_padding: 5",
    "subtract_channel_mean": "means: [1, 2, 3]",
    "random_resize_method": "target_height: 20 target_width: 30",
    "drop_label_probabilistically": "label: 2 drop_probability: 0.5",
    "remap_labels": "original_labels: [1, 3] new_label: 2",
    "random_downscale_to_target_pixels": "min_target_pixels: 300 max_target_pixels: 1000",
    "random_scale_crop_and_pad_to_square": "output_size: 28 scale_min: 0.5",
    "random_self_concat_image": "concat_vertical_probability: 0.5",
    "random_patch_gaussian": "random_coef: 0.2",
    "autoaugment_image": "policy_name: 'test'",
    "random_distort_color": "color_ordering: 1",
    "random_jitter_boxes": "jitter_mode: SHRINK_SYMMETRIC_XY",
}
CHANGES_FRAME = {"scale_boxes_to_pixel_coordinates"}
NUM_RECORDS = {
    name: getattr(AUGMENTATIONS.get(name), "num_records", 1) for name in sorted(AUGMENTATIONS)
}
SINGLE = [name for name, count in NUM_RECORDS.items() if count == 1]
NEEDS_SCORES = {"convert_class_logits_to_softmax"}
NEEDS_RGB = {"rgb_to_gray", "subtract_channel_mean"}
SEEDS = [[seed, 11] for seed in range(12)]


def _step(name: str) -> Any:
    return step(f"{name} {{ {SETTINGS.get(name, '')} }}")


def _augmentation(name: str) -> Any:
    """A function (sample, seed); a mixture gets the sample, and partners of another size."""
    if name in SINGLE:
        return make_augmentation([_step(name)])
    (mixture,) = make_steps([_step(name)])

    def mix(sample: Sample, seed: tf.Tensor) -> Sample:
        partner = sample._replace(image=sample.image[:20], masks=sample.masks[:, :20])
        partners = [partner, sample, partner][: mixture.num_records - 1]
        return mixture.function([sample, *partners], seed, mixture.config)

    return mix


def _check(result: Dict[str, Optional[np.ndarray]], like: Dict[str, Optional[np.ndarray]]) -> None:
    image, boxes = result["image"], result["boxes"]
    assert image.ndim == 3 and image.size > 0
    assert np.isfinite(image).all() and np.isfinite(boxes).all()
    for name in PER_BOX_FIELDS:
        value, before = result[name], like[name]
        assert (value is None) == (before is None), name
        if value is not None and before is not None:
            assert len(value) == len(boxes), name
            assert value.dtype == before.dtype and value.ndim == before.ndim, name
    if result["masks"] is not None:
        assert result["masks"].shape[1:] == image.shape[:2]
        assert set(np.unique(result["masks"])) <= {0, 1}
    if result["keypoints"] is not None and result["keypoint_visibilities"] is not None:
        absent = np.isnan(result["keypoints"]).any(axis=-1)
        assert not (absent & result["keypoint_visibilities"]).any()


def _check_boxes(name: str, boxes: np.ndarray) -> None:
    if name not in CHANGES_FRAME:
        assert (boxes >= 0).all() and (boxes <= 1).all()
    assert (boxes[:, 2:] > boxes[:, :2]).all()


def _computes_pixels(name: str) -> bool:
    """Whether `float_image` decorates the step, or it mixes pixels."""
    step = AUGMENTATIONS.get(name)
    return name not in SINGLE or hasattr(getattr(step, "function", step), "__wrapped__")


@pytest.mark.parametrize("name", NUM_RECORDS)
def test_every_augmentation(name):
    """On an image with all fields, in a graph of unknown shapes; with and without boxes."""
    augment = _augmentation(name)
    run = in_graph(augment, sample_of("full"))
    outcomes = set()
    for kind, seeds in (("full", SEEDS), ("empty", SEEDS[:4])):
        sample = sample_of(kind)
        before = arrays(sample)
        for seed in seeds:
            result = run(sample, seed)
            _check(result, before)
            _check_boxes(name, result["boxes"])
            assert result["image"].dtype == (np.float32 if _computes_pixels(name) else np.uint8)
            if kind == "full":
                outcomes.add(tuple(result[field].tobytes() for field in ("image", "boxes")))
        # Eager gives what the graph gives, and leaves its input alone.
        eager = augment(sample, tf.constant(seeds[-1], tf.int64))
        assert name not in SINGLE or eager.image_level is sample.image_level
        for field, value in arrays(eager).items():
            np.testing.assert_allclose(value, result[field], rtol=1e-5, atol=1e-3)
        for field, value in arrays(sample).items():
            np.testing.assert_array_equal(value, before[field])
    if name.startswith(("rand", "ssd_", "drop_", "autoaugment")) or name not in SINGLE:
        assert len(outcomes) > 1


@pytest.mark.parametrize("name", SINGLE)
def test_few_fields_and_five_channels(name):
    """Images of float32 keep all their channels, and their dtype; other fields stay None."""
    if name in NEEDS_SCORES | NEEDS_RGB:
        config = pipeline_pb2.TrainEvalPipelineConfig()
        config.train_input_reader.num_additional_channels = 2
        config.train_config.data_augmentation_options.append(_step(name))
        problems = [str(each) for each in rules.check(config) if STEPS in each.field]
        assert re.search(r"load_multiclass_scores|channels", "".join(problems))
        return
    augment = make_augmentation([_step(name)])
    rgb = sample_of("bare", np.float32)
    more = rgb._replace(image=tf.concat([rgb.image, rgb.image[..., :2] * 0.5 + 10.0], axis=-1))
    for seed in SEEDS[:3]:
        result = arrays(augment(more, tf.constant(seed, tf.int64)))
        _check(result, arrays(more))
        assert result["image"].dtype == np.float32 and result["image"].shape[-1] == 5
        if name in COLOR_STEPS:
            np.testing.assert_array_equal(result["image"][..., 3:], more.image[..., 3:])


# Steps on colours, which further channels do not have.
COLOR_STEPS = {
    "adjust_gamma", "random_adjust_brightness", "random_adjust_contrast", "random_adjust_hue",
    "random_adjust_saturation", "random_distort_color", "random_jpeg_quality",
    "random_rgb_to_gray",
}  # fmt: skip
