"""Kernels of non-maximum suppression, which choose boxes before any box is cut to a window.

Both kernels work on whole batches, and their number of ops does not depend on the number of images,
anchors and classes. They run on CPU and GPU; XLA has no kernel for these suppression ops, so TPU
uses `static`. Letters: B images, A anchors, C classes, q boxes per anchor (1, or C if each class
has its own), S picks.
"""

from __future__ import annotations

import dataclasses
from typing import Callable, NamedTuple, Tuple

import numpy as np

from estimator_det.boxes.nms.coded_boxes import Boxes, CodedBoxes, gather_picks, has_area
from estimator_det.compat import tf

# Candidates of the first attempt; if they are too few, the next attempt has GROWTH times as many. A
# published SSD needs 256 to 512 for 100 detections in a photo; proposals overlap less.
FIRST_CANDIDATES = 1024
CANDIDATES_PER_DETECTION = 4
GROWTH = 8
# A prime, so that the sample does not favour classes whose number shares a divisor with the step.
SAMPLE_STEP = 17
# Candidates are ranked by float32 integers, which are exact up to here.
MAX_CANDIDATES = 2**24


@dataclasses.dataclass(frozen=True)
class NmsOptions:
    """Thresholds and limits of suppression."""

    score_threshold: float = 0.0  # only scores above it are candidates
    # A box whose IoU with a better one is above this is suppressed; 0 to 1.
    iou_threshold: float = 0.6
    max_per_class: int = 100  # most detections of one class
    max_total: int = 100  # detections per image (N); 0 returns the detections of all classes
    class_agnostic: bool = False  # suppress across classes; each anchor has its best class only
    # Above 0, overlap lowers scores instead of removing boxes (soft suppression).
    soft_sigma: float = 0.0
    change_frame: bool = False  # return boxes relative to the clip windows
    static_shapes: bool = False  # use only ops that TPU and XLA can run. The result is the same.
    static_candidates: int = 10  # candidates per detection, if `static_shapes`


class Picks(NamedTuple):
    """Boxes that survive suppression; equal scores are in the order of the rows."""

    scores: tf.Tensor  # float32 [B, S]
    classes: tf.Tensor  # int32 [B, S]
    anchors: tf.Tensor  # int32 [B, S]
    valid: tf.Tensor  # bool [B, S]


class _Ranking(NamedTuple):
    """The K best scores of each image, by falling score, then class, then anchor."""

    scores: tf.Tensor  # float32 [B, K]
    classes: tf.Tensor  # int32 [B, K]
    anchors: tf.Tensor  # int32 [B, K]
    ranks: tf.Tensor  # float32 [B, K]: K for the first, 1 for the last, 0 past the last candidate
    exhausted: tf.Tensor  # bool [B]: the image has no other candidates


def best_picks(picks: Picks, count: int) -> Picks:
    """Sorts picks [B, S] and returns the `count` valid ones of highest score: [B, count].

    Equal scores keep their order. Rows past the valid ones hold zeros.
    """
    keys = tf.where(picks.valid, picks.scores, -float("inf"))
    # Padded, because there may be fewer picks than detections.
    keys = tf.pad(keys, [[0, 0], [0, count]], constant_values=-float("inf"))
    keys, rows = tf.math.top_k(keys, count)
    valid = keys > -float("inf")
    rows = tf.where(valid, rows, 0)
    return Picks(
        tf.where(valid, keys, 0.0),
        tf.where(valid, tf.gather(picks.classes, rows, batch_dims=1), 0),
        tf.where(valid, tf.gather(picks.anchors, rows, batch_dims=1), 0),
        valid,
    )


def score_floor(score_threshold: float) -> float:
    """Returns the least float32 above a threshold: `>=` it means `>` the threshold."""
    above = float(np.nextafter(np.float32(score_threshold), np.float32(np.inf)))
    # TensorFlow's kernels treat subnormal numbers as 0.
    return max(above, float(np.finfo(np.float32).tiny)) if score_threshold >= 0.0 else above


def _cuts(scores: tf.Tensor, num_candidates: tf.Tensor, floor: float) -> tf.Tensor:
    """Estimates a score for each image [B] that about `num_candidates` scores [A, C] reach."""
    flat = tf.reshape(scores, [tf.shape(scores)[0], -1])
    total = tf.shape(flat)[1]
    # A sample, because an exact selection among all scores would be the slowest part.
    sample = flat[:, ::SAMPLE_STEP]
    # 1/8 more, so that the sample rarely yields fewer candidates than wanted.
    share = (num_candidates + num_candidates // 8) // SAMPLE_STEP + 1
    best = tf.math.top_k(sample, tf.minimum(share, tf.shape(sample)[1]))[0]
    cuts = tf.maximum(best[:, -1], floor)
    return tf.where(num_candidates >= total, floor, cuts)


def _rank(scores: tf.Tensor, num_candidates: tf.Tensor, floor: float) -> _Ranking:
    """Ranks scores [B, A, C] of at least `floor`; `num_candidates` is an int32 scalar."""
    batch = tf.shape(scores)[0]
    cuts = _cuts(scores, num_candidates, floor)
    is_candidate = scores >= cuts[:, None, None]
    # tf.where lists entries row by row: image, class, anchor, which is the order of equal scores.
    entries = tf.where(tf.transpose(is_candidate, [0, 2, 1]))
    images, classes, anchors = tf.unstack(entries, num=3, axis=1)
    values = tf.gather_nd(scores, tf.stack([images, anchors, classes], axis=1))
    per_image = tf.RaggedTensor.from_value_rowids(
        values, images, nrows=tf.cast(batch, tf.int64), validate=False
    )
    # One more column, so that an empty selection has a row, too.
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
    """Boxes that the kernel reads, [B, R, q, 4]; only candidates are filled in if boxes are coded.

    Candidates are float32 [B, K, 4]; their places, int32 [B, K, 3], are image, row and class.
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
    """Assigns a row to each anchor with a candidate, since the kernel reads all classes of a row.

    Returns the row of each candidate, int32 [B, K]; the anchor of each row, int32 [B, R]; R.
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
    windows: tf.Tensor,
    options: NmsOptions,
    *,
    num_anchors: tf.Tensor,
    num_classes: int,
) -> Tuple[Picks, tf.Tensor]:
    """Greedy suppression inside every class of the ranked candidates.

    TensorFlow's combined kernel handles all images and classes in one op, but leaves the order of
    equal scores open and does not return anchors. Ranks replace the scores, therefore: no two are
    equal, and each rank in the result identifies its candidate. Returns the picks inside the
    windows [B, 4], and the number of picks of each image before the windows, int32 [B].
    """
    batch = tf.shape(ranking.ranks)[0]
    num_candidates = tf.shape(ranking.ranks)[1]
    images = tf.broadcast_to(tf.range(batch)[:, None], tf.shape(ranking.anchors))
    rows, anchor_of_row, num_rows = _rows_with_candidates(images, ranking.anchors, num_anchors)
    places = tf.stack([images, rows, ranking.classes], axis=-1)
    candidates = gather_picks(boxes, ranking.anchors, ranking.classes)
    result = tf.image.combined_non_max_suppression(
        _boxes_of_rows(boxes, candidates, places, anchor_of_row),
        tf.scatter_nd(places, ranking.ranks, tf.stack([batch, num_rows, num_classes])),
        max_output_size_per_class=options.max_per_class,
        max_total_size=num_candidates,
        iou_threshold=options.iou_threshold,
        score_threshold=0.0,
        clip_boxes=False,
    )
    valid = result.nmsed_scores > 0.0
    kept = tf.where(valid, num_candidates - tf.cast(result.nmsed_scores, tf.int32), 0)
    picks = Picks(
        tf.gather(ranking.scores, kept, batch_dims=1),
        tf.gather(ranking.classes, kept, batch_dims=1),
        tf.gather(ranking.anchors, kept, batch_dims=1),
        valid & tf.gather(has_area(candidates, windows), kept, batch_dims=1),
    )
    return picks, tf.reduce_sum(tf.cast(valid, tf.int32), axis=1)


def _attempt_until_complete(
    scores: tf.Tensor, max_total: int, attempt: Callable[[tf.Tensor], Tuple[Picks, tf.Tensor]]
) -> Picks:
    """Repeats an attempt with more and more candidates until no image can gain by more.

    An attempt with a number of candidates per image returns picks [B, `max_total`], and bool [B],
    True if more candidates cannot change them.
    """
    batch, num_classes = scores.shape[0], scores.shape[2]
    total = tf.minimum(tf.shape(scores)[1] * num_classes, MAX_CANDIDATES)

    def stage(
        num_candidates_wanted: tf.Tensor, picks: Picks, complete: tf.Tensor
    ) -> Tuple[tf.Tensor, Picks, tf.Tensor]:
        del picks, complete
        picks, complete = attempt(tf.minimum(num_candidates_wanted, total))
        for rows in picks:
            rows.set_shape([batch, max_total])
        complete = tf.reduce_all(complete) | (num_candidates_wanted >= total)
        # Dividing first keeps the product within int32.
        num_candidates_wanted = tf.minimum(num_candidates_wanted, MAX_CANDIDATES // GROWTH) * GROWTH
        return num_candidates_wanted, picks, complete

    shape = [tf.shape(scores)[0], max_total]
    no_picks = Picks(
        tf.zeros(shape), tf.zeros(shape, tf.int32), tf.zeros(shape, tf.int32), tf.zeros(shape, bool)
    )
    first = max(FIRST_CANDIDATES, CANDIDATES_PER_DETECTION * max_total)
    static = tf.TensorShape([batch, max_total])
    _, picks, _ = tf.while_loop(
        lambda num_candidates_wanted, picks, complete: ~complete,
        stage,
        (tf.constant(min(first, MAX_CANDIDATES)), no_picks, tf.constant(False)),
        shape_invariants=(tf.TensorShape([]), Picks(*[static] * 4), tf.TensorShape([])),
    )
    return picks


def hard_picks(boxes: Boxes, scores: tf.Tensor, windows: tf.Tensor, options: NmsOptions) -> Picks:
    """Greedy suppression of overlapping boxes, class by class, then the best of all classes.

    A pick depends only on candidates with higher scores. Suppression therefore runs on the best
    scores of each image first, and on more of them only if an image has fewer than `max_total`
    picks and further candidates. The result is the same as with all candidates.

    Args:
        boxes: float32 [B, A, q, 4], or codes, of which only candidates are decoded.
        scores: float32 [B, A, C].
        windows: float32 [B, 4]; boxes outside their window are dropped after suppression, but
            count towards the limit of their class.
        options: thresholds and limits, above 0.

    Returns:
        Picks by falling score, equal scores by class, then anchor; S = `max_total`.
    """
    num_classes = scores.shape[2]
    floor = score_floor(options.score_threshold)

    def attempt(num_candidates: tf.Tensor) -> Tuple[Picks, tf.Tensor]:
        ranking = _rank(scores, num_candidates, floor)
        picks, num_before = _suppress(
            boxes,
            ranking,
            windows,
            options,
            num_anchors=tf.shape(scores)[1],
            num_classes=num_classes,
        )
        best = best_picks(picks, options.max_total)
        complete = (
            tf.reduce_all(best.valid, axis=1)
            | ranking.exhausted
            | (num_before >= num_classes * options.max_per_class)
        )
        return best, complete

    return _attempt_until_complete(scores, options.max_total, attempt)


def _suppress_softly(
    box_rows: tf.Tensor,  # float32 [B * q, A, 4]
    score_rows: tf.Tensor,  # float32 [B * C, A]
    cuts: tf.Tensor,  # float32 [B], lowest candidate score of each image
    options: NmsOptions,
    *,
    num_rows: tf.Tensor,  # B * C
    num_classes: int,  # C
    classes_per_box_row: int,  # C / q
) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Soft suppression class by class, since TensorFlow's kernel handles one class of one image.

    Returns anchors int32 [B * C, S], S picks of each class; lowered scores float32; bool, True for
    picks.
    """
    max_per_class = options.max_per_class

    def suppress_row(row: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        row_scores = score_rows[row]
        above_cut = row_scores >= cuts[row // num_classes]
        anchors, lowered, num_valid = tf.raw_ops.NonMaxSuppressionV5(
            boxes=box_rows[row // classes_per_box_row],
            scores=tf.where(above_cut, row_scores, -float("inf")),
            max_output_size=max_per_class,
            iou_threshold=1.0,  # no hard suppression: overlap only lowers scores
            score_threshold=options.score_threshold,
            soft_nms_sigma=options.soft_sigma,
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
    boxes: tf.Tensor, scores: tf.Tensor, windows: tf.Tensor, options: NmsOptions
) -> Picks:
    """Soft suppression (https://arxiv.org/abs/1704.04503): overlap lowers scores, class by class.

    A pick multiplies the remaining scores of its class by exp(-IoU^2 / (2 sigma)); boxes whose
    score falls to the threshold are dropped. Other arguments and the result are as in
    `hard_picks`, but with lowered scores. Here, too, the best scores come first: picks whose
    lowered score is above all other original scores do not change with more candidates.
    """
    batch, num_anchors = tf.unstack(tf.shape(scores)[:2], num=2)
    num_classes, max_per_class = scores.shape[2], options.max_per_class
    floor = score_floor(options.score_threshold)
    # [B * q, A, 4]: if classes share boxes, one slice serves every class of an image.
    box_rows = tf.reshape(tf.transpose(boxes, [0, 2, 1, 3]), [-1, num_anchors, 4])
    score_rows = tf.reshape(tf.transpose(scores, [0, 2, 1]), [-1, num_anchors])

    def attempt(num_candidates: tf.Tensor) -> Tuple[Picks, tf.Tensor]:
        cuts = _cuts(scores, num_candidates, floor)
        anchors, lowered, valid = _suppress_softly(
            box_rows,
            score_rows,
            cuts,
            options,
            num_rows=batch * num_classes,
            num_classes=num_classes,
            classes_per_box_row=num_classes // boxes.shape[2],
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
        pick_boxes = gather_picks(boxes, picks.anchors, picks.classes)
        picks = picks._replace(valid=picks.valid & has_area(pick_boxes, windows))
        best = best_picks(picks, options.max_total)
        return best, tf.reduce_all(best.valid, axis=1) | (cuts <= floor)

    return _attempt_until_complete(scores, options.max_total, attempt)
