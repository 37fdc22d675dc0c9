"""Suppression with static shapes, for TPU and XLA, which cannot run the usual kernels.

A loop picks detections among the best candidates of each image, a block at once. If these are too
few, another loop picks among all, one by one, the best of all classes first. All shapes are static
if the shapes of boxes and scores are. Letters: B images, A anchors, C classes, q boxes per anchor
(1 or C), K candidates, T candidates of a block, R picks that later ones are compared with, S picks.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence, Tuple

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
_TINY = float(np.finfo(np.float32).tiny)  # keeps pairs without area from 0 / 0
# Rounds of a step. Boxes that depend on each other in longer chains are left to the next steps.
_ROUNDS = 4


class _LoopState(NamedTuple):
    """State of the loop over all scores."""

    remaining: tf.Tensor  # float32 [B, C, A]: current scores, _SUPPRESSED if dropped
    best: tf.Tensor  # float32 [B, C]: highest score of each class, _SUPPRESSED if the class is full
    num_picked: tf.Tensor  # int32 [B, C]: picks of each class, visible or not
    num: tf.Tensor  # int32 [B]: picks so far
    picks: Picks  # [B, S] each


def _overlaps(box_a: Sequence[tf.Tensor], box_b: Sequence[tf.Tensor]) -> tf.Tensor:
    """IoU of boxes of four corners each, which broadcast; 0 without area.

    Operations and their order are as in TensorFlow's kernels, so that pairs at the threshold fall
    on the same side.
    """
    ymin_a, xmin_a, ymax_a, xmax_a = box_a
    ymin_b, xmin_b, ymax_b, xmax_b = box_b
    area_a = (ymax_a - ymin_a) * (xmax_a - xmin_a)
    area_b = (ymax_b - ymin_b) * (xmax_b - xmin_b)
    height = tf.maximum(tf.minimum(ymax_a, ymax_b) - tf.maximum(ymin_a, ymin_b), 0.0)
    width = tf.maximum(tf.minimum(xmax_a, xmax_b) - tf.maximum(xmin_a, xmin_b), 0.0)
    common = height * width
    return common / tf.maximum(area_a + area_b - common, _TINY)


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
    # for each pick.
    return max(FIRST_CANDIDATES, options.static_candidates * options.max_total)


def _block_size(options: NmsOptions) -> int:
    """Candidates of a step, T. More would need fewer steps, but compare more pairs in vain."""
    return min(max(64, options.max_total // 2), 256)


def _pick_greedily(is_open: tf.Tensor, suppresses: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    """Picks open boxes [B, 1, T] that no earlier pick suppresses, [B, T, T]; all of 0 and 1.

    Too many picks suppress too much, so that the next picks are too few, and the other way round. A
    box is decided once it is the same in both: at first the best box, then boxes that only decided
    ones overlap, and so on.

    Returns:
        Picks [B, 1, T], and the number of leading boxes that are decided in all images.
    """
    most = least = is_open
    for _ in range(_ROUNDS):
        least = tf.nn.relu(is_open - tf.matmul(most, suppresses))
        most = tf.nn.relu(is_open - tf.matmul(least, suppresses))
    block_size = sizes(is_open)[2]
    numbers = tf.range(block_size)
    num_decided = tf.reduce_min(tf.where(tf.equal(most, least), block_size, numbers))
    return most * tf.cast(numbers < num_decided, tf.float32), num_decided


class _Candidates(NamedTuple):
    """The best scores of each image and their boxes, padded so that a block may begin at each."""

    scores: tf.Tensor  # float32 [B, K], falling; _SUPPRESSED past the last
    labels: tf.Tensor  # int32 [B, K]
    anchors: tf.Tensor  # int32 [B, K]
    visible: tf.Tensor  # bool [B, K]: has an area in its window
    table: tf.Tensor  # float32 [B, K, 5]: the four sorted corners, and the label


class _BlockState(NamedTuple):
    """State of the loop over blocks of candidates."""

    start: tf.Tensor  # int32 []: first candidate that is not decided
    rows: tf.Tensor  # int32 [B, R]: numbers of the candidates that are picks, in order
    num: tf.Tensor  # float32 [B, 1, 1]: picks so far
    num_visible: tf.Tensor  # float32 [B, 1, 1]: those with an area in their window


def _best_candidates(
    boxes: tf.Tensor, remaining: tf.Tensor, windows: tf.Tensor, options: NmsOptions
) -> Tuple[_Candidates, tf.Tensor]:
    """The candidates, and bool [B]: an image has no others."""
    batch, _, num_anchors = sizes(remaining)
    flat = tf.reshape(remaining, [batch, -1])
    count, num_scores = _num_candidates(options), remaining.shape[1:].num_elements()
    if num_scores is None:  # images of any size: there may be fewer than `count`
        flat = tf.pad(flat, [[0, 0], [0, count]], constant_values=_SUPPRESSED)
    else:
        count = min(count, num_scores)
    # By class, then anchor, which is the order of equal scores.
    scores, places = tf.math.top_k(flat, count)
    places = tf.where(scores > _SUPPRESSED, places, 0)
    has_no_others = (scores[:, -1] <= _SUPPRESSED) | (count == num_scores)
    padding = [[0, 0], [0, max(count, options.max_total) + _block_size(options) - count]]
    scores = tf.pad(scores, padding, constant_values=_SUPPRESSED)
    places = tf.pad(places, padding)
    labels, anchors = places // num_anchors, places % num_anchors
    candidates = gather_picks(boxes, anchors, labels)
    first, second = tf.split(candidates, 2, axis=2)
    label_column = tf.cast(labels, tf.float32)[:, :, None]
    table = tf.concat([tf.minimum(first, second), tf.maximum(first, second), label_column], axis=2)
    return _Candidates(scores, labels, anchors, has_area(candidates, windows), table), has_no_others


def _picks_of_block(
    rivals: tf.Tensor,
    own_columns: tf.Tensor,
    is_open: tf.Tensor,
    is_row: tf.Tensor,
    options: NmsOptions,
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Picks [B, 1, T] of a block, and the number of its candidates that are decided.

    Args:
        rivals: Rows of the table, [B, R + T, 5]: picks so far, then the block itself.
        own_columns: Columns of the block, [B, 5, T].
        is_open: 1 for candidates, 0 for padding, [B, 1, T].
        is_row: 1 for picks so far, 0 for other rows, [B, 1, R].
    """
    max_picks, block_size = (sizes(each)[2] for each in (is_row, is_open))
    *rival_boxes, rival_labels = tf.split(rivals, 5, axis=2)
    *own_boxes, own_labels = tf.split(own_columns, 5, axis=1)
    # Candidates of the block follow each other.
    is_earlier = np.triu(np.ones([max_picks + block_size, block_size], np.float32), 1 - max_picks)
    is_earlier[:max_picks] = 1.0
    is_rival = tf.cast(tf.equal(rival_labels, own_labels), tf.float32) * is_earlier
    has_overlap = _overlaps(rival_boxes, own_boxes) > options.iou_threshold
    suppressions = tf.cast(has_overlap, tf.float32) * is_rival
    pick_suppressions, own_suppressions = tf.split(suppressions, [max_picks, block_size], axis=1)
    is_open = tf.nn.relu(is_open - tf.matmul(is_row, pick_suppressions))
    is_own, num_decided = _pick_greedily(is_open, own_suppressions)
    # A pick outside its window still counts towards the limit of its class, as in `hard_picks`.
    num_before = tf.matmul(tf.concat([is_row, is_own], axis=2), is_rival)
    return is_own * tf.cast(num_before < options.max_per_class, tf.float32), num_decided


def _new_rows(state: _BlockState, block: tf.Tensor, is_own: tf.Tensor) -> tf.Tensor:
    """The candidates `block` [T] that are picks, 1 in [B, 1, T], at their rows; else 0: [B, R]."""
    max_picks, block_size = sizes(state.rows)[1], sizes(is_own)[2]
    # The product counts the picks of the block up to each candidate.
    up_to = np.triu(np.ones([block_size, block_size], np.float32))
    place = state.num + tf.matmul(is_own, up_to) - 1.0
    places = np.arange(max_picks, dtype=np.float32)[:, None]
    is_place = tf.cast(tf.equal(places, place), tf.float32) * is_own
    # No product of matrices, which may round numbers of candidates to bfloat16.
    return tf.reduce_sum(tf.cast(is_place, tf.int32) * block, axis=2)


def _candidate_picks(
    boxes: tf.Tensor, remaining: tf.Tensor, windows: tf.Tensor, options: NmsOptions
) -> Tuple[Picks, tf.Tensor]:
    """Picks among the best scores of each image, and bool [B]: others cannot change them.

    A step decides up to T candidates, the best first, and compares them with each other and with
    the picks so far, R at most: an image with more picks, many outside its window, is left to the
    other loop.
    """
    candidates, has_no_others = _best_candidates(boxes, remaining, windows, options)
    block_size = _block_size(options)
    max_picks = options.max_total + block_size
    limit = options.max_per_class * sizes(remaining)[1]  # most picks, with or without area
    places = np.arange(max_picks, dtype=np.float32)
    columns = tf.transpose(candidates.table, [0, 2, 1])
    is_real = tf.cast(candidates.scores > _SUPPRESSED, tf.float32)[:, None]
    visible = tf.cast(candidates.visible, tf.float32)[:, None]
    num_real = tf.reduce_sum(tf.cast(is_real, tf.int32), axis=2, keepdims=True)

    def needs_more(state: _BlockState) -> tf.Tensor:
        is_short = (state.num_visible < options.max_total) & (state.num < min(limit, max_picks))
        return tf.reduce_any(is_short & (state.start < num_real))

    def pick_of_block(state: _BlockState) -> Tuple[_BlockState]:
        block = state.start + tf.range(block_size)
        own_columns, is_open, is_visible = (
            tf.gather(each, block, axis=2) for each in (columns, is_real, visible)
        )
        picked = tf.gather(candidates.table, state.rows, axis=1, batch_dims=1)
        rivals = tf.concat([picked, tf.gather(candidates.table, block, axis=1)], axis=1)
        is_row = tf.cast(places < state.num, tf.float32)
        is_own, num_decided = _picks_of_block(rivals, own_columns, is_open, is_row, options)
        num, num_visible = (
            tf.reduce_sum(each, axis=2, keepdims=True) for each in (is_own, is_own * is_visible)
        )
        return (
            _BlockState(
                state.start + num_decided,
                state.rows + _new_rows(state, block, is_own),
                state.num + num,
                state.num_visible + num_visible,
            ),
        )

    none = tf.zeros_like(is_real[:, :, :1])
    no_rows = tf.cast(none[:, 0] * places, tf.int32)
    (state,) = tf.while_loop(
        needs_more, pick_of_block, (_BlockState(0, no_rows, none, none),), parallel_iterations=1
    )
    is_row = (places < state.num)[:, 0]
    scores, labels, anchors, is_visible = (
        tf.gather(each, state.rows, batch_dims=1)
        for each in (
            candidates.scores, candidates.labels, candidates.anchors, candidates.visible
        )
    )  # fmt: skip
    picks = best_picks(Picks(scores, labels, anchors, is_row & is_visible), options.max_total)
    has_no_others |= state.num[:, 0, 0] >= limit
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
    # Soft suppression may lower the best scores below all others.
    if options.soft_sigma > 0.0 or 0 in scores.shape[1:]:
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
        pick = tf.gather(corners, anchor[:, None], axis=2, batch_dims=1)
        overlap = _overlaps(tf.unstack(corners, axis=1), tf.unstack(pick, axis=1))
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
