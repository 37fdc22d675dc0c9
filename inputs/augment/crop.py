"""Random crops around the boxes; a box of which too little remains is dropped, with all fields.

Source of the crop sampling: Liu et al., SSD: Single Shot MultiBox Detector (2016), section 2.2.
An operation has bounds for the share of some box in the crop, and for the crop's shape and size. It
is a message with the fields of `SSDRandomCropOperation`, such as `RandomCropImage`.

Images may be uint8 or float32 and keep their dtype.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import tf
from estimator_det.protos import preprocessor_pb2
from inputs.augment.base import (
    AUGMENTATIONS,
    cut,
    image_size,
    random_integers,
    reframe,
    split_seed,
    uniform,
)
from inputs.sample import Sample, choose, keep_boxes

MAX_ATTEMPTS = 100  # draws of a window; without success the whole image is used
WHOLE_IMAGE = (0.0, 0.0, 1.0, 1.0)

Pair = Tuple[float, float]


class Window(NamedTuple):
    """A rectangle of an image."""

    begin: tf.Tensor  # int32 [2], first row and column
    size: tf.Tensor  # int32 [2], rows and columns; -1 for all that remain
    box: tf.Tensor  # float32 [4], the same rectangle normalized, yxyx


def gather_option(operations: Sequence[Any], field: str, index: tf.Tensor) -> tf.Tensor:
    """Gathers a field of the selected operation or padding."""
    return tf.gather(tf.constant([getattr(op, field) for op in operations]), index)


class Crop(NamedTuple):
    """Random numbers of a crop."""

    index: tf.Tensor  # int32 scalar, index of the operation
    fraction: tf.Tensor  # float32 scalar; above the operation's `random_coef` the image is cropped
    window: Window


def draw_crop(
    sample: Sample,
    seed: tf.Tensor,
    operations: Sequence[Any],
    aspect_ratio: Optional[float] = None,
) -> Crop:
    """Draws one of the operations, all equally likely, and a window within its bounds.

    `aspect_ratio`, width over height in pixels, replaces the bounds of the operations.
    """
    draw_seed, window_seed = split_seed(seed, 2)
    fractions = uniform([2], draw_seed)
    index = tf.cast(fractions[0] * len(operations), tf.int32)
    window = _sample_window(sample, window_seed, operations, index, aspect_ratio)
    return Crop(index, fractions[1], window)


def apply_crop(sample: Sample, operations: Sequence[Any], selection: Crop) -> Sample:
    """Crops a sample, or returns it whole with the selected operation's `random_coef`."""
    coef = gather_option(operations, "random_coef", selection.index)
    is_whole = (coef > 0.0) & (selection.fraction <= coef)
    window = Window(
        begin=choose(is_whole, tf.constant([0, 0]), selection.window.begin),
        size=choose(is_whole, tf.constant([-1, -1]), selection.window.size),
        box=choose(is_whole, tf.constant(WHOLE_IMAGE), selection.window.box),
    )
    thresh = gather_option(operations, "overlap_thresh", selection.index)
    clip = gather_option(operations, "clip_boxes", selection.index) & ~is_whole
    return crop(sample, window, thresh, clip, keep_all=is_whole)


def _sample_window(
    sample: Sample,
    seed: tf.Tensor,
    operations: Sequence[Any],
    index: tf.Tensor,
    aspect_ratio: Optional[float],
) -> Window:
    """Draws a window within the bounds of the selected operation."""
    shape = tf.shape(sample.image)
    boxes = tf.clip_by_value(sample.boxes, 0.0, 1.0)[tf.newaxis]
    covered = gather_option(operations, "min_object_covered", index)

    def sample_box(shape_range: Pair, area_range: Pair) -> Window:
        begin, size, box = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            boxes,
            seed,
            min_object_covered=covered,
            aspect_ratio_range=shape_range,
            area_range=area_range,
            max_attempts=MAX_ATTEMPTS,
            use_image_if_no_bounding_boxes=True,
        )
        return Window(begin[:2], size[:2], tf.reshape(box, [4]))

    # The ranges are attributes of the op: all operations with equal ranges share one op.
    if aspect_ratio is None:
        shapes = [(op.min_aspect_ratio, op.max_aspect_ratio) for op in operations]
    else:
        shapes = [(aspect_ratio, aspect_ratio)] * len(operations)
    ranges = list(zip(shapes, ((op.min_area, op.max_area) for op in operations)))
    distinct = sorted(set(ranges))
    if len(distinct) == 1:
        return sample_box(*distinct[0])
    branch = tf.gather(tf.constant([distinct.index(pair) for pair in ranges]), index)
    return tf.switch_case(branch, [functools.partial(sample_box, *pair) for pair in distinct])


def crop(
    sample: Sample,
    window: Window,
    overlap_thresh: tf.Tensor,
    clip_boxes: tf.Tensor,
    keep_all: Optional[tf.Tensor] = None,
) -> Sample:
    """Cuts a window out of pixels and labels; `crop_labels` explains the arguments."""
    cropped = crop_labels(sample, window.box, overlap_thresh, clip_boxes, keep_all)
    return cut(cropped, window.begin, window.size)


def crop_labels(
    sample: Sample,
    window: tf.Tensor,
    overlap_thresh: tf.Tensor,
    clip_boxes: tf.Tensor,
    keep_all: Optional[tf.Tensor] = None,
) -> Sample:
    """Keeps boxes with enough area in a window, in its coordinates; all if `keep_all`.

    Enough is the share `overlap_thresh` of a box's area; boxes without any area inside are dropped
    even at 0. `clip_boxes` clips boxes to the window, sets keypoints outside it to NaN (and
    invisible) and scales `area` by the remaining share of the box. All three are scalar tensors.
    `window` is float32 [4], normalized yxyx. The pixels of image and masks do not change.
    """
    origin, end = window[:2], window[2:]
    near, far = sample.boxes[:, :2], sample.boxes[:, 2:]
    overlap = tf.minimum(far, end) - tf.maximum(near, origin)
    shared = tf.reduce_prod(tf.maximum(overlap, 0.0), axis=1)
    share = tf.math.divide_no_nan(shared, tf.reduce_prod(far - near, axis=1))
    is_kept = (shared > 0.0) & (share >= overlap_thresh)
    if keep_all is not None:
        is_kept = is_kept | keep_all
    cropped = _clip(reframe(sample, window), share, clip_boxes)
    return keep_boxes(cropped, tf.where(is_kept)[:, 0])


def _clip(sample: Sample, share: tf.Tensor, clips: tf.Tensor) -> Sample:
    """Clips boxes to the unit square and sets keypoints outside it to NaN, if `clips`."""
    boxes = choose(clips, tf.clip_by_value(sample.boxes, 0.0, 1.0), sample.boxes)
    area = None if sample.area is None else choose(clips, sample.area * share, sample.area)
    keypoints, visibilities = sample.keypoints, sample.keypoint_visibilities
    if keypoints is not None:
        outside = tf.reduce_any((keypoints < 0.0) | (keypoints > 1.0), axis=-1, keepdims=True)
        keypoints = tf.where(outside & clips, float("nan"), keypoints)
        if visibilities is not None:
            absent = tf.reduce_any(tf.math.is_nan(keypoints), axis=-1)
            visibilities = visibilities & ~(absent & clips)
    return sample._replace(
        boxes=boxes, area=area, keypoints=keypoints, keypoint_visibilities=visibilities
    )


def size_of_aspect_ratio(size: tf.Tensor, aspect_ratio: float) -> tf.Tensor:
    """Computes the largest size, int32 [2], of an aspect ratio (width / height) in `size`."""
    scale = tf.cast(size, tf.float32)
    clips = tf.stack([scale[1] / aspect_ratio, scale[0] * aspect_ratio])
    return tf.minimum(size, tf.maximum(tf.cast(tf.round(clips), tf.int32), 1))


def window_at(offset: tf.Tensor, size: tf.Tensor, image: tf.Tensor) -> Window:
    """Builds the window of int32 [2] rows and columns at the int32 [2] `offset`."""
    ends = tf.cast(tf.concat([offset, offset + size], 0), tf.float32)
    return Window(offset, size, ends / tf.tile(tf.cast(image_size(image), tf.float32), [2]))


def crop_to_aspect_ratio(
    sample: Sample,
    seed: tf.Tensor,
    aspect_ratio: float,
    overlap_thresh: float,
    clip_boxes: tf.Tensor,
) -> Sample:
    """Cuts rows or columns, at a random place, until width / height is `aspect_ratio`."""
    size = image_size(sample.image)
    target = size_of_aspect_ratio(size, aspect_ratio)
    offset = random_integers(seed, tf.zeros_like(size), size - target + 1)
    window = window_at(offset, target, sample.image)
    return crop(sample, window, tf.constant(overlap_thresh), clip_boxes)


@AUGMENTATIONS.register("random_crop_image")
def random_crop_image(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandomCropImage
) -> Sample:
    """Crops by the operation of the step."""
    return apply_crop(sample, [config], draw_crop(sample, seed, [config]))


@AUGMENTATIONS.register("random_crop_to_aspect_ratio")
def random_crop_to_aspect_ratio(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandomCropToAspectRatio
) -> Sample:
    """Cuts rows or columns at a random place until width / height is `aspect_ratio`."""
    clip = tf.constant(config.clip_boxes)
    return crop_to_aspect_ratio(sample, seed, config.aspect_ratio, config.overlap_thresh, clip)
