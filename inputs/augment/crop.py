"""Random crops around the boxes, and crops followed by padding: the SSD family.

Source of the crop sampling: Liu et al., SSD: Single Shot MultiBox Detector (2016), section 2.2.
An operation bounds the share of some box that a crop must contain, its shape and its size; each
image draws one of the operations of a step. Boxes of which too little remains are dropped with all
their fields.

Images may be uint8 or float32 and keep their dtype.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from inputs.augment.base import (
    AUGMENTATIONS,
    check_probability,
    check_range,
    checked_by,
    image_size,
    keep_boxes,
    random_integers,
    reframe,
    scale_area,
    split_seed,
)
from inputs.augment.pad import color_of, random_pad, random_pad_to_aspect_ratio
from inputs.schema import Sample

MAX_ATTEMPTS = 100  # draws of a window; without success the whole image is used
SECOND_CROP_OVERLAP = 0.3  # share of a box that the cut to a fixed aspect ratio must leave
WHOLE_IMAGE = (0.0, 0.0, 1.0, 1.0)

Pair = Tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Operation:
    """The bounds of one kind of crop."""

    min_object_covered: float = 0.0  # share of at least one box that the crop must contain
    aspect_ratio: Pair = (0.5, 2.0)  # minimum and maximum width over height, in pixels
    area: Pair = (0.1, 1.0)  # minimum and maximum share of the image's area
    overlap_thresh: float = 0.0  # share of a box that must lie in the crop for the box to stay
    clip_boxes: bool = True  # clip boxes to the crop, and set keypoints outside to NaN
    random_coef: float = 0.15  # probability of not cropping the image

    def __post_init__(self) -> None:
        for name in ("min_object_covered", "overlap_thresh", "random_coef"):
            check_probability(name, getattr(self, name))
        check_range("min_aspect_ratio", self.aspect_ratio[0],
                    "max_aspect_ratio", self.aspect_ratio[1])  # fmt: skip
        check_range("min_area", self.area[0], "max_area", self.area[1])
        if self.aspect_ratio[0] == 0:
            raise ConfigError("min_aspect_ratio and max_aspect_ratio must be set and above 0")
        if self.area[0] == 0 or self.area[1] > 1:
            raise ConfigError(
                "min_area and max_area must be set, above 0 and at most 1; found "
                f"{self.area[0]:g} and {self.area[1]:g}"
            )


@dataclasses.dataclass(frozen=True)
class Padding:
    """The size of the canvas of a crop: height and width relative to the uncropped image."""

    min_ratio: Pair = (1.0, 1.0)
    max_ratio: Pair = (2.0, 2.0)
    color: Optional[Tuple[float, ...]] = None  # 0 to 255; None: the mean colour of the crop

    def __post_init__(self) -> None:
        for low, high in zip(self.min_ratio, self.max_ratio):
            check_range("min_padded_size_ratio", low, "max_padded_size_ratio", high)


class Window(NamedTuple):
    """A part of an image."""

    begin: tf.Tensor  # int32 [3], first row, column and channel
    size: tf.Tensor  # int32 [3], rows, columns and channels; -1 is all that are left
    box: tf.Tensor  # float32 [4], the same normalized, yxyx


COVERED = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
SSD_OPERATIONS = tuple(
    Operation(min_object_covered=share, overlap_thresh=share) for share in COVERED
)


def _of(operations: Sequence[Any], field: str, index: tf.Tensor) -> tf.Tensor:
    """The value of a field in the drawn operation or padding."""
    return tf.gather(tf.constant([getattr(op, field) for op in operations]), index)


def _draw(operations: Sequence[Operation], seed: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    """The index of an operation, all equally likely, and whether it keeps the image unchanged."""
    fractions = tf.random.stateless_uniform([2], seed)
    index = tf.cast(fractions[0] * len(operations), tf.int32)
    return index, fractions[1] < _of(operations, "random_coef", index)


def _sample_window(
    sample: Sample, seed: tf.Tensor, operations: Sequence[Operation], index: tf.Tensor
) -> Window:
    """A window within the bounds of the drawn operation."""
    shape = tf.shape(sample.image)
    boxes = tf.clip_by_value(sample.boxes, 0.0, 1.0)[tf.newaxis]
    covered = _of(operations, "min_object_covered", index)

    def within(aspect_ratio: Pair, area: Pair) -> Window:
        begin, size, box = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            boxes,
            seed,
            min_object_covered=covered,
            aspect_ratio_range=aspect_ratio,
            area_range=area,
            max_attempts=MAX_ATTEMPTS,
            use_image_if_no_bounding_boxes=True,
        )
        return Window(begin, size, tf.reshape(box, [4]))

    # The ranges are attributes of the op: one op serves all operations that share them.
    ranges = [(op.aspect_ratio, op.area) for op in operations]
    distinct = sorted(set(ranges))
    if len(distinct) == 1:
        return within(*distinct[0])
    branch = tf.gather(tf.constant([distinct.index(pair) for pair in ranges]), index)
    return tf.switch_case(branch, [functools.partial(within, *pair) for pair in distinct])


def crop(
    sample: Sample,
    window: Window,
    overlap_thresh: tf.Tensor,
    clip_boxes: tf.Tensor,
    keep_all: Optional[tf.Tensor] = None,
) -> Sample:
    """Cuts out a window and keeps the boxes of which enough lies inside; all if `keep_all`.

    Enough is the share `overlap_thresh` of a box's area; boxes without any area inside are dropped
    at 0, too. `clip_boxes` clips the boxes to the window, sets keypoints outside it to NaN (and
    invisible) and scales `area` by the remaining share of the box. All three are scalar tensors.
    """
    origin, end = window.box[:2], window.box[2:]
    near, far = sample.boxes[:, :2], sample.boxes[:, 2:]
    inside = tf.minimum(far, end) - tf.maximum(near, origin)
    shared = tf.reduce_prod(tf.maximum(inside, 0.0), axis=1)
    share = tf.math.divide_no_nan(shared, tf.reduce_prod(far - near, axis=1))
    kept = (shared > 0.0) & (share >= overlap_thresh)
    if keep_all is not None:
        kept = kept | keep_all
    moved = _clip(reframe(sample, window.box), share, clip_boxes)
    moved = keep_boxes(moved, tf.where(kept)[:, 0])

    image = tf.slice(sample.image, window.begin, window.size)
    image.set_shape([None, None, sample.image.shape[-1]])
    masks = moved.masks
    if masks is not None:
        masks = tf.slice(masks, tf.roll(window.begin, 1, 0), tf.concat([[-1], window.size[:2]], 0))
    return moved._replace(image=image, masks=masks)


def _clip(sample: Sample, share: tf.Tensor, wanted: tf.Tensor) -> Sample:
    """Clips boxes to the unit square and sets keypoints outside it to NaN, if `wanted`."""
    boxes = tf.where(wanted, tf.clip_by_value(sample.boxes, 0.0, 1.0), sample.boxes)
    area = scale_area(sample.area, tf.where(wanted, share, 1.0))
    keypoints, visibilities = sample.keypoints, sample.keypoint_visibilities
    if keypoints is not None:
        outside = tf.reduce_any((keypoints < 0.0) | (keypoints > 1.0), axis=-1, keepdims=True)
        keypoints = tf.where(outside & wanted, float("nan"), keypoints)
        if visibilities is not None:
            absent = tf.reduce_any(tf.math.is_nan(keypoints), axis=-1)
            visibilities = visibilities & ~(absent & wanted)
    return sample._replace(
        boxes=boxes, area=area, keypoints=keypoints, keypoint_visibilities=visibilities
    )


def _random_crop(
    sample: Sample, seed: tf.Tensor, operations: Sequence[Operation]
) -> Tuple[Sample, tf.Tensor]:
    """The cropped sample and the index of the drawn operation."""
    draw_seed, window_seed = split_seed(seed, 2)
    index, unchanged = _draw(operations, draw_seed)
    window = _sample_window(sample, window_seed, operations, index)
    window = Window(
        begin=tf.where(unchanged, 0, window.begin),
        size=tf.where(unchanged, -1, window.size),
        box=tf.where(unchanged, tf.constant(WHOLE_IMAGE), window.box),
    )
    thresh = _of(operations, "overlap_thresh", index)
    clip = _of(operations, "clip_boxes", index) & ~unchanged
    return crop(sample, window, thresh, clip, keep_all=unchanged), index


def _random_crop_pad(
    sample: Sample,
    seed: tf.Tensor,
    operations: Sequence[Operation],
    paddings: Sequence[Padding],
) -> Sample:
    crop_seed, pad_seed = split_seed(seed, 2)
    size = tf.cast(image_size(sample.image), tf.float32)
    cropped, index = _random_crop(sample, crop_seed, operations)
    least = size * _of(paddings, "min_ratio", index)
    most = size * _of(paddings, "max_ratio", index)
    colors = [color_of(padding.color or ()) for padding in paddings]
    color = None if colors[0] is None else tf.gather(tf.stack(colors), index)
    return random_pad(cropped, pad_seed, tf.cast(least, tf.int32), tf.cast(most, tf.int32), color)


def _crop_to_aspect_ratio(
    sample: Sample, seed: tf.Tensor, aspect_ratio: float, clip_boxes: tf.Tensor
) -> Sample:
    """Cuts rows or columns, at a random place, until width / height is `aspect_ratio`."""
    size = image_size(sample.image)
    scale = tf.cast(size, tf.float32)
    wanted = tf.stack([scale[1] / aspect_ratio, scale[0] * aspect_ratio])
    target = tf.minimum(size, tf.maximum(tf.cast(tf.round(wanted), tf.int32), 1))
    offset = random_integers(seed, tf.zeros_like(size), size - target + 1)
    ends = tf.cast(tf.concat([offset, offset + target], 0), tf.float32)
    window = Window(
        begin=tf.pad(offset, [[0, 1]]),
        size=tf.pad(target, [[0, 1]], constant_values=-1),
        box=ends / tf.tile(scale, [2]),
    )
    return crop(sample, window, tf.constant(SECOND_CROP_OVERLAP), clip_boxes)


# From configuration to operations.


def _operation(config: Any, aspect_ratio: Optional[Pair] = None) -> Operation:
    return Operation(
        min_object_covered=config.min_object_covered,
        aspect_ratio=aspect_ratio or (config.min_aspect_ratio, config.max_aspect_ratio),
        area=(config.min_area, config.max_area),
        overlap_thresh=config.overlap_thresh,
        clip_boxes=config.clip_boxes,
        random_coef=config.random_coef,
    )


def _of_each(config: Any, make: Callable[[Any], Any]) -> List[Any]:
    """`make(operation)` of each operation of the step; errors contain its index."""
    made = []
    for index, operation in enumerate(config.operations):
        try:
            made.append(make(operation))
        except ConfigError as error:
            raise ConfigError(f"operations[{index}]: {error}") from error
    return made


def _operations(config: Any, aspect_ratio: Optional[Pair] = None) -> List[Operation]:
    """The operations of the step, or the seven of the SSD paper."""
    if config.operations:
        return _of_each(config, lambda op: _operation(op, aspect_ratio))
    return [
        dataclasses.replace(op, aspect_ratio=aspect_ratio or op.aspect_ratio)
        for op in SSD_OPERATIONS
    ]


def _ratios(config: Any) -> Padding:
    """The pair of canvas bounds that several messages have, without colour."""
    bounds = {}
    for name in ("min_padded_size_ratio", "max_padded_size_ratio"):
        values = tuple(getattr(config, name))
        if len(values) not in (0, 2):
            raise ConfigError(f"{name} needs 2 numbers, height and width; found {list(values)}")
        if values:
            bounds[name.replace("_padded_size", "")] = values
    return Padding(**bounds)


def _positive_aspect_ratio(config: Any) -> float:
    aspect_ratio: float = config.aspect_ratio
    if aspect_ratio <= 0:
        raise ConfigError(f"aspect_ratio must be above 0; found {aspect_ratio:g}")
    return aspect_ratio


def _crop_pad_parts(config: Any) -> Tuple[List[Operation], List[Padding]]:
    padding = dataclasses.replace(_ratios(config), color=tuple(config.pad_color) or None)
    return [_operation(config)], [padding]


def _ssd_crop_pad_parts(config: Any) -> Tuple[List[Operation], List[Padding]]:
    """The operations of the step pad with their own colour; the standard ones with the mean.

    The standard ones are `SSD_OPERATIONS` without the first, which requires no overlap.
    """
    if not config.operations:
        return list(SSD_OPERATIONS[1:]), [Padding()] * len(SSD_OPERATIONS[1:])
    paddings = _of_each(
        config,
        lambda op: dataclasses.replace(
            _ratios(op), color=(op.pad_color_r, op.pad_color_g, op.pad_color_b)
        ),
    )
    return _operations(config), paddings


def _fixed_parts(config: Any) -> Tuple[float, List[Operation]]:
    aspect_ratio = _positive_aspect_ratio(config)
    return aspect_ratio, _operations(config, (aspect_ratio, aspect_ratio))


def _pad_fixed_parts(config: Any) -> Tuple[float, List[Operation], Padding]:
    return _positive_aspect_ratio(config), _operations(config), _ratios(config)


@AUGMENTATIONS.register("random_crop_image")
@checked_by(_operation)
def random_crop_image(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
    """Crops by the one operation that the step describes."""
    return _random_crop(sample, seed, [_operation(config)])[0]


@AUGMENTATIONS.register("random_crop_pad_image")
@checked_by(_crop_pad_parts)
def random_crop_pad_image(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
    """Crops, then places the crop on a canvas whose size is relative to the uncropped image."""
    return _random_crop_pad(sample, seed, *_crop_pad_parts(config))


@AUGMENTATIONS.register("ssd_random_crop")
@checked_by(_operations)
def ssd_random_crop(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
    """Crops by one of the operations, all equally likely."""
    return _random_crop(sample, seed, _operations(config))[0]


@AUGMENTATIONS.register("ssd_random_crop_pad")
@checked_by(_ssd_crop_pad_parts)
def ssd_random_crop_pad(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
    """Crops by one of the operations, all equally likely, then pads as that operation says."""
    return _random_crop_pad(sample, seed, *_ssd_crop_pad_parts(config))


@AUGMENTATIONS.register("ssd_random_crop_fixed_aspect_ratio")
@checked_by(_fixed_parts)
def ssd_random_crop_fixed_aspect_ratio(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
    """Crops to one aspect ratio; images that are not cropped otherwise are cropped to it, too."""
    aspect_ratio, operations = _fixed_parts(config)
    crop_seed, cut_seed = split_seed(seed, 2)
    cropped, index = _random_crop(sample, crop_seed, operations)
    return _crop_to_aspect_ratio(
        cropped, cut_seed, aspect_ratio, _of(operations, "clip_boxes", index)
    )


@AUGMENTATIONS.register("ssd_random_crop_pad_fixed_aspect_ratio")
@checked_by(_pad_fixed_parts)
def ssd_random_crop_pad_fixed_aspect_ratio(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
    """Crops to any shape, then pads with black to one aspect ratio."""
    aspect_ratio, operations, padding = _pad_fixed_parts(config)
    crop_seed, pad_seed = split_seed(seed, 2)
    cropped, _ = _random_crop(sample, crop_seed, operations)
    return random_pad_to_aspect_ratio(
        cropped, pad_seed, aspect_ratio, padding.min_ratio, padding.max_ratio
    )
