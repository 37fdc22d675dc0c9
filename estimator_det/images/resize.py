"""Resizing and normalization of images and masks for a network.

Letters: B images, h x w before and H x W after, C channels, n masks. Sampling is as in TensorFlow
1: no half-pixel centres, no antialiasing; masks use the nearest pixel.

Sizes may be static or known at run time only. Both are rounded like in the Object Detection API:
keeping the aspect ratio rounds half to even (in double precision if the size is static),
conditional resizing truncates in single precision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional, Tuple, Union

import numpy as np
from google.protobuf.message import Message

from estimator_det.compat import tf, tf1
from estimator_det.config.field_rules import check_equal
from estimator_det.config.registry import Registry
from estimator_det.config.rules import Tpu, rules
from estimator_det.errors import Problem, error, warning
from estimator_det.protos import image_resizer_pb2, pipeline_pb2

RGB = 3  # channels of a colour image
MOST_BATCH_BYTES = 2**40  # bytes of the images that enter the network
_SIZE_BY_IMAGE = "the size of a batch depends on its images"

Length = Union[int, tf.Tensor]  # pixels, a number or a scalar int32 tensor
SizeRule = Callable[[Length, Length], Tuple[Length, Length]]
PixelMap = Callable[[tf.Tensor], tf.Tensor]

IMAGE_RESIZERS: Registry[Callable[..., Resizer]] = Registry(
    "image resizer", chosen_by="ImageResizer.image_resizer_oneof"
)

GRAY_WEIGHTS = (0.2989, 0.5870, 0.1140)  # red, green, blue; the API's values

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
    rows, columns = (next_multiple(length, multiple) - length for length in (height, width))
    return tf.pad(images, [[0, 0], [0, rows], [0, columns], [0, 0]])


def next_multiple(length: Length, multiple: int) -> Length:
    """The smallest multiple that is not below a length."""
    # Without a negative number, of which the converter to ONNX rounds quotients up.
    return (length + multiple - 1) // multiple * multiple


def _nearest_pixels(size: Length, old_size: Length) -> tf.Tensor:
    """The pixel of the old image for each pixel of the new one, int32 [size].

    TensorFlow's operation selects the same ones. ONNX Runtime and OpenVINO divide by the rounded
    inverse of the scale in their own, which yields another pixel where a quotient is whole.
    """
    scale = tf.cast(old_size, tf.float32) / tf.cast(size, tf.float32)
    pixels = tf.cast(tf.floor(tf.cast(tf.range(size), tf.float32) * scale), tf.int32)
    return tf.minimum(pixels, old_size - 1)


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
    # True if the corner pixels' centres keep their positions, which the API does in
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
        first, like in the API: in float32 it does not quite commute with interpolation, and
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
        if method == "nearest" and not self.align_corners:
            for axis, size, old_size in zip((1, 2), (height, width), height_and_width(images)):
                images = tf.gather(images, _nearest_pixels(size, old_size), axis=axis)
            return _with_shape(images, height, width)
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
            raise ValueError(f"{len(values)} pad values for images of {channels} channels")
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
    """Builds the resizer of an `ImageResizer` message."""
    return IMAGE_RESIZERS.make_chosen(config)


def static_size(config: image_resizer_pb2.ImageResizer) -> Optional[Tuple[int, int]]:
    """Height and width of all images that an `ImageResizer` makes; None if they differ."""
    if config.WhichOneof("image_resizer_oneof") is None:
        return None
    height, width = make_resizer(config).spatial_shape
    return None if height is None or width is None else (height, width)


def rgb_to_gray(images: tf.Tensor) -> tf.Tensor:
    """Luminance [..., 1] of float32 colour images [..., 3]; images [..., 1] are gray already."""
    if images.shape[-1] == 1:
        return images
    if images.shape[-1] not in (3, None):
        raise ValueError(f"grayscale needs images of 3 channels; given: {images.shape[-1]}")
    return tf.reduce_sum(images * tf.constant(GRAY_WEIGHTS), axis=-1, keepdims=True)


def _with_shape(tensor: tf.Tensor, height: Length, width: Length) -> tf.Tensor:
    """Sets the static height and width, which padding may lose."""
    static_sizes = [length if isinstance(length, int) else None for length in (height, width)]
    tensor.set_shape([tensor.shape[0], *static_sizes, *tensor.shape[3:]])
    return tensor


def _chosen(
    config: pipeline_pb2.TrainEvalPipelineConfig,
) -> Tuple[str, Any]:
    """Path of the model's resizers, and their message; an empty one if the model has none."""
    model = config.model.WhichOneof("model")
    resizers = getattr(getattr(config.model, model), "image_resizer", None) if model else None
    return f"model.{model}.image_resizer", resizers or image_resizer_pb2.ImageResizer()


def makes_gray(config: pipeline_pb2.TrainEvalPipelineConfig) -> bool:
    """True if the model's resizer converts images to one channel."""
    resizers = _chosen(config)[1].ListFields()
    return any(getattr(resizer, "convert_to_grayscale", False) for _, resizer in resizers)


def resize_method(config: pipeline_pb2.TrainEvalPipelineConfig) -> Tuple[str, str]:
    """Path and name of the model's interpolation; BILINEAR for a resizer without interpolation."""
    at, resizers = _chosen(config)
    kind = str(resizers.WhichOneof("image_resizer_oneof"))
    resizer = getattr(resizers, kind, None)
    number = getattr(resizer, "resize_method", image_resizer_pb2.BILINEAR)
    return f"{at}.{kind}.resize_method", image_resizer_pb2.ResizeType.Name(number)


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_channels(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    """Padding and grayscale fit the channels that training reads."""
    at, resizers = _chosen(config)
    additional = config.train_input_reader.num_additional_channels
    for field, resizer in resizers.ListFields():
        is_gray = resizer.convert_to_grayscale if field.name != "identity_resizer" else False
        values: Any = getattr(resizer, "per_channel_pad_value", ())
        channels = RGB + additional  # images become gray after they are padded
        if values and resizer.pad_to_max_dimension and len(values) != channels:
            yield error(
                f"{at}.{field.name}.per_channel_pad_value",
                f"has {len(values)} values, and images have {channels} channels",
                "set one value per channel, or none for 0",
            )
        if additional and is_gray:
            yield error(
                f"{at}.{field.name}.convert_to_grayscale",
                f"needs images of {RGB} channels, and train_input_reader.num_additional_channels "
                f"is {additional}",
                "remove one of them",
            )


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_batches(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    """Images of several sizes do not stack, and a batch must fit into some machine."""
    path, resizers = _chosen(config)
    kind = resizers.WhichOneof("image_resizer_oneof")
    resizer: Any = getattr(resizers, kind) if kind else None
    height, width = 1, 1
    if kind == "fixed_shape_resizer":
        height, width = resizer.height, resizer.width
    elif kind == "keep_aspect_ratio_resizer":
        height = width = resizer.max_dimension
    stacks = kind in (None, "fixed_shape_resizer") or getattr(
        resizer, "pad_to_max_dimension", False
    )
    bytes_per_image = height * width * 3 * 4  # RGB in float32
    for field, size in (
        ("train_config.batch_size", config.train_config.batch_size),
        ("eval_config.batch_size", config.eval_config.batch_size),
    ):
        if size > 1 and not stacks:
            yield warning(
                field,
                f"is {size}, but {kind} leaves images of different sizes, which do not stack",
                "set keep_aspect_ratio_resizer.pad_to_max_dimension or use fixed_shape_resizer "
                f"in {path}, or use batches of 1",
            )
        # Each number may be in its range and their product beyond every machine.
        needed = size * bytes_per_image
        if needed > MOST_BATCH_BYTES:
            yield error(
                field,
                f"is {size}: a batch of such images takes {needed / 2**30:,.0f} GiB; allowed are "
                f"{MOST_BATCH_BYTES / 2**30:,.0f}",
                f"use {MOST_BATCH_BYTES // bytes_per_image} or fewer, or smaller images",
            )
    if config.eval_config.force_no_resize and config.eval_config.batch_size > 1:
        yield error(
            "eval_config.batch_size",
            f"is {config.eval_config.batch_size}, but force_no_resize leaves images of different "
            "sizes, which do not stack",
            "--set eval_config.batch_size=1",
        )


@rules(
    image_resizer_pb2.IdentityResizer,
    image_resizer_pb2.ConditionalShapeResizer,
    image_resizer_pb2.PadToMultipleResizer,
    target="tpu",
)
def _check_static_size(_config: Message, at: str, _: Tpu) -> Iterator[Problem]:
    resizers = at.rpartition(".")[0]
    yield Problem(
        "error",
        at,
        _SIZE_BY_IMAGE,
        "choose the height and width that the objects need",
        (f"{resizers}={{ fixed_shape_resizer {{ height: 640 width: 640 }} }}",),
    )


@rules(image_resizer_pb2.KeepAspectRatioResizer, target="tpu")
def _check_padding(
    config: image_resizer_pb2.KeepAspectRatioResizer, at: str, _: Tpu
) -> Iterator[Problem]:
    remedy = f"images become {config.max_dimension} x {config.max_dimension}"
    path = f"{at}.pad_to_max_dimension"
    yield from check_equal(config, path, True, _SIZE_BY_IMAGE, remedy=remedy)


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


@rules(image_resizer_pb2.KeepAspectRatioResizer)
def _check_dimensions(
    config: image_resizer_pb2.KeepAspectRatioResizer, at: str
) -> Iterator[Problem]:
    if config.min_dimension > config.max_dimension:
        yield error(
            f"{at}.min_dimension",
            f"is {config.min_dimension}, above max_dimension, which is {config.max_dimension}",
            "lower it",
        )


@IMAGE_RESIZERS.register("keep_aspect_ratio_resizer")
def _keep_aspect_ratio(config: image_resizer_pb2.KeepAspectRatioResizer) -> Resizer:
    shortest, longest = config.min_dimension, config.max_dimension

    def new_size(height: Length, width: Length) -> Tuple[Length, Length]:
        # The shorter side decides, unless the longer side then exceeds its limit.
        if isinstance(height, int) and isinstance(width, int):
            factor = shortest / min(height, width)
            if round(max(height, width) * factor) > longest:
                factor = longest / max(height, width)
            return round(height * factor), round(width * factor)
        sides = tf.cast(tf.stack([height, width]), tf.float32)
        # OpenVINO multiplies by the inverse of a quotient of a constant and a minimum.
        large = tf.round(sides * tf.reduce_max(shortest / sides))
        small = tf.round(sides * tf.reduce_min(longest / sides))
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


@rules(image_resizer_pb2.ConditionalShapeResizer)
def _check_condition(
    config: image_resizer_pb2.ConditionalShapeResizer, at: str
) -> Iterator[Problem]:
    if config.condition == config.INVALID:
        yield error(f"{at}.condition", "is INVALID", "set it to GREATER or SMALLER")


@IMAGE_RESIZERS.register("conditional_shape_resizer")
def _conditional_shape(config: image_resizer_pb2.ConditionalShapeResizer) -> Resizer:
    threshold = config.size_threshold
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
        return next_multiple(height, multiple), next_multiple(width, multiple)

    return Resizer(
        lambda height, width: (height, width),
        padded_size=padded_size,
        grayscale=config.convert_to_grayscale,
    )
