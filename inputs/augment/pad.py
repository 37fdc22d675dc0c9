"""Padding: the image on a larger canvas; every box stays, in new coordinates.

Images [h, w, C] may be uint8 or float32.
"""

from __future__ import annotations

from typing import Iterator, Optional, Sequence, Tuple

from estimator_det.compat import tf
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.protos import pipeline_pb2, preprocessor_pb2
from inputs.augment.base import (
    AUGMENTATIONS,
    check_order,
    configured_steps,
    image_size,
    random_integers,
    reframe,
    split_seed,
    uniform,
)
from inputs.sample import Sample


def pad(
    sample: Sample, canvas: tf.Tensor, offset: tf.Tensor, color: Optional[tf.Tensor] = None
) -> Sample:
    """Places the image on a larger `canvas`, int32 [2]: height and width of the result.

    `offset`, int32 [2], is row and column of the image's first pixel. `color`, float32 [C] or [1],
    0 to 255, is the colour around the image; None is black. Masks are padded with zeros.
    """
    image = sample.image
    margins = _margins(image, canvas, offset)
    if color is None:
        padded = add_margins(sample, margins).image
    else:
        padded = _surround(image, canvas, margins, color)
        padded.set_shape([None, None, image.shape[-1]])
    return extend(sample, canvas, offset)._replace(image=padded)


def add_margins(sample: Sample, margins: tf.Tensor) -> Sample:
    """Surrounds image and masks by zeros: int32 [[top, bottom], [left, right]] pixels.

    Boxes and keypoints do not change.
    """
    image = tf.pad(sample.image, tf.pad(margins, [[0, 1], [0, 0]]))
    image.set_shape([None, None, sample.image.shape[-1]])
    masks = sample.masks
    if masks is not None:
        masks = tf.pad(masks, tf.pad(margins, [[1, 0], [0, 0]]))
    return sample._replace(image=image, masks=masks)


def extend(sample: Sample, canvas: tf.Tensor, offset: tf.Tensor) -> Sample:
    """Converts the labels as `pad` does; the image does not change."""
    masks = add_margins(sample, _margins(sample.image, canvas, offset)).masks
    window = tf.concat([-offset, canvas - offset], 0) / tf.tile(image_size(sample.image), [2])
    return reframe(sample, tf.cast(window, tf.float32))._replace(masks=masks)


def _margins(image: tf.Tensor, canvas: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
    """int32 [[top, bottom], [left, right]]."""
    return tf.stack([offset, canvas - image_size(image) - offset], axis=1)


def _surround(
    image: tf.Tensor, canvas: tf.Tensor, margins: tf.Tensor, color: tf.Tensor
) -> tf.Tensor:
    """Surrounds the image by four strips of `color`."""
    # Concatenation only copies bytes, so that pixels are exact in every dtype.
    if image.dtype.is_integer:
        color = tf.round(color)
    color = tf.saturate_cast(color, image.dtype)
    height, channels = tf.shape(image)[0], tf.shape(image)[2]

    def strip(rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
        return tf.broadcast_to(color, tf.stack([rows, columns, channels]))

    middle = tf.concat([strip(height, margins[1, 0]), image, strip(height, margins[1, 1])], 1)
    top, bottom = strip(margins[0, 0], canvas[1]), strip(margins[0, 1], canvas[1])
    return tf.concat([top, middle, bottom], axis=0)


def random_pad(
    sample: Sample,
    seed: tf.Tensor,
    min_size: tf.Tensor,
    max_size: tf.Tensor,
    color: Optional[tf.Tensor] = None,
) -> Sample:
    """Places the image at a random offset on a canvas of random size.

    Height and width are between `min_size` and `max_size`, int32 [2] each; a bound below the
    image's size is replaced by that size. The maximum is excluded unless it equals the minimum.
    `color` is float32 [C] or [1], 0 to 255; None is the mean colour of the image.
    """
    size_seed, offset_seed = split_seed(seed, 2)
    size = image_size(sample.image)
    max_canvas = tf.maximum(max_size, size)
    min_canvas = tf.minimum(tf.maximum(min_size, size), max_canvas)
    canvas = random_integers(size_seed, min_canvas, max_canvas)
    offset = random_integers(offset_seed, tf.zeros_like(size), canvas - size)
    return pad(sample, canvas, offset, mean_color(sample.image) if color is None else color)


def mean_color(image: tf.Tensor) -> tf.Tensor:
    """Mean colour, float32 [C], of an image [h, w, C]."""
    return tf.reduce_mean(tf.cast(image, tf.float32), axis=[0, 1])


def random_pad_to_aspect_ratio(
    sample: Sample,
    seed: tf.Tensor,
    aspect_ratio: float,
    min_ratio: Tuple[float, float],
    max_ratio: Tuple[float, float],
) -> Sample:
    """Pads with black below and to the right until width / height is `aspect_ratio`.

    `min_ratio` and `max_ratio` bound height and width of the result, relative to the image; the
    smallest padding that reaches the aspect ratio may exceed the maximum.
    """
    size = tf.cast(image_size(sample.image), tf.float32)
    tight = _tight(size, aspect_ratio)
    max_canvas = tf.reduce_min(tf.maximum(size * tf.constant(max_ratio), tight) / tight)
    min_canvas = tf.reduce_max(tf.maximum(size * tf.constant(min_ratio), tight) / tight)
    min_canvas = tf.minimum(min_canvas, max_canvas)
    scale = min_canvas + uniform([], seed) * (max_canvas - min_canvas)
    return pad_to_aspect_ratio(sample, aspect_ratio, scale)


def pad_to_aspect_ratio(sample: Sample, aspect_ratio: float, scale: tf.Tensor) -> Sample:
    """Pads below and to the right to `scale` times the smallest canvas of the aspect ratio."""
    tight = _tight(tf.cast(image_size(sample.image), tf.float32), aspect_ratio)
    canvas = tf.cast(tf.round(tight * scale), tf.int32)
    return pad(sample, canvas, tf.zeros([2], tf.int32))


def _tight(size: tf.Tensor, aspect_ratio: float) -> tf.Tensor:
    """Smallest size, float32 [2], of an aspect ratio that contains `size`."""
    return tf.maximum(size, tf.stack([size[1] / aspect_ratio, size[0] * aspect_ratio]))


def read_color(values: Sequence[float]) -> Optional[tf.Tensor]:
    """A `pad_color` field, float32 [C] or [1]; None, the mean colour of the image, if empty."""
    return tf.constant(list(values), tf.float32) if len(values) else None


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_colors(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    """A colour has one number, or one for each channel of the image."""
    for step in configured_steps(config):
        color = getattr(step.config, "pad_color", ())
        if len(color) > 1 and len(color) != step.channels:
            yield error(
                f"{step.at}.pad_color",
                f"has {len(color)} numbers for images of {step.channels} channels",
                "set one per channel, or a single one",
            )


@rules(preprocessor_pb2.RandomPadImage)
def _check_pad(config: preprocessor_pb2.RandomPadImage, at: str) -> Iterator[Problem]:
    for bound in ("min", "max"):
        if config.HasField(f"{bound}_image_height") != config.HasField(f"{bound}_image_width"):
            yield error(
                f"{at}.{bound}_image_height",
                f"only one of {bound}_image_height and {bound}_image_width is set",
                "set both or neither",
            )
    if config.HasField("min_image_height") and config.HasField("max_image_height"):
        for side in ("height", "width"):
            least, largest = f"min_image_{side}", f"max_image_{side}"
            bounds = getattr(config, least), getattr(config, largest)
            yield from check_order(f"{at}.{least}", *bounds)


@AUGMENTATIONS.register("random_pad_image")
def random_pad_image(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandomPadImage
) -> Sample:
    """Places the image on a larger canvas, by default up to twice as high and wide."""
    color = read_color(config.pad_color)
    size = image_size(sample.image)
    min_size, max_size = size, size * 2
    if config.HasField("min_image_height"):
        min_size = tf.constant([config.min_image_height, config.min_image_width])
    if config.HasField("max_image_height"):
        max_size = tf.constant([config.max_image_height, config.max_image_width])
    return random_pad(sample, seed, min_size, max_size, color)


@AUGMENTATIONS.register("random_absolute_pad_image")
def random_absolute_pad_image(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandomAbsolutePadImage
) -> Sample:
    """Adds fewer than max_height_padding rows and fewer than max_width_padding columns."""
    color = read_color(config.pad_color)
    size = image_size(sample.image)
    max_canvas = size + tf.constant([config.max_height_padding, config.max_width_padding])
    return random_pad(sample, seed, size, max_canvas, color)
