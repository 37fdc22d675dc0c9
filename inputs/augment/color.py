"""Changes of pixel values; boxes and other labels do not change.

Images are float32 [h, w, C], 0 to 255, channels red, green, blue and possibly more. Colour steps
change only the first three channels, and clip them to 0..255.
"""

from __future__ import annotations

from typing import Callable, Iterator, Union

from estimator_det.compat import tf
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.images.resize import GRAY_WEIGHTS, RGB, makes_gray
from estimator_det.protos import pipeline_pb2, preprocessor_pb2
from inputs.augment.base import (
    AUGMENTATIONS,
    apply_with_probability,
    change_if,
    configured_steps,
    float_image,
    per_channel,
    random_between,
    random_integer,
    split_seed,
    uniform,
)
from inputs.augment.operations import change_rgb
from inputs.sample import Sample


def _change_rgb(sample: Sample, change: Callable[[tf.Tensor], tf.Tensor]) -> Sample:
    """Applies `change` to the colour channels and clips them; other channels do not change."""
    image = change_rgb(sample.image, lambda rgb: tf.clip_by_value(change(rgb), 0.0, 255.0))
    return sample._replace(image=image)


# Contrast, hue and saturation commute with a scaling of all channels, so they need no conversion
# from 0..255 to 0..1; brightness and gamma are in units of 0..1.


def shift_brightness(sample: Sample, delta: tf.Tensor) -> Sample:
    """Adds `delta`, -1 to 1, times 255 to the colour channels."""
    return _change_rgb(sample, lambda rgb: rgb + delta * 255.0)


def scale_contrast(sample: Sample, factor: tf.Tensor) -> Sample:
    """Scales the distance of the colour channels from the mean of each channel."""
    return _change_rgb(sample, lambda rgb: tf.image.adjust_contrast(rgb, factor))


def rotate_hue(sample: Sample, delta: tf.Tensor) -> Sample:
    """Rotates the hue by a fraction of the full circle."""
    return _change_rgb(sample, lambda rgb: tf.image.adjust_hue(rgb, delta))


def scale_saturation(sample: Sample, factor: tf.Tensor) -> Sample:
    """Scales the saturation, up to its maximum."""
    return _change_rgb(sample, lambda rgb: tf.image.adjust_saturation(rgb, factor))


def distort(
    sample: Sample,
    ordering: int,
    *,
    brightness: tf.Tensor,
    saturation: tf.Tensor,
    hue: tf.Tensor,
    contrast: tf.Tensor,
) -> Sample:
    """Changes brightness, saturation, hue and contrast; with ordering 1 contrast is second."""
    sample = shift_brightness(sample, brightness)
    if ordering == 1:
        sample = scale_contrast(sample, contrast)
    sample = rotate_hue(scale_saturation(sample, saturation), hue)
    return sample if ordering == 1 else scale_contrast(sample, contrast)


AdjustMessage = Union[
    preprocessor_pb2.RandomAdjustBrightness,
    preprocessor_pb2.RandomAdjustContrast,
    preprocessor_pb2.RandomAdjustHue,
    preprocessor_pb2.RandomAdjustSaturation,
]


def _adjusting(change: Callable[[Sample, tf.Tensor], Sample]) -> Callable[..., Sample]:
    """A step that changes an image by one number, drawn from [min_delta, max_delta).

    Without a field `min_delta`, the minimum is -max_delta.
    """

    @float_image
    def adjust(sample: Sample, seed: tf.Tensor, config: AdjustMessage) -> Sample:
        least = getattr(config, "min_delta", -config.max_delta)
        return change(sample, random_between(seed, least, config.max_delta))

    return adjust


AUGMENTATIONS.register("random_adjust_brightness")(_adjusting(shift_brightness))
AUGMENTATIONS.register("random_adjust_contrast")(_adjusting(scale_contrast))
AUGMENTATIONS.register("random_adjust_hue")(_adjusting(rotate_hue))
AUGMENTATIONS.register("random_adjust_saturation")(_adjusting(scale_saturation))


@AUGMENTATIONS.register("random_distort_color")
@float_image
def random_distort_color(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandomDistortColor
) -> Sample:
    """Changes brightness (up to 32/255), saturation, hue (up to 0.2), contrast (0.5 to 1.5).

    These are in the order of `color_ordering` 0; ordering 1 has contrast second.
    """
    brightness_seed, saturation_seed, hue_seed, contrast_seed = split_seed(seed, 4)
    return distort(
        sample,
        config.color_ordering,
        brightness=random_between(brightness_seed, -32.0 / 255.0, 32.0 / 255.0),
        saturation=random_between(saturation_seed, 0.5, 1.5),
        hue=random_between(hue_seed, -0.2, 0.2),
        contrast=random_between(contrast_seed, 0.5, 1.5),
    )


@AUGMENTATIONS.register("random_pixel_value_scale")
@float_image
def random_pixel_value_scale(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandomPixelValueScale
) -> Sample:
    """Multiplies each value of each pixel by a separate factor from [minval, maxval)."""
    factors = tf.random.stateless_uniform(
        tf.shape(sample.image), seed, config.minval, config.maxval
    )
    image = tf.clip_by_value(sample.image * factors, 0.0, 255.0)
    return sample._replace(image=image)


def _luma(rgb: tf.Tensor, copies: int = 1) -> tf.Tensor:
    """Computes the brightness [h, w, copies] of [h, w, 3]."""
    shape = tf.shape(rgb)
    weights = tf.repeat(tf.constant(GRAY_WEIGHTS)[:, tf.newaxis], copies, axis=1)
    # One matrix product, which is faster than a weighted sum over the channels.
    gray = tf.matmul(tf.reshape(rgb, [-1, 3]), weights)
    return tf.reshape(gray, tf.stack([shape[0], shape[1], copies]))


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_channels(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    for step in configured_steps(config):
        if step.name == "rgb_to_gray" and step.channels != RGB:
            yield error(
                step.at,
                f"needs images of {RGB} channels; given: {step.channels}",
                "Remove the step or num_additional_channels",
            )
        elif step.name == "rgb_to_gray" and not makes_gray(config):
            yield error(
                step.at,
                "trains on images of one channel, and evaluations and exports have three",
                "set convert_to_grayscale in the image_resizer, or use random_rgb_to_gray",
            )
        if not isinstance(step.config, preprocessor_pb2.SubtractChannelMean):
            continue
        if step.config.means and len(step.config.means) != step.channels:
            yield error(
                f"{step.at}.means",
                f"has {len(step.config.means)} means for images of {step.channels} channels",
                "give one mean per channel",
            )


@AUGMENTATIONS.register("rgb_to_gray")
@float_image
def rgb_to_gray(sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RGBtoGray) -> Sample:
    """Converts RGB [h, w, 3] to brightness [h, w, 1]."""
    return sample._replace(image=_luma(sample.image))


@AUGMENTATIONS.register("random_rgb_to_gray")
@float_image
def random_rgb_to_gray(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandomRGBtoGray
) -> Sample:
    """Replaces the three colour channels by their brightness, with a probability."""

    def gray(old: Sample) -> Sample:
        return _change_rgb(old, lambda rgb: _luma(rgb, copies=3))

    return apply_with_probability(sample, seed, config.probability, gray)


@AUGMENTATIONS.register("adjust_gamma")
@float_image
def adjust_gamma(sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.AdjustGamma) -> Sample:
    """Maps values of the colour channels to gain * value ^ gamma, in units of 0..1."""

    def change(rgb: tf.Tensor) -> tf.Tensor:
        return tf.pow(tf.maximum(rgb, 0.0) / 255.0, config.gamma) * (config.gain * 255.0)

    return _change_rgb(sample, change)


@AUGMENTATIONS.register("normalize_image")
@float_image
def normalize_image(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.NormalizeImage
) -> Sample:
    """Maps [original_minval, original_maxval] linearly to [target_minval, target_maxval]."""
    scale = (config.target_maxval - config.target_minval) / (
        config.original_maxval - config.original_minval
    )
    image = (sample.image - config.original_minval) * scale + config.target_minval
    return sample._replace(image=image)


@AUGMENTATIONS.register("subtract_channel_mean")
@float_image
def subtract_channel_mean(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.SubtractChannelMean
) -> Sample:
    """Subtracts `means`, one per channel; an empty list leaves the image unchanged."""
    means = list(config.means)
    if not means:
        return sample
    image = per_channel(sample.image, tf.constant(means, tf.float32), tf.subtract)
    return sample._replace(image=image)


def compress(image: tf.Tensor, quality: tf.Tensor) -> tf.Tensor:
    """Compresses and decodes an image, uint8 or float32; channels beyond RGB do not change.

    `quality` is an int32 scalar, 0 to 100. Pixel values are truncated to whole numbers.
    """

    def change(rgb: tf.Tensor) -> tf.Tensor:
        pixels = tf.saturate_cast(rgb, tf.uint8)
        encoded = tf.raw_ops.EncodeJpegVariableQuality(images=pixels, quality=quality)
        return tf.cast(tf.io.decode_jpeg(encoded, channels=rgb.shape[-1] or 0), rgb.dtype)

    return change_rgb(image, change)


@AUGMENTATIONS.register("random_jpeg_quality")
def random_jpeg_quality(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandomJpegQuality
) -> Sample:
    """Compresses as JPEG, except with probability `random_coef`."""
    chance_seed, quality_seed = split_seed(seed, 2)
    quality = random_integer(quality_seed, config.min_jpeg_quality, config.max_jpeg_quality)
    return change_if(
        uniform([], chance_seed) >= config.random_coef,
        sample,
        lambda old: old._replace(image=compress(old.image, quality)),
    )
