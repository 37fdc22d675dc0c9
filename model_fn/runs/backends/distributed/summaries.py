"""What a TF2 loop writes to TensorBoard: the tags of an Estimator's training."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import numpy as np

from estimator_det.compat import eagerly, tf, tf1
from inputs import schema
from model_fn.evaluation.report import write_figures
from model_fn.runs.backends.distributed.session import LoopSession
from model_fn.training import input_images, step
from model_fn.training.loop_step import LoopStep
from model_fn.training.train_op import gradient_summaries


class LoopSummaries(tf1.train.SessionRunHook):
    """Writes losses, counts, pictures of the batch, and gradients where configured.

    After the first call, and then every so many steps.

    Args:
        pipeline_config: `TrainEvalPipelineConfig` proto.
        model_dir: Gets the events.
        loop_step: Has the detector.
        every_steps: Steps between two summaries.
    """

    def __init__(
        self, pipeline_config: Any, model_dir: str, loop_step: LoopStep, every_steps: int
    ) -> None:
        self._model_dir = model_dir
        self._timer = tf1.train.SecondOrStepTimer(every_steps=every_steps)
        preprocess = loop_step.network.detector.preprocess
        self._artist = _Artist(preprocess, pipeline_config.train_input_reader)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_values
        session: LoopSession = run_context.session
        outcome = session.outcome
        assert outcome is not None  # of the call
        number = session.run(tf1.train.get_global_step())
        if not self._timer.should_trigger_for_step(number):
            return
        self._timer.update_last_triggered_step(number)
        figures: Dict[str, Any] = {**outcome.scalars, **outcome.counts}
        figures["loss"] = outcome.scalars[step.TOTAL_LOSS]
        write_figures(
            self._model_dir, {name: float(value) for name, value in figures.items()}, number
        )
        features, labels = outcome.batches[0]
        labels = {key: value for key, value in labels.items() if key in schema.LABELS}
        given = ({schema.IMAGE: features[schema.IMAGE]}, labels, outcome.gradients)
        with eagerly():
            arrays = tf.nest.map_structure(lambda tensor: tensor.numpy(), given)
        drawn = self._artist.draw(arrays)
        tf1.summary.FileWriterCache.get(self._model_dir).add_summary(drawn, number)

    def end(self, session: LoopSession) -> None:
        del session
        tf1.summary.FileWriterCache.get(self._model_dir).flush()


class _Artist:
    """Makes the summaries that operations of TF1 make, in a graph of their own.

    Args:
        preprocess: The detector's.
        reader: `InputReader` proto of training.
    """

    def __init__(self, preprocess: Callable[..., Any], reader: Any) -> None:
        self._preprocess, self._reader = preprocess, reader
        self._session: Optional[tf1.Session] = None
        self._fed: Any = None
        self._drawn: Any = None

    def draw(self, arrays: Any) -> bytes:
        """A serialized Summary of features, labels and gradients."""
        if self._session is None:
            self._build(arrays)
        assert self._session is not None
        fed = dict(zip(tf.nest.flatten(self._fed), tf.nest.flatten(arrays)))
        drawn: bytes = self._session.run(self._drawn, fed)
        return drawn

    def _build(self, arrays: Any) -> None:
        def placeholder(array: np.ndarray) -> tf.Tensor:
            return tf1.placeholder(array.dtype, [None] * array.ndim)

        with tf.Graph().as_default() as graph:
            self._fed = tf.nest.map_structure(placeholder, arrays)
            features, labels, gradients = self._fed
            groundtruth = step.groundtruth_from_labels(labels)
            images = input_images.summary(features, groundtruth, self._preprocess, self._reader)
            histograms = gradient_summaries(gradients) if gradients else []
            self._drawn = tf1.summary.merge([images, *histograms], collections=[])
        self._session = tf1.Session(graph=graph)
