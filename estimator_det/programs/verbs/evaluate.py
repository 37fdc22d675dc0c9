"""`estimator-det evaluate`: evaluates the latest checkpoint, or each new checkpoint."""

from __future__ import annotations

import argparse
import functools
import os
import shlex
import sys
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence

from estimator_det.console import printing
from estimator_det.errors import UsageError
from estimator_det.programs import console
from estimator_det.programs.verbs.base import (
    CONFIG_FILE,
    above_zero,
    add_config_arguments,
    add_options,
    add_verbose_argument,
    load,
    require_path,
    run_folder,
    runs_below,
)
from model_fn.runs.options import EVALUATED_PRECISIONS, FLOAT32

if TYPE_CHECKING:
    from estimator_det.protos import pipeline_pb2
    from model_fn.evaluation.history import Evaluation

SUMMARY = "Evaluates the latest checkpoint, each new checkpoint, or the detections of a file"
EXAMPLE = "run"

# The names in `calibration.FITS`, with the default first.
CALIBRATIONS = (
    "function_approximation",
    "sigmoid_calibration",
    "class_id_function_approximations",
    "class_id_sigmoid_calibrations",
    "temperature_scaling_calibration",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser, default=f"{CONFIG_FILE} in model_dir")
    texts = {
        "--model_dir": "folder of a run, or prefix of one of its checkpoints",
        "--output_dir": "folder for event files (default: model_dir, or FILE_evaluation of "
        "--detections)",
    }
    add_options(parser, str, texts)
    # With this older name of --model_dir, --model_dir was --output_dir.
    parser.add_argument("--checkpoint_dir", help=argparse.SUPPRESS)
    switches = {
        "--continuous": "evaluate each new checkpoint",
        "--eval_training_data": "evaluate on the training records",
    }
    add_options(parser, bool, switches)
    text = "with --continuous: stop after this time without a new checkpoint"
    add_options(parser, above_zero, {"--timeout_secs": text})
    parser.add_argument(
        "--calibrate",
        nargs="?",
        const=CALIBRATIONS[0],
        choices=CALIBRATIONS,
        metavar="KIND",
        help="fit a calibration of the scores to the first reader's evaluation and write it as "
        f"text for --config_override: {CALIBRATIONS[0]}, sigmoid_calibration, both "
        "for each class as class_id_function_approximations and class_id_sigmoid_calibrations, or "
        "temperature_scaling_calibration; the first of these if no KIND is given",
    )
    parser.add_argument(
        "--precision",
        choices=EVALUATED_PRECISIONS,
        help="what the network computes in: float32, or convolutions and their batch norm in "
        "bfloat16 (default: float32)",
    )
    add_verbose_argument(parser)
    group = parser.add_argument_group("detections of a file, in place of a checkpoint")
    text = "COCO results (.json) or JSON lines of detect, of any tool and model"
    add_options(group, str, {"--detections FILE": text})
    text = "without a configuration: TFRecord files; may be repeated"
    add_options(group, str, {"--records PATTERN": text}, action="append")
    add_options(group, str, {"--label_map FILE": "without a configuration: label map"})


def run(options: argparse.Namespace) -> None:
    # The older spelling had both names, with --model_dir for what is now --output_dir.
    if options.checkpoint_dir or options.detections:
        # Both at once would leave one of the folders unused.
        if options.output_dir and options.model_dir:
            raise UsageError(
                "--model_dir and --output_dir name the same folder beside --detections or "
                "--checkpoint_dir: remove --model_dir"
            )
        options.output_dir = options.output_dir or options.model_dir
        options.model_dir = options.checkpoint_dir
    elif options.model_dir is None and options.config and os.path.isdir(options.config):
        options.model_dir = options.config = run_folder(options.config)
    _check_options(options)
    if options.detections:
        _evaluate_file(options)
        return
    from model_fn.checkpoints.find import refuse_model

    refuse_model(options.model_dir)  # before its configuration is missing
    run_of_checkpoint = _run_of(options.model_dir)
    if not (options.config or options.pipeline_config_path):
        _check_run(run_of_checkpoint)
    config = load(options, os.path.join(run_of_checkpoint, CONFIG_FILE))
    run_evaluation(
        config,
        options.model_dir,
        _results_folder(options, config),
        continuous=options.continuous,
        on_training_data=options.eval_training_data,
        timeout_secs=options.timeout_secs,
        calibrate=options.calibrate,
        precision=options.precision,
        verbose=options.verbose,
    )


def _run_of(checkpoint: str) -> str:
    """The folder itself, or the folder of a checkpoint that is given by its prefix."""
    from estimator_det.compat import tf, tf1
    from model_fn.checkpoints.find import stem_of

    is_folder = tf.io.gfile.isdir(checkpoint)
    if is_folder or not tf1.train.checkpoint_exists(stem_of(checkpoint)):
        return checkpoint
    return os.path.dirname(checkpoint) or "."


def _results_folder(
    options: argparse.Namespace, config: pipeline_pb2.TrainEvalPipelineConfig
) -> str:
    """The output folder; of a run with other settings, a folder in it."""
    from estimator_det import files

    run = _run_of(options.model_dir)
    folder = options.output_dir or run
    path = os.path.join(folder, CONFIG_FILE)
    if not files.exists(path):
        return folder
    run_config = console.load_config(path, is_trusted=False)
    fields = ["model", "graph_rewriter", "eval_config", "eval_input_reader"]
    if options.eval_training_data:
        fields.append("train_input_reader")
    changes = [name for name in fields if getattr(config, name) != getattr(run_config, name)]
    if os.path.relpath(run, folder).startswith(os.pardir):
        changes.append("checkpoint")
    return _other_settings(folder, changes) if changes else folder


def _other_settings(run: str, changes: Sequence[str]) -> str:
    """A folder in a run for results that are not the run's own; reports what is different."""
    from model_fn.evaluation.readers import OTHER_SETTINGS

    results = os.path.join(run, OTHER_SETTINGS)
    if {"checkpoint", "detections"}.intersection(changes):
        # Exports of the run take thresholds from the folder above, and must not take these.
        results = os.path.join(results, "other_detector")
    printing.report(
        f"{', '.join(changes)}: not as in the run, whose own evaluations stay; results: {results}",
        sys.stderr,
    )
    return results


def _check_run(folder: str) -> None:
    """Refuses a folder without the configuration of a run."""
    from estimator_det import files

    if not files.exists(folder):
        raise FileNotFoundError(
            f"--model_dir: there is no folder and no checkpoint {folder}; correct the path"
        )
    if not files.exists(os.path.join(folder, CONFIG_FILE)):
        runs = runs_below(folder)
        raise FileNotFoundError(
            f"--model_dir: there is no training run in {folder}, for it has no {CONFIG_FILE}"
            f"{runs and f', but {runs}'}. Give the folder of a run, or the configuration "
            "of the checkpoint with --pipeline_config_path FILE"
        )


def _check_options(options: argparse.Namespace) -> None:
    if options.timeout_secs is not None and not options.continuous:
        raise UsageError("--timeout_secs requires --continuous: add it")
    if options.continuous and options.calibrate:
        raise UsageError(
            "--calibrate fits one evaluation: remove --continuous, or calibrate afterwards"
        )
    if bool(options.model_dir) == bool(options.detections):
        require_path(options.config)
        raise UsageError("give the folder of a run, or --detections FILE, one of them")
    if not options.detections:
        if options.records or options.label_map:
            raise UsageError("--records and --label_map require --detections: add it")
        return
    for name in ("continuous", "precision"):
        if getattr(options, name):
            raise UsageError(f"--{name} is for the evaluation of checkpoints; remove it")
    has_config = bool(options.config or options.pipeline_config_path)
    if has_config == bool(options.records or options.label_map):
        raise UsageError(
            "--detections needs a configuration, or --records and --label_map, not both"
        )
    if bool(options.records) != bool(options.label_map):
        raise UsageError("--records and --label_map belong together: give both")
    if options.calibrate and not has_config:
        raise UsageError(
            "--calibrate changes a configuration: give the configuration of the detections"
        )


def _evaluate_file(options: argparse.Namespace) -> None:
    from estimator_det import files
    from model_fn.evaluation.detections import scoring

    if options.records:
        config = console.change_config(
            scoring.config_of_records(options.records, options.label_map),
            options.config_override,
            options.set,
        )
    else:
        config = load(options)
        ignored = console.unused_in_evaluation(options.eval_training_data)
        console.check_config(config, ignore=ignored)
    # A file of detections has no run whose folder could take the results.
    folder = options.output_dir or f"{os.path.splitext(options.detections)[0]}_evaluation"
    if files.exists(os.path.join(folder, CONFIG_FILE)):
        folder = _other_settings(folder, ["detections"])
    evaluate = functools.partial(
        scoring.evaluate_detections,
        config,
        options.detections,
        folder,
        on_training_data=options.eval_training_data,
    )
    _evaluate(evaluate, config, folder, options.calibrate, options.verbose)


def run_evaluation(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    checkpoint: str,
    folder: str,
    *,
    continuous: bool,
    on_training_data: bool = False,
    sample_1_of_n: Optional[int] = None,
    max_retries: int = 0,
    timeout_secs: Optional[float] = None,
    calibrate: Optional[str] = None,
    precision: Optional[str] = None,
    verbose: bool = False,
    folder_option: str = "output_dir",
) -> None:
    """Checks the configuration, evaluates one checkpoint or several, and prints the metrics.

    Results go to `folder`, which `folder_option` names. `calibrate` is a kind of
    `model_fn.evaluation.calibration`; `model_fn.runs.evaluator` documents the other arguments.
    """
    has_tiles = config.eval_config.HasField("tiles")
    is_narrow = precision not in (None, FLOAT32)
    for option, is_given in (("--continuous", continuous), ("--precision", is_narrow)):
        if has_tiles and is_given:
            raise UsageError(
                f"eval_config.tiles: {option} is for whole images; leave it out, or add "
                "--set eval_config.tiles=null"
            )
    unused = console.unused_in_evaluation(on_training_data)
    label_maps = console.check_config(config, ignore=unused)
    evaluate: Callable[[], List[Evaluation]]
    if has_tiles:
        from exporters.tiled_evaluation import evaluate_tiles

        evaluate = functools.partial(
            evaluate_tiles,
            config,
            checkpoint,
            folder,
            on_training_data=on_training_data,
            sample_1_of_n=sample_1_of_n,
        )
    else:
        from model_fn.evaluation.report import LINE, TABLE
        from model_fn.runs import evaluator
        from model_fn.runs.options import EvaluationOptions, TrainOptions

        evaluation = EvaluationOptions(sample_1_of_n=sample_1_of_n)
        options = TrainOptions(evaluation=evaluation, precision=precision)
        shown = LINE if continuous else TABLE
        run = evaluator.make_run(config, folder, options, on_training_data, shown)
        run.context.label_maps.update(label_maps)
        evaluate = functools.partial(evaluator.evaluate_newest, run, checkpoint)
        if continuous:
            evaluate = functools.partial(
                evaluator.follow_training, run, checkpoint, timeout_secs, max_retries
            )
    _evaluate(evaluate, config, folder, calibrate, verbose, folder_option)


def _evaluate(
    evaluate: Callable[[], List[Evaluation]],
    config: pipeline_pb2.TrainEvalPipelineConfig,
    folder: str,
    calibrate: Optional[str],
    verbose: bool,
    folder_option: str = "output_dir",
) -> None:
    """Evaluates into a folder, prints the metrics, and calibrates."""
    from model_fn.checkpoints import writing
    from model_fn.evaluation import calibration

    # A model that cannot be calibrated is refused before the evaluation, not after it.
    scores = calibration.scores_of(config, calibrate) if calibrate else None
    with writing.writable_folder(folder, folder_option):
        evaluations = evaluate()
        for evaluation in evaluations:
            title = f"evaluation {evaluation.reader}:"
            console.say_metrics(title, evaluation.metrics, verbose=verbose)
            console.say_findings(
                config, folder, evaluation.reader, evaluation.step, evaluation.metrics
            )
        if calibrate:
            # Exports use the thresholds and calibration of the first reader, too.
            _calibrate(scores, calibrate, evaluations[0], folder)
    names = ("reader", "step", "metrics")
    console.report_result([{name: getattr(each, name) for name in names} for each in evaluations])


def _calibrate(scores: Any, kind: str, evaluation: Evaluation, model_dir: str) -> None:
    """Fits a calibration to an evaluation, writes it, and prints how to use it."""
    from model_fn.evaluation import calibration
    from model_fn.evaluation.readers import evaluation_folder

    assert evaluation.matches is not None
    calibrated = calibration.make(kind, evaluation.matches, scores)
    folder = evaluation_folder(model_dir, evaluation.reader)
    text, picture = calibration.write(calibrated, scores, folder, evaluation.step)
    before, after = calibrated.before.expected_error, calibrated.after.expected_error
    held_out = calibrated.held_out_error
    held_out_text = "" if held_out is None else f", {held_out:.4f} on images it is not fitted to"
    detections = printing.counted(calibrated.before.counts.sum(), "detection")
    console.print_line(f"{kind} of {detections} of {evaluation.reader!r}:")
    console.print_line(
        f"  expected calibration error {before:.4f} before, {after:.4f} after{held_out_text}"
    )
    console.print_line(f"  configuration:       {text}")
    console.print_line(f"  reliability diagram: {picture}")
    console.print_line("to use it, add this option to evaluate and export:")
    console.print_line(f'  --config_override "$(cat {shlex.quote(text)})"')
    suppression = scores.post_processing.batch_non_max_suppression
    # Published configurations have 1e-8; only a threshold that drops detections is worth a line.
    if suppression.score_threshold > 0.01:
        console.print_line(
            f"{scores.path}.batch_non_max_suppression.score_threshold is "
            f"{suppression.score_threshold:g}, and applies to calibrated scores then"
        )
