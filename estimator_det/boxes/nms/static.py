"""Suppression with static shapes alone, for TPU and XLA, which cannot run the usual kernels.

One loop takes detections off a batch one by one, the best of all classes first. Every tensor has a
shape that is known when the graph is built, as far as those of boxes and scores are. Letters: B
images, A anchors, C classes, q boxes per anchor (1 or C), S picks.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Tuple

from estimator_det.boxes.nms.kernels import Picks, floor_of
from estimator_det.boxes.nms.rows import has_area, picked_boxes
from estimator_det.compat import tf

# Below every score. Not infinite: converters write a choice as a product with 0, which is then NaN.
_SUPPRESSED = tf.float32.min


class _State(NamedTuple):
    """What the loop carries."""

    left: tf.Tensor  # float32 [B, C, A]: current scores, _SUPPRESSED where out
    best: tf.Tensor  # float32 [B, C]: the highest of each class that may still yield a pick
    taken: tf.Tensor  # int32 [B, C]: candidates taken of each class
    num: tf.Tensor  # int32 [B]: picks so far
    picks: Picks  # [B, S] each


def _overlaps(corners: tf.Tensor, anchor: tf.Tensor) -> tf.Tensor:
    """IoU of one box with all, corners [B, 4, A], anchor [B] -> [B, A]; 0 where one has no area.

    Operations are those of TensorFlow's kernels, in their order, so that pairs at the threshold
    fall on the same side.
    """
    box = tf.gather(corners, anchor, axis=2, batch_dims=1)
    ymin_a, xmin_a, ymax_a, xmax_a = tf.unstack(box[:, :, None], num=4, axis=1)
    ymin_b, xmin_b, ymax_b, xmax_b = tf.unstack(corners, num=4, axis=1)
    area_a = (ymax_a - ymin_a) * (xmax_a - xmin_a)
    area_b = (ymax_b - ymin_b) * (xmax_b - xmin_b)
    height = tf.maximum(tf.minimum(ymax_a, ymax_b) - tf.maximum(ymin_a, ymin_b), 0.0)
    width = tf.maximum(tf.minimum(xmax_a, xmax_b) - tf.maximum(xmin_a, xmin_b), 0.0)
    common = height * width
    sound = (area_a > 0.0) & (area_b > 0.0)
    return tf.where(sound, common / tf.where(sound, area_a + area_b - common, 1.0), 0.0)


def _corners(boxes: tf.Tensor) -> tf.Tensor:
    """[B, A, q, 4] with corners in any order -> [B, q, 4, A], the lower ones first."""
    one, other = tf.split(tf.transpose(boxes, [0, 2, 3, 1]), 2, axis=2)
    return tf.concat([tf.minimum(one, other), tf.maximum(one, other)], axis=2)


def _corners_of_class(corners_by_slot: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
    """Corners [B, q, 4, A] of all classes, label [B] -> [B, 4, A]."""
    if corners_by_slot.shape[1] == 1:
        return corners_by_slot[:, 0]
    return tf.gather(corners_by_slot, label, batch_dims=1)


def _put(rows: tf.Tensor, here: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Rows [B, S] with values [B] where `here` [B, S] is."""
    return tf.where(here, values[:, None], rows)


def _suppress(
    column: tf.Tensor,
    overlap: tf.Tensor,
    is_pick: tf.Tensor,
    floor: float,
    iou_threshold: float,
    sigma: float,
) -> tf.Tensor:
    """Scores [B, A] of the pick's class after it: its own and those it suppresses are out.

    With `sigma` above 0, overlap lowers scores, and those below `floor` are out.
    """
    if sigma > 0.0:
        column = column * tf.exp(-0.5 / sigma * tf.square(overlap))
        out = ~(column >= floor)
    else:
        out = overlap > iou_threshold
    return tf.where(out | is_pick, _SUPPRESSED, column)


def _with_pick(
    picks: Picks, here: tf.Tensor, score: tf.Tensor, label: tf.Tensor, anchor: tf.Tensor
) -> Picks:
    """Picks [B, S] with one more where `here` [B, S] is."""
    return Picks(
        scores=_put(picks.scores, here, score),
        classes=_put(picks.classes, here, label),
        anchors=_put(picks.anchors, here, anchor),
        valid=picks.valid | here,
    )


def _first_state(left: tf.Tensor, batch: Any, max_total: int) -> _State:
    nothing = tf.fill([batch, max_total], 0)
    return _State(
        left=left,
        best=tf.reduce_max(left, axis=2),
        taken=tf.fill([batch, left.shape[1]], 0),
        num=tf.fill([batch], 0),
        picks=Picks(
            tf.cast(nothing, tf.float32), nothing, nothing, tf.fill([batch, max_total], False)
        ),
    )


def static_picks(
    boxes: tf.Tensor,
    scores: tf.Tensor,
    windows: Optional[tf.Tensor],
    *,
    score_threshold: float,
    iou_threshold: float,
    max_per_class: int,
    max_total: int,
    sigma: float = 0.0,
) -> Picks:
    """What `hard_picks` (or, with `sigma` above 0, `soft_picks`) returns.

    Scores only ever fall, so the best candidate of all classes is always the next pick. The loop
    ends when there are enough picks, usually after `max_total` steps. Each step compares the
    anchors of a single class.

    Arguments and result are those of `hard_picks`; with `sigma` above 0, overlap lowers scores by
    exp(-IoU^2 / (2 sigma)) instead of removing boxes.
    """
    num_classes = scores.shape[2]
    batch = scores.shape[0] or tf.shape(scores)[0]
    num_anchors = scores.shape[1] or tf.shape(scores)[1]
    floor = floor_of(score_threshold)
    by_class = tf.transpose(scores, [0, 2, 1])
    left = tf.where(by_class >= floor, by_class, _SUPPRESSED)
    corners_by_slot = _corners(boxes)
    places, anchor_numbers = tf.range(max_total), tf.range(num_anchors)
    images = tf.range(batch)

    def needs_more(state: _State) -> tf.Tensor:
        short = (state.num < max_total) & (tf.reduce_max(state.best, axis=1) >= floor)
        return tf.reduce_any(short)

    def take_best(state: _State) -> Tuple[_State]:
        score = tf.reduce_max(state.best, axis=1)
        active = (state.num < max_total) & (score >= floor)
        label = tf.argmax(state.best, axis=1, output_type=tf.int32)
        column = tf.gather(state.left, label, batch_dims=1)
        anchor = tf.argmax(column, axis=1, output_type=tf.int32)
        overlap = _overlaps(_corners_of_class(corners_by_slot, label), anchor)
        is_pick = tf.equal(anchor_numbers, anchor[:, None])
        lowered = _suppress(column, overlap, is_pick, floor, iou_threshold, sigma)
        column = tf.where(active[:, None], lowered, column)

        is_label = tf.equal(tf.range(num_classes), label[:, None])
        taken = state.taken + tf.cast(is_label & active[:, None], tf.int32)
        best = _put(state.best, is_label, tf.reduce_max(column, axis=1))
        best = tf.where(taken < max_per_class, best, _SUPPRESSED)
        visible = active
        if windows is not None:
            box = picked_boxes(boxes, anchor[:, None], label[:, None])
            visible &= has_area(box, windows)[:, 0]
        here = tf.equal(places, state.num[:, None]) & visible[:, None]
        picks = _with_pick(state.picks, here, score, label, anchor)
        left = tf.tensor_scatter_nd_update(state.left, tf.stack([images, label], axis=1), column)
        num = state.num + tf.cast(visible, tf.int32)
        return (_State(left, best, taken, num, picks),)

    (end,) = tf.while_loop(
        needs_more,
        take_best,
        (_first_state(left, batch, max_total),),
        maximum_iterations=max_per_class * num_classes,
        parallel_iterations=1,
    )
    return end.picks
