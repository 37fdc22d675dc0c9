"""What holds for every augmentation in the registry."""

from __future__ import annotations

from typing import Any, Dict, Optional

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from estimator_det.protos import preprocessor_pb2
from inputs.augment import AUGMENTATIONS, make_augmentation
from inputs.schema import PER_BOX_FIELDS
from tests.inputs.augment.helpers import arrays, run_in_dataset, sample_of, step

# Steps that need more than an empty message.
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
}
CHANGES_FRAME = {"scale_boxes_to_pixel_coordinates"}
# Steps that mix several records: see test_mixing.
SINGLE = sorted(
    name for name in AUGMENTATIONS if not hasattr(AUGMENTATIONS.get(name), "num_records")
)
NEEDS_SCORES = {"convert_class_logits_to_softmax"}
SEEDS = [[seed, 11] for seed in range(12)]
KINDS = [("full", np.uint8), ("bare", np.float32), ("empty", np.float32)]


def _step(name: str) -> Any:
    return step(f"{name} {{ {SETTINGS.get(name, '')} }}")


def _check(result: Dict[str, Optional[np.ndarray]], like: Dict[str, Optional[np.ndarray]]) -> None:
    image, boxes = result["image"], result["boxes"]
    assert image is not None and boxes is not None
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


def _computes_pixels(name: str) -> bool:
    """Whether `float_image` decorates the step."""
    return hasattr(AUGMENTATIONS.get(name), "__wrapped__")


@pytest.mark.parametrize(("kind", "dtype"), KINDS)
@pytest.mark.parametrize("name", SINGLE)
def test_every_augmentation(name: str, kind: str, dtype: Any) -> None:
    augment = make_augmentation([_step(name)])
    sample = sample_of(kind, dtype)
    before = arrays(sample)
    if name in NEEDS_SCORES and kind == "bare":
        with pytest.raises(ConfigError, match="load_multiclass_scores"):
            augment(sample, tf.constant([1, 2]))
        return

    results = run_in_dataset(augment, sample, SEEDS)

    for result in results:
        _check(result, before)
        assert result["image"].dtype == (np.float32 if _computes_pixels(name) else dtype)
        if name not in CHANGES_FRAME:
            assert (result["boxes"] >= 0).all() and (result["boxes"] <= 1).all()
        assert (result["boxes"][:, 2:] > result["boxes"][:, :2]).all()
    # Eager gives what the graph gives, leaves its input alone, and does so again.
    for seed, in_graph in list(zip(SEEDS, results))[:2]:
        eager = augment(sample, tf.constant(seed, tf.int64))
        again = augment(sample, tf.constant(seed, tf.int64))
        assert eager.image_level is sample.image_level
        for field, value in arrays(eager).items():
            if value is None:
                assert in_graph[field] is None
            else:
                np.testing.assert_array_equal(value, np.array(getattr(again, field)))
                np.testing.assert_allclose(value, in_graph[field], rtol=1e-5, atol=1e-3)
        for field, value in arrays(sample).items():
            np.testing.assert_array_equal(value, before[field])
    if name.startswith(("rand", "ssd_")) and kind != "empty":
        outcomes = {(result["image"].tobytes(), result["boxes"].tobytes()) for result in results}
        assert len(outcomes) > 1


def test_every_registered_name_is_a_step() -> None:
    fields = preprocessor_pb2.PreprocessingStep.DESCRIPTOR.fields_by_name
    assert set(AUGMENTATIONS) <= set(fields)


def test_all_steps_in_one_chain() -> None:
    names = [
        name for name in SINGLE if name not in {"rgb_to_gray", "scale_boxes_to_pixel_coordinates"}
    ]
    augment = make_augmentation([_step(name) for name in [*names, "rgb_to_gray"]])
    sample = sample_of("full")
    for result in run_in_dataset(augment, sample, SEEDS[:3]):
        _check(result, arrays(sample))
        assert result["image"].shape[2] == 1
