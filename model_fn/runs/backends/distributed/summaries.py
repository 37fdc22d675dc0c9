"""What a TF2 loop writes to TensorBoard: the tags of an Estimator's training."""

from __future__ import annotations

from typing import Any

from estimator_det.compat import tf, tf1
from inputs import schema
from model_fn.training import input_images, step
from model_fn.training.loop_step import LoopStep, Outcome
from model_fn.training.train_op import gradient_summaries


class LoopSummary:
    """Losses, counts, pictures of the batch, and gradients where configured."""

    def __init__(self, pipeline_config: Any, loop_step: LoopStep) -> None:
        self._preprocess = loop_step.network.detector.preprocess
        self._reader = pipeline_config.train_input_reader
        self._function: Any = None

    def __call__(self, outcome: Outcome) -> bytes:
        """The serialized Summary of a call's last step."""
        figures = {**outcome.scalars, **outcome.counts, "loss": outcome.scalars[step.TOTAL_LOSS]}
        summary = tf1.Summary()
        for tag, value in figures.items():
            summary.value.add(tag=tag, simple_value=float(value))
        features, labels = outcome.batches[0]
        labels = {key: value for key, value in labels.items() if key in schema.LABELS}
        tensors = (features[schema.IMAGE], labels, outcome.gradients)
        if self._function is None:
            # Traced once: lengths of a batch may change.
            specs = tf.nest.map_structure(
                lambda tensor: tf.TensorSpec([None] * tensor.shape.rank, tensor.dtype), tensors
            )
            self._function = tf.function(self._draw, input_signature=specs, autograph=False)
        drawn: bytes = self._function(*tensors).numpy()
        return summary.SerializeToString() + drawn  # One after the other, they are one message.

    def _draw(self, images: tf.Tensor, labels: Any, gradients: Any) -> tf.Tensor:
        with tf.device("/cpu:0"):
            groundtruth = step.groundtruth_from_labels(labels)
            pictures = input_images.summary(
                {schema.IMAGE: images}, groundtruth, self._preprocess, self._reader
            )
            histograms = gradient_summaries(gradients) if gradients else []
            return tf.raw_ops.MergeSummary(inputs=[pictures, *histograms])
