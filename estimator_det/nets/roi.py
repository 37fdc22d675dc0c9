"""Features of regions: crops of feature maps, and position-sensitive pooling of score maps.

Letters: B images, N regions of an image, h x w cells of a feature map, C channels, s side of a
crop. Boxes are normalized to the image that the map was computed from.
"""

from __future__ import annotations

import math
from typing import Sequence, Tuple

import numpy as np

from estimator_det.boxes.geometry import area, sizes
from estimator_det.compat import tf


def crop_regions(
    features: tf.Tensor, boxes: tf.Tensor, size: Tuple[int, int], *, matmul: bool = False
) -> tf.Tensor:
    """Crops a map [B, h, w, C] at boxes [B, N, 4] bilinearly: [B * N, *size, C], 0 outside the map.

    Corners of a crop are corners of its box. With `matmul`, two matrix products interpolate, for
    TPU. The result is the same for a box inside the image; past a border the last cells fade out
    instead of ending.
    """
    if matmul:
        return _crop_by_products(features, boxes, size)
    batch, count = sizes(boxes)[:2]
    crops = tf.image.crop_and_resize(
        tf.cast(features, tf.float32),
        tf.reshape(boxes, [-1, 4]),
        tf.repeat(tf.range(batch), count),
        size,
    )
    crops = tf.cast(crops, features.dtype)
    is_static = isinstance(batch, int) and isinstance(count, int)
    return tf.ensure_shape(crops, [batch * count if is_static else None, *size, features.shape[3]])


CANONICAL_SIDE = 224.0  # side in pixels of a box that is cropped from the second coarsest level


def levels_of_boxes(boxes: tf.Tensor, num_levels: int) -> tf.Tensor:
    """Levels of a pyramid, from 0 at the finest, for boxes [B, N, 4] in pixels: int32 [B, N].

    A box of twice the side has the next coarser level (https://arxiv.org/abs/1612.03144).
    """
    side = tf.sqrt(tf.maximum(area(boxes), 0.0))
    octaves = tf.math.log(side / CANONICAL_SIDE) / math.log(2.0)
    # A box without area has the logarithm -inf, which no integer can be.
    levels = tf.maximum(tf.floor(octaves), -num_levels) + num_levels - 2
    return tf.cast(tf.clip_by_value(levels, 0, num_levels - 1), tf.int32)


def crop_levels(
    maps: Sequence[tf.Tensor],
    boxes: tf.Tensor,
    levels: tf.Tensor,
    size: Tuple[int, int],
    *,
    matmul: bool = False,
) -> tf.Tensor:
    """`crop_regions` of several maps, the finest first, each box from the map of its level.

    Levels are int32 [B, N].
    """
    if matmul:
        rows = tf.reshape(levels, [-1, 1, 1, 1])
        crops = [crop_regions(features, boxes, size, matmul=True) for features in maps]
        return tf.add_n(
            [tf.where(tf.equal(rows, level), each, 0.0) for level, each in enumerate(crops)]
        )
    # All maps as one batch of the finest map's size. The last cell of a map has the coordinate 1.
    finest = tf.shape(maps[0])[1:3]
    padded, scales = [], []
    for features in maps:
        below = finest - tf.shape(features)[1:3]
        padded.append(tf.pad(features, [[0, 0], [0, below[0]], [0, below[1]], [0, 0]]))
        scale = (tf.shape(features)[1:3] - 1) / (finest - 1)
        scales.append(tf.tile(tf.cast(scale, tf.float32), [2]))
    batch, count = sizes(boxes)[:2]
    scaled = boxes * tf.gather(tf.stack(scales), levels)
    images = levels * batch + tf.range(batch)[:, tf.newaxis]
    depth = maps[0].shape[3]
    crops = tf.image.crop_and_resize(
        tf.reshape(tf.concat(padded, axis=0), [-1, finest[0], finest[1], depth]),
        tf.reshape(scaled, [-1, 4]),
        tf.reshape(images, [-1]),
        size,
    )
    is_static = isinstance(batch, int) and isinstance(count, int)
    crops = tf.cast(crops, maps[0].dtype)
    return tf.ensure_shape(crops, [batch * count if is_static else None, *size, depth])


def split_rows(rows: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Splits rows [B * N, …] into [B, N, …], with B and N of `like` [B, N, …]."""
    split = tf.reshape(rows, [*sizes(like)[:2], *rows.shape[1:]])
    return tf.ensure_shape(split, [*like.shape[:2], *rows.shape[1:]])


def _crop_by_products(features: tf.Tensor, boxes: tf.Tensor, size: Tuple[int, int]) -> tf.Tensor:
    ymin, xmin, ymax, xmax = tf.unstack(boxes, num=4, axis=-1)
    rows = _interpolation(ymin, ymax, tf.shape(features)[1], size[0])
    columns = _interpolation(xmin, xmax, tf.shape(features)[2], size[1])
    rows, columns = tf.cast(rows, features.dtype), tf.cast(columns, features.dtype)
    row_crops = tf.einsum("bnyh,bhwc->bnywc", rows, features)
    crops = tf.einsum("bnxw,bnywc->bnyxc", columns, row_crops)
    batch, count = sizes(boxes)[:2]
    return tf.reshape(crops, [batch * count, *size, features.shape[3]])


def _interpolation(low: tf.Tensor, high: tf.Tensor, cells: tf.Tensor, size: int) -> tf.Tensor:
    """Weight of each cell at each place of a crop: edges [B, N] -> [B, N, size, cells]."""
    last = tf.cast(cells - 1, tf.float32)
    shares = tf.linspace(0.0, 1.0, size) if size > 1 else tf.constant([0.5])
    places = (low[..., tf.newaxis] * (1.0 - shares) + high[..., tf.newaxis] * shares) * last
    # The weight of a cell falls linearly to 0 at the distance of one cell.
    distance = tf.abs(places[..., tf.newaxis] - tf.range(tf.cast(cells, tf.float32)))
    return tf.nn.relu(1.0 - distance)


def pool_position_sensitive(
    score_maps: tf.Tensor,
    boxes: tf.Tensor,
    crop_size: Tuple[int, int],
    num_bins: Tuple[int, int],
    *,
    matmul: bool = False,
) -> tf.Tensor:
    """Mean over the bins of a region, each cropped from the score maps of that bin.

    A region is divided into a grid of bins; each bin (i, j) has separate score maps, so that their
    values can depend on the place in the region (https://arxiv.org/abs/1605.06409).

    Score maps are [B, h, w, bins * C], bin by bin, row by row; the result for boxes [B, N, 4] is
    [B, N, C]. The height and width of the crop of a whole region are multiples of `num_bins`.
    """
    rows, columns = num_bins
    bins = rows * columns
    batch, count = sizes(boxes)[:2]
    height, width = tf.unstack(tf.shape(score_maps)[1:3], num=2)
    channels = score_maps.shape[3] // bins
    bin_maps = tf.reshape(score_maps, [batch, height, width, bins, channels])
    bin_maps = tf.reshape(
        tf.transpose(bin_maps, [0, 3, 1, 2, 4]), [batch * bins, height, width, channels]
    )
    bin_boxes = tf.reshape(_bin_boxes(boxes, rows, columns), [batch * bins, count, 4])
    size = (crop_size[0] // rows, crop_size[1] // columns)
    crops = crop_regions(bin_maps, bin_boxes, size, matmul=matmul)
    pooled = tf.reduce_mean(crops, axis=[1, 2])
    return tf.reduce_mean(tf.reshape(pooled, [batch, bins, count, channels]), axis=1)


def _bin_boxes(boxes: tf.Tensor, rows: int, columns: int) -> tf.Tensor:
    """Cuts boxes [B, N, 4] into a grid: [B, rows * columns, N, 4]."""
    ymin, xmin, ymax, xmax = tf.unstack(boxes[:, tf.newaxis], num=4, axis=-1)
    row, column = np.indices((rows, columns), np.float32).reshape(2, -1, 1)
    height, width = (ymax - ymin) / rows, (xmax - xmin) / columns
    corners = [
        ymin + row * height,
        xmin + column * width,
        ymin + (row + 1) * height,
        xmin + (column + 1) * width,
    ]
    return tf.stack(corners, axis=-1)
