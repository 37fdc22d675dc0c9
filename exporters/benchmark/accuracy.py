"""The metrics of a loaded model on records."""

from __future__ import annotations

from typing import Any, Dict, Optional

import numpy as np

from estimator_det.compat import tf
from estimator_det.detectors.base import Detections
from exporters.loaded_model import BOXES, CLASSES, NUM, SCORES, LoadedModel, resized
from inputs import pipeline as input_pipeline
from inputs import schema
from model_fn.evaluation.detections.scoring import identity_preprocessor, score, without_resizing
from model_fn.serving.graph import CLASS_OFFSET


def evaluate_model(
    model: LoadedModel, records_config: Any, num_images: Optional[int] = None
) -> Dict[str, float]:
    """The metrics of a model on records, image by image in their own sizes.

    Args:
        records_config: `TrainEvalPipelineConfig` with one evaluation reader, see
            `scoring.config_of_records`.
        num_images: Evaluates only the first ones; None for all.

    Returns:
        Values by name of the metric.
    """
    config = without_resizing(records_config)
    (reader,) = config.eval_input_reader
    make_dataset = input_pipeline.create_eval_input_fn(config, identity_preprocessor(), reader)

    def first_images() -> tf.data.Dataset:
        return make_dataset().take(-1 if num_images is None else num_images)

    def detect(features: Dict[str, np.ndarray]) -> Detections:
        pixels = features[schema.IMAGE][0].astype(np.uint8)
        outputs = model.run(resized(pixels, model.image_size)[None])
        boxes, scores = tf.constant(outputs[BOXES]), tf.constant(outputs[SCORES])
        return Detections(
            boxes=boxes,
            scores=scores,
            classes=tf.constant(outputs[CLASSES] - CLASS_OFFSET),
            num=tf.constant(outputs[NUM]),
            raw_boxes=boxes,
            raw_scores=scores[..., tf.newaxis],
        )

    return score(first_images, detect, config).metrics
