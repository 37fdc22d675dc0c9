"""`estimator-det train`: trains a detector and evaluates it during training."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from typing import Any, Optional

from estimator_det.programs import console, tpu_environment
from estimator_det.programs.verbs import data_worker
from estimator_det.programs.verbs.base import (
    CONFIG_EXAMPLE,
    CONFIG_FILE,
    add_config_arguments,
    add_verbose_argument,
    load,
)
from model_fn.runs import options as run_options
from model_fn.runs.options import DEFAULT_TASK_TIMEOUT_SECS as TASK_TIMEOUT_SECS
from model_fn.runs.options import CheckpointOptions, EvaluationOptions, TrainOptions

# Strategies that take each option; others refuse it.
_STRATEGY_OF = {
    "num_replicas": run_options.MIRRORED,
    **dict.fromkeys(("tpu_name", "tpu_zone", "gcp_project"), run_options.TPU),
}

AUTO = "auto"
SUMMARY = "Trains a detector and evaluates it during training"
EXAMPLE = f"{CONFIG_EXAMPLE} --model_dir run --set train_config.batch_size=8"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    add_config_arguments(parser, default=f"{CONFIG_FILE} in model_dir, which resumes a run")
    folder_help = "folder for checkpoints and event files; a run in it resumes"
    parser.add_argument("--model_dir", required=True, help=folder_help)
    parser.add_argument(
        "--num_train_steps",
        type=int,
        help="steps in all; 0 trains for train_input_reader.num_epochs, and without these until it "
        "is stopped; default: train_config.num_steps",
    )
    parser.add_argument(
        "--rescale_schedule",
        action="store_true",
        help="with --num_train_steps: stretch or shorten the learning-rate schedule in proportion",
    )
    parser.add_argument("--seed", type=int, help="of initial weights, shuffling and augmentation")
    parser.add_argument(
        "--progress_steps",
        type=int,
        default=20,
        help="steps between progress lines (default: %(default)s)",
    )
    saving = parser.add_mutually_exclusive_group()
    saving.add_argument("--save_checkpoints_steps", type=int, help="steps between checkpoints")
    saving.add_argument(
        "--save_checkpoints_secs", type=int, help="seconds between checkpoints; default: 600"
    )
    parser.add_argument(
        "--keep_checkpoint_max",
        type=int,
        default=5,
        help="how many of the newest checkpoints to keep; 0 for all (default: %(default)s)",
    )
    parser.add_argument(
        "--precision",
        choices=(AUTO, *run_options.PRECISIONS),
        help="what the network computes in; variables and losses stay float32. auto measures a few "
        "steps, and takes the faster one of float32 and mixed_bfloat16; mixed_float16 needs "
        "--strategy",
    )
    parser.add_argument(
        "--rehearse_tpu",
        action="store_true",
        help="run the training loop of TPUEstimator on this machine, without a TPU; to train on a "
        "TPU, use --strategy tpu, or python -m estimator_det.model_main --use_tpu",
    )
    parser.add_argument(
        "--task_timeout_secs",
        type=float,
        default=TASK_TIMEOUT_SECS,
        help="in a cluster (TF_CONFIG): end after another task was missing for this many seconds "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--tf_data_service",
        metavar="HOST:PORT",
        help="read and augment training records by the data workers of this dispatcher; see "
        "estimator-det data-worker",
    )
    add_verbose_argument(parser)
    _add_loop_arguments(
        parser.add_argument_group("TF2 loop", "in place of Estimator; see docs/distributed.md")
    )
    _add_evaluation_arguments(parser.add_argument_group("evaluation during training"))


def _add_loop_arguments(looping: Any) -> None:
    looping.add_argument(
        "--strategy",
        choices=run_options.STRATEGIES,
        help="train by the TF2 loop: on one device, on all GPUs of this machine, on those of all "
        "machines in TF_CONFIG together, on those of its workers, each for itself, or on a TPU",
    )
    looping.add_argument(
        "--num_replicas",
        type=int,
        help="devices of this machine that share a batch; default: all GPUs. Without a GPU, "
        "this many logical CPUs, 1 by default",
    )
    looping.add_argument(
        "--accumulate_steps",
        type=int,
        help="split the batch of each replica into this many parts, taken one after the other in "
        "less memory; the step stays the same",
    )
    looping.add_argument(
        "--steps_per_call",
        type=int,
        help="steps in one call of the compiled function; reports come between calls. Default: 1; "
        "with --strategy parameter_server 16 for each worker",
    )
    looping.add_argument(
        "--tpu_name",
        help="with --strategy tpu: name of the TPU, its grpc:// address, or local on its own "
        "machine; default: that of KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, TPU_NAME or TPU_CONFIG",
    )
    looping.add_argument("--tpu_zone", help="zone of the TPU")
    looping.add_argument("--gcp_project", help="project of the TPU")
    looping.add_argument(
        "--jit_compile", action="store_true", help="compile forward and backward pass by XLA"
    )


def _loop(arguments: argparse.Namespace) -> Optional[run_options.LoopOptions]:
    """The options of the TF2 loop; None without --strategy."""
    fields = [field.name for field in dataclasses.fields(run_options.LoopOptions)]
    values = {name: getattr(arguments, name) for name in fields if name != "distribution"}
    # A switch that is not given is False, other options are None.
    chosen = {
        name: value for name, value in values.items() if value is not None and value is not False
    }
    if arguments.strategy is None and chosen:
        option = next(iter(chosen))
        example = _STRATEGY_OF.get(option, run_options.NONE)
        raise console.UsageError(
            f"--{option} is an option of the TF2 loop: give --strategy too, for example "
            f"--strategy {example}"
        )
    if chosen and arguments.rehearse_tpu:
        raise console.UsageError(
            "--rehearse_tpu runs the training loop of a TPU, and --strategy another one: give one "
            "of them"
        )
    # Services set the TPU's address in the environment; an option comes first.
    if arguments.strategy == run_options.TPU and arguments.tpu_name is None:
        address = tpu_environment.read_tpu_address(os.environ)
        named = {"tpu_name": address.name, "tpu_zone": address.zone, "gcp_project": address.project}
        chosen = {**named, **chosen}
    return run_options.LoopOptions(**chosen) if chosen else None


def _add_evaluation_arguments(evaluating: Any) -> None:
    when = evaluating.add_mutually_exclusive_group()
    when.add_argument(
        "--eval_every_steps", type=int, help="steps between evaluations; each saves a checkpoint"
    )
    when.add_argument(
        "--eval_throttle_secs",
        type=int,
        help="minimum seconds between evaluations; default: eval_config.eval_interval_secs",
    )
    evaluating.add_argument(
        "--best_metric",
        help="keep and export the checkpoint with the best value of this metric, e.g. "
        "DetectionBoxes_Precision/mAP; of a loss, the lowest is best",
    )
    evaluating.add_argument(
        "--keep_best",
        type=int,
        default=1,
        help="how many best checkpoints to keep (default: %(default)s)",
    )
    evaluating.add_argument(
        "--patience",
        type=int,
        help="stop after this many evaluations without an improvement of --best_metric",
    )
    evaluating.add_argument(
        "--min_delta",
        type=float,
        default=0.0,
        help="the least change that counts as an improvement",
    )


def _check_usage(options: argparse.Namespace) -> None:
    if options.progress_steps < 1:
        raise console.UsageError(f"--progress_steps is {options.progress_steps}: give 1 or more")
    if options.rescale_schedule and not options.num_train_steps:
        raise console.UsageError("--rescale_schedule needs --num_train_steps above 0: add it")
    if not options.task_timeout_secs > 0:
        raise console.UsageError(
            f"--task_timeout_secs is {options.task_timeout_secs:g}: give a positive number"
        )


def _train_options(flags: argparse.Namespace) -> TrainOptions:
    return TrainOptions(
        seed=flags.seed,
        checkpoints=CheckpointOptions(
            flags.save_checkpoints_steps,
            flags.save_checkpoints_secs,
            flags.keep_checkpoint_max,
        ),
        evaluation=EvaluationOptions(
            every_steps=flags.eval_every_steps,
            throttle_secs=flags.eval_throttle_secs,
            best_metric=flags.best_metric,
            keep_best=flags.keep_best,
            patience=flags.patience,
            min_delta=flags.min_delta,
        ),
        loop=_loop(flags),
        precision=None if flags.precision == AUTO else flags.precision,
        progress_steps=flags.progress_steps,
        task_timeout_secs=flags.task_timeout_secs,
    )


def _faster_precision(config: Any) -> str:
    from estimator_det.programs import step_speed

    speed, is_bfloat16 = step_speed.fastest(config)
    precision = run_options.MIXED_BFLOAT16 if is_bfloat16 else run_options.FLOAT32
    console.print_line(f"precision: {precision}, {speed.seconds:.2f} s a step")
    return precision


def run(options: argparse.Namespace) -> int:
    """Runs the verb; returns an exit code."""
    # Checked before TensorFlow is imported, which takes seconds.
    data_service = options.tf_data_service
    if data_service is not None:
        data_service = data_worker.check_address("--tf_data_service", data_service)
    from estimator_det.config import files, pipeline, printing
    from model_fn.runs import cluster

    _check_usage(options)
    if options.verbose:
        console.be_verbose()
    train_options = _train_options(options)
    loop, tpu = train_options.loop, None
    # A run that is resumed has its configuration in its folder.
    saved = files.path_in(options.model_dir, CONFIG_FILE)
    config = load(options, saved if files.exists(saved) else None)
    if options.rescale_schedule:
        config = pipeline.rescale_schedule(config, options.num_train_steps)
    else:
        config = pipeline.override(config, num_train_steps=options.num_train_steps)
    if loop is not None:
        run_options.check_loop(config, loop)
        from model_fn.runs.backends import strategies

        # Devices cannot be set up any more once anything else uses TensorFlow.
        loop = strategies.set_up(loop, cluster.read_cluster(), options.task_timeout_secs)
    if options.rehearse_tpu:
        tpu = run_options.TpuOptions(iterations_per_loop=options.progress_steps, rehearses=True)
        for finding in run_options.check_tpu(config, options.model_dir, tpu):
            printing.report(finding, sys.stderr)
    is_alone = cluster.read_cluster().task.is_alone
    if options.precision == AUTO and (loop or tpu or not is_alone):
        raise console.UsageError(
            f"--precision {AUTO} measures an Estimator on this machine alone: name a type with "
            "--strategy, --rehearse_tpu or TF_CONFIG"
        )
    is_for_tpu = options.rehearse_tpu or options.strategy == run_options.TPU
    console.check_config(
        config, ignore=console.unused_in_training(options.model_dir, config, on_tpu=is_for_tpu)
    )
    # Imports TensorFlow: only after everything cheap is checked.
    from model_fn.runs import runner

    if options.precision == AUTO:
        train_options = dataclasses.replace(train_options, precision=_faster_precision(config))
    elif options.precision is None and is_alone and not is_for_tpu:
        for line in console.precision_lines(config):
            console.print_line(line)
    metrics = runner.train_and_evaluate(
        config,
        options.model_dir,
        dataclasses.replace(train_options, loop=loop, tpu=tpu, data_service=data_service),
    )
    if metrics:
        console.say_metrics("last evaluation:", metrics, verbose=options.verbose)
    console.print_line(f"checkpoints, event files and {CONFIG_FILE}: {options.model_dir}")
    return console.EXIT_OK
