"""Concatenation of an image with itself, below or beside, with all labels twice."""

from __future__ import annotations

from typing import Any

from estimator_det.compat import tf
from inputs.augment.base import (
    AUGMENTATIONS,
    apply_with_probability,
    check_probability,
    checked_by,
    split_seed,
)
from inputs.schema import PER_BOX_FIELDS, Sample


def repeat_image(sample: Sample, axis: int) -> Sample:
    """Repeats a sample below itself (axis 0) or beside itself (1); the first copy comes first."""
    fields = {
        name: tf.concat([value, value], axis=0)
        for name in PER_BOX_FIELDS
        for value in [getattr(sample, name)]
        if value is not None
    }
    half = tf.one_hot(axis, 2) * 0.5  # 0.5 at this axis
    second = tf.repeat([0.0, 1.0], tf.shape(sample.boxes)[0])[:, tf.newaxis] * half
    fields["boxes"] = fields["boxes"] * tf.tile(1.0 - half, [2]) + tf.tile(second, [1, 2])
    if sample.keypoints is not None:
        fields["keypoints"] = fields["keypoints"] * (1.0 - half) + second[:, tf.newaxis]
    if sample.masks is not None:
        empty = tf.zeros_like(sample.masks)
        first_half = tf.concat([sample.masks, empty], axis=axis + 1)
        second_half = tf.concat([empty, sample.masks], axis=axis + 1)
        fields["masks"] = tf.concat([first_half, second_half], axis=0)
    return sample._replace(image=tf.concat([sample.image, sample.image], axis=axis), **fields)


def _check_concat(config: Any) -> None:
    for name in ("concat_vertical_probability", "concat_horizontal_probability"):
        check_probability(name, getattr(config, name))


@AUGMENTATIONS.register("random_self_concat_image")
@checked_by(_check_concat)
def random_self_concat_image(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
    """Repeats the image below itself, then the result beside itself, independently at random."""
    vertical_seed, horizontal_seed = split_seed(seed, 2)
    sample = apply_with_probability(
        sample, vertical_seed, config.concat_vertical_probability, lambda old: repeat_image(old, 0)
    )
    return apply_with_probability(
        sample,
        horizontal_seed,
        config.concat_horizontal_probability,
        lambda old: repeat_image(old, 1),
    )
