"""What a TF2 loop writes to TensorBoard: the tags of an Estimator's training."""

from __future__ import annotations

from typing import Any, Dict

from estimator_det.compat import eagerly, tf, tf1
from model_fn.runs.backends.distributed.session import LoopSession
from model_fn.runs.evaluation_report import write_figures
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
        detector, reader = loop_step.network.detector, pipeline_config.train_input_reader

        @tf.function(autograph=False, reduce_retracing=True)
        def draw(features: Any, labels: Any, gradients: Any) -> tf.Tensor:
            groundtruth = step.groundtruth_from_labels(labels)
            images = input_images.summary(features, groundtruth, detector.preprocess, reader)
            histograms = gradient_summaries(gradients) if gradients else []
            return tf1.summary.merge([images, *histograms], collections=[])

        self._draw = draw

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
        with eagerly():
            figures = {name: float(value) for name, value in figures.items()}
            features, labels = outcome.batches[0]
            drawn = self._draw(features, labels, outcome.gradients).numpy()
        write_figures(self._model_dir, figures, number)
        tf1.summary.FileWriterCache.get(self._model_dir).add_summary(drawn, number)

    def end(self, session: LoopSession) -> None:
        del session
        tf1.summary.FileWriterCache.get(self._model_dir).flush()
