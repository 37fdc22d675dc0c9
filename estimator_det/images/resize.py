"""Resizing and normalization of images and masks for a network.

Letters: B images, h x w before and H x W after, C channels, n masks. Sampling is that of TensorFlow
1: no half-pixel centres, no antialiasing; masks use the nearest pixel.

Sizes may be static or known at run time only. Both are rounded like in the reference: keeping the
aspect ratio rounds half to even (in double precision if the size is static), conditional
resizing truncates in single precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Optional, Tuple, Union

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.config.registry import Registry
from estimator_det.config.text import ConfigError
from estimator_det.protos import image_resizer_pb2

Length = Union[int, tf.Tensor]  # pixels, a number or a scalar int32 tensor
SizeRule = Callable[[Length, Length], Tuple[Length, Length]]
PixelMap = Callable[[tf.Tensor], tf.Tensor]

IMAGE_RESIZERS: Registry[Callable[..., Resizer]] = Registry("image resizer")

GRAY_WEIGHTS = (0.2989, 0.5870, 0.1140)  # red, green, blue; the reference's values

_METHODS = {
    image_resizer_pb2.BILINEAR: "bilinear",
    image_resizer_pb2.NEAREST_NEIGHBOR: "nearest",
    image_resizer_pb2.BICUBIC: "bicubic",
    image_resizer_pb2.AREA: "area",
}


def height_and_width(tensor: tf.Tensor) -> Tuple[Length, Length]:
    """Sizes of axes 1 and 2, as numbers if both are static."""
    height, width = tensor.shape[1], tensor.shape[2]
    if height is not None and width is not None:
        return height, width
    dynamic = tf.shape(tensor)
    return dynamic[1], dynamic[2]


def pad_to_multiple(images: tf.Tensor, multiple: int) -> tf.Tensor:
    """Pads [B, h, w, C] with zeros at the bottom and right to multiples of `multiple`."""
    if multiple == 1:
        return images
    height, width = height_and_width(images)
    return tf.pad(images, [[0, 0], [0, -height % multiple], [0, -width % multiple], [0, 0]])


@dataclass(frozen=True)
class Resizer:
    """Resizes images and masks by a size rule; built by `make_resizer`."""

    new_size: SizeRule  # height and width of the real image -> those after interpolation
    # Height and width after interpolation -> those after padding at the bottom and right; None for
    # no padding.
    padded_size: Optional[SizeRule] = None
    # Height and width of every result, None if they depend on the image.
    spatial_shape: Tuple[Optional[int], Optional[int]] = (None, None)
    method: str = "bilinear"  # "bilinear", "nearest", "bicubic" or "area"
    # True if the corner pixels' centres keep their positions, which the reference does in
    # conditional resizing.
    align_corners: bool = False
    pad_values: Tuple[float, ...] = ()  # padding per channel; empty for zeros
    grayscale: bool = False  # True if colour images become one channel

    def resize(
        self, images: tf.Tensor, pixel_map: Optional[PixelMap] = None
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """Resizes uint8 or float32 [B, h, w, C], then pads at the bottom and right.

        Returns float32 [B, H, W, C], C = 1 for grayscale, and int32 [B, 3], height, width and
        channels of the real image. The pixel map, an affine function of each channel, is applied
        first, like in the reference: in float32 it does not quite commute with interpolation, and
        batch norm of smooth, enlarged images amplifies the difference.
        """
        images = tf.convert_to_tensor(images)
        height, width = self.new_size(*height_and_width(images))
        if pixel_map is not None:
            images = pixel_map(tf.cast(images, tf.float32))
        images = tf.cast(self._interpolate(images, height, width, self.method), tf.float32)
        padded = self._pad(images, height, width, self.pad_values)
        if self.grayscale:
            padded = rgb_to_gray(padded)
        true_shape = tf.stack([height, width, padded.shape[-1] or tf.shape(padded)[-1]])
        true_shapes = tf.tile(true_shape[tf.newaxis], [tf.shape(images)[0], 1])
        return padded, tf.ensure_shape(true_shapes, [images.shape[0], 3])

    def resize_masks(self, masks: tf.Tensor) -> tf.Tensor:
        """Resizes masks [n, h, w] like images, by the nearest pixel, padded with 0: [n, H, W]."""
        masks = tf.convert_to_tensor(masks)
        height, width = self.new_size(*height_and_width(masks))
        resized = self._interpolate(masks[..., tf.newaxis], height, width, "nearest")
        return self._pad(resized, height, width, ())[..., 0]

    def _interpolate(
        self, images: tf.Tensor, height: Length, width: Length, method: str
    ) -> tf.Tensor:
        is_static = isinstance(height, int) and isinstance(width, int)
        # An image of the right size is not resampled, and keeps its type.
        if is_static and images.shape[1:3] == [height, width]:
            return images
        resized = tf1.image.resize(
            images, [height, width], method=method, align_corners=self.align_corners
        )
        return _with_shape(resized, height, width)

    def _pad(
        self, images: tf.Tensor, height: Length, width: Length, values: Tuple[float, ...]
    ) -> tf.Tensor:
        if self.padded_size is None:
            return images
        new_height, new_width = self.padded_size(height, width)
        amounts = [[0, 0], [0, new_height - height], [0, new_width - width], [0, 0]]
        channels = images.shape[-1]
        if values and channels is not None and channels != len(values):
            raise ConfigError(
                "per_channel_pad_value",
                f"has {len(values)} values {values}; the image has {channels} channels",
                "set one value per channel, or none for 0",
            )
        is_uniform = len(set(values)) <= 1
        value = values[0] if values and is_uniform else 0
        padded = tf.pad(images, amounts, constant_values=value)
        if not is_uniform:
            # tf.pad takes one value only: the padding is painted afterwards.
            inside = tf.pad(tf.ones_like(images[:, :, :, :1], tf.bool), amounts)
            padded = tf.where(inside, padded, tf.constant(values, images.dtype))
        return _with_shape(padded, new_height, new_width)


@dataclass(frozen=True)
class Preprocessor:
    """Normalizes pixels, resizes, then pads with zeros; or resizes, pads and normalizes last.

    Published checkpoints expect the order of their kind of model. If pixels are normalized first,
    padding is 0 to the network; if they are normalized last, it is black.
    """

    resizer: Resizer  # resizes images to the network's size
    # Float32 pixels in 0..255 -> the pixel scale of the network, same shape.
    normalize: Callable[[tf.Tensor], tf.Tensor]
    normalizes_last: bool = False  # True if padding is normalized, too

    def __call__(self, images: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        """Preprocesses float32 [B, h, w, C], pixels in 0..255, for the network: [B, H, W, C].

        Also returns int32 [B, 3], height, width and channels of the real image inside it.
        """
        if images.dtype != tf.float32:
            raise ValueError(f"pixels must be float32 in 0..255; given: {images.dtype.name}")
        with tf1.name_scope("Preprocessor"):
            if self.normalizes_last:
                padded, true_shapes = self.resizer.resize(images)
                return self.normalize(padded), true_shapes
            return self.resizer.resize(images, pixel_map=self.normalize)


def make_resizer(config: image_resizer_pb2.ImageResizer) -> Resizer:
    """Builds the resizer of an `ImageResizer` message, or raises ConfigError."""
    return IMAGE_RESIZERS.make_chosen(config, "image_resizer")


def rgb_to_gray(images: tf.Tensor) -> tf.Tensor:
    """Luminance [..., 1] of float32 colour images [..., 3]."""
    if images.shape[-1] not in (3, None):
        raise ConfigError(
            "image_resizer.convert_to_grayscale", f"needs 3 channels; given: {images.shape[-1]}"
        )
    return tf.reduce_sum(images * tf.constant(GRAY_WEIGHTS), axis=-1, keepdims=True)


def _with_shape(tensor: tf.Tensor, height: Length, width: Length) -> tf.Tensor:
    """Sets the static height and width, which padding may lose."""
    static_sizes = [length if isinstance(length, int) else None for length in (height, width)]
    tensor.set_shape([tensor.shape[0], *static_sizes, *tensor.shape[3:]])
    return tensor


IMAGE_RESIZERS.register("identity_resizer")(lambda _: Resizer(lambda *sides: sides))


@IMAGE_RESIZERS.register("fixed_shape_resizer")
def _fixed_shape(config: image_resizer_pb2.FixedShapeResizer) -> Resizer:
    height, width = config.height, config.width
    return Resizer(
        lambda *_: (height, width),
        spatial_shape=(height, width),
        method=_METHODS[config.resize_method],
        grayscale=config.convert_to_grayscale,
    )


@IMAGE_RESIZERS.register("keep_aspect_ratio_resizer")
def _keep_aspect_ratio(config: image_resizer_pb2.KeepAspectRatioResizer) -> Resizer:
    shortest, longest = config.min_dimension, config.max_dimension
    if shortest > longest:
        raise ConfigError(
            "keep_aspect_ratio_resizer",
            f"min_dimension must not exceed max_dimension; given: {shortest} and {longest}",
        )

    def new_size(height: Length, width: Length) -> Tuple[Length, Length]:
        # The shorter side decides, unless the longer side then exceeds its limit.
        if isinstance(height, int) and isinstance(width, int):
            factor = shortest / min(height, width)
            if round(max(height, width) * factor) > longest:
                factor = longest / max(height, width)
            return round(height * factor), round(width * factor)
        sides = tf.cast(tf.stack([height, width]), tf.float32)
        large = tf.round(sides * (shortest / tf.reduce_min(sides)))
        small = tf.round(sides * (longest / tf.reduce_max(sides)))
        sides = tf.where(tf.reduce_max(large) > longest, small, large)
        return tuple(tf.unstack(tf.cast(sides, tf.int32), num=2))

    is_padded = config.pad_to_max_dimension
    return Resizer(
        new_size,
        padded_size=(lambda *_: (longest, longest)) if is_padded else None,
        spatial_shape=(longest, longest) if is_padded else (None, None),
        method=_METHODS[config.resize_method],
        pad_values=tuple(config.per_channel_pad_value),
        grayscale=config.convert_to_grayscale,
    )


@IMAGE_RESIZERS.register("conditional_shape_resizer")
def _conditional_shape(config: image_resizer_pb2.ConditionalShapeResizer) -> Resizer:
    threshold = config.size_threshold
    if config.condition == config.INVALID:
        raise ConfigError(
            "conditional_shape_resizer.condition", "must be GREATER or SMALLER; given: INVALID"
        )
    shrinks = config.condition == config.GREATER

    def new_size(height: Length, width: Length) -> Tuple[Length, Length]:
        if isinstance(height, int) and isinstance(width, int):
            side = max(height, width) if shrinks else min(height, width)
            target = min(side, threshold) if shrinks else max(side, threshold)
            factor = np.float32(target) / np.float32(side)
            return int(np.float32(height) * factor), int(np.float32(width) * factor)
        sides = tf.stack([height, width])
        side = tf.reduce_max(sides) if shrinks else tf.reduce_min(sides)
        target = tf.minimum(side, threshold) if shrinks else tf.maximum(side, threshold)
        factor = tf.cast(target, tf.float32) / tf.cast(side, tf.float32)
        sides = tf.cast(tf.cast(sides, tf.float32) * factor, tf.int32)
        return tuple(tf.unstack(sides, num=2))

    return Resizer(
        new_size,
        method=_METHODS[config.resize_method],
        align_corners=True,
        grayscale=config.convert_to_grayscale,
    )


@IMAGE_RESIZERS.register("pad_to_multiple_resizer")
def _pad_to_multiple(config: image_resizer_pb2.PadToMultipleResizer) -> Resizer:
    multiple = config.multiple

    def padded_size(height: Length, width: Length) -> Tuple[Length, Length]:
        return -(-height // multiple) * multiple, -(-width // multiple) * multiple

    return Resizer(
        lambda height, width: (height, width),
        padded_size=padded_size,
        grayscale=config.convert_to_grayscale,
    )
