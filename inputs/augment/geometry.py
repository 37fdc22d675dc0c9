"""Flipping, rotating, resizing and repeating the image: every box stays, in new coordinates.

Images [h, w, C] may be uint8 or float32; resizing makes them float32.
"""

from __future__ import annotations

import functools
from typing import Callable, Dict, Iterator, Sequence, Tuple, Union

from google.protobuf.message import Message

from estimator_det.compat import tf, tf1
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.protos import pipeline_pb2, preprocessor_pb2
from inputs.augment.base import (
    AUGMENTATIONS,
    apply_with_probability,
    change_if,
    check_order,
    configured_steps,
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
from inputs.sample import Sample

FLIP_PERMUTATION = "keypoint_flip_permutation"  # keypoints need it: left and right change places
UNSET_MAX_TARGET_PIXELS = 800_000  # the API's default in random_downscale_to_target_pixels


def flip(sample: Sample, axis: int) -> Sample:
    """Flips top and bottom (axis 0), or left and right (1)."""
    masks, keypoints = sample.masks, sample.keypoints
    is_flipped = tf.one_hot(axis, 2)
    order = [2, 1, 0, 3] if axis == 0 else [0, 3, 2, 1]  # the far edge becomes the near one
    return sample._replace(
        image=tf.reverse(sample.image, [axis]),
        masks=None if masks is None else tf.reverse(masks, [axis + 1]),
        boxes=_mirror(tf.gather(sample.boxes, order, axis=1), tf.tile(is_flipped, [2])),
        keypoints=None if keypoints is None else _mirror(keypoints, is_flipped),
    )


def _mirror(points: tf.Tensor, is_flipped: tf.Tensor) -> tf.Tensor:
    """Replaces each coordinate c whose axis is flipped, 1 or 0, by 1 - c."""
    return points * (1.0 - 2.0 * is_flipped) + is_flipped


def rotate_left(sample: Sample) -> Sample:
    """Rotates by 90 degrees counter-clockwise."""
    masks, keypoints = sample.masks, sample.keypoints
    transposed = sample._replace(
        image=tf.transpose(sample.image, [1, 0, 2]),
        masks=None if masks is None else tf.transpose(masks, [0, 2, 1]),
        boxes=tf.gather(sample.boxes, [1, 0, 3, 2], axis=1),
        keypoints=None if keypoints is None else tf.reverse(keypoints, [-1]),
    )
    return flip(transposed, 0)


def permute_keypoints(sample: Sample, permutation: Sequence[int]) -> Sample:
    """Reorders keypoints: `permutation[i]` is the index before of keypoint i.

    For example, a flipped left hand is a right hand.
    """
    keypoints, visibilities = sample.keypoints, sample.keypoint_visibilities
    if keypoints is not None:
        keypoints = tf.gather(keypoints, permutation, axis=1)
    if visibilities is not None:
        visibilities = tf.gather(visibilities, permutation, axis=1)
    return sample._replace(keypoints=keypoints, keypoint_visibilities=visibilities)


@rules(
    preprocessor_pb2.RandomHorizontalFlip,
    preprocessor_pb2.RandomVerticalFlip,
    preprocessor_pb2.RandomRotation90,
)
def _check_permutation(config: Message, at: str) -> Iterator[Problem]:
    field = config.DESCRIPTOR.fields[0].name
    permutation = list(getattr(config, field))
    if sorted(permutation) != list(range(len(permutation))):
        yield error(
            f"{at}.{field}",
            f"is {permutation}; it must contain each of 0 to {len(permutation) - 1} once",
            "list for each keypoint its replacement",
        )


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_keypoints(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    """Permutations have the keypoints that the training reader loads."""
    count = config.train_input_reader.num_keypoints
    for step in configured_steps(config) if count else ():
        field = _PERMUTATIONS.get(step.name)
        length = len(getattr(step.config, field)) if field else count
        if not length and field == FLIP_PERMUTATION:
            yield error(
                step.at,
                f"the samples have keypoints, but {field} is not set",
                "list for each keypoint its replacement in a flipped image",
            )
        elif length not in (0, count):
            yield error(
                f"{step.at}.{field}",
                f"has {length} keypoints, but the samples have {count}",
                "list each keypoint once",
            )


def _moving(move: Callable[[Sample], Sample], field: str) -> Callable[..., Sample]:
    """A step that moves everything with a probability; `field` is its permutation of keypoints."""

    def move_randomly(
        sample: Sample,
        seed: tf.Tensor,
        config: Union[
            preprocessor_pb2.RandomHorizontalFlip,
            preprocessor_pb2.RandomRotation90,
            preprocessor_pb2.RandomVerticalFlip,
        ],
    ) -> Sample:
        permutation = list(getattr(config, field))

        def change(old: Sample) -> Sample:
            return move(permute_keypoints(old, permutation) if permutation else old)

        return apply_with_probability(sample, seed, config.probability, change)

    return move_randomly


_PERMUTATIONS = {
    "random_horizontal_flip": FLIP_PERMUTATION,
    "random_vertical_flip": FLIP_PERMUTATION,
    "random_rotation90": "keypoint_rot_permutation",
}
_MOVES: Dict[str, Callable[[Sample], Sample]] = {
    "random_horizontal_flip": functools.partial(flip, axis=1),
    "random_vertical_flip": functools.partial(flip, axis=0),
    "random_rotation90": rotate_left,
}
for _step, _move in _MOVES.items():
    AUGMENTATIONS.register(_step)(_moving(_move, _PERMUTATIONS[_step]))


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


# In the order of the numbers of `random_resize_method`.
RESIZE_METHODS = (
    tf.image.ResizeMethod.BILINEAR,
    tf.image.ResizeMethod.NEAREST_NEIGHBOR,
    tf.image.ResizeMethod.BICUBIC,
    tf.image.ResizeMethod.AREA,
)


def resize_by(sample: Sample, size: tf.Tensor, method: tf.Tensor) -> Sample:
    """Resizes by the method with this number in `RESIZE_METHODS`, an int32 scalar."""
    branches = [
        functools.partial(tf1.image.resize, sample.image, size, method=name)
        for name in RESIZE_METHODS
    ]
    image = tf.switch_case(method, branches)
    return _resize_labels(sample, size)._replace(image=image)


@AUGMENTATIONS.register("resize_image")
@float_image
def resize_image(sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.ResizeImage) -> Sample:
    """Resizes to new_height x new_width by the configured method."""
    method = getattr(tf.image.ResizeMethod, config.Method.Name(config.method))
    return resize(sample, tf.constant([config.new_height, config.new_width]), method)


@AUGMENTATIONS.register("random_resize_method")
@float_image
def random_resize_method(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandomResizeMethod
) -> Sample:
    """Resizes to target_height x target_width by one of four methods, all equally likely."""
    method = random_integer(seed, 0, len(RESIZE_METHODS))
    return resize_by(sample, tf.constant([config.target_height, config.target_width]), method)


@AUGMENTATIONS.register("random_image_scale")
@float_image
def random_image_scale(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandomImageScale
) -> Sample:
    """Resizes by a factor from [min_scale_ratio, max_scale_ratio), corners aligned."""
    factor = random_between(seed, config.min_scale_ratio, config.max_scale_ratio)
    size = tf.cast(tf.cast(image_size(sample.image), tf.float32) * factor, tf.int32)
    size = tf.maximum(size, 1)  # a tiny image stays an image
    return resize(sample, size, tf.image.ResizeMethod.BILINEAR, align_corners=True)


def _target_pixels(config: preprocessor_pb2.RandomDownscaleToTargetPixels) -> Tuple[int, int]:
    """Bounds of the number of pixels; the API's upper bound is not the schema's default."""
    if not config.HasField("max_target_pixels"):
        return config.min_target_pixels, UNSET_MAX_TARGET_PIXELS
    return config.min_target_pixels, config.max_target_pixels


@rules(preprocessor_pb2.RandomDownscaleToTargetPixels)
def _check_target(
    config: preprocessor_pb2.RandomDownscaleToTargetPixels, at: str
) -> Iterator[Problem]:
    yield from check_order(f"{at}.min_target_pixels", *_target_pixels(config))


@AUGMENTATIONS.register("random_downscale_to_target_pixels")
@float_image
def random_downscale_to_target_pixels(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandomDownscaleToTargetPixels
) -> Sample:
    """Shrinks larger images to a random number of pixels, except with probability `random_coef`."""
    chance_seed, pixels_seed = split_seed(seed, 2)
    pixels = random_integer(pixels_seed, *_target_pixels(config))
    size = image_size(sample.image)
    num_pixels = tf.reduce_prod(size)

    def shrink(old: Sample) -> Sample:
        share = tf.cast(pixels, tf.float32) / tf.cast(num_pixels, tf.float32)
        smaller = tf.cast(tf.sqrt(share) * tf.cast(size, tf.float32), tf.int32)
        return resize(old, tf.maximum(smaller, 1), tf.image.ResizeMethod.BILINEAR)

    is_selected = uniform([], chance_seed) >= config.random_coef
    return change_if(is_selected & (num_pixels > pixels), sample, shrink)


@AUGMENTATIONS.register("scale_boxes_to_pixel_coordinates")
def scale_boxes_to_pixel_coordinates(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.ScaleBoxesToPixelCoordinates
) -> Sample:
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
def random_self_concat_image(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandomSelfConcatImage
) -> Sample:
    """Repeats the image below itself, then the result beside itself, independently at random."""
    probabilities = (config.concat_vertical_probability, config.concat_horizontal_probability)
    for axis, axis_seed in enumerate(split_seed(seed, 2)):
        repeat = functools.partial(repeat_image, axis=axis)
        sample = apply_with_probability(sample, axis_seed, probabilities[axis], repeat)
    return sample
