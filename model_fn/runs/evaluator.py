"""Evaluation runs: one checkpoint, or checkpoints as they appear."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import os
import time
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Tuple

from estimator_det.compat import require_v2_behavior, tf, tf1
from estimator_det.config.derived_models import evaluated_model
from estimator_det.config.rules import require
from estimator_det.detectors.base import build_preprocessor
from estimator_det.errors import CheckpointGoneError, DamagedCheckpointsError, UsageError
from estimator_det.files import AnyPath, is_remote, matching
from estimator_det.protos import pipeline_pb2
from inputs import pipeline as input_pipeline
from inputs import tpu as tpu_input
from inputs.bad_records.log import LOG_FILE, FaultLog
from inputs.checks.first_records import check_class_names
from inputs.records.stream import input_patterns
from inputs.records.tfrecord import record_offsets
from model_fn.checkpoints.find import find_checkpoint, refuse_model
from model_fn.checkpoints.repair import modified
from model_fn.checks.metric_names import check_best_metric, lower_is_better
from model_fn.evaluation import history, report
from model_fn.evaluation.best_checkpoints import BestCheckpoints
from model_fn.evaluation.history import Evaluation
from model_fn.evaluation.readers import Reader, evaluation_folder, evaluation_readers
from model_fn.model_fn import ModelFn
from model_fn.runs import exports
from model_fn.runs.backends import tpu_estimator
from model_fn.runs.backends.base import make_estimator
from model_fn.runs.context import RunContext
from model_fn.runs.options import TrainOptions
from model_fn.runs.precision import network_types, with_precision
from model_fn.runs.training_end import TrainingEnd

_LOG = logging.getLogger(__name__)

POLL_SECS = 1.0  # between two searches for a new checkpoint
# Records of some fifty photographs. From a hundred records on, an optimized graph takes less time.
_SHORT_BYTES, _SHORT_RECORDS = 2**22, 100
# Errors of records and their storage, after which another evaluation may succeed.
_DATA_ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.DataLossError,
    tf.errors.NotFoundError,
    tf.errors.UnavailableError,
)


class EvaluationRun:
    """Evaluates checkpoints of a run on readers, keeps and exports the best, records the results.

    An Estimator does it, or with `options.tpu` the run's TPUEstimator. `shown` is the amount that
    is printed, see `model_fn.evaluation.report`.
    """

    def __init__(
        self, context: RunContext, readers: List[Reader], *, shown: str = report.LINE
    ) -> None:
        self.context, self._readers, self._shown = context, readers, shown
        if context.config.eval_config.HasField("tiles"):
            _LOG.warning(
                "eval_config.tiles has no effect here: evaluations see whole images. "
                "estimator-det evaluate, without --continuous, uses it"
            )
        tpu = context.options.tpu
        self._steps: Optional[int] = None  # all batches
        if tpu is not None and tpu.evaluates:
            self._steps = tpu_estimator.evaluation_steps(context.config)

    def running(self) -> ContextManager[None]:
        """Context manager: the engine can evaluate; its errors become errors of a run."""
        if self.context.options.tpu is None:
            return contextlib.nullcontext()
        return tpu_estimator.TpuBackend(self.context).running()

    def check(self) -> None:
        """Refuses before training what an evaluation of its first checkpoint would refuse."""
        check_best_metric(self.context.config, self.context.options.evaluation.best_metric)
        for reader in self._readers:
            label_map = self.context.label_map(reader.config.label_map_path)
            check_class_names(reader.config, label_map=label_map)

    @property
    def lower_is_better(self) -> bool:
        """True if the lowest value of the metric that decides is the best."""
        metric = self.context.options.evaluation.best_metric
        return metric is not None and lower_is_better(self.context.config, metric)

    def evaluate(self, checkpoint: str) -> List[Evaluation]:
        return [self.evaluate_on(reader, checkpoint) for reader in self._readers]

    def evaluate_on(self, reader: Reader, checkpoint: str) -> Evaluation:
        """Evaluates a checkpoint on a reader, and prints the results.

        Faults of records are counted, written to bad_records.jsonl in the evaluation's folder, and
        printed in full if they are new. The thresholds of the best F1 are written to
        thresholds-<step>.json beside it.
        """
        config = self.context.config
        folder = evaluation_folder(self.context.model_dir, reader.name)
        faults = FaultLog(os.path.join(folder, LOG_FILE))
        hooks: List[tf1.train.SessionRunHook] = [report.EndPreparation(folder)]
        if self._shown != report.NOTHING:
            hooks.append(report.EvaluationProgress(config.eval_config.batch_size))
        input_fn = input_pipeline.build_eval_input_fn(
            config,
            build_preprocessor(evaluated_model(config)),
            reader.config,
            reader.sample_1_of_n,
            faults,
            self.context.label_map(reader.config.label_map_path),
        )
        if self._steps is not None:
            input_fn = tpu_input.make_tpu_input_fn(input_fn, evaluates=True)
        model_fn = self._make_model_fn()
        is_short = _is_short(reader)
        engine = self._make_estimator(
            model_fn,
            params={"checkpoint": checkpoint, "is_short": is_short},
            session_config=report.session_config(is_short=is_short),
        )
        values = engine.evaluate(
            input_fn, self._steps, hooks, checkpoint_path=checkpoint, name=reader.name
        )
        assert model_fn.accumulator is not None
        results = model_fn.accumulator.results
        return report.report(
            config.model, reader.name, folder, values, results, faults, shown=self._shown
        )

    def _make_model_fn(self) -> ModelFn:
        paths = (reader.label_map_path for reader in self.context.config.eval_input_reader)
        return ModelFn(
            self.context.config,
            use_tpu=self.context.options.tpu is not None,
            label_map=self.context.label_map(next(filter(None, paths), "")),
            types=network_types(self.context.options),
        )

    def _make_estimator(
        self, model_fn: ModelFn, params: Optional[Dict[str, Any]] = None, **run_options: Any
    ) -> Any:
        context = self.context
        options: Dict[str, Any] = {"seed": context.options.seed, "params": params}
        tpu = context.options.tpu
        if tpu is not None:
            return tpu_estimator.make_estimator(
                model_fn, context.config, context.model_dir, tpu=tpu, **options
            )
        return make_estimator(model_fn, context.model_dir, **options, **run_options)

    def keep(self, evaluations: List[Evaluation], checkpoint: str) -> None:
        """Keeps and exports the checkpoint if it is among the best, and records its evaluations.

        The evaluation on the first reader decides, and is recorded last: its record says that
        nothing is left to do for this checkpoint.
        """
        options, model_dir = self.context.options.evaluation, self.context.model_dir
        if options.best_metric is not None:
            best = BestCheckpoints(
                model_dir,
                options.best_metric,
                options.keep_best,
                lower_is_better=self.lower_is_better,
            )
            try:
                best.offer(
                    evaluations[0],
                    checkpoint,
                    lambda copy: exports.export_best(self.context, self._exporter(), copy),
                )
            except CheckpointGoneError:
                _LOG.warning(
                    "%s is one of the best, but training deleted it during the evaluation, so it "
                    "is not kept. A greater --keep_checkpoint_max of the training prevents this",
                    checkpoint,
                )
        self.record(evaluations)

    def record(self, evaluations: List[Evaluation]) -> None:
        """Writes the evaluations of a checkpoint to `evaluations.jsonl`."""
        for evaluation in reversed(evaluations):
            history.record(self.context.model_dir, evaluation)

    def export_final(self) -> None:
        if self.context.options.evaluation.export_final:
            exports.export(self.context, self._exporter(), exports.FINAL)

    def _exporter(self) -> Any:
        return self._make_estimator(self._make_model_fn())


def _is_short(reader: Reader) -> bool:
    """True if preparing the graph for speed would take longer than it saves; never on a GPU."""
    patterns = input_patterns(reader.config)
    # A GPU would get the weights anew for each image.
    if any(map(is_remote, patterns)) or tf.config.list_physical_devices("GPU"):
        return False
    paths = [*filter(os.path.isfile, itertools.chain.from_iterable(map(matching, patterns)))]
    if sum(map(os.path.getsize, paths)) > _SHORT_BYTES:
        return False
    records = itertools.chain.from_iterable(map(record_offsets, paths))
    return len([*itertools.islice(records, _SHORT_RECORDS + 1)]) <= _SHORT_RECORDS


def evaluate(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    model_dir: AnyPath,
    options: Optional[TrainOptions] = None,
    *,
    checkpoint: Optional[AnyPath] = None,
    on_training_data: bool = False,
) -> List[Evaluation]:
    """Evaluates one checkpoint on every evaluation reader, or on the training data instead.

    Args:
        model_dir: Folder of a run; it gets the events, and a line of `evaluations.jsonl`.
        options: Options of the run; `evaluation.sample_1_of_n` and `precision` count here.
        checkpoint: A prefix, or a folder for its last checkpoint; by default `model_dir`.
    """
    _require(config, on_training_data)
    run = make_run(config, model_dir, options, on_training_data, report.TABLE)
    return evaluate_newest(run, os.fspath(checkpoint or model_dir))


def evaluate_newest(run: EvaluationRun, checkpoint: str) -> List[Evaluation]:
    """Evaluates a prefix, or the last checkpoint of a folder.

    A checkpoint that training deletes meanwhile is replaced by the newest.
    """
    while True:
        prefix = find_checkpoint(checkpoint)
        try:
            evaluations = run.evaluate(prefix)
        except CheckpointGoneError as error:
            if not tf.io.gfile.isdir(checkpoint) or find_checkpoint(checkpoint) == prefix:
                raise
            _LOG.warning("%s; evaluating the next one", error)
        else:
            run.record(evaluations)
            return evaluations


def _require(config: pipeline_pb2.TrainEvalPipelineConfig, on_training_data: bool) -> None:
    reader = "train_input_reader" if on_training_data else "eval_input_reader"
    require(config, "model", "graph_rewriter", "eval_config", reader)


def make_run(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    model_dir: AnyPath,
    options: Optional[TrainOptions],
    on_training_data: bool,
    shown: str = report.LINE,
) -> EvaluationRun:
    """A run that only evaluates, on this machine, by a configuration without errors."""
    require_v2_behavior()
    options = dataclasses.replace(options or TrainOptions(), tpu=None)
    readers = evaluation_readers(
        config,
        on_training_data=on_training_data,
        sample_1_of_n=options.evaluation.sample_1_of_n,
    )
    context = RunContext(with_precision(config, options), os.fspath(model_dir), options)
    return EvaluationRun(context, readers, shown=shown)


def continuous_eval(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    model_dir: AnyPath,
    options: Optional[TrainOptions] = None,
    *,
    checkpoint_dir: Optional[AnyPath] = None,
    on_training_data: bool = False,
    max_retries: int = 0,
    timeout_secs: Optional[float] = None,
) -> List[Evaluation]:
    """Evaluates checkpoints as they appear, until training is over.

    Training is over when it says so itself, or at the step `options.num_train_steps`; without this
    option at the configured step, unless a process still trains.

    Args:
        options: Options of the run. Of `evaluation`, the sampling, `throttle_secs` and the best
            checkpoints count, and `precision`.
        checkpoint_dir: By default `model_dir`.
        max_retries: Number of evaluations that may fail on their data; negative for any number.
        timeout_secs: End after this time without a new checkpoint; by default never.

    Returns:
        The last evaluation on each reader; empty if there was no checkpoint.
    """
    _require(config, on_training_data)
    run = make_run(config, model_dir, options, on_training_data)
    folder = os.fspath(checkpoint_dir or model_dir)
    return follow_training(run, folder, timeout_secs, max_retries)


def follow_training(
    run: EvaluationRun, checkpoint_dir: str, timeout_secs: Optional[float], max_retries: int
) -> List[Evaluation]:
    """Evaluates checkpoints as `continuous_eval` does."""
    run.check()
    is_certain = run.context.options.num_train_steps is not None
    end = TrainingEnd(checkpoint_dir, run.context.num_steps, is_certain=is_certain)
    return follow(run, checkpoint_dir, end, timeout_secs, max_retries)


def follow(
    run: EvaluationRun,
    checkpoint_dir: str,
    end: TrainingEnd,
    timeout_secs: Optional[float] = None,
    max_retries: int = 0,
) -> List[Evaluation]:
    """Evaluates checkpoints as `continuous_eval` does, until `end` or the run's `Stop`."""
    refuse_model(checkpoint_dir)
    if not tf.io.gfile.isdir(checkpoint_dir) and tf1.train.checkpoint_exists(checkpoint_dir):
        raise UsageError(
            f"{checkpoint_dir} is one checkpoint, and each new checkpoint of a folder is to be "
            "evaluated; give the folder"
        )
    latest: List[Evaluation] = []
    failures = 0
    stop, throttle_secs = run.context.stop, run.context.throttle_secs

    def is_over() -> bool:
        stop.raise_if_requested()
        return stop.is_requested or end.is_reached()

    for checkpoint in _appearing(checkpoint_dir, throttle_secs, timeout_secs, is_over):
        try:
            evaluations = run.evaluate(checkpoint)
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
        run.keep(evaluations, checkpoint)
        latest, step = evaluations, evaluations[0].step
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
        over = is_over()  # Before the search, which then finds the last checkpoint.
        prefix = tf1.train.latest_checkpoint(checkpoint_dir)
        # The time tells a checkpoint from a damaged one of the same step that it replaced.
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
