"""Many draws of a step in one graph, and whether they may have a known distribution.

Distributions of the Object Detection API are known from order statistics. For the i-th smallest of
m draws of a distribution function F, F there exceeds a Beta(i, m - i + 1) variable at most at ties,
and its left limit falls below one: P(F(x_i) < p) <= P(Bin(m, p) >= i). Binomial tails are bounded
by Chernoff's exp(-m KL). So each comparison has an error probability that is known for all m, n and
F, ties included; a whole run divides `ERROR` among its comparisons.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np

from estimator_det.compat import tf
from inputs.sample import Sample
from tests.inputs.augment.helpers import make_augmentation, step

ERROR = 1e-4  # of a whole run: that it fails although all distributions are right

# Numbers of one draw. Without boxes, the means over boxes are NaN.
BOX_MEANS = ("ymin", "xmin", "ymax", "xmax")
PLACES = ("src_y0", "src_x0", "src_h", "src_w", "dst_y0", "dst_x0")


def draw(text: str, sample: Sample, count: int, *, with_places: bool) -> Dict[str, np.ndarray]:
    """What `count` draws of a step give: float32 [count] for each number.

    Under `box_kept <index>` is 1 where the box is still there.
    """
    augment = make_augmentation([step(text)])
    places = sample._replace(image=_coordinates(sample.image))
    names: List[str] = []

    def one(seed: tf.Tensor) -> tf.Tensor:
        result = augment(sample, seed)
        found = _numbers(sample, result)
        if with_places:
            found.update(_places(augment(places, seed).image))
        names[:] = found
        return tf.stack([tf.cast(value, tf.float32) for value in found.values()])

    seeds = np.stack([np.arange(count), np.full(count, 17)], axis=1)
    many = tf.function(
        lambda seeds: tf.map_fn(one, seeds, fn_output_signature=tf.TensorSpec([None])),
        autograph=False,
    )
    values = np.array(many.get_concrete_function(tf.constant(seeds))(tf.constant(seeds)))
    return dict(zip(names, values.T))


def _numbers(before: Sample, after: Sample) -> Dict[str, tf.Tensor]:
    image, boxes = tf.cast(after.image, tf.float32), after.boxes
    same_shape = tf.reduce_all(tf.shape(image) == tf.shape(before.image))
    is_same = tf.cond(
        same_shape, lambda: tf.reduce_all(image == before.image), lambda: tf.constant(False)
    )
    area = tf.reduce_prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    kept = tf.abs(after.weights[:, tf.newaxis] - before.weights) < 1e-6
    found = {
        "height": tf.shape(image)[0],
        "width": tf.shape(image)[1],
        "num_boxes": tf.shape(boxes)[0],
        "box_area": tf.reduce_mean(area),
        "image_mean": tf.reduce_mean(image),
        "image_std": tf.math.reduce_std(image),
        "mean_r": tf.reduce_mean(image[..., 0]),
        "image_changed": ~is_same,
    }
    is_kept = tf.reduce_any(kept, axis=0)
    found.update({f"box_kept {index}": is_kept[index] for index in range(len(before.weights))})
    means = tf.unstack(tf.reduce_mean(boxes, axis=0), num=4)
    found.update(zip(BOX_MEANS, means))
    if after.masks is not None:
        found["mask_sum"] = tf.reduce_sum(after.masks)
    if after.keypoints is not None:
        found["keypoints_not_nan"] = tf.math.count_nonzero(~tf.math.is_nan(after.keypoints[..., 0]))
    return found


def _hash(rows: Any, columns: Any) -> Any:
    return (rows * 7.0 + columns * 13.0) % 251.0


def _coordinates(image: tf.Tensor) -> tf.Tensor:
    """An image of the same size whose pixels are their row, their column and a check sum."""
    rows, columns = np.indices(image.shape[:2]).astype(np.float32)
    return tf.constant(np.stack([rows, columns, _hash(rows, columns)], axis=-1))


def _places(image: tf.Tensor) -> Dict[str, tf.Tensor]:
    """Which part of the image of `_coordinates` is visible, and where it begins."""
    rows, columns = image[..., 0], image[..., 1]
    is_part = (tf.abs(image[..., 2] - _hash(rows, columns)) < 1e-3) & (rows == tf.floor(rows))
    # Padding of one colour may pass the check of a single pixel, but it is never beside its place.
    is_part &= (rows > 0.0) | (columns > 0.0) | (tf.roll(columns, -1, 1) == 1.0)
    seen = tf.where(is_part)
    own_rows, own_columns = tf.boolean_mask(rows, is_part), tf.boolean_mask(columns, is_part)
    begin = tf.cast(tf.reduce_min(seen, axis=0), tf.float32)
    return {
        "src_y0": tf.reduce_min(own_rows),
        "src_x0": tf.reduce_min(own_columns),
        "src_h": tf.reduce_max(own_rows) - tf.reduce_min(own_rows) + 1.0,
        "src_w": tf.reduce_max(own_columns) - tf.reduce_min(own_columns) + 1.0,
        "dst_y0": begin[0],
        "dst_x0": begin[1],
    }


# Comparisons. `budget` is the negative logarithm of the error probability of each.


def _kl(share: float, probability: float) -> float:
    """Of two Bernoulli distributions, infinite where `probability` excludes what happened."""
    total = 0.0
    for a, b in ((share, probability), (1.0 - share, 1.0 - probability)):
        if a > 0:
            total += a * math.log(a / b) if b > 0 else math.inf
    return total


def _bounds(low_count: int, high_count: int, total: int, budget: float) -> Tuple[float, float]:
    """Probabilities below, and above, which the counts among `total` draws are too unlikely."""

    def solve(share: float, inside: float, outside: float) -> float:
        for _ in range(50):
            middle = (inside + outside) / 2
            if total * _kl(share, middle) > budget:
                outside = middle
            else:
                inside = middle
        return outside

    low, high = low_count / total, high_count / total
    return solve(low, low, 0.0), solve(high, high, 1.0)


def is_unlikely(count: int, total: int, low: float, high: float, budget: float) -> bool:
    """Whether a probability within `low` and `high` hardly gives `count` of `total`."""
    share = count / total
    nearest = min(max(share, low), high)
    return total * _kl(share, nearest) > budget


def compare_probability(
    name: str, count: int, total: int, known: float, draws: int, budget: float
) -> Iterator[str]:
    """Against a share of the Object Detection API's draws."""
    reference = round(known * draws)
    low, high = _bounds(reference, reference, draws, budget)
    if is_unlikely(count, total, low, high, budget):
        yield f"{name}: {count} of {total}, reference {known:g} of {draws}"


def compare_quantiles(
    name: str, values: np.ndarray, quantiles: List[float], draws: int, budget: float
) -> Iterator[str]:
    """Against equally spaced quantiles of the Object Detection API's draws, between them linear."""
    total = len(values)
    for index, quantile in enumerate(quantiles):
        place = (draws - 1) * index / (len(quantiles) - 1)
        first, last = math.floor(place + 1e-9) + 1, math.ceil(place - 1e-9) + 1  # from 1
        tolerance = 1e-4 * abs(quantile) + 1e-5
        low, high = _bounds(first, last - 1, draws, budget)
        at_most = int((values <= quantile + tolerance).sum())
        below = int((values < quantile - tolerance).sum())
        if is_unlikely(at_most, total, low, 1.0, budget):
            yield f"{name}: {at_most} of {total} are at most {quantile:g}, {index}/10 expected"
        if is_unlikely(below, total, 0.0, high, budget):
            yield f"{name}: {below} of {total} are below {quantile:g}, {index}/10 expected"
