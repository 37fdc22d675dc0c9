"""The metrics of a loaded model on records."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, List, Optional

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.detectors.base import Detections
from exporters.detector import BOXES, CLASSES, NUM, SCORES, ModelDetector
from inputs import pipeline as input_pipeline
from inputs import schema
from model_fn.evaluation import diagnostics, eval_ops
from model_fn.model_fn import eval_categories
from model_fn.runs.detections_evaluation import as_read, untouched
from model_fn.runs.evaluation_report import EvaluationReport
from model_fn.serving.graph import CLASS_OFFSET
from model_fn.training.step import groundtruth_from_labels


def evaluate_model(
    model: ModelDetector, records_config: Any, num_images: Optional[int] = None
) -> Dict[str, float]:
    """The metrics of a model on records, image by image in their own sizes.

    Args:
        model: Loaded.
        records_config: `TrainEvalPipelineConfig` with one evaluation reader, see
            `detections_evaluation.config_of_records`.
        num_images: Evaluates only the first ones; None for all.

    Returns:
        Values by name of the metric.

    Raises:
        RunError: if a record has a fault that its reader does not skip.
    """
    config = as_read(records_config)
    (reader,) = config.eval_input_reader
    make_dataset = input_pipeline.create_eval_input_fn(config, untouched(), reader)
    with tf.Graph().as_default() as graph:
        dataset = make_dataset()
        if num_images is not None:
            dataset = dataset.take(num_images)
        batches = tf1.data.make_initializable_iterator(dataset)
        features, labels = batches.get_next()
        found = _placeholders()
        ops = eval_ops.evaluation_ops(
            found,
            groundtruth_from_labels(labels),
            features,
            eval_config=config.eval_config,
            categories=eval_categories(config),
        )
        ops.pop(diagnostics.EVAL_DIAGNOSTICS, None)
        values = {name: value for name, (value, _) in ops.items()}
        updates = [update for _, update in ops.values()]
        record = [tensor.name for tensor in (*features.values(), *labels.values())]
        setup = [tf1.tables_initializer(), batches.initializer]
    image = features[schema.IMAGE].name
    fields = [each.name for each in found if each is not None]
    progress = EvaluationReport(batch_size=1)
    progress.begin()
    # The model runs outside of this graph, so that it may run eagerly.
    with contextlib.closing(tf1.Session(graph=graph)) as session:
        session.run(setup)
        while True:
            try:
                read = dict(zip(record, session.run(record)))
            except tf.errors.OutOfRangeError:
                break
            detected = dict(zip(fields, _detect(model, read[image])))
            session.run(updates, {**read, **detected})
            progress.after_run(None, None)
        results: Dict[str, Any] = session.run(values)
    return {name: float(value) for name, value in results.items() if np.ndim(value) == 0}


def _placeholders() -> Detections:
    """Detections of one image."""
    shapes = {"boxes": [1, None, 4], "scores": [1, None], "classes": [1, None], "num": [1],
              "raw_boxes": [1, None, 4], "raw_scores": [1, None, 1]}  # fmt: skip
    return Detections(
        **{name: tf1.placeholder(tf.float32, shape) for name, shape in shapes.items()}
    )


def _detect(model: ModelDetector, pixels: np.ndarray) -> List[np.ndarray]:
    """The first fields of `Detections` for an image, float32 [1, h, w, 3]."""
    outputs = model.run(model.fitted(pixels[0].astype(np.uint8))[None])
    boxes, scores = outputs[BOXES], outputs[SCORES]
    return [boxes, scores, outputs[CLASSES] - CLASS_OFFSET, outputs[NUM], boxes, scores[..., None]]
