"""Evaluation runs: one checkpoint, or checkpoints as they appear."""

from __future__ import annotations

import functools
import logging
import math
import os
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from estimator_det.compat import require_v2_behavior, tf, tf1
from estimator_det.config.derived_models import evaluated_model
from estimator_det.config.problem import refuse
from estimator_det.config.rules import check
from estimator_det.detectors.base import make_preprocessor
from inputs import pipeline as input_pipeline
from inputs.bad_records.log import LOG_FILE, FaultLog
from inputs.checks.first_records import check_class_names
from model_fn.checkpoints.errors import CheckpointGoneError, DamagedCheckpointsError
from model_fn.checkpoints.find import find_checkpoint, refuse_model
from model_fn.checkpoints.repair import modified
from model_fn.checks.metric_names import check_best_metric, lower_is_better
from model_fn.drawing import charts
from model_fn.evaluation import history
from model_fn.evaluation.history import Evaluation
from model_fn.evaluation.matching import Matches
from model_fn.evaluation.readers import evaluation_folder, named_readers
from model_fn.evaluation.report import (
    LINE,
    NOTHING,
    TABLE,
    EvaluationReport,
    Metrics,
    report,
)
from model_fn.events import event_writer
from model_fn.runs.backends import Evaluator
from model_fn.runs.backends.estimator import make_estimator
from model_fn.runs.best_checkpoints import BestCheckpoints, export, export_best
from model_fn.runs.context import RunContext
from model_fn.runs.options import EvaluationOptions, TrainOptions
from model_fn.runs.training_end import TrainingEnd

_LOG = logging.getLogger(__name__)

POLL_SECS = 1.0  # between two searches for a new checkpoint
# Errors of records and their storage, after which another evaluation may succeed.
_DATA_ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.DataLossError,
    tf.errors.NotFoundError,
    tf.errors.UnavailableError,
)
FINAL_EXPORT = "Servo"  # folder of the last checkpoint's export, below model_dir/export


class Reader(NamedTuple):
    """A reader of a configuration that is evaluated on."""

    name: str  # events go to the folder eval_<name>
    config: Any  # `InputReader` proto
    sample_1_of_n: Optional[int]  # None for what the proto says


def evaluation_readers(
    pipeline_config: Any, *, on_training_data: bool = False, sample_1_of_n: Optional[int] = None
) -> List[Reader]:
    """Returns the evaluation readers, or the training reader; the default name is the number."""
    readers = named_readers(pipeline_config, on_training_data=on_training_data)
    return [Reader(name, reader, sample_1_of_n) for name, reader in readers.items()]


def evaluate_reader(
    pipeline_config: Any,
    evaluator: Evaluator,
    reader: Reader,
    checkpoint: str,
    *,
    shown: str = TABLE,
    matches: Optional[Dict[str, Matches]] = None,
) -> Evaluation:
    """Evaluates a checkpoint on a reader, and prints as `model_fn.evaluation.report` does.

    Faults of records are counted, written to bad_records.jsonl in the evaluation's folder, and
    printed in full if they are new. The thresholds of the best F1 are written to
    thresholds-<step>.json beside it. The matches are stored under the reader's name.
    """
    name, folder = reader.name, evaluation_folder(evaluator.model_dir, reader.name)
    faults = FaultLog(os.path.join(folder, LOG_FILE))
    hooks: List[tf1.train.SessionRunHook] = [_EndPreparation(folder)]
    if shown != NOTHING:
        hooks.append(EvaluationReport(pipeline_config.eval_config.batch_size))
    input_fn = input_pipeline.create_eval_input_fn(
        pipeline_config,
        make_preprocessor(evaluated_model(pipeline_config)),
        reader.config,
        reader.sample_1_of_n,
        faults,
    )
    values, results = evaluator.evaluate(
        input_fn, name=name, checkpoint_path=checkpoint, hooks=hooks
    )
    if matches is not None:
        matches[name] = results.matches
    return report(pipeline_config.model, name, folder, values, results, faults, shown=shown)


class _EndPreparation(tf1.train.SessionRunHook):
    """Makes the end of an evaluation faster, when its charts and events are written.

    Args:
        folder: Gets the events.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def after_create_session(self, session: Any, coord: Any) -> None:
        # While the session prepares the graph of the first batch.
        threading.Thread(target=charts.load).start()

    def end(self, session: tf1.Session) -> None:
        event_writer(self._folder)  # One that an Estimator opens also writes the graph.


class Evaluations:
    """Evaluates checkpoints on readers, keeps and exports the best, and records the results."""

    def __init__(
        self,
        pipeline_config: Any,
        evaluator: Evaluator,
        readers: List[Reader],
        options: EvaluationOptions,
        *,
        shown: str = LINE,
    ) -> None:
        self._config, self._evaluator, self._readers = pipeline_config, evaluator, readers
        self._options, self._shown = options, shown
        metric = options.best_metric
        check_best_metric(pipeline_config, metric)
        self.lower_is_better = metric is not None and lower_is_better(pipeline_config, metric)
        # An evaluation would refuse it only when its first checkpoint is trained.
        for reader in readers:
            check_class_names(reader.config)

    def evaluate(self, checkpoint: str) -> List[Evaluation]:
        return [
            evaluate_reader(self._config, self._evaluator, reader, checkpoint, shown=self._shown)
            for reader in self._readers
        ]

    def keep(self, evaluations: List[Evaluation], checkpoint: str) -> None:
        """Keeps and exports the checkpoint if it is among the best, and records its evaluations.

        The evaluation on the first reader decides, and is recorded last: its record says that
        nothing is left to do for this checkpoint.
        """
        options, model_dir = self._options, self._evaluator.model_dir
        if options.best_metric is not None:
            best = BestCheckpoints(
                model_dir,
                options.best_metric,
                options.keep_best,
                lower_is_better=self.lower_is_better,
            )
            best.offer(
                evaluations[0],
                checkpoint,
                lambda: export_best(self._config, self._evaluator, checkpoint),
            )
        for evaluation in reversed(evaluations):
            history.record(model_dir, evaluation)

    def export_final(self) -> None:
        if self._options.export_final:
            export(self._config, self._evaluator, FINAL_EXPORT)


def evaluate(
    config: Any,
    model_dir: str,
    options: Optional[TrainOptions] = None,
    *,
    checkpoint: Optional[str] = None,
    on_training_data: bool = False,
    matches: Optional[Dict[str, Matches]] = None,
) -> Dict[str, Metrics]:
    """Evaluates one checkpoint on every evaluation reader, or on the training data.

    A checkpoint that training deletes meanwhile is replaced by the last one that is there then.

    Args:
        config: The configuration, a `TrainEvalPipelineConfig` proto.
        model_dir: Folder of a run; it gets the events.
        options: Those of the run. `evaluation.sample_1_of_n` counts here; the others are about
            training.
        checkpoint: A prefix, or a folder for its last checkpoint; by default that of `model_dir`.
        on_training_data: Evaluate on the training data instead.
        matches: Gets the matches of each reader, by its name.

    Returns:
        Metrics by reader's name.

    Raises:
        FileNotFoundError: if there is no checkpoint.
        CheckpointGoneError: if the checkpoint of this prefix is deleted before it is read.
        DamagedCheckpointsError: if it cannot be read.
    """
    require_v2_behavior()
    every = (options or TrainOptions()).evaluation.sample_1_of_n
    readers = evaluation_readers(config, on_training_data=on_training_data, sample_1_of_n=every)
    checkpoint = checkpoint or model_dir
    while True:
        prefix = find_checkpoint(checkpoint)
        try:
            evaluator = _make_evaluator(config, model_dir)
            return {
                reader.name: evaluate_reader(
                    config, evaluator, reader, prefix, matches=matches
                ).metrics
                for reader in readers
            }
        except CheckpointGoneError as error:
            if not tf.io.gfile.isdir(checkpoint) or find_checkpoint(checkpoint) == prefix:
                raise
            _LOG.warning("%s; evaluating the next one", error)


def _make_evaluator(pipeline_config: Any, model_dir: str) -> Evaluator:
    refuse(each for each in check(pipeline_config) if each.field.endswith("].name"))
    return Evaluator(model_dir, functools.partial(make_estimator, pipeline_config, model_dir))


def continuous_eval(
    config: Any,
    model_dir: str,
    options: Optional[TrainOptions] = None,
    *,
    checkpoint_dir: Optional[str] = None,
    on_training_data: bool = False,
    max_retries: int = 0,
    timeout_secs: Optional[float] = None,
) -> Dict[str, Metrics]:
    """Evaluates checkpoints as they appear, until training is over.

    Args:
        config: The configuration, a `TrainEvalPipelineConfig` proto.
        model_dir: Folder of a run; it gets the events.
        options: Those of the run. Training is over when it says so itself, or at the step
            `num_train_steps`; without this option at the configured step, unless a process still
            trains. Of `evaluation`, the sampling, `throttle_secs` and the best checkpoints count.
        checkpoint_dir: By default `model_dir`.
        on_training_data: Evaluate on the training data instead.
        max_retries: Number of evaluations that may fail on their data; negative for any number.
        timeout_secs: End after this time without a new checkpoint; by default never.

    Returns:
        Metrics of the last evaluation, by reader's name; empty if there was no checkpoint.

    Raises:
        ConfigError: if no evaluation computes `evaluation.best_metric`.
        FileNotFoundError: if `checkpoint_dir` is a published model.
    """
    require_v2_behavior()
    context = RunContext(config, model_dir, options or TrainOptions())
    evaluation, folder = context.options.evaluation, checkpoint_dir or model_dir
    is_certain = context.options.num_train_steps is not None
    end = TrainingEnd(folder, context.num_steps, is_certain=is_certain)
    readers = evaluation_readers(
        config, on_training_data=on_training_data, sample_1_of_n=evaluation.sample_1_of_n
    )
    evaluations = Evaluations(config, _make_evaluator(config, model_dir), readers, evaluation)
    return follow(evaluations, folder, end, context.throttle_secs, timeout_secs, max_retries)


def follow(
    evaluations: Evaluations,
    checkpoint_dir: str,
    end: TrainingEnd,
    min_interval_secs: float,
    timeout_secs: Optional[float] = None,
    max_retries: int = 0,
    is_over: Optional[Callable[[], bool]] = None,
) -> Dict[str, Metrics]:
    """Evaluates checkpoints as `continuous_eval` does.

    Args:
        is_over: Returns True if training is over; by default, if `end` says so.
    """
    refuse_model(checkpoint_dir)
    latest: Dict[str, Metrics] = {}
    failures = 0
    is_over = is_over or end.is_reached
    for checkpoint in _appearing(checkpoint_dir, min_interval_secs, timeout_secs, is_over):
        try:
            results = evaluations.evaluate(checkpoint)
        except (CheckpointGoneError, DamagedCheckpointsError) as error:
            # Training moves it aside when it resumes, or has deleted it as too old.
            _LOG.warning("%s is not evaluated: %s", checkpoint, error)
            continue
        except _DATA_ERRORS as error:
            failures += 1
            if 0 <= max_retries < failures:
                raise
            _LOG.warning("Evaluation of %s failed (%d so far): %s", checkpoint, failures, error)
            continue
        evaluations.keep(results, checkpoint)
        latest = {result.reader: result.metrics for result in results}
        step = results[0].step
        if end.is_last(step):
            _LOG.info("Training ended at step %d: no more evaluations", step)
            break
    return latest


def _appearing(
    checkpoint_dir: str,
    min_interval_secs: float,
    timeout_secs: Optional[float],
    is_over: Callable[[], bool],
) -> Iterator[str]:
    """Checkpoints as they appear, until none has for `timeout_secs`, or training is over.

    Does not wait after the last checkpoint of a training that is over.
    """
    last: Optional[Tuple[str, int]] = None
    since = time.monotonic()
    evaluated_at = -math.inf
    while True:
        over = is_over()  # Before the search: what it finds is the last checkpoint, then.
        prefix = tf1.train.latest_checkpoint(checkpoint_dir)
        # The time identifies one that replaced a damaged one of the same step.
        newest = None if prefix is None else (prefix, modified(f"{prefix}.index"))
        now = time.monotonic()
        is_due = over or now - evaluated_at >= min_interval_secs
        if newest is not None and newest != last and is_due:
            last, evaluated_at = newest, now
            yield newest[0]
            since = time.monotonic()
            continue
        if newest is None or newest == last:
            if over:
                return
            if timeout_secs is not None and now - since >= timeout_secs:
                _LOG.info("No new checkpoint in %s for %g seconds", checkpoint_dir, timeout_secs)
                return
        time.sleep(POLL_SECS)
