"""Evaluation runs: one checkpoint, or checkpoints as they appear; exports of the best."""

from __future__ import annotations

import logging
import os
from typing import Any, Callable, Dict, List, Optional, Tuple

from estimator_det.compat import estimator, tf, tf1
from estimator_det.config.registry import nearest
from inputs import pipeline as input_pipeline
from model_fn.checkpoints import find_checkpoint
from model_fn.estimators import make_estimator, preprocess_of, step_of
from model_fn.results import Metrics, scalars

_LOG = logging.getLogger(__name__)

BEST_EXPORT = "best"
TRAINING_DATA = "training_data"


def evaluation_inputs(
    pipeline_config: Any,
    *,
    on_training_data: bool = False,
    sample_1_of_n: Optional[int] = None,
) -> List[Tuple[str, Callable[..., Any]]]:
    """Name and input function of each evaluation reader, or of the training reader.

    A reader without a name takes its number. The name becomes the folder `eval_<name>`.

    Raises:
        ValueError: if the configuration has no reader to evaluate on.
    """
    if on_training_data:
        readers = [(TRAINING_DATA, pipeline_config.train_input_reader)]
    else:
        readers = [
            (reader.name or str(number), reader)
            for number, reader in enumerate(pipeline_config.eval_input_reader)
        ]
    if not readers:
        raise ValueError("eval_input_reader: the configuration has none to evaluate on")
    preprocess = preprocess_of(pipeline_config, is_training=False)
    return [
        (
            name,
            input_pipeline.create_eval_input_fn(
                pipeline_config, preprocess, input_config=reader, sample_1_of_n=sample_1_of_n
            ),
        )
        for name, reader in readers
    ]


class KeepBest(estimator.BestExporter):
    """Exports the checkpoint with the best value of a metric so far.

    Higher is better, unless the metric's name says loss. Evaluations of earlier runs in the same
    model_dir count, but the first evaluation of a run is exported in any case.

    Args:
        metric: Its name.
        receiver: Serving input receiver function.
        reader: Name of the evaluation that decides.
    """

    def __init__(self, metric: str, receiver: Callable[[], Any], reader: str) -> None:
        self._metric = metric

        def better(best_eval_result: Dict[str, Any], current_eval_result: Dict[str, Any]) -> bool:
            # Those of an earlier run may lack the metric.
            if metric not in current_eval_result or metric not in best_eval_result:
                return metric in current_eval_result
            best, current = best_eval_result[metric], current_eval_result[metric]
            return current < best if "loss" in metric.lower() else current > best

        super().__init__(
            BEST_EXPORT,
            receiver,
            event_file_pattern=f"eval_{reader}/*.tfevents.*",
            compare_fn=better,
            exports_to_keep=1,
        )

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Dict[str, Any],
        is_the_final_export: bool,
    ) -> Any:
        """Exports if this evaluation is the best; ValueError if it lacks the metric."""
        if self._metric not in eval_result:
            known = sorted(scalars(eval_result))
            raise ValueError(
                f"best_metric: {self._metric!r} is not evaluated{nearest(self._metric, known)} "
                f"Known: {known}"
            )
        return super().export(
            estimator, export_path, checkpoint_path, eval_result, is_the_final_export
        )


class EvaluateFurther(tf1.train.CheckpointSaverListener):
    """Evaluates saved checkpoints in ways that train_and_evaluate does not.

    Args:
        evaluate: Evaluates the newest checkpoint.
        throttle_secs: At least so long between two evaluations, but for the last one.
    """

    def __init__(self, evaluate: Callable[[], None], throttle_secs: int) -> None:
        self._evaluate = evaluate
        self._timer = tf1.train.SecondOrStepTimer(every_secs=throttle_secs)
        self._started = False

    def after_save(self, session: Any, global_step_value: int) -> None:
        """Evaluates, if it is time."""
        del session
        if not self._started:  # What training starts from was evaluated before, or is untrained.
            self._started = True
        elif self._timer.should_trigger_for_step(global_step_value):
            self._timer.update_last_triggered_step(global_step_value)
            self._evaluate()

    def end(self, session: Any, global_step_value: int) -> None:
        """Evaluates the last checkpoint, unless that is done."""
        del session
        if global_step_value != self._timer.last_triggered_step():
            self._evaluate()


def evaluate(
    pipeline_config: Any,
    checkpoint: str,
    *,
    model_dir: Optional[str] = None,
    on_training_data: bool = False,
    sample_1_of_n: Optional[int] = None,
) -> Dict[str, Metrics]:
    """Evaluates one checkpoint on every evaluation reader, or on the training data.

    Args:
        pipeline_config: `TrainEvalPipelineConfig` proto.
        checkpoint: A prefix, or a folder whose last checkpoint is meant.
        model_dir: Where events go; by default the checkpoint's folder.
        on_training_data: Read what `train_input_reader` names.
        sample_1_of_n: Evaluate on every n-th example.

    Returns:
        Metrics by reader's name.

    Raises:
        FileNotFoundError: if there is no checkpoint.
    """
    prefix = find_checkpoint(checkpoint)
    runner = make_estimator(pipeline_config, model_dir or os.path.dirname(prefix))
    return {
        name: scalars(runner.evaluate(input_fn, checkpoint_path=prefix, name=name))
        for name, input_fn in evaluation_inputs(
            pipeline_config, on_training_data=on_training_data, sample_1_of_n=sample_1_of_n
        )
    }


def continuous_eval(
    pipeline_config: Any,
    checkpoint_dir: str,
    *,
    model_dir: Optional[str] = None,
    num_train_steps: Optional[int] = None,
    on_training_data: bool = False,
    sample_1_of_n: Optional[int] = None,
    max_retries: int = 0,
    min_interval_secs: Optional[int] = None,
    timeout_secs: Optional[float] = None,
) -> Dict[str, Metrics]:
    """Evaluates checkpoints as they appear, until training is over.

    Args:
        pipeline_config: `TrainEvalPipelineConfig` proto.
        checkpoint_dir: Where training saves.
        model_dir: Where events go; by default `checkpoint_dir`.
        num_train_steps: Training is over at this step; by default `train_config.num_steps`, where
            0 means never.
        on_training_data: Read what `train_input_reader` names.
        sample_1_of_n: Evaluate on every n-th example.
        max_retries: How many evaluations may fail on their data; negative for any number.
        min_interval_secs: At least so long from one evaluation's start to the next; by default
            `eval_config.eval_interval_secs`.
        timeout_secs: End after so long without a new checkpoint; by default never.

    Returns:
        Metrics of the last evaluation, by reader's name; empty if there was no checkpoint.
    """
    if num_train_steps is None:
        num_train_steps = pipeline_config.train_config.num_steps
    if min_interval_secs is None:
        min_interval_secs = pipeline_config.eval_config.eval_interval_secs
    latest: Dict[str, Metrics] = {}
    failures = 0
    for checkpoint in tf1.train.checkpoints_iterator(
        checkpoint_dir, min_interval_secs=min_interval_secs, timeout=timeout_secs
    ):
        try:
            step = step_of(checkpoint)
            latest = evaluate(
                pipeline_config,
                checkpoint,
                model_dir=model_dir or checkpoint_dir,
                on_training_data=on_training_data,
                sample_1_of_n=sample_1_of_n,
            )
        except tf.errors.InvalidArgumentError as error:
            failures += 1
            if 0 <= max_retries < failures:
                raise
            _LOG.warning("Evaluation of %s failed (%d so far): %s", checkpoint, failures, error)
            continue
        except tf.errors.NotFoundError as error:
            # Training deletes its older checkpoints; one may go before it is read.
            if tf1.train.checkpoint_exists(checkpoint):
                raise
            _LOG.warning("%s was deleted before it was evaluated: %s", checkpoint, error)
            continue
        if num_train_steps and step >= num_train_steps:
            _LOG.info("Training is over at step %d; so is its evaluation", step)
            break
    return latest
