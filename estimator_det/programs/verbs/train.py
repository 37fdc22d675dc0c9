"""`estimator-det train`: trains a detector and evaluates it during training."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
from typing import TYPE_CHECKING, Any, Optional

from estimator_det.errors import UsageError
from estimator_det.programs import console
from estimator_det.programs.cloud import environment
from estimator_det.programs.verbs.base import (
    CONFIG_FILE,
    RUN_FOLDER,
    above_zero,
    accept_names,
    add_config_arguments,
    add_options,
    add_verbose_argument,
    fields_of,
    load,
    natural,
    positive,
    require_path,
)
from model_fn.runs import options as run_options
from model_fn.runs.options import DEFAULT_TASK_TIMEOUT_SECS as TASK_TIMEOUT_SECS
from model_fn.runs.options import CheckpointOptions, EvaluationOptions, TrainOptions

if TYPE_CHECKING:
    from estimator_det.protos import pipeline_pb2

# Strategies that take each option; others refuse it.
_STRATEGY_OF = {
    "num_replicas": run_options.MIRRORED,
    **dict.fromkeys(("tpu_name", "tpu_zone", "gcp_project"), run_options.TPU),
}

AUTO = "auto"
COMMON_OPTIONS = (
    "--model_dir", "--num_train_steps", "--set", "--strategy", "--best_metric", "--patience",
    "--quiet",
)  # fmt: skip
SUMMARY = "Trains a detector and evaluates it during training"
EXAMPLE = "ssd.config --model_dir run --set train_config.batch_size=8"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser, default=f"{CONFIG_FILE} in model_dir, which resumes a run")
    text = (
        "folder for checkpoints and event files; a run in it resumes (default: CONFIG if it is the "
        f"folder of a run, or its subfolder {RUN_FOLDER})"
    )
    add_options(parser, str, {"--model_dir": text})
    texts = {
        "--num_train_steps": "steps in all; 0 trains for train_input_reader.num_epochs, and "
        "without these until it is stopped (default: train_config.num_steps)",
        "--seed": "seed of initial weights, shuffling and augmentation",
    }
    add_options(parser, int, texts)
    switches = {
        "--rescale_schedule": "with --num_train_steps: stretch or shorten the learning-rate "
        "schedule in proportion",
        "--rehearse_tpu": "run the training loop of TPUEstimator on this machine, without a TPU; "
        "to train on a TPU, use --strategy tpu, or python -m estimator_det.model_main --use_tpu",
    }
    add_options(parser, bool, switches)
    text = "steps between progress lines (default: %(default)s)"
    add_options(parser, positive, {"--progress_steps": text}, default=20)
    intervals = {
        "--save_checkpoints_steps": "steps between checkpoints",
        "--save_checkpoints_secs": "seconds between checkpoints (default: 600)",
    }
    add_options(parser.add_mutually_exclusive_group(), positive, intervals)
    accept_names(parser, {"--checkpoint_every_n": "--save_checkpoints_steps"})
    text = "how many of the newest checkpoints to keep; 0 for all (default: %(default)s)"
    add_options(parser, natural, {"--keep_checkpoint_max": text}, default=5)
    parser.add_argument(
        "--precision",
        choices=(AUTO, *run_options.PRECISIONS),
        help="what the network computes in; variables and losses stay float32. "
        "bfloat16_convolutions is for convolutions and their batch norm, mixed_bfloat16 for all; "
        "mixed_float16 needs --strategy; auto measures steps of this model in float32 and, if this "
        "processor has bfloat16, bfloat16_convolutions, and takes the faster one",
    )
    text = (
        "in a cluster (TF_CONFIG): end after another task was missing for this many seconds "
        "(default: %(default)s)"
    )
    add_options(parser, above_zero, {"--task_timeout_secs": text}, default=TASK_TIMEOUT_SECS)
    text = (
        "read and augment training records by the data workers of this dispatcher; see "
        "estimator-det data-worker"
    )
    add_options(parser, str, {"--tf_data_service HOST:PORT": text})
    parser.add_argument(
        "--track", choices=("mlflow",), help="also report to the MLflow of MLFLOW_TRACKING_URI"
    )
    add_verbose_argument(parser)
    text = "lines with severity, message and time as JSON, for the log of a cluster"
    add_options(parser, str, {"--log_format": text}, choices=("text", "json"), default="text")
    _add_loop_arguments(
        parser.add_argument_group("TF2 loop", "in place of Estimator; see docs/distributed.md")
    )
    _add_evaluation_arguments(parser.add_argument_group("evaluation during training"))


def _add_loop_arguments(group: Any) -> None:
    group.add_argument(
        "--strategy",
        choices=run_options.STRATEGIES,
        help="train by the TF2 loop: on one device, on all GPUs of this machine, on all GPUs of "
        "the machines in TF_CONFIG together, on its workers, each for itself, or on a TPU",
    )
    numbers = {
        "--num_replicas": "devices of this machine that share a batch, without a GPU logical "
        "CPUs (default: all GPUs, or 1 CPU)",
        "--accumulate_steps": "split the batch of each replica into this many parts, taken one "
        "after the other in less memory; the step stays the same",
        "--steps_per_call": "steps in one call of the compiled function; reports come between "
        "calls (default: 1, with --strategy parameter_server 16 for each worker)",
    }
    add_options(group, int, numbers)
    texts = {
        "--tpu_name": "with --strategy tpu: name of the TPU, its grpc:// address, or local on its "
        "own machine (default: from KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, TPU_NAME or TPU_CONFIG)",
        "--tpu_zone": "zone of the TPU",
        "--gcp_project": "project of the TPU",
    }
    add_options(group, str, texts)
    text = "compile forward and backward pass by XLA"
    add_options(group, bool, {"--jit_compile": text}, default=None)


def _loop(arguments: argparse.Namespace) -> Optional[run_options.LoopOptions]:
    """The options of the TF2 loop; None without --strategy."""
    values = fields_of(run_options.LoopOptions, vars(arguments))
    chosen = {name: value for name, value in values.items() if value is not None}
    if arguments.strategy is None and chosen:
        option = next(iter(chosen))
        example = _STRATEGY_OF.get(option, run_options.NONE)
        raise UsageError(
            f"--{option} is an option of the TF2 loop: give --strategy too, for example "
            f"--strategy {example}"
        )
    if chosen and arguments.rehearse_tpu:
        raise UsageError(
            "--rehearse_tpu runs the training loop of a TPU, and --strategy another one: give one "
            "of them"
        )
    # Services set the TPU's address in the environment; an option comes first.
    if arguments.strategy == run_options.TPU and arguments.tpu_name is None:
        chosen = {**environment.read_tpu_address(os.environ), **chosen}
    return run_options.LoopOptions(**chosen) if chosen else None


def _add_evaluation_arguments(group: Any) -> None:
    intervals = group.add_mutually_exclusive_group()
    text = (
        "steps between evaluations; each saves a checkpoint (default: "
        "eval_config.eval_interval_steps, and where it is 0, time decides)"
    )
    add_options(intervals, positive, {"--eval_every_steps": text})
    text = "minimum seconds between evaluations (default: eval_config.eval_interval_secs)"
    add_options(intervals, natural, {"--eval_throttle_secs": text})
    text = (
        "keep and export the checkpoint with the best value of this metric, e.g. "
        "DetectionBoxes_Precision/mAP; the lowest value of a loss is the best"
    )
    add_options(group, str, {"--best_metric": text})
    text = "how many best checkpoints to keep (default: %(default)s)"
    add_options(group, int, {"--keep_best": text}, default=1)
    text = "stop after this many evaluations without an improvement of --best_metric"
    add_options(group, int, {"--patience": text})
    text = "the least change that counts as an improvement"
    add_options(group, float, {"--min_delta": text}, default=0.0)


def _train_options(flags: argparse.Namespace) -> TrainOptions:
    tpu = None
    if flags.rehearse_tpu:
        tpu = run_options.TpuOptions(iterations_per_loop=flags.progress_steps, rehearses=True)
    return TrainOptions(
        seed=flags.seed,
        checkpoints=CheckpointOptions(
            flags.save_checkpoints_steps, flags.save_checkpoints_secs, flags.keep_checkpoint_max
        ),
        evaluation=EvaluationOptions(
            every_steps=flags.eval_every_steps,
            throttle_secs=flags.eval_throttle_secs,
            **fields_of(EvaluationOptions, vars(flags)),
        ),
        loop=_loop(flags),
        tpu=tpu,
        precision=None if flags.precision == AUTO else flags.precision,
        progress_steps=flags.progress_steps,
        task_timeout_secs=flags.task_timeout_secs,
        data_service=flags.tf_data_service,
    )


def _folder_of_run(project: Optional[str]) -> str:
    """The folder that `train project/` trains in, or resumes; its plug-ins are imported."""
    from estimator_det.config import plugins

    require_path(project)
    if project is None or not os.path.isdir(project):
        raise UsageError(
            "no folder for the run is given: give the folder of a project or run, as in "
            "estimator-det train project/, or a configuration and --model_dir DIR"
        )
    is_run = os.path.exists(os.path.join(project, "checkpoint"))
    folder = project if is_run else os.path.join(project, RUN_FOLDER)
    plugins.load_record(folder)
    return folder


def run(options: argparse.Namespace) -> None:
    from estimator_det import files
    from estimator_det.config import pipeline
    from model_fn.runs import cluster, roles

    if options.model_dir is None:
        options.model_dir = _folder_of_run(options.config)
    if options.rescale_schedule and not options.num_train_steps:
        raise UsageError("--rescale_schedule needs --num_train_steps above 0: add it")
    if options.verbose:
        for package in ("estimator_det", "inputs", "model_fn", "exporters"):
            logging.getLogger(package).setLevel(logging.DEBUG)
    train_options = _train_options(options)
    # A run that is resumed has its configuration in its folder.
    saved = os.path.join(options.model_dir, CONFIG_FILE)
    config = load(options, saved if files.exists(saved) else None)
    if options.rescale_schedule:
        config = pipeline.rescale_schedule(config, options.num_train_steps)
    else:
        config = pipeline.override(config, num_train_steps=options.num_train_steps)
    members = cluster.read_cluster()
    if train_options.loop is not None:
        roles.check_loop(config, train_options.loop, members)
        from model_fn.runs.backends import strategies

        # Devices cannot be set up any more once anything else uses TensorFlow.
        loop = strategies.set_up(train_options.loop, members, options.task_timeout_secs)
        train_options = dataclasses.replace(train_options, loop=loop)
    is_alone = members.task.is_alone
    if options.precision == AUTO and not (
        is_alone and train_options.loop is None and train_options.tpu is None
    ):
        raise UsageError(
            f"--precision {AUTO} measures an Estimator on this machine alone: name a type with "
            "--strategy, --rehearse_tpu or TF_CONFIG"
        )
    label_maps = console.check_training(config, options.model_dir, train_options)
    # Imports TensorFlow: only after everything cheap is checked.
    from estimator_det.programs.tracking import MlflowHook
    from model_fn.evaluation.readers import named_readers
    from model_fn.runs import runner

    if options.precision == AUTO:
        train_options = dataclasses.replace(train_options, precision=_fastest_precision(config))
    with contextlib.ExitStack() as stack:
        if options.track and members.is_chief:
            tracker = MlflowHook()
            stack.callback(tracker.close)
            train_options = dataclasses.replace(train_options, hooks=[tracker])
        metrics = runner.run(config, options.model_dir, train_options, label_maps=label_maps)
    if metrics:
        console.say_metrics("last evaluation:", metrics, verbose=options.verbose)
        reader, step = next(iter(named_readers(config))), int(metrics["global_step"])
        console.say_findings(config, options.model_dir, reader, step, metrics)
    console.print_line(f"checkpoints, event files and {CONFIG_FILE}: {options.model_dir}")
    console.report_result({"model_dir": options.model_dir, "metrics": metrics})


def _fastest_precision(config: pipeline_pb2.TrainEvalPipelineConfig) -> str:
    """Measures the precisions of this machine, if there are several, and prints their times."""
    from estimator_det.programs import step_speed

    precisions = step_speed.own_precisions(config)
    if len(precisions) == 1:
        console.print_line(f"precision: {precisions[0]}; auto has no other for it here")
        return precisions[0]
    speeds = step_speed.measure(config, precisions)
    console.print_line(step_speed.describe(speeds))
    return step_speed.fastest(speeds).precision
