"""Suppression with static shapes, for TPU and XLA, which cannot run the usual kernels.

A loop picks detections among the best candidates of each image, a block at once. If these are too
few, another loop picks among all, one by one, the best of all classes first. All shapes are static
if the shapes of boxes and scores are. Letters: B images, A anchors, C classes, q boxes per anchor
(1 or C), K candidates, T candidates of a block, R picks that later ones are compared with, S picks.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Tuple

import numpy as np

from estimator_det.boxes.geometry import sizes
from estimator_det.boxes.nms.coded_boxes import gather_picks, has_area
from estimator_det.boxes.nms.kernels import (
    FIRST_CANDIDATES,
    NmsOptions,
    Picks,
    best_picks,
    score_floor,
)
from estimator_det.compat import tf

# Below every score. Not -inf: converters replace tf.where by a product with 0, which would be NaN.
_SUPPRESSED = tf.float32.min
# Rounds of a step. Boxes that depend on each other in longer chains are left to the next steps.
_ROUNDS = 4


class _LoopState(NamedTuple):
    """State of the loop over all scores."""

    remaining: tf.Tensor  # float32 [B, C, A]: current scores, _SUPPRESSED if dropped
    best: tf.Tensor  # float32 [B, C]: highest score of each class, _SUPPRESSED if the class is full
    num_picked: tf.Tensor  # int32 [B, C]: picks of each class, visible or not
    num: tf.Tensor  # int32 [B]: picks so far
    picks: Picks  # [B, S] each


def _overlaps(corners_a: tf.Tensor, corners_b: tf.Tensor) -> tf.Tensor:
    """IoU of boxes whose corners are [B, 4, ...], with broadcasting -> [B, ...]; 0 without area.

    Operations and their order are as in TensorFlow's kernels, so that pairs at the threshold fall
    on the same side.
    """
    ymin_a, xmin_a, ymax_a, xmax_a = tf.unstack(corners_a, num=4, axis=1)
    ymin_b, xmin_b, ymax_b, xmax_b = tf.unstack(corners_b, num=4, axis=1)
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
    # More than in `kernels`, where a further attempt is cheap: the loop over all scores has a step
    # for each pick. Proposals, all of one class, overlap most.
    return max(FIRST_CANDIDATES, 10 * options.max_total)


def _block_size(options: NmsOptions) -> int:
    """Candidates of a step, T. More would need fewer steps, but compare more pairs in vain."""
    return max(64, options.max_total // 2)


def _count_picks(is_pick: tf.Tensor, pairs: tf.Tensor) -> tf.Tensor:
    """Number of picks [B, M] with a 1 in each column of pairs, float32 [B, M, N] -> [B, N]."""
    return tf.matmul(tf.cast(is_pick, tf.float32)[:, None, :], pairs)[:, 0]


def _pick_greedily(is_open: tf.Tensor, suppresses: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    """Picks open boxes [B, T] that no earlier pick suppresses, float32 [B, T, T].

    Too many picks suppress too much, so that the next picks are too few, and the other way round. A
    box is decided once it is the same in both: at first the best box, then boxes that only decided
    ones overlap, and so on.

    Returns:
        Picks, bool [B, T], and the number of leading boxes that are decided in all images.
    """
    most = least = is_open
    for _ in range(_ROUNDS):
        least = is_open & (_count_picks(most, suppresses) < 0.5)
        most = is_open & (_count_picks(least, suppresses) < 0.5)
    block_size = sizes(is_open)[1]
    numbers = tf.range(block_size)
    num_decided = tf.reduce_min(tf.where(tf.equal(most, least), block_size, numbers))
    return most & (numbers < num_decided), num_decided


class _Candidates(NamedTuple):
    """The best scores of each image and their boxes, padded so that a block may begin at each."""

    scores: tf.Tensor  # float32 [B, K], falling; _SUPPRESSED past the last
    labels: tf.Tensor  # int32 [B, K]
    anchors: tf.Tensor  # int32 [B, K]
    corners: tf.Tensor  # float32 [B, 4, K]
    visible: tf.Tensor  # bool [B, K]: has an area in its window

    @property
    def is_real(self) -> tf.Tensor:
        return self.scores > _SUPPRESSED


def _best_candidates(
    boxes: tf.Tensor, remaining: tf.Tensor, windows: tf.Tensor, options: NmsOptions
) -> Tuple[_Candidates, tf.Tensor]:
    """The candidates, and bool [B]: an image has no others."""
    batch, num_classes, num_anchors = sizes(remaining)
    count = min(_num_candidates(options), num_classes * num_anchors)
    # By class, then anchor, which is the order of equal scores.
    scores, places = tf.math.top_k(tf.reshape(remaining, [batch, -1]), count)
    has_no_others = (scores[:, -1] <= _SUPPRESSED) | (count == num_classes * num_anchors)
    padding = [[0, 0], [0, max(count, options.max_total) + _block_size(options) - count]]
    scores = tf.pad(scores, padding, constant_values=_SUPPRESSED)
    places = tf.pad(places, padding)
    labels, anchors = places // num_anchors, places % num_anchors
    candidates = gather_picks(boxes, anchors, labels)
    corners = _corners(candidates[:, :, None, :])[:, 0]
    visible = has_area(candidates, windows)
    return _Candidates(scores, labels, anchors, corners, visible), has_no_others


def _first_picks(is_pick: tf.Tensor, max_picks: int) -> Tuple[tf.Tensor, tf.Tensor]:
    """True for picks, and their rows, in order: [B, K] -> [B, R] twice."""
    num_rows = sizes(is_pick)[1]
    keys, rows = tf.math.top_k(tf.where(is_pick, num_rows - tf.range(num_rows), 0), max_picks)
    return keys > 0, rows


def _picks_of_block(
    candidates: _Candidates, start: tf.Tensor, is_pick: tf.Tensor, options: NmsOptions
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Picks among the candidates from `start` on, bool [B, T], and the number that is decided."""
    block_size = _block_size(options)
    max_picks = options.max_total + block_size
    block = start + tf.range(block_size)
    own_corners, own_labels, is_open = (
        tf.gather(rows, block, axis=-1)
        for rows in (candidates.corners, candidates.labels, candidates.is_real)
    )
    is_row, rows = _first_picks(is_pick, max_picks)
    row_labels = tf.where(is_row, tf.gather(candidates.labels, rows, batch_dims=1), -1)
    row_corners = tf.gather(candidates.corners, rows, axis=2, batch_dims=1)
    # Rows are the picks so far, then the block itself, whose candidates follow each other.
    row_labels = tf.concat([row_labels, own_labels], axis=1)
    row_corners = tf.concat([row_corners, own_corners], axis=2)
    is_earlier = np.triu(np.ones([max_picks + block_size, block_size], bool), 1 - max_picks)
    is_earlier[:max_picks] = True
    is_rival = tf.equal(row_labels[:, :, None], own_labels[:, None, :]) & is_earlier
    overlap = _overlaps(row_corners[:, :, :, None], own_corners[:, :, None, :])
    suppresses = tf.cast(is_rival & (overlap > options.iou_threshold), tf.float32)
    is_open &= _count_picks(is_row, suppresses[:, :max_picks]) < 0.5
    is_own, num_decided = _pick_greedily(is_open, suppresses[:, max_picks:])
    # A pick outside its window still counts towards the limit of its class, as in `hard_picks`.
    num_before = _count_picks(tf.concat([is_row, is_own], axis=1), tf.cast(is_rival, tf.float32))
    return is_own & (num_before < options.max_per_class), num_decided


def _candidate_picks(
    boxes: tf.Tensor, remaining: tf.Tensor, windows: tf.Tensor, options: NmsOptions
) -> Tuple[Picks, tf.Tensor]:
    """Picks among the best scores of each image, and bool [B]: others cannot change them.

    A step decides up to T candidates, the best first, and compares them with each other and with
    the picks so far, R at most: an image with more picks, many outside its window, is left to the
    other loop.
    """
    candidates, has_no_others = _best_candidates(boxes, remaining, windows, options)
    numbers = tf.range(sizes(candidates.scores)[1])
    block_size = _block_size(options)
    max_picks = options.max_total + block_size

    def needs_more(start: tf.Tensor, is_pick: tf.Tensor) -> tf.Tensor:
        num_picks, num_visible = (
            tf.reduce_sum(tf.cast(each, tf.int32), axis=1)
            for each in (is_pick, is_pick & candidates.visible)
        )
        is_left = tf.reduce_any(candidates.is_real & (numbers >= start), axis=1)
        is_short = (num_visible < options.max_total) & (num_picks < max_picks)
        return tf.reduce_any(is_left & is_short)

    def pick_of_block(start: tf.Tensor, is_pick: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        is_own, num_decided = _picks_of_block(candidates, start, is_pick, options)
        is_block = (numbers >= start) & (numbers < start + block_size)
        is_own = tf.gather(is_own, tf.clip_by_value(numbers - start, 0, block_size - 1), axis=1)
        return start + num_decided, tf.where(is_block, is_own, is_pick)

    _, is_pick = tf.while_loop(
        needs_more, pick_of_block, (0, tf.zeros_like(candidates.is_real)), parallel_iterations=1
    )
    is_row, rows = _first_picks(is_pick, max_picks)
    scores, labels, anchors, visible = (
        tf.gather(each, rows, batch_dims=1)
        for each in (
            candidates.scores, candidates.labels, candidates.anchors, candidates.visible
        )
    )  # fmt: skip
    picks = best_picks(Picks(scores, labels, anchors, is_row & visible), options.max_total)
    return picks, picks.valid[:, -1] | (has_no_others & ~is_row[:, -1])


def static_picks(
    boxes: tf.Tensor,
    scores: tf.Tensor,
    windows: tf.Tensor,
    options: NmsOptions,
) -> Picks:
    """Picks detections like `hard_picks` or, with `soft_sigma` above 0, `soft_picks`.

    Scores never rise, so the best candidate of all classes is always the next pick.
    """
    class_scores = tf.transpose(scores, [0, 2, 1])
    is_candidate = class_scores >= score_floor(options.score_threshold)
    remaining = tf.where(is_candidate, class_scores, _SUPPRESSED)
    num_scores = scores.shape[2] * (scores.shape[1] or 0)
    # Soft suppression may lower the best scores below all others.
    if options.soft_sigma > 0.0 or not num_scores:
        return _picks_of_all(boxes, remaining, windows, options)
    first_picks, is_complete = _candidate_picks(boxes, remaining, windows, options)
    remaining = tf.where(is_complete[:, None, None], _SUPPRESSED, remaining)
    other_picks = _picks_of_all(boxes, remaining, windows, options)
    is_complete = is_complete[:, None]
    return Picks(*(tf.where(is_complete, *rows) for rows in zip(first_picks, other_picks)))


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
        corners = _corners_of_class(corners_by_slot, label)
        overlap = _overlaps(corners, tf.gather(corners, anchor[:, None], axis=2, batch_dims=1))
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
