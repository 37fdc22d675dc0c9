"""The third stage: instance masks (https://arxiv.org/abs/1703.06870).

Letters: B images, N boxes of an image (regions in training, detections otherwise), G groundtruth
boxes, K foreground classes, h x w pixels of a mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Tuple

from estimator_det.boxes.assign import TargetAssigner
from estimator_det.compat import tf, tf1
from estimator_det.detectors.base import Groundtruth, normalize_boxes
from estimator_det.detectors.two_stage.proposals import Regions
from estimator_det.detectors.two_stage.region_stage import per_region
from estimator_det.detectors.two_stage.regions import assign_classes, make_region_assigner
from estimator_det.images.resize import height_and_width
from estimator_det.losses.classification import sigmoid_cross_entropy, zero_images
from estimator_det.nets.roi import crop_regions
from estimator_det.predictors.two_stage import MaskHead, make_mask_head
from estimator_det.protos import faster_rcnn_pb2

MASK_LOSS = "Loss/BoxClassifierLoss/mask_loss"


class MaskOutput(NamedTuple):
    """Masks of every class, and the boxes they belong to."""

    regions: Regions
    logits: tf.Tensor  # float32 [B, N, K or 1, h, w]


@dataclass(frozen=True)
class MaskStage:
    """Masks of boxes, and their loss."""

    head: MaskHead  # features of boxes -> masks
    assigner: TargetAssigner  # matches boxes to groundtruth
    loss_weight: float  # factor of the loss
    resizes_masks: bool  # True if groundtruth masks are resized to the network's input
    matmul: bool = False  # True if groundtruth masks are cropped by matrix products, for TPU

    def predict(self, features: tf.Tensor, regions: Regions) -> MaskOutput:
        """Predicts from features [B * N, h', w', C] of regions."""
        return MaskOutput(regions, per_region(self.head.predict(features), regions.boxes))

    def loss(
        self, output: MaskOutput, groundtruth: Groundtruth, inputs: tf.Tensor
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """Cross entropy of every mask pixel of matched boxes, averaged over these pixels.

        Args:
            output: masks of boxes in pixels of the padded image.
            groundtruth: boxes in pixels of the padded image, and masks.
            inputs: float [B, H, W, C].

        Returns:
            The loss, and the number of pixels, which is its divisor in `Losses`.
        """
        regions, logits = output
        targets = assign_classes(self.assigner, regions.boxes, groundtruth)
        label = tf.argmax(targets.class_targets, axis=2, output_type=tf.int32)
        class_logits = select_class_masks(logits, tf.maximum(label - 1, 0))
        size = (int(class_logits.shape[2]), int(class_logits.shape[3]))
        crop = _crop_by_products if self.matmul else crop_masks
        target_masks = crop(
            self._groundtruth_masks(groundtruth, inputs),
            normalize_boxes(regions.boxes, inputs),
            size,
            tf.maximum(targets.matches, 0),
        )
        weights = targets.box_weights * tf.cast(regions.valid, tf.float32)
        losses = sigmoid_cross_entropy(
            class_logits, tf.stop_gradient(target_masks), weights[:, :, tf.newaxis, tf.newaxis]
        )
        if groundtruth.is_annotated is not None:
            losses = zero_images(losses, groundtruth.is_annotated)
        pixels = tf.reduce_sum(weights) * size[0] * size[1]
        return self.loss_weight * tf.reduce_sum(losses) / tf.maximum(pixels, 1.0), pixels

    def _groundtruth_masks(self, groundtruth: Groundtruth, inputs: tf.Tensor) -> tf.Tensor:
        """Masks float32 [B, G + 1, H, W]; the last one is empty, because G may be 0."""
        assert groundtruth.masks is not None
        masks = tf.pad(tf.cast(groundtruth.masks, tf.float32), [[0, 0], [0, 1], [0, 0], [0, 0]])
        has_input_size = None not in masks.shape[2:] and masks.shape[2:] == inputs.shape[1:3]
        if self.resizes_masks and not has_input_size:
            masks = _resize(masks, height_and_width(inputs))
        return masks


def select_class_masks(masks: tf.Tensor, classes: tf.Tensor) -> tf.Tensor:
    """Selects the masks [B, N, K or 1, h, w] of classes int32 [B, N], from 0 -> [B, N, h, w]."""
    if masks.shape[2] == 1:
        return masks[:, :, 0]
    return tf.gather(masks, classes, batch_dims=2)


def crop_masks(
    masks: tf.Tensor, boxes: tf.Tensor, size: Tuple[int, int], indices: tf.Tensor
) -> tf.Tensor:
    """Cuts masks [B, G, H, W] to boxes [B, N, 4], and resizes them bilinearly: [B, N, h, w].

    Boxes are normalized to the image, outside of which the result is 0; the mask of each box has
    the index int32 [B, N].
    """
    batch, num_masks = tf.unstack(tf.shape(masks)[:2], num=2)
    flat_indices = indices + num_masks * tf.range(batch)[:, tf.newaxis]
    crops = tf.image.crop_and_resize(
        tf.reshape(masks, [-1, *height_and_width(masks[:, 0, :, :, tf.newaxis]), 1]),
        tf.reshape(boxes, [-1, 4]),
        tf.reshape(flat_indices, [-1]),
        size,
    )
    return per_region(crops[..., 0], boxes)


def _crop_by_products(
    masks: tf.Tensor, boxes: tf.Tensor, size: Tuple[int, int], indices: tf.Tensor
) -> tf.Tensor:
    """Crops like `crop_masks`, but by matrix products."""
    # `crop_regions` crops one map per image, so each box gets a copy of its mask.
    box_masks = tf.gather(masks, indices, batch_dims=1)
    maps = tf.reshape(box_masks, [-1, *height_and_width(masks[:, 0, :, :, tf.newaxis]), 1])
    crops = crop_regions(maps, tf.reshape(boxes, [-1, 1, 4]), size, matmul=True)
    return per_region(crops[..., 0], boxes)


def _resize(masks: tf.Tensor, size: Tuple[Any, Any]) -> tf.Tensor:
    """Resizes [B, G, h, w] to [B, G, *size] by the nearest pixel."""
    channels_last = tf.transpose(masks, [0, 2, 3, 1])
    nearest = tf1.image.resize(channels_last, size, method="nearest")
    return tf.transpose(nearest, [0, 3, 1, 2])


def make_mask_stage(
    config: faster_rcnn_pb2.FasterRcnn, is_training: bool, tf2_line: bool = False
) -> MaskStage:
    """Builds the third stage of a `FasterRcnn` message."""
    predictor = config.second_stage_box_predictor.mask_rcnn_box_predictor
    return MaskStage(
        head=make_mask_head(predictor, config.num_classes, is_training, tf2_line),
        assigner=make_region_assigner(config),
        loss_weight=config.second_stage_mask_prediction_loss_weight,
        resizes_masks=config.resize_masks,
        matmul=config.use_matmul_crop_and_resize,
    )
