"""Evaluations during training: when they run, and when they end it."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import List, Optional

from estimator_det.console.printing import counted
from model_fn.checkpoints.find import find_checkpoint
from model_fn.evaluation import history
from model_fn.evaluation.history import Evaluation
from model_fn.evaluation.readers import evaluation_readers
from model_fn.evaluation.report import LINE, NOTHING, MetricValues
from model_fn.runs.context import RunContext
from model_fn.runs.evaluator import EvaluationRun
from model_fn.runs.training_end import last_step

_LOG = logging.getLogger(__name__)


class EvaluationSchedule:
    """Evaluates checkpoints as they are saved, or when it is time, keeps the best, and exports.

    The training session waits meanwhile, and keeps its graph and its position in the data. The
    checkpoint that training starts from is not evaluated; the last one always is. The first reader
    decides which checkpoint is best and when to stop.
    """

    def __init__(self, context: RunContext) -> None:
        config, options = context.config, context.options.evaluation
        self._ended_step = last_step(context.model_dir)
        readers = evaluation_readers(config, sample_1_of_n=options.sample_1_of_n)
        if options.on_training_data:
            readers += evaluation_readers(
                config, on_training_data=True, sample_1_of_n=options.training_data_sample_1_of_n
            )
        shown = LINE if context.options.progress else NOTHING
        self._first_reader = readers[0].name
        self._run = EvaluationRun(context, readers, shown=shown)
        self._run.check()
        self._model_dir, self._options = context.model_dir, options
        self._every_steps, self._throttle_secs = context.evaluation_steps, context.throttle_secs
        self._history: List[Evaluation] = []  # on the first reader
        self._evaluated_step: Optional[int] = None
        # Step and time of the last evaluation, or of the start of training.
        self._last_step, self._last_time = 0, 0.0
        self.metrics: MetricValues = {}

    def begin(self, step: int) -> bool:
        """Evaluates a step that an earlier run could not; True if training is to stop."""
        self._last_step, self._last_time = step, time.monotonic()
        self._history = history.read(self._model_dir, self._first_reader, step)
        self._evaluated_step = self._history[-1].step if self._history else None
        every = self._every_steps
        if every is not None and step and step % every == 0 and step != self._evaluated_step:
            self._evaluate(step)
        return self._is_exhausted()

    def after_save(self, step: int) -> bool:
        """Evaluates a checkpoint if that is due; True if training is to stop."""
        if not self._is_due(step):
            return False
        self._evaluate(step)
        return self._is_exhausted()

    def end(self, step: int) -> None:
        """Evaluates the last checkpoint and exports it to export/Servo, unless that is done."""
        if step != self._evaluated_step:
            self._evaluate(step)
        elif step == self._ended_step:
            return
        self._run.export_final()

    def wants_checkpoint(self, step: int) -> bool:
        """True if a step of an evaluation is reached, now or since the last evaluation."""
        return self._every_steps is not None and self._is_due(step)

    def _is_due(self, step: int) -> bool:
        every = self._every_steps
        if every is not None:
            # Multiples, so that a run that was interrupted evaluates the same steps.
            return step // every > self._last_step // every
        return time.monotonic() - self._last_time >= self._throttle_secs

    def _evaluate(self, step: int) -> None:
        self._last_step, self._last_time = int(step), time.monotonic()
        self._evaluated_step = int(step)
        checkpoint = find_checkpoint(self._model_dir)
        evaluations = self._run.evaluate(checkpoint)
        self._run.keep(evaluations, checkpoint)
        self.metrics = evaluations[0].metrics
        # Without matches, which are large.
        self._history.append(dataclasses.replace(evaluations[0], matches=None))

    def _is_exhausted(self) -> bool:
        """True if the metric has not improved in as many evaluations as `patience` allows."""
        options = self._options
        if options.best_metric is None or options.patience is None:
            return False
        without = history.evaluations_without_progress(
            self._history,
            options.best_metric,
            options.min_delta,
            lower_is_better=self._run.lower_is_better,
        )
        if without < options.patience:
            return False
        _LOG.warning(
            "Stopping early at step %d: %s has not improved in %s",
            self._last_step,
            options.best_metric,
            counted(without, "evaluation"),
        )
        return True
