"""Conversion of the output of either stage to detections.

Letters: B images, N regions of an image, K foreground classes, q boxes of a region (K, or 1 that
all classes share). Detections are normalized to the real image inside the padded one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Optional

from estimator_det.boxes import geometry
from estimator_det.boxes.nms.multiclass import NmsOptions, make_nms_options, multiclass_nms
from estimator_det.boxes.nms.rows import CodedBoxes
from estimator_det.boxes.score_conversion import make_score_converter
from estimator_det.compat import tf
from estimator_det.config.advice import TpuAdvice
from estimator_det.detectors.base import Detections
from estimator_det.detectors.two_stage.outputs import (
    Proposals,
    RegionOutput,
    Regions,
    boxes_to_pixels,
    real_windows,
)
from estimator_det.detectors.two_stage.targets import BOX_CODER

TPU = TpuAdvice("second_stage_post_processing.batch_non_max_suppression", "set static_kernel: true")


@dataclass(frozen=True)
class Frame:
    """Position of the real images.

    Attributes:
        inputs: float [B, H, W, C], padded images.
        true_shapes: int32 [B, 3], shapes of the real images; None: the padded images are real.
    """

    inputs: tf.Tensor
    true_shapes: Optional[tf.Tensor] = None

    @property
    def windows(self) -> tf.Tensor:
        """Windows of the real images in pixels, float32 [B, 4]."""
        return real_windows(self.inputs, self.true_shapes)

    def normalize_to_real_image(self, boxes: tf.Tensor) -> tf.Tensor:
        """Expresses boxes [B, …, 4] in pixels as fractions of the real images."""
        ones = [1] * (boxes.shape.rank - 2)
        return geometry.change_frame(boxes, tf.reshape(self.windows, [-1, *ones, 4]))

    def to_pixels(self, boxes: tf.Tensor) -> tf.Tensor:
        """Converts boxes [B, N, 4] to pixels; the inverse of `normalize_to_real_image`."""
        if self.true_shapes is None:
            return boxes_to_pixels(boxes, self.inputs)
        sizes = self.windows[:, tf.newaxis, 2:]
        return boxes * tf.concat([sizes, sizes], axis=2)


def proposals_as_detections(proposals: Proposals, frame: Frame) -> Detections:
    """Converts proposals to detections of class 0, for a first stage only."""
    return Detections(
        boxes=frame.normalize_to_real_image(proposals.regions.boxes),
        scores=proposals.scores,
        classes=tf.zeros_like(proposals.scores),
        num=tf.cast(proposals.regions.num, tf.float32),
        raw_boxes=frame.normalize_to_real_image(proposals.raw_boxes),
        raw_scores=proposals.raw_scores,
        multiclass_scores=proposals.multiclass_scores,
    )


def coded_boxes(regions: Regions, output: RegionOutput) -> CodedBoxes:
    """Boxes [B, N, q, 4] of the second stage, in pixels, not decoded yet."""
    return CodedBoxes(output.box_encodings, regions.boxes, BOX_CODER)


def boxes_of_best_classes(boxes: CodedBoxes, class_logits: tf.Tensor) -> tf.Tensor:
    """Selects boxes [B, N, q, 4] of the classes of highest logits [B, N, K + 1]: [B, N, 4]."""
    best = tf.argmax(class_logits[:, :, 1:], axis=2, output_type=tf.int32)
    return boxes.select_classes(best).decode()[:, :, 0]


@dataclass(frozen=True)
class Postprocessing:
    """Conversion of regions to detections.

    Attributes:
        convert_scores: class logits -> scores.
        nms: thresholds and limits of suppression.
    """

    convert_scores: Callable[[tf.Tensor], tf.Tensor]
    nms: NmsOptions

    def detect(
        self,
        regions: Regions,
        output: RegionOutput,
        frame: Frame,
        mask_logits: Optional[tf.Tensor] = None,
    ) -> Detections:
        """Decodes boxes, converts scores and suppresses.

        Args:
            regions: regions of the second stage.
            output: output of the second stage for them.
            frame: position of the real images; detections are cut to them.
            mask_logits: float32 [B, N, K or 1, h, w] of the regions.
        """
        boxes = coded_boxes(regions, output)
        scores = self.convert_scores(output.class_logits)
        survivors = multiclass_nms(
            boxes,
            scores[:, :, 1:],
            self.nms,
            clip_windows=frame.windows,
            num_valid=regions.num,
            masks=None if mask_logits is None else tf.sigmoid(mask_logits),
            fields={"multiclass_scores": scores},
        )
        return Detections(
            boxes=survivors.boxes,
            scores=survivors.scores,
            classes=survivors.classes,
            num=tf.cast(survivors.num, tf.float32),
            raw_boxes=geometry.clip_to_window(
                frame.normalize_to_real_image(boxes_of_best_classes(boxes, output.class_logits)),
                tf.constant([0.0, 0.0, 1.0, 1.0]),
            ),
            raw_scores=scores,
            multiclass_scores=survivors.fields["multiclass_scores"],
            anchor_indices=tf.cast(survivors.anchor_indices, tf.float32),
            masks=survivors.masks,
        )


def make_postprocessing(config: Any) -> Postprocessing:
    """Builds the postprocessing of a `PostProcessing` message, or raises ConfigError."""
    # Detections of two stages are always relative to the real image.
    nms = make_nms_options(config.batch_non_max_suppression)
    return Postprocessing(make_score_converter(config), replace(nms, change_frame=True))
