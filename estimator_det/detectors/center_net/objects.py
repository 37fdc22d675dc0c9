"""Objects as heatmaps of their centers, with size and offset at each center."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from estimator_det.boxes import geometry
from estimator_det.boxes.heatmaps import (
    Pixels,
    draw_gaussians,
    gaussian_deviations,
    keep_peaks,
    real_pixels,
    top_pixels,
    values_at,
)
from estimator_det.boxes.score_conversion import CALIBRATIONS, ScoreFunction
from estimator_det.compat import tf
from estimator_det.detectors.base import Losses
from estimator_det.detectors.center_net.heads import (
    Head,
    HeadMaps,
    Scene,
    heatmap_loss,
    make_head,
    vector_loss,
)
from estimator_det.images.resize import height_and_width
from estimator_det.losses.classification import ClassificationLoss, make_classification_loss
from estimator_det.losses.localization import LocalizationLoss, make_localization_loss
from estimator_det.protos import center_net_pb2

CENTER, SCALE, OFFSET = "object_center", "box/scale", "box/offset"


@dataclass(frozen=True)
class ObjectTask:
    """Centers, sizes and offsets of objects: their heads, losses and boxes."""

    heads: Tuple[Head, ...]
    center_loss: ClassificationLoss
    box_loss: LocalizationLoss
    center_weight: float  # factors of the losses
    scale_weight: float
    offset_weight: float
    min_iou: float  # IoU that a box keeps within the radius of its Gaussian
    max_boxes: int  # detections of an image
    window: int  # pixels of the window that a peak is the largest value of
    uses_labeled_classes: bool = False  # classes that an image is not labelled for have no loss
    # Class logits [B, N, K] of centers -> their calibrated scores; None: no calibration.
    calibrate: Optional[ScoreFunction] = None

    def loss(self, maps: HeadMaps, scene: Scene) -> Losses:
        """Computes the three terms; all are divided by the number of boxes of the batch."""
        boxes, classes = scene.boxes, scene.groundtruth.classes
        y_center, x_center, heights, widths = geometry.centers_and_sizes(boxes)
        centers = tf.stack([y_center, x_center], axis=-1)
        targets = draw_gaussians(
            centers,
            gaussian_deviations(heights, widths, self.min_iou),
            scene.weights,
            tf.argmax(classes, axis=2, output_type=tf.int32),
            (*scene.size, classes.shape[2]),
        )
        weights = scene.pixel_weights[..., tf.newaxis]
        if self.uses_labeled_classes and scene.groundtruth.labeled_classes is not None:
            weights *= scene.groundtruth.labeled_classes[:, tf.newaxis, tf.newaxis, :]
        count = tf.reduce_sum(tf.cast(scene.weights > 0.0, tf.float32))
        pixels = tf.cast(tf.floor(centers), tf.int32)
        box_sizes = tf.stack([heights, widths], axis=-1)
        sums = {
            CENTER: self.center_weight
            * heatmap_loss(self.center_loss, maps[CENTER], targets, weights),
            SCALE: self.scale_weight
            * vector_loss(self.box_loss, maps[SCALE], pixels, box_sizes, scene.weights),
            OFFSET: self.offset_weight
            * vector_loss(
                self.box_loss, maps[OFFSET], pixels, centers - tf.floor(centers), scene.weights
            ),
        }
        terms = {f"Loss/{name}": total / tf.maximum(count, 1.0) for name, total in sums.items()}
        return Losses(terms, {}, dict.fromkeys(terms, count))

    def detect(self, maps: HeadMaps, true_shapes: tf.Tensor) -> Tuple[Pixels, tf.Tensor, tf.Tensor]:
        """Finds centers by falling score, boxes [B, N, 4] in pixels, class scores [B, N, K].

        Boxes are cut to the map. The order is by scores before calibration.
        """
        scores = tf.sigmoid(maps[CENTER][-1])
        height, width = height_and_width(scores)
        # The Object Detection API compares pixels of the map with sizes of the image, so that it
        # rarely finds any padding.
        scores *= real_pixels(true_shapes, (height, width), stride=1)[..., tf.newaxis]
        peaks = top_pixels(keep_peaks(scores, self.window), self.max_boxes)
        box_sizes = tf.nn.relu(values_at(maps[SCALE][-1], peaks.y, peaks.x))
        centers = peaks.points + values_at(maps[OFFSET][-1], peaks.y, peaks.x)
        boxes = geometry.from_centers_and_sizes(
            *tf.unstack(centers, axis=-1), *tf.unstack(box_sizes, axis=-1)
        )
        window = tf.cast(tf.stack([0, 0, height, width]), tf.float32)
        boxes = geometry.clip_to_window(boxes, window)
        class_scores = values_at(scores, peaks.y, peaks.x)
        if self.calibrate is not None:
            # After the search: calibrated neighbours on the heatmap may be equal.
            class_scores = self.calibrate(values_at(maps[CENTER][-1], peaks.y, peaks.x))
            own_scores = tf.gather(class_scores, peaks.channels, batch_dims=2)
            peaks = peaks._replace(values=tf.where(peaks.values > 0.0, own_scores, 0.0))
        return peaks, boxes, class_scores


def make_object_task(config: center_net_pb2.CenterNet) -> ObjectTask:
    """Builds the task of a `CenterNet` message."""
    center, task = config.object_center_params, config.object_detection_task
    calibration = config.post_processing.calibration_config
    depthwise = config.use_depthwise
    weight = task.task_loss_weight
    return ObjectTask(
        heads=(
            make_head(
                CENTER,
                config.num_classes,
                center.center_head_params,
                use_depthwise=depthwise,
                bias=center.heatmap_bias_init,
            ),
            make_head(SCALE, 2, task.scale_head_params, use_depthwise=depthwise),
            make_head(OFFSET, 2, task.offset_head_params, use_depthwise=depthwise),
        ),
        center_loss=make_classification_loss(center.classification_loss),
        box_loss=make_localization_loss(task.localization_loss),
        center_weight=center.object_center_loss_weight,
        scale_weight=weight * task.scale_loss_weight,
        offset_weight=weight * task.offset_loss_weight,
        min_iou=center.min_box_overlap_iou,
        max_boxes=center.max_box_predictions,
        window=center.peak_max_pool_kernel_size,
        uses_labeled_classes=center.use_labeled_classes,
        calibrate=CALIBRATIONS.make_chosen(calibration, tf.sigmoid)
        if config.post_processing.HasField("calibration_config")
        else None,
    )
