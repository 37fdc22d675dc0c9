"""Flags of `estimator_det.model_main`: definitions and checks. Imports no TensorFlow."""

from __future__ import annotations

import os
import sys
from typing import Dict, List, Optional, Sequence, Tuple

from absl import flags

from estimator_det.console import printing
from estimator_det.errors import UsageError
from estimator_det.programs import other_trainers
from estimator_det.programs.cloud import environment
from model_fn.runs.options import BFLOAT16_CONVOLUTIONS, FLOAT32, MIXED_BFLOAT16

_SWITCHES = {
    "help": "Show this text.",
    "eval_training_data": "Evaluate on the training records.",
    "run_once": "With --checkpoint_dir: evaluate the latest checkpoint, then stop.",
    "use_tpu": "Train on a TPU: named by --tpu_name, or by the environment variable "
    "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, TPU_NAME or TPU_CONFIG.",
    "rehearse_tpu": "Run the TPU training loop on this machine, without a TPU.",
    "eval_on_tpu": "With --use_tpu: also evaluate on the TPU, not on this machine.",
    "logtostderr": "Also show the log of TensorFlow. All logs go to standard error.",
    "alsologtostderr": "The same as --logtostderr.",
}
_TEXTS = {
    "model_dir": "Folder for checkpoints and event files. Required, unless --job-dir or one of the "
    "environment variables AIP_MODEL_DIR, AIP_CHECKPOINT_DIR and JOB_DIR names one.",
    "pipeline_config_path": "Required. Pipeline configuration file.",
    "config_override": "Pipeline text proto merged over the configuration.",
    "job-dir": "Set by AI Platform; replaces a missing --model_dir.",
    "checkpoint_dir": "Evaluate the checkpoints of this folder; do not train.",
    "tpu_name": "Name of the TPU, its grpc:// address, or local on the machine of the TPU.",
    "tpu_zone": "Zone of the TPU.",
    "gcp_project": "Project of the TPU.",
}
_NUMBERS: Dict[str, Tuple[Optional[int], str]] = {  # name -> default, help
    "num_train_steps": (
        None,
        "Training steps; default: train_config.num_steps, where 0 trains for "
        "train_input_reader.num_epochs, and without these until it is stopped.",
    ),
    "train_batch_size": (None, "Batch size; default: train_config.batch_size."),
    "sample_1_of_n_eval_examples": (None, "Evaluate every n-th record only."),
    "sample_1_of_n_eval_on_train_examples": (
        5,
        "With --eval_training_data: evaluate every n-th training record only.",
    ),
    "max_eval_retries": (
        0,
        "Continuous evaluation: how often to retry a checkpoint whose evaluation fails; negative: "
        "without limit.",
    ),
    "eval_timeout_secs": (
        None,
        "Continuous evaluation: stop after this time without a new checkpoint; default: continue "
        "until training ends.",
    ),
    "checkpoint_every_n": (None, "Steps between checkpoints; default: 600 seconds between them."),
    "num_workers": (1, "Always 1: TF_CONFIG describes the machines of a cluster."),
    "num_shards": (8, "TPU cores; each gets an equal part of the batch."),
    "iterations_per_loop": (100, "Steps per loop on the TPU."),
}
# Names in model_main_tf2.py of the Object Detection API.
_OTHER_NAMES = {
    "eval_on_train_data": "eval_training_data",
    "eval_timeout": "eval_timeout_secs",
}
# Required flag -> what may replace it.
_REQUIRED = {
    "model_dir": ", or --job-dir, AIP_MODEL_DIR, AIP_CHECKPOINT_DIR or JOB_DIR",
    "pipeline_config_path": "",
}
# Flags that some runs do not read, which is reported.
_UNUSED_WITHOUT_WAITING = ("eval_timeout_secs", "max_eval_retries")
_UNUSED_WITHOUT_EVALUATION = (
    "eval_training_data",
    "sample_1_of_n_eval_examples",
    "sample_1_of_n_eval_on_train_examples",
    "eval_on_tpu",
)
_UNUSED_IN_EVALUATION = (
    "train_batch_size",
    "checkpoint_every_n",
    "use_tpu",
    "rehearse_tpu",
    "eval_on_tpu",
    "task_timeout_secs",
)
_CHOICES = {  # name -> values, help
    "precision": (
        (FLOAT32, BFLOAT16_CONVOLUTIONS, MIXED_BFLOAT16),
        "What the network computes in; variables and losses stay float32. bfloat16_convolutions "
        "is for convolutions and their batch norm, in evaluations, too; mixed_bfloat16 is for all, "
        "and for training alone. Default: float32, or on a TPU what "
        "train_config.use_bfloat16 says.",
    ),
    "mode": (
        ("train_and_eval", "train", "eval"),
        "What to run; eval evaluates each new checkpoint of --model_dir. Default: eval with "
        "--checkpoint_dir, else train_and_eval.",
    ),
    "log_format": (
        ("text", "json"),
        "Lines of JSON with severity, message and time, or text. Default: json in a job of Vertex "
        "AI or AI Platform, else text.",
    ),
}


def define_flags() -> flags.FlagValues:
    """All flags in a separate set, not in absl's global flags."""
    values = flags.FlagValues()
    for name, text in _SWITCHES.items():
        flags.DEFINE_boolean(name, False, text, flag_values=values)
    for name, text in _TEXTS.items():
        flags.DEFINE_string(name, None, text, flag_values=values)
    for name, (number, text) in _NUMBERS.items():
        low = None if name == "max_eval_retries" else 1
        flags.DEFINE_integer(name, number, text, lower_bound=low, flag_values=values)
    flags.DEFINE_float(
        "task_timeout_secs",
        600.0,
        "In a cluster (TF_CONFIG): end after another task was missing for this many seconds.",
        lower_bound=0.001,
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "import",
        [],
        "Module of yours, in the working folder or installed, that registers components; may be "
        "repeated.",
        flag_values=values,
    )
    text = "Always true: event files are written."
    flags.DEFINE_boolean("record_summaries", True, text, flag_values=values)
    for name, original in _OTHER_NAMES.items():
        flags.DEFINE_alias(name, original, flag_values=values)
    for name, (choices, text) in _CHOICES.items():
        flags.DEFINE_enum(name, None, choices, text, flag_values=values)
    text = (
        "The least severe messages that are logged: 1 debugging, 0 information, -1 warnings, -2 "
        "errors, -3 fatal errors."
    )
    flags.DEFINE_integer("verbosity", 0, text, lower_bound=-3, short_name="v", flag_values=values)
    return values


def parse(arguments: Sequence[str]) -> flags.FlagValues:
    """Parses and checks the flags of a job, without the program's name."""
    values = define_flags()
    rest = values(["model_main", *arguments])
    check_flags(values, rest[1:])
    return values


def check_flags(values: flags.FlagValues, rest: List[str]) -> None:
    """Checks flags together, and takes missing ones from the environment.

    Args:
        values: The parsed flags; a missing TPU and a missing `model_dir` are filled in.
        rest: Arguments that are no flags.
    """
    if rest:
        raise UsageError(f"unknown arguments: {' '.join(rest)}; see --help")
    if values["use_tpu"].value and values["rehearse_tpu"].value:
        raise UsageError("--use_tpu and --rehearse_tpu exclude each other: give one of them")
    if values["num_workers"].value != 1:
        raise UsageError(
            "--num_workers starts no machines: describe them in the TF_CONFIG of each task, and "
            "remove the flag; see docs/distributed.md"
        )
    mode = values["mode"].value
    evaluates_only = values["checkpoint_dir"].value or mode == "eval"
    if values["use_tpu"].value and not evaluates_only:
        _find_tpu(values)
    runs_for_tpu = values["use_tpu"].value or values["rehearse_tpu"].value
    for name in ("tpu_name", "tpu_zone", "gcp_project", "eval_on_tpu"):
        if values[name].value and not runs_for_tpu:
            raise UsageError(f"--{name} requires --use_tpu: add it, or remove --{name}")
    values["model_dir"].value, notes = environment.find_model_dir(
        values["model_dir"].value, values["job-dir"].value, os.environ
    )
    for note in notes:
        printing.report(note, sys.stderr)
    for name, replacement in _REQUIRED.items():
        if not values[name].value:
            raise UsageError(f"--{name} is required{replacement}")
    if values["checkpoint_dir"].value and mode not in (None, "eval"):
        raise UsageError(
            f"--checkpoint_dir evaluates without training, --mode={mode} trains: give one of them"
        )
    if values["run_once"].value and not evaluates_only:
        raise UsageError("--run_once requires --checkpoint_dir or --mode=eval")
    _report_unused(values, evaluates_only=bool(evaluates_only))


def _report_unused(values: flags.FlagValues, *, evaluates_only: bool) -> None:
    """Reports the flags that are given and have no effect on what is run."""
    unused: Tuple[str, ...] = ("record_summaries",)
    if evaluates_only:
        unused += _UNUSED_IN_EVALUATION
        if values["precision"].value == MIXED_BFLOAT16:
            unused += ("precision",)
    if values["run_once"].value:
        unused += ("num_train_steps",)
    if values["run_once"].value or not evaluates_only:
        unused += _UNUSED_WITHOUT_WAITING
    if not values["eval_training_data"].value:
        unused += ("sample_1_of_n_eval_on_train_examples",)
    elif evaluates_only:  # a training evaluates both
        unused += ("sample_1_of_n_eval_examples",)
    if values["mode"].value == "train":
        unused += _UNUSED_WITHOUT_EVALUATION
    for name in dict.fromkeys(unused):
        if values[name].present and values[name].value != values[name].default:
            printing.report(f"--{name} has no effect on this run", sys.stderr)


def _find_tpu(values: flags.FlagValues) -> None:
    """Takes what the flags do not say of the TPU from the environment."""
    if not values["tpu_name"].value:
        for name, value in environment.read_tpu_address(os.environ).items():
            values[name].value = values[name].value or value
    if not values["tpu_name"].value:
        raise UsageError(
            "--use_tpu requires --tpu_name: the name of a Cloud TPU, its address such as "
            "grpc://10.0.0.2:8470, or local on the machine of the TPU; none of the environment "
            "variables KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, TPU_NAME and TPU_CONFIG names one. To run "
            "without a TPU, give --rehearse_tpu instead"
        )


def refuse_old_flags(arguments: Sequence[str]) -> None:
    """Raises a UsageError for the first flag of the old trainer, with what to use instead."""
    for argument in arguments:
        name = argument.lstrip("-").partition("=")[0]
        if argument.startswith("-") and (text := other_trainers.refusal("model_main", name)):
            raise UsageError(text)
