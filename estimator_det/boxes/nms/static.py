"""Suppression with static shapes, for TPU and XLA, which cannot run the usual kernels.

A loop picks detections one by one, the best of all classes first: among the best candidates of each
image, and where these are too few for its picks, again among all. All shapes are static if those of
boxes and scores are. Letters: B images, A anchors, C classes, q boxes per anchor (1 or C), K
candidates, S picks.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Tuple

from estimator_det.boxes.geometry import sizes
from estimator_det.boxes.nms.coded_boxes import gather_picks, has_area
from estimator_det.boxes.nms.kernels import (
    CANDIDATES_PER_DETECTION,
    FIRST_CANDIDATES,
    GROWTH,
    NmsOptions,
    Picks,
    score_floor,
)
from estimator_det.compat import tf

# Below every score. Not -inf: converters replace tf.where by a product with 0, which would be NaN.
_SUPPRESSED = tf.float32.min


class _CandidateState(NamedTuple):
    """State of the loop over the best candidates."""

    remaining: tf.Tensor  # float32 [B, K]: scores by falling score, _SUPPRESSED if dropped
    num_picked: tf.Tensor  # int32 [B, C]: picks of each class, visible or not
    picks: Picks  # [B, S] each


class _LoopState(NamedTuple):
    """State of the loop over all scores."""

    remaining: tf.Tensor  # float32 [B, C, A]: current scores, _SUPPRESSED if dropped
    best: tf.Tensor  # float32 [B, C]: highest score of each class, _SUPPRESSED if the class is full
    num_picked: tf.Tensor  # int32 [B, C]: picks of each class, visible or not
    num: tf.Tensor  # int32 [B]: picks so far
    picks: Picks  # [B, S] each


def _overlaps(corners: tf.Tensor, anchor: tf.Tensor) -> tf.Tensor:
    """IoU of a box with all boxes, corners [B, 4, A], anchor [B] -> [B, A]; 0 without area.

    Operations and their order are those of TensorFlow's kernels, so that pairs at the threshold
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
    has_areas = (area_a > 0.0) & (area_b > 0.0)
    # The inner tf.where keeps the division finite for pairs that the outer one discards.
    return tf.where(has_areas, common / tf.where(has_areas, area_a + area_b - common, 1.0), 0.0)


def _corners(boxes: tf.Tensor) -> tf.Tensor:
    """Sorts the corners of boxes [B, A, q, 4] -> [B, q, 4, A], the lower ones first."""
    first, second = tf.split(tf.transpose(boxes, [0, 2, 3, 1]), 2, axis=2)
    return tf.concat([tf.minimum(first, second), tf.maximum(first, second)], axis=2)


def _corners_of_class(corners_by_slot: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
    """Selects the corners of a class from [B, q, 4, A], label [B] -> [B, 4, A]."""
    if corners_by_slot.shape[1] == 1:
        return corners_by_slot[:, 0]
    return tf.gather(corners_by_slot, label, batch_dims=1)


def _put(rows: tf.Tensor, is_slot: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Replaces rows [B, S] by values [B] where `is_slot` [B, S] is True."""
    return tf.where(is_slot, values[:, None], rows)


def _suppress(
    column: tf.Tensor,
    overlap: tf.Tensor,
    is_pick: tf.Tensor,
    floor: float,
    options: NmsOptions,
) -> tf.Tensor:
    """Scores [B, A] of the pick's class without the pick and the boxes that it suppresses.

    With `soft_sigma` above 0, overlap lowers scores, and scores below `floor` are dropped.
    """
    if options.soft_sigma > 0.0:
        column = column * tf.exp(-0.5 / options.soft_sigma * tf.square(overlap))
        # Drops NaN, too. Not by `~`: TensorFlow's optimizer would make it `<`, which NaN is not.
        column = tf.where(column >= floor, column, _SUPPRESSED)
    else:
        is_pick |= overlap > options.iou_threshold
    return tf.where(is_pick, _SUPPRESSED, column)


def _with_pick(
    picks: Picks, is_slot: tf.Tensor, score: tf.Tensor, label: tf.Tensor, anchor: tf.Tensor
) -> Picks:
    """Adds a pick to picks [B, S] where `is_slot` [B, S] is True."""
    return Picks(
        scores=_put(picks.scores, is_slot, score),
        classes=_put(picks.classes, is_slot, label),
        anchors=_put(picks.anchors, is_slot, anchor),
        valid=picks.valid | is_slot,
    )


def _no_picks(batch: Any, max_total: int) -> Picks:
    zeros = tf.fill([batch, max_total], 0)
    return Picks(tf.cast(zeros, tf.float32), zeros, zeros, tf.fill([batch, max_total], False))


def _first_state(remaining: tf.Tensor, batch: Any, max_total: int) -> _LoopState:
    return _LoopState(
        remaining=remaining,
        best=tf.reduce_max(remaining, axis=2),
        num_picked=tf.fill([batch, remaining.shape[1]], 0),
        num=tf.fill([batch], 0),
        picks=_no_picks(batch, max_total),
    )


def _num_candidates(options: NmsOptions) -> int:
    return max(FIRST_CANDIDATES, CANDIDATES_PER_DETECTION * options.max_total)


def _candidate_picks(
    boxes: tf.Tensor, remaining: tf.Tensor, windows: tf.Tensor, options: NmsOptions
) -> Tuple[Picks, tf.Tensor]:
    """Picks among the best scores of each image, and bool [B]: others cannot change them.

    A step compares K candidates, and not all anchors; it copies none of the other scores.
    """
    batch, num_classes, num_anchors = sizes(remaining)
    count = _num_candidates(options)
    # By class, then anchor, which is the order of equal scores.
    scores, places = tf.math.top_k(tf.reshape(remaining, [batch, -1]), count)
    labels, anchors = places // num_anchors, places % num_anchors
    candidates = gather_picks(boxes, anchors, labels)
    corners = _corners(candidates[:, :, None, :])[:, 0]
    visible = has_area(candidates, windows)
    slots = tf.range(options.max_total)

    def needs_more(state: _CandidateState) -> tf.Tensor:
        has_candidates = tf.reduce_max(state.remaining, axis=1) > _SUPPRESSED
        return tf.reduce_any(has_candidates & ~state.picks.valid[:, -1])

    def take_best(state: _CandidateState) -> Tuple[_CandidateState]:
        place = tf.argmax(state.remaining, axis=1, output_type=tf.int32)
        score, label, anchor, is_visible = (
            tf.gather(rows, place, axis=1, batch_dims=1)
            for rows in (state.remaining, labels, anchors, visible)
        )
        active = (score > _SUPPRESSED) & ~state.picks.valid[:, -1]
        is_label = tf.equal(tf.range(num_classes), label[:, None]) & active[:, None]
        num_picked = state.num_picked + tf.cast(is_label, tf.int32)
        is_full = tf.reduce_any(is_label & (num_picked >= options.max_per_class), axis=1)
        dropped = (_overlaps(corners, place) > options.iou_threshold) | is_full[:, None]
        dropped &= tf.equal(labels, label[:, None])
        dropped |= tf.equal(tf.range(count), place[:, None])
        num = tf.reduce_sum(tf.cast(state.picks.valid, tf.int32), axis=1)
        is_slot = tf.equal(slots, num[:, None]) & (active & is_visible)[:, None]
        return (
            _CandidateState(
                tf.where(dropped & active[:, None], _SUPPRESSED, state.remaining),
                num_picked,
                _with_pick(state.picks, is_slot, score, label, anchor),
            ),
        )

    first = _CandidateState(
        scores, tf.fill([batch, num_classes], 0), _no_picks(batch, options.max_total)
    )
    (state,) = tf.while_loop(
        needs_more, take_best, (first,), maximum_iterations=count, parallel_iterations=1
    )
    return state.picks, state.picks.valid[:, -1] | (scores[:, -1] <= _SUPPRESSED)


def static_picks(
    boxes: tf.Tensor,
    scores: tf.Tensor,
    windows: tf.Tensor,
    options: NmsOptions,
) -> Picks:
    """Picks detections like `hard_picks` or, with `soft_sigma` above 0, `soft_picks`.

    Scores never rise, so the best candidate of all classes is always the next pick. A loop ends
    when there are enough picks, usually after `max_total` steps.
    """
    class_scores = tf.transpose(scores, [0, 2, 1])
    is_candidate = class_scores >= score_floor(options.score_threshold)
    remaining = tf.where(is_candidate, class_scores, _SUPPRESSED)
    num_scores = scores.shape[2] * (scores.shape[1] or 0)
    # Fewer are not worth two loops. Soft suppression may lower the best scores below all others.
    if options.soft_sigma > 0.0 or num_scores <= GROWTH * _num_candidates(options):
        return _picks_of_all(boxes, remaining, windows, options)
    best_picks, is_complete = _candidate_picks(boxes, remaining, windows, options)
    remaining = tf.where(is_complete[:, None, None], _SUPPRESSED, remaining)
    other_picks = _picks_of_all(boxes, remaining, windows, options)
    is_complete = is_complete[:, None]
    return Picks(*(tf.where(is_complete, *rows) for rows in zip(best_picks, other_picks)))


def _picks_of_all(
    boxes: tf.Tensor, remaining: tf.Tensor, windows: tf.Tensor, options: NmsOptions
) -> Picks:
    """Picks among all scores, _SUPPRESSED where they are below the threshold.

    Each step compares the anchors of a single class.
    """
    corners_by_slot, max_total = _corners(boxes), options.max_total
    batch, num_classes, num_anchors = sizes(remaining)
    floor = score_floor(options.score_threshold)
    places, anchor_numbers, images = (tf.range(n) for n in (max_total, num_anchors, batch))

    def needs_more(state: _LoopState) -> tf.Tensor:
        is_short = (state.num < max_total) & (tf.reduce_max(state.best, axis=1) >= floor)
        return tf.reduce_any(is_short)

    def take_best(state: _LoopState) -> Tuple[_LoopState]:
        score = tf.reduce_max(state.best, axis=1)
        active = (state.num < max_total) & (score >= floor)
        label = tf.argmax(state.best, axis=1, output_type=tf.int32)
        column = tf.gather(state.remaining, label, batch_dims=1)
        anchor = tf.argmax(column, axis=1, output_type=tf.int32)
        overlap = _overlaps(_corners_of_class(corners_by_slot, label), anchor)
        is_pick = tf.equal(anchor_numbers, anchor[:, None])
        lowered = _suppress(column, overlap, is_pick, floor, options)
        column = tf.where(active[:, None], lowered, column)

        is_label = tf.equal(tf.range(num_classes), label[:, None])
        # A pick outside its window still counts towards the limit of its class, as in `hard_picks`.
        num_picked = state.num_picked + tf.cast(is_label & active[:, None], tf.int32)
        best = _put(state.best, is_label, tf.reduce_max(column, axis=1))
        best = tf.where(num_picked < options.max_per_class, best, _SUPPRESSED)
        box = gather_picks(boxes, anchor[:, None], label[:, None])
        visible = active & has_area(box, windows)[:, 0]
        is_slot = tf.equal(places, state.num[:, None]) & visible[:, None]
        picks = _with_pick(state.picks, is_slot, score, label, anchor)
        remaining = tf.tensor_scatter_nd_update(
            state.remaining, tf.stack([images, label], axis=1), column
        )
        return (
            _LoopState(remaining, best, num_picked, state.num + tf.cast(visible, tf.int32), picks),
        )

    (final_state,) = tf.while_loop(
        needs_more,
        take_best,
        (_first_state(remaining, batch, max_total),),
        maximum_iterations=options.max_per_class * num_classes,
        parallel_iterations=1,
    )
    return final_state.picks
