"""Black and noisy patches of the image; labels do not change.

Images [h, w, C] may be uint8 or float32; noise makes them float32.
"""

from __future__ import annotations

from estimator_det.compat import tf
from estimator_det.protos import preprocessor_pb2
from inputs.augment.base import (
    AUGMENTATIONS,
    change_if,
    float_image,
    image_size,
    random_between,
    random_integer,
    random_integers,
    split_seed,
    uniform,
)
from inputs.augment.operations import apply_in_turn, overwrite
from inputs.sample import Sample


def blacken(
    sample: Sample, places: tf.Tensor, is_selected: tf.Tensor, size_to_image_ratio: float
) -> Sample:
    """Covers squares with black: `places` float32 [k, 2] of 0 to 1, `is_selected` bool [k].

    A side is `size_to_image_ratio` of the shorter side of the image; places are the first row and
    column as a share of the image.
    """
    size = tf.cast(image_size(sample.image), tf.float32)
    side = tf.cast(tf.reduce_min(size) * size_to_image_ratio, tf.int32)
    black = tf.zeros(tf.stack([side, side, tf.shape(sample.image)[2]]), sample.image.dtype)
    corners = tf.cast(tf.boolean_mask(places, is_selected) * size, tf.int32)

    def cover(current: Sample, number: tf.Tensor) -> Sample:
        image = overwrite(current.image, tf.pad(corners[number], [[0, 1]]), black)
        return current._replace(image=image)

    return apply_in_turn(sample, tf.shape(corners)[0], cover)


@AUGMENTATIONS.register("random_black_patches")
def random_black_patches(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandomBlackPatches
) -> Sample:
    """Covers up to max_black_patches squares, each with `probability`, in all channels."""
    chance_seed, place_seed = split_seed(seed, 2)
    count, ratio = config.max_black_patches, config.size_to_image_ratio
    is_selected = uniform([count], chance_seed) < config.probability
    places = random_between(place_seed, 0.0, 1.0 - ratio, [count, 2])
    return blacken(sample, places, is_selected, ratio)


def add_noise(image: tf.Tensor, first: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Adds `noise`, float32 [rows, columns, C] of 0..1, at the pixel `first`, and clips."""
    begin = tf.pad(first, [[0, 1]])
    part = tf.slice(image, begin, tf.shape(noise)) + noise * 255.0
    return overwrite(image, begin, tf.clip_by_value(part, 0.0, 255.0))


@AUGMENTATIONS.register("random_patch_gaussian")
@float_image
def random_patch_gaussian(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandomPatchGaussian
) -> Sample:
    """Adds normal noise to a square, except with probability `random_coef`.

    Its side is at least min_patch_size and below max_patch_size, its centre any pixel; the standard
    deviation is within min_ and max_gaussian_stddev, in units of 0..1.
    """
    chance_seed, side_seed, place_seed, stddev_seed, noise_seed = split_seed(seed, 5)

    def change(old: Sample) -> Sample:
        size = image_size(old.image)
        side = random_integer(side_seed, config.min_patch_size, config.max_patch_size)
        center = random_integers(place_seed, tf.zeros_like(size), size)
        first = tf.maximum(center - side // 2, 0)
        extent = tf.minimum(center - side // 2 + side, size) - first
        low, high = config.min_gaussian_stddev, config.max_gaussian_stddev
        noise = tf.random.stateless_normal(
            tf.concat([extent, tf.shape(old.image)[2:]], 0),
            noise_seed,
            stddev=random_between(stddev_seed, low, high),
        )
        return old._replace(image=add_noise(old.image, first, noise))

    is_selected = uniform([], chance_seed) >= config.random_coef
    return change_if(is_selected, sample, change)
