"""Pictures of an evaluation for TensorBoard: detections beside groundtruth."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, Dict, Iterator, List, Optional, Sequence

import numpy as np

from estimator_det.config.field_rules import no_effect
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.files.mask_regions import paste_mask, resize_mask
from estimator_det.protos import eval_pb2, pipeline_pb2
from model_fn.drawing.boxes import (
    DrawOptions,
    draw_boxes,
    jpeg,
    keypoint_edges,
    picture_summary,
)
from model_fn.evaluation.metrics.base import EvaluatedBatch
from model_fn.evaluation.metrics.run_lengths import ImageSizes

IMAGES_TAG = "Detections_Left_Groundtruth_Right"


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_keypoint_edges(
    config: pipeline_pb2.TrainEvalPipelineConfig, _: str
) -> Iterator[Problem]:
    """Edges connect keypoints that records or detections have."""
    coder = config.model.ssd.box_coder.keypoint_box_coder
    counts = [coder.num_keypoints, *(reader.num_keypoints for reader in config.eval_input_reader)]
    present = [count for count in counts if count]
    edges = config.eval_config.keypoint_edge
    if edges and not present and config.eval_config.retain_original_images:
        yield no_effect("eval_config.keypoint_edge", "no eval_input_reader sets num_keypoints")
        return
    for index, edge in enumerate(edges):
        for end in ("start", "end"):
            value = getattr(edge, end)
            if present and not 0 <= value < min(present):
                yield error(
                    f"eval_config.keypoint_edge[{index}].{end}",
                    f"is {value}, and there are {min(present)} keypoints",
                    f"give one of 0 to {min(present) - 1}",
                )


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_channels(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    if (
        config.eval_config.retain_original_image_additional_channels
        and config.eval_config.retain_original_images
        and not any(reader.num_additional_channels for reader in config.eval_input_reader)
    ):
        yield no_effect(
            "eval_config.retain_original_image_additional_channels",
            "no eval_input_reader sets num_additional_channels",
        )


class Pictures:
    """The first images of an evaluation: detections on the left, groundtruth on the right.

    Further to the right groundtruth on the additional channels, if there are any: the first three
    as colours, fewer than three as grey.
    """

    def __init__(
        self, eval_config: eval_pb2.EvalConfig, categories: Sequence[Dict[str, Any]]
    ) -> None:
        self._names = {category["id"]: category["name"] for category in categories}
        self._max_images = eval_config.num_visualizations
        self._options = DrawOptions(
            min_score=eval_config.min_score_threshold,
            max_boxes=eval_config.max_num_boxes_to_visualize,
            skip_labels=eval_config.skip_labels,
            skip_scores=eval_config.skip_scores,
            keypoint_edges=keypoint_edges(eval_config),
        )
        self._jpegs: List[bytes] = []

    @property
    def num_missing(self) -> int:
        """Number of images that are still drawn."""
        return self._max_images - len(self._jpegs)

    def add(
        self,
        batch: EvaluatedBatch,
        sizes: ImageSizes,
        images: np.ndarray,
        channels: Optional[np.ndarray] = None,
        masks: Sequence[Optional[np.ndarray]] = (None, None),
    ) -> None:
        """Adds a batch.

        Args:
            images: uint8 [B, H, W, 3].
            channels: Additional channels, uint8 [B, H, W, A].
            masks: Of detections and groundtruth, as `encode_masks` takes them.
        """
        for row, image in enumerate(itertools.islice(batch.images(), self.num_missing)):
            height, width = sizes.real[row]
            pixels = [x[row, :height, :width] for x in (images, channels) if x is not None]
            image_masks = [None if x is None else x[row] for x in masks]
            normalized = _normalized(image, sizes.original[row].astype(np.float32))
            self._jpegs.append(jpeg(self._side_by_side(pixels, normalized, *image_masks)))

    def _side_by_side(
        self, pixels: List[np.ndarray], image: EvaluatedBatch, detected: Any, true: Any
    ) -> np.ndarray:
        size = height, width = pixels[0].shape[0], pixels[0].shape[1]

        boxes = image.detection_boxes
        left = draw_boxes(
            pixels[0],
            boxes,
            self._labels(image.detection_classes),
            image.detection_scores,
            colors=image.detection_classes,
            keypoints=image.detection_keypoints,
            keypoint_scores=image.detection_keypoint_scores,
            mask_of=None if detected is None else lambda i: paste_mask(detected[i], boxes[i], size),
            options=self._options,
        )
        masks = None if true is None else true[:, :height, :width]
        groundtruth = [
            draw_boxes(
                background,
                image.boxes,
                self._labels(image.classes),
                colors=image.classes,
                keypoints=image.keypoints,
                mask_of=None if masks is None else lambda i: resize_mask(masks[i], size),
                options=dataclasses.replace(self._options, max_boxes=None),
            )
            for background in pixels
        ]
        return np.concatenate([left, *groundtruth], axis=1)

    def _labels(self, classes: np.ndarray) -> List[str]:
        return [self._names.get(k, str(k)) for k in classes.tolist()]

    def summary(self) -> bytes:
        """A serialized Summary of the pictures, which Estimator writes."""
        return picture_summary({f"{IMAGES_TAG}/{i}": x for i, x in enumerate(self._jpegs)})


def _normalized(image: EvaluatedBatch, size: np.ndarray) -> EvaluatedBatch:
    """The image with boxes and keypoints as shares of its height and width."""
    names = ("boxes", "detection_boxes", "keypoints", "detection_keypoints")
    values = {name: getattr(image, name) for name in names}
    return image._replace(
        **{k: x / np.tile(size, x.shape[-1] // 2) for k, x in values.items() if x is not None}
    )
