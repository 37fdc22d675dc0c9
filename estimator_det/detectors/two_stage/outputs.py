"""Tuples of tensors that pass between the parts of a two-stage detector.

Letters in shapes: B images, A anchors, N regions of an image (padded), K foreground classes, q
boxes of a region (K, or 1 that all classes share), D detections (padded). Boxes are in pixels of
the padded image that enters the network unless a field says otherwise.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Tuple

from estimator_det.boxes import geometry
from estimator_det.compat import tf
from estimator_det.detectors.base import Detections
from estimator_det.images.sizes import height_and_width


class RpnOutput(NamedTuple):
    """Output of the region proposal network, without the anchors that training drops."""

    features: (
        tf.Tensor
    )  # float32 [B, h, w, depth], output of the convolution before the last layers
    anchors: tf.Tensor  # float32 [A, 4]
    box_encodings: tf.Tensor  # float32 [B, A, 4]
    objectness_logits: tf.Tensor  # float32 [B, A, 2], background and object


class Regions(NamedTuple):
    """Boxes that the second stage classifies; rows past `num` are zero."""

    boxes: tf.Tensor  # float32 [B, N, 4]
    num: tf.Tensor  # int32 [B]

    @property
    def valid(self) -> tf.Tensor:
        """Flags bool [B, N], False for padding."""
        return tf.sequence_mask(self.num, self.boxes.shape[1] or tf.shape(self.boxes)[1])


class Proposals(NamedTuple):
    """Proposals of the first stage after suppression, by falling score."""

    regions: Regions
    scores: tf.Tensor  # float32 [B, N]
    multiclass_scores: tf.Tensor  # float32 [B, N, 2]
    raw_boxes: tf.Tensor  # float32 [B, A, 4], before suppression
    raw_scores: tf.Tensor  # float32 [B, A, 2]


class RegionOutput(NamedTuple):
    """Output of the second stage for every region."""

    features: tf.Tensor  # float32 [B * N, h, w, C]; R-FCN: [B, h, w, C] of the whole image
    box_encodings: tf.Tensor  # float32 [B, N, q, 4]
    class_logits: tf.Tensor  # float32 [B, N, K + 1], background first


class TwoStagePredictions(NamedTuple):
    """Raw network output of a two-stage detector; fields of a missing stage are None."""

    inputs: tf.Tensor  # float32 [B, H, W, C], preprocessed
    feature_maps: Tuple[
        tf.Tensor, ...
    ]  # one map, float32 [B, h, w, C], from which regions are cropped
    rpn: RpnOutput
    regions: Optional[Regions] = None
    second_stage: Optional[RegionOutput] = None
    # float32 [B, N, K or 1, h, w]; masks of the regions in training, otherwise of the detections.
    mask_logits: Optional[tf.Tensor] = None
    detections: Optional[Detections] = None  # set if the network also runs on them
    detected_regions: Optional[Regions] = None  # boxes of these detections
    raw_boxes: Optional[tf.Tensor] = None  # float32 [B, N, q, 4], normalized to the real image
    raw_feature_map_indices: Optional[tf.Tensor] = None  # int32 [B, N], always 0

    @property
    def anchors(self) -> tf.Tensor:
        """Anchors, float32 [A, 4]."""
        return self.rpn.anchors

    @property
    def region_outputs(self) -> Tuple[Regions, RegionOutput]:
        """Regions, and the output of the second stage for them."""
        assert self.regions is not None and self.second_stage is not None
        return self.regions, self.second_stage


def padded_window(inputs: tf.Tensor) -> tf.Tensor:
    """Window of the padded images [B, H, W, C], float32 [4]."""
    height, width = height_and_width(inputs)
    return tf.cast(tf.stack([0, 0, height, width]), tf.float32)


def real_windows(inputs: tf.Tensor, true_shapes: Optional[tf.Tensor]) -> tf.Tensor:
    """Windows of the real image in each padded one, float32 [B, 4]; None: all is real."""
    if true_shapes is None:
        return tf.tile(padded_window(inputs)[tf.newaxis], [tf.shape(inputs)[0], 1])
    corners = tf.cast(true_shapes[:, :2], tf.float32)
    return tf.concat([tf.zeros_like(corners), corners], axis=1)


def normalize_boxes(boxes: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
    """Expresses boxes [..., 4] as fractions of the padded image."""
    return geometry.change_frame(boxes, padded_window(inputs))


def boxes_to_pixels(boxes: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
    """Converts boxes [..., 4] to pixels; the inverse of `normalize_boxes`."""
    height, width = tf.unstack(padded_window(inputs)[2:], num=2)
    return boxes * tf.stack([height, width, height, width])
