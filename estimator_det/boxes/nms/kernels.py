"""Kernels of non-maximum suppression: which boxes survive, before anything is cut to a window.

Both kernels work on whole batches and put the same number of ops in the graph for any number
of images, anchors and classes. Letters: B images, A anchors, C classes, q boxes per anchor (1, or C
where every class has its own), S picks. They run on CPU and GPU; XLA has no kernel for the
suppression ops used here; `static` is for it.
"""

from __future__ import annotations

from typing import Callable, NamedTuple, Optional, Tuple

import numpy as np

from estimator_det.boxes.nms.rows import Boxes, CodedBoxes, has_area, picked_boxes
from estimator_det.compat import tf

# Candidates of the first attempt; where they are too few, the next has GROWTH times as many. A
# published SSD needs 256 to 512 for 100 detections of a photo; proposals overlap less.
FIRST_CANDIDATES = 1024
CANDIDATES_PER_DETECTION = 4
GROWTH = 8
# A prime, so that the sample does not favour classes whose number shares a divisor with the step.
SAMPLE_STEP = 17
# Candidates are ranked by float32 integers, which are exact up to here.
MAX_CANDIDATES = 2**24


class Picks(NamedTuple):
    """Survivors of suppression; the order among equal scores is that of the rows."""

    scores: tf.Tensor  # float32 [B, S]
    classes: tf.Tensor  # int32 [B, S]
    anchors: tf.Tensor  # int32 [B, S]
    valid: tf.Tensor  # bool [B, S]


class _Ranking(NamedTuple):
    """The K best scores of each image, by falling score, then class, then anchor."""

    scores: tf.Tensor  # float32 [B, K]
    classes: tf.Tensor  # int32 [B, K]
    anchors: tf.Tensor  # int32 [B, K]
    ranks: tf.Tensor  # float32 [B, K]: K for the first, 1 for the last, 0 where there is none
    exhausted: tf.Tensor  # bool [B]: the image has no other candidates


def best_picks(picks: Picks, count: int) -> Picks:
    """The `count` valid picks of highest score, in falling order: [B, S] -> [B, count].

    Equal scores keep the order they had. Rows past the valid ones hold zeros.
    """
    keys = tf.where(picks.valid, picks.scores, -float("inf"))
    # Room for a full answer where there are fewer picks than detections.
    keys = tf.pad(keys, [[0, 0], [0, count]], constant_values=-float("inf"))
    keys, rows = tf.math.top_k(keys, count)
    valid = keys > -float("inf")
    rows = tf.where(valid, rows, 0)
    zero_as = tf.zeros_like(rows)
    return Picks(
        tf.where(valid, keys, 0.0),
        tf.where(valid, tf.gather(picks.classes, rows, batch_dims=1), zero_as),
        tf.where(valid, tf.gather(picks.anchors, rows, batch_dims=1), zero_as),
        valid,
    )


def floor_of(score_threshold: float) -> float:
    """The least float32 above a threshold, so that `>=` of it means `>` of the threshold."""
    above = float(np.nextafter(np.float32(score_threshold), np.float32(np.inf)))
    # TensorFlow's kernels take subnormal numbers for 0.
    return max(above, float(np.finfo(np.float32).tiny)) if score_threshold >= 0.0 else above


def _cuts(scores: tf.Tensor, num_candidates: tf.Tensor, floor: float) -> tf.Tensor:
    """A score for each image [B] that about `num_candidates` of its [A, C] scores reach.

    Estimated on every SAMPLE_STEP-th score: selecting exactly among all would be the slowest part.
    """
    flat = tf.reshape(scores, [tf.shape(scores)[0], -1])
    total = tf.shape(flat)[1]
    sample = flat[:, ::SAMPLE_STEP]
    share = (num_candidates + num_candidates // 8) // SAMPLE_STEP + 1
    best = tf.math.top_k(sample, tf.minimum(share, tf.shape(sample)[1]))[0]
    cuts = tf.maximum(best[:, -1], floor)
    return tf.where(num_candidates >= total, floor, cuts)


def _rank(scores: tf.Tensor, num_candidates: tf.Tensor, floor: float) -> _Ranking:
    """Ranks scores [B, A, C] of at least `floor`; `num_candidates` is an int32 scalar."""
    batch = tf.shape(scores)[0]
    cuts = _cuts(scores, num_candidates, floor)
    reached = scores >= cuts[:, None, None]
    # Row by row in the order that decides between equal scores: image, class, anchor.
    entries = tf.where(tf.transpose(reached, [0, 2, 1]))
    images, classes, anchors = tf.unstack(entries, num=3, axis=1)
    values = tf.gather_nd(scores, tf.stack([images, anchors, classes], axis=1))
    per_image = tf.RaggedTensor.from_value_rowids(
        values, images, nrows=tf.cast(batch, tf.int64), validate=False
    )
    # One place more, so that even an empty selection has a row to point at.
    keys = tf.pad(
        per_image.to_tensor(-float("inf")), [[0, 0], [0, 1]], constant_values=-float("inf")
    )
    num_kept = tf.minimum(num_candidates, tf.shape(keys)[1])
    keys, places = tf.math.top_k(keys, num_kept)
    rows = tf.minimum(
        tf.cast(per_image.row_starts(), tf.int32)[:, None] + places, tf.shape(entries)[0]
    )
    index = tf.gather(tf.pad(tf.cast(entries, tf.int32), [[0, 1], [0, 0]]), rows)
    ranks = tf.cast(num_kept - tf.range(num_kept), tf.float32)
    counts = tf.cast(per_image.row_lengths(), tf.int32)
    return _Ranking(
        scores=keys,
        classes=index[..., 1],
        anchors=index[..., 2],
        ranks=tf.where(keys > -float("inf"), ranks, 0.0),
        exhausted=(cuts <= floor) & (counts <= num_kept),
    )


def _boxes_of_rows(
    boxes: Boxes, candidates: tf.Tensor, places: tf.Tensor, anchor_of_row: tf.Tensor
) -> tf.Tensor:
    """What the kernel reads, [B, R, q, 4]: all boxes of the rows, or of coded ones the candidates.

    Args:
        boxes: Of all anchors.
        candidates: float32 [B, K, 4], those that take part.
        places: int32 [B, K, 3], image, row and class of each of them.
        anchor_of_row: int32 [B, R].
    """
    if not isinstance(boxes, CodedBoxes):
        return tf.gather(boxes, anchor_of_row, batch_dims=1)
    num_boxes = boxes.shape[2]
    if num_boxes == 1:
        places = places * [1, 1, 0]
    shape = tf.concat([tf.shape(anchor_of_row), [num_boxes, 4]], axis=0)
    return tf.tensor_scatter_nd_update(tf.zeros(shape), places, candidates)


def _rows_with_candidates(
    images: tf.Tensor, anchors: tf.Tensor, num_anchors: tf.Tensor
) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Gives each anchor with a candidate a row: the kernel reads every class of every row.

    Args:
        images: int32 [B, K], of each candidate.
        anchors: int32 [B, K], of each candidate.
        num_anchors: int32 scalar.

    Returns:
        The row of each candidate, int32 [B, K]; the anchor of each row, int32 [B, R]; R.
    """
    batch = tf.shape(anchors)[0]
    used = tf.tensor_scatter_nd_max(
        tf.zeros([batch, num_anchors], tf.int32),
        tf.stack([images, anchors], axis=-1),
        tf.ones_like(anchors),
    )
    num_rows = tf.reduce_max(tf.reduce_sum(used, axis=1))
    row_of_anchor = tf.cumsum(used, axis=1, exclusive=True)
    rows = tf.gather(row_of_anchor, anchors, batch_dims=1)
    anchor_of_row = tf.tensor_scatter_nd_max(
        tf.zeros([batch, num_rows], tf.int32), tf.stack([images, rows], axis=-1), anchors
    )
    return rows, anchor_of_row, num_rows


def _suppress(
    boxes: Boxes,
    ranking: _Ranking,
    windows: Optional[tf.Tensor],
    *,
    num_anchors: tf.Tensor,
    num_classes: int,
    iou_threshold: float,
    max_per_class: int,
) -> Tuple[Picks, tf.Tensor]:
    """Greedy suppression inside every class of the ranked candidates.

    TensorFlow's combined kernel does it for all images and classes in one op, but leaves the order
    of equal scores open and does not say which anchors it took. Given ranks in place of scores,
    there are no equals, and the rank that comes back names the candidate.

    Returns:
        Picks of which the windows [B, 4] leave something; how many each image had before, int32
        [B].
    """
    batch = tf.shape(ranking.ranks)[0]
    num_candidates = tf.shape(ranking.ranks)[1]
    images = tf.broadcast_to(tf.range(batch)[:, None], tf.shape(ranking.anchors))
    rows, anchor_of_row, num_rows = _rows_with_candidates(images, ranking.anchors, num_anchors)
    places = tf.stack([images, rows, ranking.classes], axis=-1)
    candidates = picked_boxes(boxes, ranking.anchors, ranking.classes)
    result = tf.image.combined_non_max_suppression(
        _boxes_of_rows(boxes, candidates, places, anchor_of_row),
        tf.scatter_nd(places, ranking.ranks, tf.stack([batch, num_rows, num_classes])),
        max_output_size_per_class=max_per_class,
        max_total_size=num_candidates,
        iou_threshold=iou_threshold,
        score_threshold=0.0,
        clip_boxes=False,
    )
    valid = result.nmsed_scores > 0.0
    kept = tf.where(valid, num_candidates - tf.cast(result.nmsed_scores, tf.int32), 0)
    picks = Picks(
        tf.gather(ranking.scores, kept, batch_dims=1),
        tf.gather(ranking.classes, kept, batch_dims=1),
        tf.gather(ranking.anchors, kept, batch_dims=1),
        valid,
    )
    if windows is not None:
        visible = tf.gather(has_area(candidates, windows), kept, batch_dims=1)
        picks = picks._replace(valid=valid & visible)
    return picks, tf.reduce_sum(tf.cast(valid, tf.int32), axis=1)


def _in_stages(
    scores: tf.Tensor,
    max_total: int,
    attempt: Callable[[tf.Tensor], Tuple[Picks, tf.Tensor]],
) -> Picks:
    """Repeats an attempt on ever more candidates until no image can gain by further ones.

    Args:
        scores: float32 [B, A, C].
        max_total: S of the picks that an attempt returns.
        attempt: number of candidates per image, int32 scalar -> picks [B, S] and whether they are
            those of all candidates, bool [B].
    """
    batch, num_classes = scores.shape[0], scores.shape[2]
    total = tf.minimum(tf.shape(scores)[1] * num_classes, MAX_CANDIDATES)

    def stage(
        wanted: tf.Tensor, picks: Picks, complete: tf.Tensor
    ) -> Tuple[tf.Tensor, Picks, tf.Tensor]:
        del picks, complete
        picks, complete = attempt(tf.minimum(wanted, total))
        for rows in picks:
            rows.set_shape([batch, max_total])
        complete = tf.reduce_all(complete) | (wanted >= total)
        # Dividing first keeps the product within int32.
        wanted = tf.minimum(wanted, MAX_CANDIDATES // GROWTH) * GROWTH
        return wanted, picks, complete

    shape = [tf.shape(scores)[0], max_total]
    nothing = Picks(
        tf.zeros(shape), tf.zeros(shape, tf.int32), tf.zeros(shape, tf.int32), tf.zeros(shape, bool)
    )
    first = max(FIRST_CANDIDATES, CANDIDATES_PER_DETECTION * max_total)
    static = tf.TensorShape([batch, max_total])
    _, picks, _ = tf.while_loop(
        lambda wanted, picks, complete: ~complete,
        stage,
        (tf.constant(min(first, MAX_CANDIDATES)), nothing, tf.constant(False)),
        shape_invariants=(
            tf.TensorShape([]),
            Picks(static, static, static, static),
            tf.TensorShape([]),
        ),
    )
    return picks


def hard_picks(
    boxes: Boxes,
    scores: tf.Tensor,
    windows: Optional[tf.Tensor],
    *,
    score_threshold: float,
    iou_threshold: float,
    max_per_class: int,
    max_total: int,
) -> Picks:
    """Greedy suppression of overlapping boxes, class by class, then the best of all classes.

    A pick depends only on candidates that score higher. So suppression is run on the best scores of
    each image, and again on more of them only where that left an image short of `max_total`
    although it has further candidates. The result is that of running on all of them.

    Args:
        boxes: float32 [B, A, q, 4], or their codes, of which candidates are decoded.
        scores: float32 [B, A, C].
        windows: float32 [B, 4]; boxes of which nothing lies inside are dropped after suppression.
        score_threshold: only scores above it take part.
        iou_threshold: a box is suppressed by a better one whose IoU with it is above this.
        max_per_class: most picks in one class, counted before the windows drop any.
        max_total: picks returned.

    Returns:
        Picks by falling score, equal scores by class, then anchor; S = `max_total`.
    """
    num_classes = scores.shape[2]
    floor = floor_of(score_threshold)

    def attempt(num_candidates: tf.Tensor) -> Tuple[Picks, tf.Tensor]:
        ranking = _rank(scores, num_candidates, floor)
        picks, num_before = _suppress(
            boxes,
            ranking,
            windows,
            num_anchors=tf.shape(scores)[1],
            num_classes=num_classes,
            iou_threshold=iou_threshold,
            max_per_class=max_per_class,
        )
        best = best_picks(picks, max_total)
        complete = (
            tf.reduce_all(best.valid, axis=1)
            | ranking.exhausted
            | (num_before >= num_classes * max_per_class)
        )
        return best, complete

    return _in_stages(scores, max_total, attempt)


def _suppress_softly(
    box_rows: tf.Tensor,
    score_rows: tf.Tensor,
    cuts: tf.Tensor,
    *,
    num_rows: tf.Tensor,
    num_classes: int,
    classes_per_box_row: int,
    max_per_class: int,
    score_threshold: float,
    sigma: float,
) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Soft suppression class by class, since TensorFlow's kernel takes one class of one image.

    Args:
        box_rows: float32 [B * q, A, 4].
        score_rows: float32 [B * C, A].
        cuts: float32 [B], the lowest score of each image that takes part.
        num_rows: B * C.
        num_classes: C.
        classes_per_box_row: C / q.
        max_per_class: S, picks of each class.
        score_threshold: lowered scores that fall to it are out.
        sigma: of the factor exp(-IoU^2 / (2 sigma)).

    Returns:
        Anchors int32 [B * C, S], lowered scores float32, and whether there is a pick, bool.
    """

    def suppress_row(row: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        row_scores = score_rows[row]
        above_cut = row_scores >= cuts[row // num_classes]
        anchors, lowered, num_valid = tf.raw_ops.NonMaxSuppressionV5(
            boxes=box_rows[row // classes_per_box_row],
            scores=tf.where(above_cut, row_scores, -float("inf")),
            max_output_size=max_per_class,
            iou_threshold=1.0,
            score_threshold=score_threshold,
            soft_nms_sigma=sigma,
            pad_to_max_output_size=True,
        )
        return anchors, lowered, tf.range(max_per_class) < num_valid

    return tf.map_fn(
        suppress_row,
        tf.range(num_rows),
        fn_output_signature=(
            tf.TensorSpec([max_per_class], tf.int32),
            tf.TensorSpec([max_per_class], tf.float32),
            tf.TensorSpec([max_per_class], tf.bool),
        ),
        parallel_iterations=16,
    )


def soft_picks(
    boxes: tf.Tensor,
    scores: tf.Tensor,
    windows: Optional[tf.Tensor],
    *,
    score_threshold: float,
    sigma: float,
    max_per_class: int,
    max_total: int,
) -> Picks:
    """Soft suppression (https://arxiv.org/abs/1704.04503): overlap lowers scores, class by class.

    A pick multiplies every score left in its class by exp(-IoU^2 / (2 sigma)); scores that fall to
    the threshold are out. Other arguments and result as of `hard_picks`; the scores are the lowered
    ones. Here too only the best scores are used first: picks that keep more than all the
    others ever had are the same as with those others.
    """
    batch, num_anchors = tf.unstack(tf.shape(scores)[:2], num=2)
    num_classes = scores.shape[2]
    floor = floor_of(score_threshold)
    # [B * q, A, 4]: one slice serves every class of an image where boxes are shared.
    box_rows = tf.reshape(tf.transpose(boxes, [0, 2, 1, 3]), [-1, num_anchors, 4])
    score_rows = tf.reshape(tf.transpose(scores, [0, 2, 1]), [-1, num_anchors])

    def attempt(num_candidates: tf.Tensor) -> Tuple[Picks, tf.Tensor]:
        cuts = _cuts(scores, num_candidates, floor)
        anchors, lowered, valid = _suppress_softly(
            box_rows,
            score_rows,
            cuts,
            num_rows=batch * num_classes,
            num_classes=num_classes,
            classes_per_box_row=num_classes // boxes.shape[2],
            max_per_class=max_per_class,
            score_threshold=score_threshold,
            sigma=sigma,
        )
        shape = tf.stack([batch, num_classes * max_per_class])
        classes = tf.repeat(tf.range(num_classes), max_per_class)[None, :]
        lowered = tf.reshape(lowered, shape)
        picks = Picks(
            scores=lowered,
            classes=tf.broadcast_to(classes, shape),
            anchors=tf.reshape(anchors, shape),
            valid=tf.reshape(valid, shape) & (lowered >= cuts[:, None]),
        )
        if windows is not None:
            chosen = picked_boxes(boxes, picks.anchors, picks.classes)
            picks = picks._replace(valid=picks.valid & has_area(chosen, windows))
        best = best_picks(picks, max_total)
        return best, tf.reduce_all(best.valid, axis=1) | (cuts <= floor)

    return _in_stages(scores, max_total, attempt)
