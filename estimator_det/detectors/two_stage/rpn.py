"""The first stage: a region proposal network (https://arxiv.org/abs/1506.01497)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Optional, Tuple

import numpy as np

from estimator_det.boxes import geometry
from estimator_det.boxes.anchors import AnchorGenerator, make_anchor_generator
from estimator_det.boxes.nms.multiclass import NmsOptions, multiclass_nms
from estimator_det.compat import tf
from estimator_det.config.advice import TpuAdvice
from estimator_det.config.text import ConfigError
from estimator_det.detectors.two_stage.outputs import (
    Proposals,
    Regions,
    RpnOutput,
    padded_window,
)
from estimator_det.detectors.two_stage.targets import BOX_CODER
from estimator_det.images.sizes import Length, height_and_width
from estimator_det.nets.hyperparams import make_arg_scope
from estimator_det.predictors.rpn import ProposalHead

TPU = TpuAdvice("use_static_shapes", "set it to true")

ANCHORS_IN_PIXELS = (
    "grid_anchor_generator",
    "multiscale_anchor_generator",
    "flexible_grid_anchor_generator",
)


@dataclass(frozen=True)
class ProposalNetwork:
    """Scores anchors as objects and refines them to proposals.

    Attributes:
        head: feature map -> codes and objectness.
        anchor_generator: feature map size -> anchors in pixels.
        nms: limits and thresholds of proposals.
        drops_crossing: True if anchors that cross the border are dropped, as in training;
            otherwise anchors are clipped to the image.
    """

    head: ProposalHead
    anchor_generator: AnchorGenerator
    nms: NmsOptions
    drops_crossing: bool

    def predict(self, features: tf.Tensor, inputs: tf.Tensor) -> RpnOutput:
        """Predicts codes and objectness from the map [B, h, w, C] of inputs [B, H, W, C].

        Raises:
            ConfigError: if the generator has anchors for more than one feature map.
        """
        net, raw = self.head.predict(features, self.anchor_generator.num_per_location)
        codes, logits = (tf.cast(tensor, tf.float32) for tensor in raw)
        anchors, rows = self.generate_anchors(height_and_width(features), padded_window(inputs))
        if rows is not None:
            codes, logits = tf.gather(codes, rows, axis=1), tf.gather(logits, rows, axis=1)
        return RpnOutput(net, anchors, codes, logits)

    def generate_anchors(
        self, map_size: Tuple[Length, Length], window: tf.Tensor
    ) -> Tuple[tf.Tensor, Optional[Any]]:
        """Generates the anchors of a feature map, in pixels of the padded image, float32 [A, 4].

        If some are dropped, their rows among the anchors of all cells are returned, too, int32 [A].

        Args:
            map_size: height and width of the feature map.
            window: float32 [4], window of the padded image.
        """
        # Anchors in pixels do not depend on the image's size, so any size is right here.
        anchors = self.anchor_generator.generate([map_size], (1, 1))
        if not self.drops_crossing:
            return geometry.clip_to_window(anchors, window), None
        rows = _rows_inside(anchors, window)
        return tf.gather(anchors, rows), rows

    def propose(self, output: RpnOutput, windows: tf.Tensor) -> Proposals:
        """Decodes and suppresses; proposals are cut to the real images, windows [B, 4]."""
        boxes = BOX_CODER.decode(output.box_encodings, output.anchors).boxes
        scores = tf.nn.softmax(output.objectness_logits)
        survivors = multiclass_nms(
            boxes[:, :, tf.newaxis, :],
            scores[:, :, 1:],
            self.nms,
            clip_windows=windows,
            fields={"scores": scores},
        )
        # Crops are constant for the second stage: no gradient flows through their positions.
        regions = Regions(tf.stop_gradient(survivors.boxes), survivors.num)
        return Proposals(regions, survivors.scores, survivors.fields["scores"], boxes, scores)


def _rows_inside(anchors: tf.Tensor, window: tf.Tensor) -> Any:
    """Rows of the anchors [A, 4] that do not cross the window [4].

    The rows are a constant if anchors and window are, so that shapes stay static.
    """
    static_values: Tuple[Any, Any] = (tf.get_static_value(anchors), tf.get_static_value(window))
    if static_values[0] is not None and static_values[1] is not None:
        low_inside = (static_values[0][:, :2] >= static_values[1][:2]).all(axis=1)
        high_inside = (static_values[0][:, 2:] <= static_values[1][2:]).all(axis=1)
        return np.flatnonzero(low_inside & high_inside).astype(np.int32)
    inside = tf.concat([anchors[:, :2] >= window[:2], anchors[:, 2:] <= window[2:]], axis=1)
    return tf.where(tf.reduce_all(inside, axis=1))[:, 0]


def make_proposal_network(config: Any, is_training: bool) -> ProposalNetwork:
    """Builds the first stage of a `FasterRcnn` message, or raises ConfigError."""
    kind = config.first_stage_anchor_generator.WhichOneof("anchor_generator_oneof")
    if kind is not None and kind not in ANCHORS_IN_PIXELS:
        raise ConfigError(
            f"faster_rcnn.first_stage_anchor_generator.{kind} generates anchors in fractions of "
            "the image, but the first stage needs anchors in pixels; use one of "
            f"{list(ANCHORS_IN_PIXELS)}"
        )
    return ProposalNetwork(
        head=ProposalHead(
            conv_scope=make_arg_scope(
                config.first_stage_box_predictor_conv_hyperparams, is_training
            ),
            depth=config.first_stage_box_predictor_depth,
            kernel_size=config.first_stage_box_predictor_kernel_size,
            atrous_rate=config.first_stage_atrous_rate,
        ),
        anchor_generator=make_anchor_generator(config.first_stage_anchor_generator),
        nms=_nms_options(config, is_training),
        drops_crossing=is_training and not config.clip_anchors_to_image,
    )


def static_shapes(config: Any, is_training: bool) -> bool:
    """True if a `FasterRcnn` message needs ops that TPU and XLA can run."""
    return config.use_static_shapes and (is_training or config.use_static_shapes_for_eval)


def _nms_options(config: Any, is_training: bool) -> NmsOptions:
    """Reads the options of the proposals' suppression, or raises ConfigError."""
    # `use_combined_nms_in_first_stage` and `use_partitioned_nms_in_first_stage` choose between
    # kernels with equal results in the reference, and have no effect here.
    if config.first_stage_max_proposals < 1:
        raise ConfigError(
            f"faster_rcnn.first_stage_max_proposals must be 1 or more; given: "
            f"{config.first_stage_max_proposals}"
        )
    threshold = config.first_stage_nms_iou_threshold
    if not 0.0 <= threshold <= 1.0:
        raise ConfigError(
            f"faster_rcnn.first_stage_nms_iou_threshold must be 0 to 1; given: {threshold:g}"
        )
    options = NmsOptions(
        score_threshold=config.first_stage_nms_score_threshold,
        iou_threshold=threshold,
        max_per_class=config.first_stage_max_proposals,
        max_total=config.first_stage_max_proposals,
    )
    return replace(options, static_shapes=static_shapes(config, is_training))
