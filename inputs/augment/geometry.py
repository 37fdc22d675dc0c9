"""Flipping, rotating, resizing and repeating the image: every box stays, in new coordinates.

Images [h, w, C] may be uint8 or float32; resizing makes them float32.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.text import ConfigError
from inputs.augment.base import (
    AUGMENTATIONS,
    apply_with_probability,
    change_if,
    check_order,
    checked_by,
    float_image,
    image_size,
    random_between,
    random_integer,
    scale_area,
    split_seed,
    uniform,
)
from inputs.augment.mixing import merge
from inputs.augment.pad import extend
from inputs.schema import Sample

UNSET_MAX_TARGET_PIXELS = 800_000  # the reference's default in random_downscale_to_target_pixels


class Motion(NamedTuple):
    """A symmetry of the image: a transposition, then flips."""

    transpose: bool
    flip_y: bool
    flip_x: bool


FLIP_X = Motion(transpose=False, flip_y=False, flip_x=True)
FLIP_Y = Motion(transpose=False, flip_y=True, flip_x=False)
ROTATE_LEFT = Motion(transpose=True, flip_y=True, flip_x=False)  # 90 degrees counter-clockwise


def move(sample: Sample, motion: Motion, keypoint_permutation: Sequence[int] = ()) -> Sample:
    """Moves image, masks, boxes and keypoints together.

    `keypoint_permutation` has for each keypoint of the result its index before (a flipped left hand
    is a right hand); empty keeps the order.
    """
    keypoints, visibilities = sample.keypoints, sample.keypoint_visibilities
    if keypoint_permutation:
        order = list(keypoint_permutation)
        keypoints = None if keypoints is None else tf.gather(keypoints, order, axis=1)
        visibilities = None if visibilities is None else tf.gather(visibilities, order, axis=1)
    return sample._replace(
        image=_move_pixels(sample.image, motion, row_axis=0),
        masks=None if sample.masks is None else _move_pixels(sample.masks, motion, row_axis=1),
        boxes=_move_boxes(sample.boxes, motion),
        keypoints=None if keypoints is None else _move_points(keypoints, motion),
        keypoint_visibilities=visibilities,
    )


def _move_pixels(pixels: tf.Tensor, motion: Motion, row_axis: int) -> tf.Tensor:
    column_axis = row_axis + 1
    if motion.transpose:
        axes = [0, 1, 2]
        axes[row_axis], axes[column_axis] = column_axis, row_axis
        pixels = tf.transpose(pixels, axes)
    flips = [row_axis] * motion.flip_y + [column_axis] * motion.flip_x
    return tf.reverse(pixels, flips) if flips else pixels


def _move_boxes(boxes: tf.Tensor, motion: Motion) -> tf.Tensor:
    source = [1, 0, 3, 2] if motion.transpose else [0, 1, 2, 3]
    sign, shift = [1.0] * 4, [0.0] * 4
    for axis, flips in enumerate((motion.flip_y, motion.flip_x)):
        if flips:  # the far edge becomes the near one
            source[axis], source[axis + 2] = source[axis + 2], source[axis]
            sign[axis] = sign[axis + 2] = -1.0
            shift[axis] = shift[axis + 2] = 1.0
    return tf.gather(boxes, source, axis=1) * tf.constant(sign) + tf.constant(shift)


def _move_points(points: tf.Tensor, motion: Motion) -> tf.Tensor:
    if motion.transpose:
        points = tf.reverse(points, [-1])
    flips = (motion.flip_y, motion.flip_x)
    sign = tf.constant([-1.0 if flag else 1.0 for flag in flips])
    shift = tf.constant([1.0 if flag else 0.0 for flag in flips])
    return points * sign + shift


def _check_move(field: str) -> Callable[[Any], None]:
    """Builds the check of the keypoint permutation `field`."""

    def check(config: Any) -> None:
        permutation = list(getattr(config, field))
        if sorted(permutation) != list(range(len(permutation))):
            raise ConfigError(
                field, f"is {permutation}; it must contain each of 0 to {len(permutation) - 1} once"
            )

    return check


def _move_randomly(
    sample: Sample, seed: tf.Tensor, config: Any, motion: Motion, field: str
) -> Sample:
    """Moves with the step's probability; `field` is the step's and field's name."""
    permutation = tuple(getattr(config, field.rpartition(".")[2]))
    count = None if sample.keypoints is None else sample.keypoints.shape[1]
    if permutation and count not in (None, len(permutation)):
        raise ConfigError(
            field,
            f"has {len(permutation)} keypoints, but the samples have {count}",
            "list each keypoint once",
        )
    return apply_with_probability(
        sample, seed, config.probability, lambda old: move(old, motion, permutation)
    )


def _flip_randomly(
    sample: Sample, seed: tf.Tensor, config: Any, motion: Motion, step: str
) -> Sample:
    if sample.keypoints is not None and not config.keypoint_flip_permutation:
        raise ConfigError(
            step,
            "the samples have keypoints, but keypoint_flip_permutation is not set",
            "list for each keypoint the one that replaces it in a flipped image",
        )
    return _move_randomly(sample, seed, config, motion, f"{step}.keypoint_flip_permutation")


@AUGMENTATIONS.register("random_horizontal_flip")
@checked_by(_check_move("keypoint_flip_permutation"))
def random_horizontal_flip(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
    """Flips left and right with a probability; keypoints need a permutation."""
    return _flip_randomly(sample, seed, config, FLIP_X, "random_horizontal_flip")


@AUGMENTATIONS.register("random_vertical_flip")
@checked_by(_check_move("keypoint_flip_permutation"))
def random_vertical_flip(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
    """Flips top and bottom with a probability; keypoints need a permutation."""
    return _flip_randomly(sample, seed, config, FLIP_Y, "random_vertical_flip")


@AUGMENTATIONS.register("random_rotation90")
@checked_by(_check_move("keypoint_rot_permutation"))
def random_rotation90(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
    """Rotates by 90 degrees counter-clockwise with a probability."""
    field = "random_rotation90.keypoint_rot_permutation"
    return _move_randomly(sample, seed, config, ROTATE_LEFT, field)


def resize(sample: Sample, size: tf.Tensor, method: str, align_corners: bool = False) -> Sample:
    """Resizes image (float32, TF1 sampling) and masks (nearest pixel) to `size`, int [2].

    Boxes and keypoints are normalized and do not change; areas in pixels grow with the image.
    """
    image = tf1.image.resize(sample.image, size, method=method, align_corners=align_corners)
    return _resize_labels(sample, size, align_corners)._replace(image=image)


def _resize_labels(sample: Sample, size: tf.Tensor, align_corners: bool = False) -> Sample:
    masks = sample.masks
    if masks is not None:
        nearest = tf.image.ResizeMethod.NEAREST_NEIGHBOR
        masks = tf1.image.resize(
            masks[..., tf.newaxis], size, method=nearest, align_corners=align_corners
        )[..., 0]
    growth = tf.cast(size, tf.float32) / tf.cast(image_size(sample.image), tf.float32)
    return sample._replace(masks=masks, area=scale_area(sample.area, tf.reduce_prod(growth)))


# The order is that of the numbers of `random_resize_method`.
RESIZE_METHODS = (
    tf.image.ResizeMethod.BILINEAR,
    tf.image.ResizeMethod.NEAREST_NEIGHBOR,
    tf.image.ResizeMethod.BICUBIC,
    tf.image.ResizeMethod.AREA,
)


def resize_by(sample: Sample, size: tf.Tensor, method: tf.Tensor) -> Sample:
    """Resizes by the method with this number in `RESIZE_METHODS`, an int32 scalar."""

    def branch(name: str) -> Callable[[], tf.Tensor]:
        return lambda: tf.cast(tf1.image.resize(sample.image, size, method=name), tf.float32)

    image = tf.switch_case(method, [branch(name) for name in RESIZE_METHODS])
    return _resize_labels(sample, size)._replace(image=image)


@AUGMENTATIONS.register("resize_image")
@float_image
def resize_image(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
    """Resizes to new_height x new_width by the configured method."""
    method = getattr(tf.image.ResizeMethod, config.Method.Name(config.method))
    return resize(sample, tf.constant([config.new_height, config.new_width]), method)


@AUGMENTATIONS.register("random_resize_method")
@float_image
def random_resize_method(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
    """Resizes to target_height x target_width by one of four methods, all equally likely."""
    method = random_integer(seed, 0, len(RESIZE_METHODS))
    return resize_by(sample, tf.constant([config.target_height, config.target_width]), method)


@AUGMENTATIONS.register("random_image_scale")
@float_image
def random_image_scale(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
    """Resizes by a factor from [min_scale_ratio, max_scale_ratio), corners aligned."""
    factor = random_between(seed, config.min_scale_ratio, config.max_scale_ratio)
    size = tf.cast(tf.cast(image_size(sample.image), tf.float32) * factor, tf.int32)
    size = tf.maximum(size, 1)  # a tiny image stays an image
    return resize(sample, size, tf.image.ResizeMethod.BILINEAR, align_corners=True)


def downscale(sample: Sample, pixels: tf.Tensor) -> Sample:
    """Resizes to about `pixels` pixels, an int32 scalar, in the same shape; never enlarges."""
    size = image_size(sample.image)

    def change(old: Sample) -> Sample:
        share = tf.cast(pixels, tf.float32) / tf.cast(tf.reduce_prod(size), tf.float32)
        smaller = tf.cast(tf.sqrt(share) * tf.cast(size, tf.float32), tf.int32)
        return resize(old, tf.maximum(smaller, 1), tf.image.ResizeMethod.BILINEAR)

    return change_if(tf.reduce_prod(size) > pixels, sample, change)


def _target_pixels(config: Any) -> Tuple[int, int]:
    """Bounds of the number of pixels; the reference's upper bound is not the schema's default."""
    if not config.HasField("max_target_pixels"):
        return config.min_target_pixels, UNSET_MAX_TARGET_PIXELS
    return config.min_target_pixels, config.max_target_pixels


def _check_downscale(config: Any) -> None:
    check_order("min_target_pixels", *_target_pixels(config))


@AUGMENTATIONS.register("random_downscale_to_target_pixels")
@checked_by(_check_downscale)
@float_image
def random_downscale_to_target_pixels(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
    """Shrinks larger images to a random number of pixels, except with probability `random_coef`."""
    chance_seed, pixels_seed = split_seed(seed, 2)
    pixels = random_integer(pixels_seed, *_target_pixels(config))
    is_selected = uniform([], chance_seed) >= config.random_coef
    return change_if(is_selected, sample, lambda old: downscale(old, pixels))


@AUGMENTATIONS.register("scale_boxes_to_pixel_coordinates")
def scale_boxes_to_pixel_coordinates(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
    """Converts boxes and keypoints from normalized to pixel coordinates; must be the last step."""
    size = tf.cast(image_size(sample.image), tf.float32)
    keypoints = None if sample.keypoints is None else sample.keypoints * size
    return sample._replace(boxes=sample.boxes * tf.tile(size, [2]), keypoints=keypoints)


def repeat_image(sample: Sample, axis: int) -> Sample:
    """Repeats a sample below itself (axis 0) or beside itself (1); the first copy comes first."""
    size = image_size(sample.image)
    second_offset = size * tf.one_hot(axis, 2, dtype=tf.int32)
    bare = sample._replace(image_level=None)
    offsets = (tf.zeros_like(second_offset), second_offset)
    copies = [extend(bare, size + second_offset, offset) for offset in offsets]
    image = tf.concat([sample.image, sample.image], axis=axis)
    return merge(copies)._replace(image=image, image_level=sample.image_level)


@AUGMENTATIONS.register("random_self_concat_image")
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
