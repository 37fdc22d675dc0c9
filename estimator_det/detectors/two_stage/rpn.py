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
        head: Feature map to codes and objectness.
        anchor_generator: Feature map size to anchors in pixels.
        nms: Which proposals remain.
        drops_crossing: Whether anchors that cross the border are left out, as in training;
            otherwise anchors are clipped to the image.
    """

    head: ProposalHead
    anchor_generator: AnchorGenerator
    nms: NmsOptions
    drops_crossing: bool

    def predict(self, features: tf.Tensor, inputs: tf.Tensor) -> RpnOutput:
        """Feature map [B, h, w, C] of inputs [B, H, W, C] -> codes and objectness of anchors.

        Raises:
            ConfigError: if the generator lays anchors over more than one feature map.
        """
        net, raw = self.head.predict(features, self.anchor_generator.num_per_location)
        codes, logits = (tf.cast(tensor, tf.float32) for tensor in raw)
        anchors, rows = self.lay_anchors(height_and_width(features), padded_window(inputs))
        if rows is not None:
            codes, logits = tf.gather(codes, rows, axis=1), tf.gather(logits, rows, axis=1)
        return RpnOutput(net, anchors, codes, logits)

    def lay_anchors(
        self, map_size: Tuple[Length, Length], window: tf.Tensor
    ) -> Tuple[tf.Tensor, Optional[Any]]:
        """Anchors of a feature map, in pixels of the padded image, float32 [A, 4].

        With their rows among the anchors of all cells where some are left out, int32 [A].

        Args:
            map_size: Height and width of the feature map.
            window: float32 [4], of the padded image.
        """
        # Anchors in pixels do not depend on the image's size; a size of 1 x 1 says so.
        anchors = self.anchor_generator.generate([map_size], (1, 1))
        if not self.drops_crossing:
            return geometry.clip_to_window(anchors, window), None
        rows = _rows_inside(anchors, window)
        return tf.gather(anchors, rows), rows

    def propose(self, output: RpnOutput, windows: tf.Tensor) -> Proposals:
        """Decodes and suppresses; proposals are cut to the real images, windows [B, 4]."""
        boxes = BOX_CODER.decode(output.box_encodings, output.anchors).boxes
        scores = tf.nn.softmax(output.objectness_logits)
        kept = multiclass_nms(
            boxes[:, :, tf.newaxis, :],
            scores[:, :, 1:],
            self.nms,
            clip_windows=windows,
            fields={"scores": scores},
        )
        # No gradient flows from the second stage through the place of a crop.
        regions = Regions(tf.stop_gradient(kept.boxes), kept.num)
        return Proposals(regions, kept.scores, kept.fields["scores"], boxes, scores)


def _rows_inside(anchors: tf.Tensor, window: tf.Tensor) -> Any:
    """Rows of the anchors [A, 4] that do not cross the window [4].

    A constant where anchors and window are, so that shapes stay static.
    """
    known: Tuple[Any, Any] = (tf.get_static_value(anchors), tf.get_static_value(window))
    if known[0] is not None and known[1] is not None:
        low_inside = (known[0][:, :2] >= known[1][:2]).all(axis=1)
        high_inside = (known[0][:, 2:] <= known[1][2:]).all(axis=1)
        return np.flatnonzero(low_inside & high_inside).astype(np.int32)
    inside = tf.concat([anchors[:, :2] >= window[:2], anchors[:, 2:] <= window[2:]], axis=1)
    return tf.where(tf.reduce_all(inside, axis=1))[:, 0]


def make_proposal_network(config: Any, is_training: bool) -> ProposalNetwork:
    """The first stage of a `FasterRcnn` message.

    Raises:
        ConfigError: if a part is unknown or an option out of range.
    """
    kind = config.first_stage_anchor_generator.WhichOneof("anchor_generator_oneof")
    if kind is not None and kind not in ANCHORS_IN_PIXELS:
        raise ConfigError(
            f"faster_rcnn.first_stage_anchor_generator.{kind}: lays anchors in fractions of the "
            f"image; the first stage takes anchors in pixels: one of {list(ANCHORS_IN_PIXELS)}"
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
    """Whether a `FasterRcnn` message asks for what TPU and XLA can run."""
    return config.use_static_shapes and (is_training or config.use_static_shapes_for_eval)


def _nms_options(config: Any, is_training: bool) -> NmsOptions:
    """`use_combined_nms_in_first_stage` and `use_partitioned_nms_in_first_stage` choose between
    kernels of one result in the reference, and change nothing here.
    """
    if config.first_stage_max_proposals < 1:
        raise ConfigError(
            "faster_rcnn.first_stage_max_proposals: must be 1 or more; got "
            f"{config.first_stage_max_proposals}"
        )
    threshold = config.first_stage_nms_iou_threshold
    if not 0.0 <= threshold <= 1.0:
        raise ConfigError(
            f"faster_rcnn.first_stage_nms_iou_threshold: must lie within 0 to 1; got {threshold:g}"
        )
    options = NmsOptions(
        score_threshold=config.first_stage_nms_score_threshold,
        iou_threshold=threshold,
        max_per_class=config.first_stage_max_proposals,
        max_total=config.first_stage_max_proposals,
    )
    return replace(options, static_shapes=static_shapes(config, is_training))
