"""Non-maximum suppression of a batch of detections: per class, across classes, or soft.

Letters: B images, A anchors, C classes (no background column), q boxes per anchor (1 shared by all
classes, or C), N detections returned.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, Iterator, NamedTuple, Optional

from estimator_det.boxes import geometry
from estimator_det.boxes.nms.coded_boxes import Boxes, CodedBoxes, gather_picks
from estimator_det.boxes.nms.kernels import NmsOptions, Picks, hard_picks, soft_picks
from estimator_det.boxes.nms.static import static_picks
from estimator_det.compat import tf
from estimator_det.config.field_rules import no_effect
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.protos import post_processing_pb2


class NmsResult(NamedTuple):
    """Detections by falling score; rows past `num` are zero."""

    boxes: tf.Tensor  # float32 [B, N, 4], cut to the clip windows, maybe relative to them
    scores: tf.Tensor  # float32 [B, N]
    classes: tf.Tensor  # float32 [B, N], from 0
    num: tf.Tensor  # int32 [B]
    masks: Optional[tf.Tensor]  # float32 [B, N, h, w]
    fields: Dict[str, tf.Tensor]  # [B, N, ...] each
    anchor_indices: tf.Tensor  # int32 [B, N]


@rules(post_processing_pb2.BatchNonMaxSuppression)
def _check_nms(config: post_processing_pb2.BatchNonMaxSuppression, at: str) -> Iterator[Problem]:
    if config.max_detections_per_class > config.max_total_detections:
        yield error(
            f"{at}.max_detections_per_class",
            f"is {config.max_detections_per_class}, above max_total_detections, which is "
            f"{config.max_total_detections}",
            "raise the latter or lower the former",
        )
    if config.use_hard_nms and config.soft_nms_sigma:
        yield no_effect(f"{at}.soft_nms_sigma", "use_hard_nms is set")
    if config.max_classes_per_detection != 1:
        yield error(
            f"{at}.max_classes_per_detection",
            f"is {config.max_classes_per_detection}, which is not supported yet: a detection has "
            "one class",
            "Set it to 1",
        )


def make_nms_options(config: post_processing_pb2.BatchNonMaxSuppression) -> NmsOptions:
    """Builds options from a `BatchNonMaxSuppression` proto.

    `use_combined_nms`, `use_partitioned_nms` and `use_cpu_nms` choose between kernels with equal
    results in the Object Detection API and have no effect here; neither has `use_static_shapes`,
    since all results have static shapes. `static_kernel` uses only ops that TPU and XLA can run.
    `use_hard_nms` overrides `soft_nms_sigma`.
    """
    return NmsOptions(
        score_threshold=config.score_threshold,
        iou_threshold=config.iou_threshold,
        max_per_class=config.max_detections_per_class,
        max_total=config.max_total_detections,
        class_agnostic=config.use_class_agnostic_nms,
        soft_sigma=0.0 if config.use_hard_nms else config.soft_nms_sigma,
        change_frame=config.change_coordinate_frame,
        static_shapes=config.static_kernel,
    )


def _zero_past(rows: tf.Tensor, valid: tf.Tensor) -> tf.Tensor:
    """Replaces rows [B, N, ...] by zeros where `valid` [B, N] is False."""
    shape = tf.concat([tf.shape(valid), tf.ones([rows.shape.rank - 2], tf.int32)], axis=0)
    return tf.where(tf.reshape(valid, shape), rows, tf.zeros([], rows.dtype))


def _pick(boxes: Boxes, scores: tf.Tensor, options: NmsOptions, windows: tf.Tensor) -> Picks:
    num_anchors, num_classes = scores.shape[1], scores.shape[2]
    max_per_class = options.max_per_class
    if options.class_agnostic and options.max_total:
        # All classes count as one, so the limit per class is the limit of the image.
        max_per_class = options.max_total
    if num_anchors is not None:
        max_per_class = min(max_per_class, num_anchors)
    max_total = options.max_total or max_per_class * num_classes
    limits = dataclasses.replace(options, max_per_class=max_per_class, max_total=max_total)
    if isinstance(boxes, CodedBoxes) and (options.static_shapes or options.soft_sigma > 0.0):
        # These kernels compare all anchors, so that decoding them one by one saves nothing.
        boxes = boxes.decode()
    if options.static_shapes:
        return static_picks(boxes, scores, windows, limits)
    if options.soft_sigma > 0.0:
        return soft_picks(boxes, scores, windows, limits)
    return hard_picks(boxes, scores, windows, limits)


def _pick_across_classes(
    boxes: Boxes, scores: tf.Tensor, options: NmsOptions, windows: tf.Tensor
) -> Picks:
    """Does as `_pick`, with the best class of each anchor only and all classes counted as one."""
    best_class = tf.argmax(scores, axis=2, output_type=tf.int32)
    class_boxes = boxes
    if isinstance(boxes, CodedBoxes):
        class_boxes = boxes.select_classes(best_class)
    elif boxes.shape[2] != 1:
        class_boxes = tf.gather(boxes, best_class[:, :, None], batch_dims=2)
    picks = _pick(class_boxes, tf.reduce_max(scores, axis=2)[:, :, None], options, windows)
    pick_classes = tf.gather(best_class, picks.anchors, batch_dims=1)
    return picks._replace(classes=_zero_past(pick_classes, picks.valid))


def multiclass_nms(
    boxes: Boxes,
    scores: tf.Tensor,
    options: NmsOptions,
    clip_windows: tf.Tensor,
    num_valid: Optional[tf.Tensor] = None,
    masks: Optional[tf.Tensor] = None,
    fields: Optional[Dict[str, tf.Tensor]] = None,
) -> NmsResult:
    """Suppresses overlapping detections of a batch; the result equals the API's.

    Suppression uses the boxes before they are cut to the window. The survivors are then cut, those
    without area are dropped, and the best `max_total` remain.

    Args:
        boxes: float32 [B, A, q, 4], or codes.
        scores: float32 [B, A, C], without a background column; C known when the graph is built.
        options: thresholds and limits.
        clip_windows: float32 [B, 4], in the frame of the boxes.
        num_valid: int32 [B], number of real anchors of each image; the rows after them are ignored.
        masks: float32 [B, A, q, h, w].
        fields: other tensors [B, A, ...] to return for the detections, by name.

    Returns:
        The detections; N is `options.max_total`.
    """
    if num_valid is not None:
        real = tf.sequence_mask(num_valid, tf.shape(scores)[1])
        scores = tf.where(real[:, :, None], scores, -float("inf"))
    pick = _pick_across_classes if options.class_agnostic else _pick
    picks = pick(boxes, scores, options, clip_windows)

    kept_boxes = gather_picks(boxes, picks.anchors, picks.classes)
    windows = clip_windows[:, None, :]
    kept_boxes = geometry.clip_to_window(kept_boxes, windows)
    if options.change_frame:
        kept_boxes = geometry.change_frame(kept_boxes, windows)
    kept_masks = None
    if masks is not None:
        kept_masks = _zero_past(gather_picks(masks, picks.anchors, picks.classes), picks.valid)
    return NmsResult(
        boxes=_zero_past(kept_boxes, picks.valid),
        scores=picks.scores,
        classes=tf.cast(picks.classes, tf.float32),
        num=tf.reduce_sum(tf.cast(picks.valid, tf.int32), axis=1),
        masks=kept_masks,
        fields={
            name: _zero_past(tf.gather(rows, picks.anchors, batch_dims=1), picks.valid)
            for name, rows in (fields or {}).items()
        },
        anchor_indices=picks.anchors,
    )
