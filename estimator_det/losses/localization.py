"""Localization losses, which compare predicted boxes with their targets, anchor by anchor.

Letters: B images, A anchors. L2, L1 and smooth L1 compare box encodings of any code size; IoU and
GIoU compare decoded boxes.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Optional

from estimator_det.boxes import geometry
from estimator_det.compat import tf
from estimator_det.config.registry import Registry
from estimator_det.losses.classification import require_losses, zero_images
from estimator_det.protos import losses_pb2

_Entries = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


class LocalizationLoss:
    """A loss of box encodings or, if `on_boxes`, of decoded boxes."""

    def __init__(self, entries: _Entries, on_boxes: bool = False) -> None:
        self._entries = entries
        self.on_boxes = on_boxes

    def __call__(
        self,
        predictions: tf.Tensor,  # float32 [B, A, code_size]
        targets: tf.Tensor,  # float32 [B, A, code_size]
        weights: tf.Tensor,  # float32 [B, A]
        *,
        losses_mask: Optional[tf.Tensor] = None,  # bool [B]; images with False have no loss
        ignore_nan_targets: bool = False,  # True if entries with a NaN target have no loss
    ) -> tf.Tensor:
        """Computes weighted losses, float32 [B, A]."""
        if ignore_nan_targets:
            # The prediction as its own target: loss and gradient are 0.
            targets = tf.where(tf.math.is_nan(targets), predictions, targets)
        if losses_mask is not None:
            predictions, targets, weights = (
                zero_images(rows, losses_mask) for rows in (predictions, targets, weights)
            )
        return self._entries(predictions, targets, weights)


LOCALIZATION_LOSSES: Registry[Callable[[Any], LocalizationLoss]] = Registry(
    "localization loss",
    tpu="use weighted_smooth_l1",
    chosen_by="LocalizationLoss.localization_loss",
    arguments=("predictions", "targets", "weights"),
)


def squared_error(predictions: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Half the squared length of the *weighted* difference: [B, A, code], [B, A] -> [B, A]."""
    return 0.5 * tf.reduce_sum(tf.square((predictions - targets) * weights[..., None]), axis=-1)


def smooth_l1(
    predictions: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, *, delta: float = 1.0
) -> tf.Tensor:
    """Huber loss, quadratic up to `delta`, summed over the code: [B, A, code], [B, A] -> [B, A].

    With delta 1 it is equation 3 of https://arxiv.org/abs/1504.08083.
    """
    distance = tf.abs(predictions - targets)
    quadratic = tf.minimum(distance, delta)
    # The sum of both branches, like in the Object Detection API: gradients then round in the same
    # way.
    entries = 0.5 * (quadratic * quadratic) + delta * (distance - quadratic)
    return weights * tf.reduce_sum(entries, axis=-1)


def absolute_error(predictions: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Absolute difference: [B, A], [B, A] -> [B, A]; a code axis [B, A, code] is summed.

    Without a code axis each entry has its weight, e.g. in maps whose pixels are the anchors.
    """
    entries = tf.abs(predictions - targets)
    if entries.shape.rank == weights.shape.rank + 1:
        entries = tf.reduce_sum(entries, axis=-1)
    return weights * entries


def iou_loss(predictions: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """1 - IoU of decoded boxes: [B, A, 4], [B, A] -> [B, A]."""
    return weights * (1.0 - geometry.matched_iou(predictions, targets))


def giou_loss(predictions: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """1 - generalized IoU of decoded boxes (https://arxiv.org/abs/1902.09630), within 0..2."""
    return weights * (1.0 - geometry.matched_giou(predictions, targets))


def make_localization_loss(config: losses_pb2.LocalizationLoss) -> LocalizationLoss:
    """Builds the loss of a `LocalizationLoss` message."""
    if config.HasField("custom"):
        function = LOCALIZATION_LOSSES.custom_function(config.custom)

        def entries(predictions: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
            losses = function(predictions, targets, weights)
            inputs = {"predictions": predictions, "targets": targets, "weights": weights}
            allowed = (weights.shape, predictions.shape)
            losses = require_losses(config.custom.name, losses, inputs, *allowed)
            return losses if losses.shape.rank == weights.shape.rank else tf.reduce_sum(losses, -1)

        return LocalizationLoss(entries, on_boxes=getattr(function.func, "on_boxes", False))
    return LOCALIZATION_LOSSES.make_chosen(config)


def compares_boxes(config: losses_pb2.LocalizationLoss) -> bool:
    """True if a message chooses a loss that compares decoded boxes; plug-ins are not examined."""
    return config.WhichOneof("localization_loss") in ("weighted_iou", "weighted_giou")


LOCALIZATION_LOSSES.register("weighted_l2")(lambda _: LocalizationLoss(squared_error))
LOCALIZATION_LOSSES.register("weighted_smooth_l1")(
    lambda config: LocalizationLoss(functools.partial(smooth_l1, delta=config.delta))
)
LOCALIZATION_LOSSES.register("l1_localization_loss")(lambda _: LocalizationLoss(absolute_error))
LOCALIZATION_LOSSES.register("weighted_iou")(lambda _: LocalizationLoss(iou_loss, on_boxes=True))
LOCALIZATION_LOSSES.register("weighted_giou")(lambda _: LocalizationLoss(giou_loss, on_boxes=True))
