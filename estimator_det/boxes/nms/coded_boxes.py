"""Boxes that are decoded only when they are picked, or given as tensors.

Letters: B images, A anchors, C classes, q boxes per anchor (1, or C if each class has its own),
S picks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

from estimator_det.boxes.coders import BoxCoder
from estimator_det.compat import tf


@dataclass(frozen=True)
class CodedBoxes:
    """Encoded boxes, decoded only for candidates, since few class-specific boxes score."""

    codes: tf.Tensor  # float32 [B, A, q, code size]
    anchors: tf.Tensor  # float32 [B, A, 4]
    coder: BoxCoder  # decoder of the codes

    @property
    def shape(self) -> Any:
        """Static shape [B, A, q, 4] of the boxes."""
        return tf.TensorShape([*self.codes.shape[:3], 4])

    def decode(self) -> tf.Tensor:
        """Decodes all boxes: float32 [B, A, q, 4]."""
        return self.coder.decode(self.codes, self.anchors[:, :, None, :]).boxes

    def select_classes(self, classes: tf.Tensor) -> CodedBoxes:
        """Selects the boxes of one class per anchor, int32 [B, A]: q becomes 1."""
        if self.codes.shape[2] == 1:
            return self
        codes = tf.gather(self.codes, classes[:, :, None], batch_dims=2)
        return CodedBoxes(codes, self.anchors, self.coder)


Boxes = Union[tf.Tensor, CodedBoxes]


def _gather_picks(rows: tf.Tensor, anchors: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
    if rows.shape[2] == 1:
        return tf.gather(rows[:, :, 0], anchors, batch_dims=1)
    return tf.gather_nd(rows, tf.stack([anchors, classes], axis=-1), batch_dims=1)


def gather_picks(boxes: Boxes, anchors: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
    """Gathers boxes (or masks) of picks: [B, A, q, ...], [B, S] twice -> [B, S, ...]."""
    if isinstance(boxes, CodedBoxes):
        codes = _gather_picks(boxes.codes, anchors, classes)
        return boxes.coder.decode(codes, tf.gather(boxes.anchors, anchors, batch_dims=1)).boxes
    return _gather_picks(boxes, anchors, classes)


def has_area(boxes: tf.Tensor, windows: tf.Tensor) -> tf.Tensor:
    """True if a box overlaps the window of its image: [B, S, 4], [B, 4] -> [B, S]."""
    low, high = tf.split(boxes, 2, axis=-1)
    floor, ceiling = tf.split(windows[:, None, :], 2, axis=-1)
    sides = tf.maximum(tf.minimum(high, ceiling), floor) - tf.maximum(
        tf.minimum(low, ceiling), floor
    )
    return sides[..., 0] * sides[..., 1] > 0.0
