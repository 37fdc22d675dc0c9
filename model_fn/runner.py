"""Training runs: wiring of Estimator, input functions, exporters and hooks."""

from __future__ import annotations

import logging
from typing import Any, List, Optional, Sequence

from estimator_det.compat import estimator
from estimator_det.config import pipeline as configuration
from inputs import pipeline as input_pipeline
from inputs import serving
from model_fn.estimators import make_estimator, preprocess_of, trained_steps
from model_fn.evaluator import EvaluateFurther, KeepBest, evaluation_inputs
from model_fn.progress import TrainingReport
from model_fn.results import EvaluationReport, Metrics, ResultsReport, scalars, tell_results

_LOG = logging.getLogger(__name__)

FINAL_EXPORT = "Servo"


def train_and_evaluate(
    pipeline_config: Any,
    model_dir: str,
    *,
    num_train_steps: Optional[int] = None,
    sample_1_of_n_eval_examples: Optional[int] = None,
    eval_on_train_data: bool = False,
    sample_1_of_n_eval_on_train_examples: int = 5,
    save_checkpoints_steps: Optional[int] = None,
    save_checkpoints_secs: Optional[int] = None,
    eval_throttle_secs: Optional[int] = None,
    best_metric: Optional[str] = None,
    export_final: bool = True,
    progress: bool = True,
    progress_steps: int = 20,
    hooks: Sequence[Any] = (),
    seed: Optional[int] = None,
) -> Metrics:
    """Trains to `num_train_steps`, evaluating checkpoints on the way and at the end.

    A checkpoint in `model_dir` is resumed with its step, optimizer slots and moving averages. The
    configuration as run is saved there as pipeline.config. Several evaluation readers are all
    evaluated; the first one decides about exports.

    Args:
        pipeline_config: `TrainEvalPipelineConfig` proto.
        model_dir: Where checkpoints, events and exports go.
        num_train_steps: The global step at which to stop; by default `train_config.num_steps`,
            where 0 means never.
        sample_1_of_n_eval_examples: Evaluate on every n-th example.
        eval_on_train_data: Evaluate on the training data, too.
        sample_1_of_n_eval_on_train_examples: The same for training data.
        save_checkpoints_steps: See `make_estimator`.
        save_checkpoints_secs: See `make_estimator`.
        eval_throttle_secs: At least so long between two evaluations; by default
            `eval_config.eval_interval_secs`. The last checkpoint is always evaluated.
        best_metric: Keep an export of the best evaluation in export/best: highest, or lowest where
            its name says loss, e.g. "DetectionBoxes_Precision/mAP".
        export_final: Export the last checkpoint to export/Servo.
        progress: Tell loss terms, rate and time left on standard error.
        progress_steps: Steps between two lines of it.
        hooks: More training hooks.
        seed: Of initial values, shuffling and augmentation.

    Returns:
        Metrics of the last evaluation on the first reader; empty where nothing was left to train.
    """
    if num_train_steps is None and pipeline_config.train_config.num_steps:
        num_train_steps = pipeline_config.train_config.num_steps
    done = trained_steps(model_dir)
    if num_train_steps is not None and done >= num_train_steps:
        _LOG.warning(
            "%s is trained to step %d of %d already: nothing to do. Raise num_train_steps to go "
            "on, or choose another model_dir to start anew",
            model_dir,
            done,
            num_train_steps,
        )
        return {}
    if done:
        _LOG.info("Resuming at step %d from %s", done, model_dir)

    def make() -> Any:
        return make_estimator(
            pipeline_config,
            model_dir,
            save_checkpoints_steps=save_checkpoints_steps,
            save_checkpoints_secs=save_checkpoints_secs,
            seed=seed,
        )

    throttle_secs = (
        pipeline_config.eval_config.eval_interval_secs
        if eval_throttle_secs is None
        else eval_throttle_secs
    )
    readers = evaluation_inputs(pipeline_config, sample_1_of_n=sample_1_of_n_eval_examples)
    further = readers[1:]
    if eval_on_train_data:
        further += evaluation_inputs(
            pipeline_config,
            on_training_data=True,
            sample_1_of_n=sample_1_of_n_eval_on_train_examples,
        )
    first_name, first_input_fn = readers[0]

    def evaluate_further() -> None:
        for name, input_fn in further:
            results = make().evaluate(input_fn, name=name)
            if progress:
                tell_results(name, results)

    report = TrainingReport(
        pipeline_config.train_config.batch_size,
        num_train_steps,
        every_steps=progress_steps,
        silent=not progress,
    )
    receiver = serving.create_predict_input_fn(
        pipeline_config, preprocess_of(pipeline_config, is_training=False)
    )
    exporters: List[Any] = []
    if best_metric:
        exporters.append(KeepBest(best_metric, receiver, first_name))
    if export_final:
        exporters.append(estimator.FinalExporter(FINAL_EXPORT, receiver))
    if progress:
        exporters.append(ResultsReport(first_name))
    configuration.save_pipeline(pipeline_config, model_dir)
    results = estimator.train_and_evaluate(
        make(),
        estimator.TrainSpec(
            input_pipeline.create_train_input_fn(
                pipeline_config, preprocess_of(pipeline_config, is_training=True), seed=seed
            ),
            max_steps=num_train_steps,
            hooks=[report, *hooks],
            saving_listeners=[EvaluateFurther(evaluate_further, throttle_secs)] if further else [],
        ),
        estimator.EvalSpec(
            first_input_fn,
            steps=None,
            name=first_name,
            exporters=exporters,
            hooks=[EvaluationReport(pipeline_config.eval_config.batch_size)] if progress else [],
            start_delay_secs=0,
            throttle_secs=throttle_secs,
        ),
    )
    # Workers and parameter servers of a cluster return nothing.
    return scalars(results[0] if results else None)


def train(
    pipeline_config: Any,
    model_dir: str,
    *,
    num_train_steps: Optional[int] = None,
    hooks: Sequence[Any] = (),
    seed: Optional[int] = None,
) -> None:
    """Trains without evaluation, as where evaluation is a process of its own.

    Args:
        pipeline_config: `TrainEvalPipelineConfig` proto.
        model_dir: Where checkpoints and events go.
        num_train_steps: See `train_and_evaluate`.
        hooks: More training hooks.
        seed: Of initial values, shuffling and augmentation.
    """
    steps = num_train_steps or pipeline_config.train_config.num_steps or None
    configuration.save_pipeline(pipeline_config, model_dir)
    report = TrainingReport(pipeline_config.train_config.batch_size, steps)
    make_estimator(pipeline_config, model_dir, seed=seed).train(
        input_pipeline.create_train_input_fn(
            pipeline_config, preprocess_of(pipeline_config, is_training=True), seed=seed
        ),
        max_steps=steps,
        hooks=[report, *hooks],
    )
