"""Elementary operations of learned policies, on pixels and all labels.

Sources: Cubuk et al., AutoAugment (2019); Zoph et al., Learning Data Augmentation Strategies for
Object Detection (2019); enhancements as in the Python Imaging Library. Arithmetic is in
float32, truncated to whole levels, like in the Object Detection API.

Images are uint8 [h, w, C]; colour operations change only the first three channels. Nothing here is
random: random numbers are arguments, either numbers or scalar tensors.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, NamedTuple, Sequence, Tuple

from estimator_det.compat import tf
from inputs.augment.base import cut, image_size, per_channel, scale_area
from inputs.sample import Sample

FILL = 128  # level of pixels outside the image
LEAST_SIDE = 0.05  # side of a box that left the image, or has no extent at its edge
# Weights of a pixel and its neighbours.
SMOOTHING = ((1.0, 1.0, 1.0), (1.0, 5.0, 1.0), (1.0, 1.0, 1.0))

Pixels = Callable[[tf.Tensor], tf.Tensor]
Change = Callable[[Sample, tf.Tensor], Sample]


def change_rgb(image: tf.Tensor, change: Pixels) -> tf.Tensor:
    """Applies `change` to the colour channels; other channels do not change."""
    channels = image.shape[-1]
    changed = change(image) if channels in (1, 3) else change(image[..., :3])
    if channels is None or channels > 3:
        changed = tf.concat([changed, image[..., 3:]], axis=-1)
    changed.set_shape(image.shape)
    return changed


def _levels(values: tf.Tensor) -> tf.Tensor:
    """Clips float32 values to 0..255 and truncates them to uint8."""
    return tf.cast(tf.clip_by_value(values, 0.0, 255.0), tf.uint8)


def blend(first: tf.Tensor, second: tf.Tensor, factor: Any) -> tf.Tensor:
    """Interpolates uint8 images: `first` at factor 0, `second` at 1; other factors extrapolate."""
    start, end = tf.cast(first, tf.float32), tf.cast(second, tf.float32)
    return _levels(start + factor * (end - start))


def change_pixels(
    change: Callable[[tf.Tensor, Any], tf.Tensor], sample: Sample, value: Any
) -> Sample:
    """Applies `change(image, value)` to the colour channels of a sample."""
    return sample._replace(image=change_rgb(sample.image, lambda rgb: change(rgb, value)))


def apply_in_turn(sample: Sample, count: Any, change: Change) -> Sample:
    """Applies `change(sample, position)` for positions 0 to `count` - 1."""

    def step(position: tf.Tensor, state: Dict[str, tf.Tensor]) -> Any:
        changed = change(sample._replace(image_level=None, **state), position)
        return position + 1, _state(changed)

    initial = (tf.constant(0), _state(sample))
    _, state = tf.while_loop(lambda position, _: position < count, step, initial)
    return sample._replace(**state)


def choose_change(choose: Callable[[tf.Tensor], tf.Tensor], changes: Sequence[Change]) -> Change:
    """A change that applies `changes[choose(position)]`."""

    def apply(sample: Sample, position: tf.Tensor) -> Sample:
        branches = [lambda change=change: _state(change(sample, position)) for change in changes]
        return sample._replace(**tf.switch_case(choose(position), branches))

    return apply


def _state(sample: Sample) -> Dict[str, tf.Tensor]:
    """The fields that operations change, without None: variables of loops must be tensors."""
    names = ("image", "boxes", "area", "masks", "keypoints", "keypoint_visibilities")
    return {name: getattr(sample, name) for name in names if getattr(sample, name) is not None}


# Pixel values.


def auto_contrast(image: tf.Tensor) -> tf.Tensor:
    """Stretches each channel to 0..255; a channel with a single value does not change."""
    values = tf.cast(image, tf.float32)
    low = tf.reduce_min(tf.reduce_min(values, axis=0), axis=0)
    high = tf.reduce_max(tf.reduce_max(values, axis=0), axis=0)
    scale = tf.where(high > low, tf.math.divide_no_nan(255.0, high - low), 1.0)
    shift = tf.where(high > low, -low * scale, 0.0)
    return _levels(per_channel(per_channel(values, scale, tf.multiply), shift, tf.add))


def equalize(image: tf.Tensor) -> tf.Tensor:
    """Equalizes the frequencies of levels in each channel."""
    shape = tf.shape(image)
    levels = tf.cast(tf.transpose(tf.reshape(image, [-1, shape[2]])), tf.int32)  # [C, h * w]
    counts = tf.math.bincount(levels, minlength=256, maxlength=256, axis=-1)
    below = tf.cumsum(counts, axis=1, exclusive=True)
    highest = tf.reduce_max(levels, axis=1, keepdims=True)
    last = tf.gather(counts, highest, axis=1, batch_dims=1)
    step = (tf.shape(levels)[1] - last) // 255
    table = tf.minimum((below + step // 2) // tf.maximum(step, 1), 255)
    # The formula of the Python Imaging Library: level 0 stays 0, and a step of 0 keeps all levels.
    table = tf.concat([tf.zeros_like(table[:, :1]), table[:, 1:]], axis=1)
    table = tf.cast(tf.where(tf.equal(step, 0), tf.range(256), table), tf.uint8)
    equal = tf.gather(table, levels, axis=1, batch_dims=1)
    return tf.reshape(tf.transpose(equal), shape)


def posterize(image: tf.Tensor, bits: Any) -> tf.Tensor:
    """Keeps the upper `bits` of each value, at least one."""
    num_dropped = tf.cast(8 - tf.clip_by_value(bits, 1, 8), tf.uint8)
    return tf.bitwise.left_shift(tf.bitwise.right_shift(image, num_dropped), num_dropped)


def solarize(image: tf.Tensor, threshold: Any) -> tf.Tensor:
    """Inverts the values from `threshold`, an integer of 0 to 256, upwards."""
    is_low = tf.cast(image, tf.int32) < threshold
    return tf.where(is_low, image, 255 - image)


def solarize_add(image: tf.Tensor, addition: Any) -> tf.Tensor:
    """Adds an integer to the values below 128."""
    shifted = tf.cast(image, tf.int32) + addition
    return tf.where(image < 128, tf.cast(tf.clip_by_value(shifted, 0, 255), tf.uint8), image)


def _gray(image: tf.Tensor) -> tf.Tensor:
    return image if image.shape[-1] == 1 else tf.image.rgb_to_grayscale(image)


def color(image: tf.Tensor, factor: Any) -> tf.Tensor:
    """Changes the saturation: gray at factor 0, unchanged at 1."""
    return blend(_gray(image), image, factor)


def contrast(image: tf.Tensor, factor: Any) -> tf.Tensor:
    """Changes the contrast: the mean gray at factor 0, unchanged at 1."""
    mean = tf.reduce_mean(tf.cast(_gray(image), tf.float32))
    return blend(tf.floor(mean + 0.5), image, factor)


def brightness(image: tf.Tensor, factor: Any) -> tf.Tensor:
    """Changes the brightness: black at factor 0, unchanged at 1."""
    return _levels(tf.cast(image, tf.float32) * factor)


def sharpness(image: tf.Tensor, factor: Any) -> tf.Tensor:
    """Changes the sharpness: smooth at factor 0, unchanged at 1, also the outermost pixels."""
    channels = image.shape[-1]
    kernel = tf.constant(SMOOTHING)[:, :, tf.newaxis, tf.newaxis] / 13.0
    smooth = tf.nn.depthwise_conv2d(
        tf.cast(image, tf.float32)[tf.newaxis],
        tf.tile(kernel, [1, 1, channels, 1]),
        strides=[1, 1, 1, 1],
        padding="SAME",
    )[0]
    rows, columns = (_is_inner(side) for side in tf.unstack(image_size(image)))
    is_inner = rows[:, tf.newaxis, tf.newaxis] & columns[tf.newaxis, :, tf.newaxis]
    return blend(tf.where(is_inner, _levels(smooth), image), image, factor)


def _is_inner(side: tf.Tensor) -> tf.Tensor:
    places = tf.range(side)
    return (places > 0) & (places < side - 1)


# Rectangles.


def overwrite(pixels: tf.Tensor, begin: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    """Replaces the part of `pixels` from the indices `begin`, int32 [rank], by `part`."""
    changed = tf.raw_ops.TensorStridedSliceUpdate(
        input=pixels,
        begin=begin,
        end=begin + tf.shape(part),
        strides=tf.ones_like(begin),
        value=part,
    )
    changed.set_shape(pixels.shape)
    return changed


def cutout(image: tf.Tensor, center: tf.Tensor, half_size: tf.Tensor) -> tf.Tensor:
    """Covers `center - half_size` to `center + half_size - 1`, int32 [2] each, with gray."""
    size = image_size(image)
    begin = tf.clip_by_value(center - half_size, 0, size)
    end = tf.clip_by_value(center + half_size, begin, size)
    patch = tf.fill(tf.concat([end - begin, tf.shape(image)[2:]], 0), tf.cast(FILL, image.dtype))
    return overwrite(image, tf.pad(begin, [[0, 1]]), patch)


def pixel_rectangle(box: tf.Tensor, size: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    """First and last row and column, int32 [2] each, of a normalized box [4] in an image."""
    corners = tf.cast(box * tf.tile(tf.cast(size, tf.float32), [2]), tf.int32)
    first = tf.clip_by_value(corners[:2], 0, size - 1)
    return first, tf.clip_by_value(corners[2:], first, size - 1)


def cutout_in_box(image: tf.Tensor, box: tf.Tensor, center: tf.Tensor, fraction: Any) -> tf.Tensor:
    """Covers a rectangle around `center`, `fraction` of the box as high and as wide, with gray."""
    first, last = pixel_rectangle(box, image_size(image))
    extent = tf.cast(last - first + 1, tf.float32)
    return cutout(image, center, tf.cast(fraction * extent / 2.0, tf.int32))


def change_boxes(sample: Sample, indices: tf.Tensor, change: Change) -> Sample:
    """Changes the content of the boxes `indices`, int32 [k], one after the other.

    `change(region, index)` receives the inside of the box as a sample, and returns one of the same
    size. Boxes do not change; masks and keypoints follow the pixels.
    """

    def change_box(current: Sample, position: tf.Tensor) -> Sample:
        index = indices[position]
        first, last = pixel_rectangle(sample.boxes[index], image_size(current.image))
        region = _region(current, first, last - first + 1)
        return _with_region(current, region, change(region, index), first)

    return apply_in_turn(sample, tf.size(indices), change_box)


def _region(sample: Sample, first: tf.Tensor, size: tf.Tensor) -> Sample:
    """A part of the image as a sample, with keypoints in its frame."""
    region, keypoints = cut(sample, first, size), sample.keypoints
    if keypoints is not None:
        pixels = keypoints * tf.cast(image_size(sample.image), tf.float32)
        keypoints = (pixels - tf.cast(first, tf.float32)) / tf.cast(size, tf.float32)
    return region._replace(keypoints=keypoints)


def _with_region(sample: Sample, region: Sample, changed: Sample, first: tf.Tensor) -> Sample:
    """Replaces a region by the changed one; keypoints follow that were inside it."""
    image = overwrite(sample.image, tf.pad(first, [[0, 1]]), changed.image)
    masks, keypoints = sample.masks, sample.keypoints
    visibilities = sample.keypoint_visibilities
    if masks is not None:
        masks = overwrite(masks, tf.pad(first, [[1, 0]]), changed.masks)
    if keypoints is not None and region.keypoints is not None:
        is_inside = tf.reduce_all(
            (region.keypoints >= 0.0) & (region.keypoints <= 1.0), axis=-1, keepdims=True
        )
        size, region_size = (tf.cast(image_size(x.image), tf.float32) for x in (sample, changed))
        moved = (changed.keypoints * region_size + tf.cast(first, tf.float32)) / size
        keypoints = tf.where(is_inside, moved, keypoints)
        if visibilities is not None:
            visibilities = tf.where(is_inside[..., 0], changed.keypoint_visibilities, visibilities)
    return sample._replace(
        image=image, masks=masks, keypoints=keypoints, keypoint_visibilities=visibilities
    )


# Movements of the whole image.


class Warp(NamedTuple):
    """Source of the pixels of a result: `matrix @ (place - pivot) + pivot + shift`.

    Places are rows and columns of pixels; the pivot is a share of the image, 0 the first pixel.
    """

    matrix: tf.Tensor  # float32 [2, 2], of determinant 1
    shift: tf.Tensor  # float32 [2], rows and columns
    pivot: float = 0.0


def translate_x(sample: Sample, pixels: Any) -> Sample:
    """Moves everything to the left."""
    return warp(sample, Warp(tf.eye(2), tf.stack([0.0, pixels])))


def translate_y(sample: Sample, pixels: Any) -> Sample:
    """Moves everything up."""
    return warp(sample, Warp(tf.eye(2), tf.stack([pixels, 0.0])))


def shear_x(sample: Sample, level: Any) -> Sample:
    """Moves each row to the left by `level` times its number."""
    return warp(sample, Warp(_matrix([[1.0, 0.0], [level, 1.0]]), tf.zeros([2])))


def shear_y(sample: Sample, level: Any) -> Sample:
    """Moves each column up by `level` times its number."""
    return warp(sample, Warp(_matrix([[1.0, level], [0.0, 1.0]]), tf.zeros([2])))


def rotate(sample: Sample, degrees: Any) -> Sample:
    """Rotates counter-clockwise about the centre."""
    radians = tf.convert_to_tensor(degrees, tf.float32) * (math.pi / 180.0)
    cosine, sine = tf.cos(radians), tf.sin(radians)
    return warp(sample, Warp(_matrix([[cosine, sine], [-sine, cosine]]), tf.zeros([2]), pivot=0.5))


def _matrix(rows: Any) -> tf.Tensor:
    return tf.stack([tf.stack([tf.cast(x, tf.float32) for x in row]) for row in rows])


def warp(sample: Sample, warp_options: Warp) -> Sample:
    """Moves image, masks (nearest pixel), boxes and keypoints together.

    No box is dropped. Boxes move by the API's rule: their corners are truncated to whole
    pixels before and after, the enclosing box is clipped to the image, and a box without extent
    becomes 5 % of the image at its edge, a pixel elsewhere. Keypoints that leave the image become
    NaN and invisible. `area` is multiplied by the share of the box that stays.
    """
    size = tf.cast(image_size(sample.image), tf.float32)
    # The determinant is 1.
    inverse = tf.reverse(tf.transpose(warp_options.matrix), [0, 1]) * [[1.0, -1.0], [-1.0, 1.0]]
    boxes, share = _move_boxes(sample.boxes, size, warp_options, inverse)
    transform = _transform(warp_options, size)
    masks = sample.masks
    if masks is not None:
        masks = _read(masks[..., tf.newaxis], transform, 0.0)[..., 0]
    keypoints, visibilities = sample.keypoints, sample.keypoint_visibilities
    if keypoints is not None:
        keypoints = _move_points(keypoints, size, warp_options, inverse)
        if visibilities is not None:
            visibilities &= ~tf.math.is_nan(keypoints[..., 0])
    return sample._replace(
        image=_read(sample.image[tf.newaxis], transform, FILL)[0],
        boxes=boxes,
        masks=masks,
        keypoints=keypoints,
        keypoint_visibilities=visibilities,
        area=scale_area(sample.area, share),
    )


def _transform(warp_options: Warp, size: tf.Tensor) -> tf.Tensor:
    """Coefficients of the kernel that moves images, x before y: float32 [1, 8]."""
    center = (size - 1.0) * warp_options.pivot
    shift = center - tf.linalg.matvec(warp_options.matrix, center) + warp_options.shift
    (yy, yx), (xy, xx) = (tf.unstack(row) for row in tf.unstack(warp_options.matrix))
    return tf.stack([xx, xy, shift[1], yx, yy, shift[0], 0.0, 0.0])[tf.newaxis]


def _read(images: tf.Tensor, transform: tf.Tensor, fill: float) -> tf.Tensor:
    """Moves pixels [b, h, w, C] -> the same shape, nearest pixels."""
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=images,
        transforms=transform,
        output_shape=tf.shape(images)[1:3],
        fill_value=fill,
        interpolation="NEAREST",
        fill_mode="CONSTANT",
    )
    moved.set_shape(images.shape)
    return moved


def _move_boxes(
    boxes: tf.Tensor, size: tf.Tensor, warp_options: Warp, inverse: tf.Tensor
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Moves boxes; also returns the share [n] of each that lies in the image."""
    corners = tf.gather(boxes, [[0, 1], [0, 3], [2, 1], [2, 3]], axis=1)  # [n, 4, 2]
    cells = _truncate((corners - warp_options.pivot) * size)
    moved = _truncate(tf.linalg.matvec(inverse, cells)) - _truncate(warp_options.shift)
    low = tf.reduce_min(moved, axis=1) / size + warp_options.pivot
    high = tf.reduce_max(moved, axis=1) / size + warp_options.pivot
    near, far = tf.clip_by_value(low, 0.0, 1.0), tf.clip_by_value(high, 0.0, 1.0)
    before, after = tf.reduce_prod(high - low, axis=1), tf.reduce_prod(far - near, axis=1)
    share = tf.where(before > 0.0, tf.math.divide_no_nan(after, before), 1.0)
    is_flat = far <= near
    far = tf.where(is_flat, tf.maximum(far, LEAST_SIDE), far)
    near = tf.where(is_flat, tf.minimum(near, 1.0 - LEAST_SIDE), near)
    is_flat = far <= near  # in the API these have no extent; here they keep a pixel
    near = tf.where(is_flat, tf.minimum(near, 1.0 - 1.0 / size), near)
    far = tf.where(is_flat, near + 1.0 / size, far)
    return tf.concat([near, far], axis=1), share


def _truncate(values: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.cast(values, tf.int32), tf.float32)


def _move_points(
    points: tf.Tensor, size: tf.Tensor, warp_options: Warp, inverse: tf.Tensor
) -> tf.Tensor:
    center = (size - 1.0) * warp_options.pivot
    places = points * size - 0.5 - center - warp_options.shift
    moved = (tf.linalg.matvec(inverse, places) + center + 0.5) / size
    outside = tf.reduce_any((moved < 0.0) | (moved > 1.0), axis=-1, keepdims=True)
    return tf.where(outside, float("nan"), moved)
