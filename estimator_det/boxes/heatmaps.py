"""Heatmaps on the pixels of a feature map: Gaussian targets, peaks, and values at pixels.

Letters: B images, h x w pixels of the map, C channels, N points of an image. Points are y and x in
pixels of the map; the integer part of a point is its pixel.
"""

from __future__ import annotations

from typing import List, NamedTuple, Tuple

from estimator_det.boxes.geometry import sizes
from estimator_det.compat import tf

PEAK_TOLERANCE = 1e-6  # how far a peak may be below the largest value around it


def gaussian_deviations(heights: tf.Tensor, widths: tf.Tensor, min_iou: float) -> tf.Tensor:
    """Standard deviations of the Gaussians at centers of boxes: [...], [...] -> [...].

    Three deviations are the radius within which a box may move and keep an IoU of `min_iou` (Law &
    Deng, "CornerNet", 2018). The radius is the least of three roots, none of which is divided by
    its leading coefficient: a slip of the published code, with which checkpoints were trained.
    """
    side_sum, area = heights + widths, heights * widths

    def root(a: float, b: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
        return (tf.sqrt(b * b - 4.0 * a * c) - b) / 2.0

    radius = tf.minimum(
        root(1.0, -side_sum, area * (1.0 - min_iou) / (1.0 + min_iou)),
        tf.minimum(
            root(4.0, -2.0 * side_sum, (1.0 - min_iou) * area),
            root(4.0 * min_iou, 2.0 * min_iou * side_sum, (min_iou - 1.0) * area),
        ),
    )
    return (2.0 * tf.maximum(tf.floor(radius), 0.0) + 1.0) / 6.0


def draw_gaussians(
    points: tf.Tensor,  # float32 [B, N, 2]
    deviations: tf.Tensor,  # float32 [B, N], standard deviations in pixels
    weights: tf.Tensor,  # float32 [B, N], factors; points of weight 0 are not drawn
    channels: tf.Tensor,  # int32 [B, N], channel of each point
    shape: Tuple[int, int, int],  # h, w and C
) -> tf.Tensor:
    """Draws a Gaussian at the pixel of each point: float32 [B, h, w, C], the maximum of all.

    It is exactly 1 at the pixel of a point of weight 1.
    """
    height, width, num_channels = shape
    batch, num_points = sizes(deviations)[:2]

    def profile(coordinates: tf.Tensor, length: int) -> tf.Tensor:
        offsets = tf.range(tf.cast(length, tf.float32)) - tf.floor(coordinates)[..., tf.newaxis]
        return tf.exp(-tf.square(offsets / deviations[..., tf.newaxis]) / 2.0)

    rows = profile(points[..., 0], height) * weights[..., tf.newaxis]
    gaussians = rows[..., tf.newaxis] * profile(points[..., 1], width)[:, :, tf.newaxis, :]
    # One segment for each channel of each image: never a tensor of all points times all channels.
    segments = tf.range(batch)[:, tf.newaxis] * num_channels + channels
    largest = tf.math.unsorted_segment_max(
        tf.reshape(gaussians, [batch * num_points, height * width]),
        tf.reshape(segments, [-1]),
        batch * num_channels,
    )
    maps = tf.reshape(tf.nn.relu(largest), [batch, num_channels, height, width])
    return tf.transpose(maps, [0, 2, 3, 1])


def keep_peaks(values: tf.Tensor, window: int) -> tf.Tensor:
    """Replaces values [B, h, w, C] by 0 unless they are the largest in a window around them."""
    largest = tf.nn.max_pool2d(values, window, 1, "SAME")
    return tf.where(tf.abs(values - largest) < PEAK_TOLERANCE, values, tf.zeros_like(values))


class Pixels(NamedTuple):
    """Pixels of the map by falling value."""

    values: tf.Tensor  # float32 [B, N]
    y: tf.Tensor  # int32 [B, N]
    x: tf.Tensor  # int32 [B, N]
    channels: tf.Tensor  # int32 [B, N]

    @property
    def points(self) -> tf.Tensor:
        """Their coordinates, float32 [B, N, 2]."""
        return tf.cast(tf.stack([self.y, self.x], axis=-1), tf.float32)


def top_pixels(maps: tf.Tensor, count: int) -> Pixels:
    """The `count` largest values of maps [B, h, w, C] in all channels, or all if there are fewer.

    Of equal values, the first one in the order of rows, columns and channels comes first.
    """
    batch, height, width, channels = sizes(maps)
    flat = tf.reshape(maps, [batch, height * width * channels])
    limit = flat.shape[1]  # None if the size of images is known at run time only
    count = min(count, limit) if limit else tf.minimum(count, tf.shape(flat)[1])
    values, places = tf.math.top_k(flat, count)
    pixels = places // channels
    return Pixels(values, pixels // width, pixels % width, places % channels)


def values_at(maps: tf.Tensor, y: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Values of maps [B, h, w, C] at pixels [B, ...]: [B, ..., C]; pixels are cut to the map."""
    batch, height, width, channels = sizes(maps)
    places = tf.clip_by_value(y, 0, height - 1) * width + tf.clip_by_value(x, 0, width - 1)
    flat = tf.reshape(maps, [batch, height * width, channels])
    return tf.gather(flat, places, batch_dims=1)


def disc(radius: int) -> List[Tuple[int, int]]:
    """Offsets y and x of the pixels within `radius` of one."""
    offsets = range(-radius, radius + 1)
    return [(y, x) for y in offsets for x in offsets if y * y + x * x <= radius * radius]


def real_pixels(true_shapes: tf.Tensor, shape: Tuple[int, int], stride: int) -> tf.Tensor:
    """1 at pixels of the map that see the real image, else 0: float32 [B, h, w].

    True shapes are int32 [B, 2 or more], height and width of the images.
    """
    # Without a negative number, of which the converter to ONNX rounds quotients up.
    limits = (true_shapes + stride - 1) // stride
    rows = tf.range(shape[0]) < limits[:, :1]
    columns = tf.range(shape[1]) < limits[:, 1:2]
    return tf.cast(rows[:, :, tf.newaxis] & columns[:, tf.newaxis, :], tf.float32)
