"""Trains and evaluates with the flags of the TensorFlow Object Detection API.

    python -m estimator_det.model_main --pipeline_config_path=ssd.config --model_dir=run

`--checkpoint_dir` evaluates without training. `--use_tpu` trains on a TPU and requires all files in
Cloud Storage; `--rehearse_tpu` runs the same loop on this machine, without a TPU. The command
`estimator-det` has more functions and shorter options.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import Any, ContextManager, Dict, List, Optional, Sequence, Tuple

from absl import flags

from estimator_det import console, tpu_environment
from estimator_det.cloud import environment
from estimator_det.config import printing
from estimator_det.config.text import ConfigError
from estimator_det.verbs import evaluate

MODES = ("train_and_eval", "train", "eval")


_SWITCHES = {
    "help": "Show this text.",
    "eval_training_data": "Evaluate on the training records.",
    "run_once": "With --checkpoint_dir: evaluate the latest checkpoint, then stop.",
    "use_tpu": "Train on a TPU: that of --tpu_name, or that of the environment variable "
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
    "num_train_steps": (None, "Training steps; default: train_config.num_steps."),
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
    "num_shards": (8, "TPU cores; each gets an equal part of the batch."),
    "iterations_per_loop": (100, "Steps per loop on the TPU."),
}
_MAY_BE_NEGATIVE = ("max_eval_retries",)
# What replaces a required flag.
_OR = {"model_dir": ", or --job-dir, AIP_MODEL_DIR, AIP_CHECKPOINT_DIR or JOB_DIR"}
_VERBOSITY_HELP = (
    "The least severe messages that are logged: 1 debugging, 0 information, -1 warnings, -2 "
    "errors, -3 fatal errors."
)
# Flags that some runs do not read, which is reported.
_UNUSED_WITHOUT_WAITING = ("eval_timeout_secs", "max_eval_retries")
_UNUSED_WITHOUT_EVALUATION = (
    "eval_training_data",
    "sample_1_of_n_eval_examples",
    "sample_1_of_n_eval_on_train_examples",
    "eval_on_tpu",
)
_UNUSED_IN_EVALUATION = ("train_batch_size", "use_tpu", "rehearse_tpu", "eval_on_tpu")
LOG_FORMATS = ("text", "json")
_LOG_FORMAT_HELP = (
    "Lines of JSON with severity, message and time, or text. Default: json in a job of Vertex AI "
    "or AI Platform, else text."
)
_MODE_HELP = (
    "What to run; eval evaluates each new checkpoint of --model_dir. Default: eval with "
    "--checkpoint_dir, else train_and_eval."
)


def define_flags() -> flags.FlagValues:
    """All flags in a separate set, not in absl's global flags."""
    values = flags.FlagValues()
    for name, text in _SWITCHES.items():
        flags.DEFINE_boolean(name, False, text, flag_values=values)
    for name, text in _TEXTS.items():
        default = "" if name == "config_override" else None
        flags.DEFINE_string(name, default, text, flag_values=values)
    for name, (number, text) in _NUMBERS.items():
        low = None if name in _MAY_BE_NEGATIVE else 1
        flags.DEFINE_integer(name, number, text, lower_bound=low, flag_values=values)
    flags.DEFINE_enum("mode", None, MODES, _MODE_HELP, flag_values=values)
    flags.DEFINE_enum("log_format", None, LOG_FORMATS, _LOG_FORMAT_HELP, flag_values=values)
    flags.DEFINE_integer(
        "verbosity", 0, _VERBOSITY_HELP, lower_bound=-3, short_name="v", flag_values=values
    )
    return values


def help_text(values: flags.FlagValues) -> str:
    """The module's description, every flag, and the exit codes."""
    lines = [(__doc__ or "").strip(), "", "flags:"]
    for name in sorted(values):
        flag = values[name]
        if name == flag.short_name:
            continue
        short = f", -{flag.short_name}" if flag.short_name else ""
        is_default = flag.default is None or flag.default == "" or flag.default is False
        default = "" if is_default else f" (default: {flag.default})"
        lines.append(f"  --{name}{short}\n        {flag.help}{default}")
    return "\n".join([*lines, "", console.EXIT_CODES_HELP])


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the program.

    Args:
        argv: Program name and flags; `sys.argv` by default.

    Returns:
        An exit code of `estimator_det.console`.
    """
    values = define_flags()
    printing.use_json(environment.is_cloud_job(os.environ))
    try:
        rest = values(list(sys.argv if argv is None else argv))
        if values["help"].value:
            console.say(help_text(values))
            return console.EXIT_OK
        if values["log_format"].value:
            printing.use_json(values["log_format"].value == "json")
        _check_flags(values, rest[1:])
    except (flags.Error, console.UsageError, ConfigError) as error:
        printing.report(f"error: {error}\nAll flags: --help", sys.stderr)
        return console.EXIT_USAGE
    console.quiet_logging(
        _log_level(int(values["verbosity"].value or 0)),
        of_libraries=bool(values["logtostderr"].value or values["alsologtostderr"].value),
    )
    return console.run(lambda: _run(values))


def _log_level(verbosity: int) -> int:
    """The level of `logging` for a verbosity of absl."""
    names = ("CRITICAL", "ERROR", "WARNING", "INFO", "DEBUG")
    return int(getattr(logging, names[min(verbosity, 1) + 3]))


def _check_flags(values: flags.FlagValues, rest: List[str]) -> None:
    if rest:
        raise console.UsageError(f"unknown arguments: {' '.join(rest)}; see --help")
    if values["use_tpu"].value and values["rehearse_tpu"].value:
        raise console.UsageError(
            "--use_tpu and --rehearse_tpu exclude each other: give one of them"
        )
    mode = values["mode"].value
    evaluates_only = values["checkpoint_dir"].value or mode == "eval"
    if values["use_tpu"].value and not evaluates_only:
        _find_tpu(values)
    runs_for_tpu = values["use_tpu"].value or values["rehearse_tpu"].value
    for name in ("tpu_name", "tpu_zone", "gcp_project", "eval_on_tpu"):
        if values[name].value and not runs_for_tpu:
            raise console.UsageError(f"--{name} requires --use_tpu: add it, or remove --{name}")
    found = environment.find_model_dir(
        values["model_dir"].value, values["job-dir"].value, os.environ
    )
    values["model_dir"].value = found.path
    for note in found.notes:
        printing.report(note, sys.stderr)
    for name in ("model_dir", "pipeline_config_path"):
        if not values[name].value:
            raise console.UsageError(f"--{name} is required{_OR.get(name, '')}")
    if values["checkpoint_dir"].value and mode not in (None, "eval"):
        raise console.UsageError(
            f"--checkpoint_dir evaluates without training, --mode={mode} trains: give one of them"
        )
    if values["run_once"].value and not evaluates_only:
        raise console.UsageError("--run_once requires --checkpoint_dir or --mode=eval")
    _report_unused(values, evaluates_only=bool(evaluates_only))


def _report_unused(values: flags.FlagValues, *, evaluates_only: bool) -> None:
    """Reports the flags that are given and have no effect on what is run."""
    unused: Tuple[str, ...] = ()
    if evaluates_only:
        unused += _UNUSED_IN_EVALUATION
    if values["run_once"].value or not evaluates_only:
        unused += _UNUSED_WITHOUT_WAITING
    if values["mode"].value == "train":
        unused += _UNUSED_WITHOUT_EVALUATION
    for name in unused:
        if values[name].present and values[name].value != values[name].default:
            printing.report(f"--{name} has no effect on this run", sys.stderr)


def _find_tpu(values: flags.FlagValues) -> None:
    """Takes what the flags do not say of the TPU from the environment."""
    if not values["tpu_name"].value:
        found = tpu_environment.read_tpu_address(os.environ)
        values["tpu_name"].value = found.name
        values["tpu_zone"].value = values["tpu_zone"].value or found.zone
        values["gcp_project"].value = values["gcp_project"].value or found.project
    if not values["tpu_name"].value:
        raise console.UsageError(
            "--use_tpu requires --tpu_name: the name of a Cloud TPU, its address such as "
            "grpc://10.0.0.2:8470, or local on the machine of the TPU; none of the environment "
            "variables KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, TPU_NAME and TPU_CONFIG names one. To run "
            "without a TPU, give --rehearse_tpu instead"
        )


def _run(values: flags.FlagValues) -> int:
    from estimator_det.config import pipeline

    flag: Dict[str, Any] = {name: values[name].value for name in values}
    config = pipeline.override(
        console.load_config(flag["pipeline_config_path"], flag["config_override"]),
        batch_size=flag["train_batch_size"],
        num_train_steps=flag["num_train_steps"],
    )
    if flag["checkpoint_dir"] or flag["mode"] == "eval":
        return _evaluate(config, flag)
    on_tpu = _on_tpu(config, flag)
    unused = console.unused_in_training(flag["model_dir"], on_tpu=on_tpu is not None)
    console.check_config(config, ignore=unused)
    from inputs.checks import decoder_warnings

    with decoder_warnings.count(), _copied_events(flag["model_dir"]):
        metrics = _train(config, flag, on_tpu)
    if metrics:
        console.say_metrics("last evaluation:", metrics)
    return console.EXIT_OK


def _copied_events(model_dir: str) -> ContextManager[None]:
    """Copies event files to AIP_TENSORBOARD_LOG_DIR, where that is another folder."""
    log_dir = os.environ.get(environment.TENSORBOARD_VARIABLE, "").rstrip("/")
    from model_fn.runs import cluster

    if log_dir in ("", model_dir.rstrip("/")) or not cluster.is_chief():
        return contextlib.nullcontext()
    from estimator_det.cloud import event_files

    printing.report(f"event files are copied to {log_dir}", sys.stderr)
    return event_files.copied(model_dir, log_dir)


def _train(config: Any, flag: Dict[str, Any], on_tpu: Any) -> Dict[str, float]:
    """Trains as the flags say; returns the last metrics, none without evaluations."""
    from model_fn.runs import runner
    from model_fn.runs.options import Evaluating

    if flag["mode"] == "train":
        runner.train(config, flag["model_dir"], on_tpu=on_tpu)
        return {}
    return runner.train_and_evaluate(
        config,
        flag["model_dir"],
        evaluating=Evaluating(
            sample_1_of_n=flag["sample_1_of_n_eval_examples"],
            on_training_data=flag["eval_training_data"],
            training_data_sample_1_of_n=flag["sample_1_of_n_eval_on_train_examples"],
        ),
        on_tpu=on_tpu,
    )


def _on_tpu(config: Any, flag: Dict[str, Any]) -> Any:
    """The `OnTpu` of the flags, or None; checks the configuration for a TPU first."""
    if not (flag["use_tpu"] or flag["rehearse_tpu"]):
        return None
    from model_fn.runs.backends import tpu_options

    on_tpu = tpu_options.OnTpu(
        name=flag["tpu_name"],
        zone=flag["tpu_zone"],
        project=flag["gcp_project"],
        num_shards=flag["num_shards"],
        iterations_per_loop=flag["iterations_per_loop"],
        evaluates=flag["eval_on_tpu"],
        rehearses=flag["rehearse_tpu"],
    )
    for finding in tpu_options.check(config, flag["model_dir"], on_tpu):
        printing.report(finding, sys.stderr)
    return on_tpu


def _evaluate(config: Any, flag: Dict[str, Any]) -> int:
    on_training_data = flag["eval_training_data"]
    sampling = "eval_on_train_examples" if on_training_data else "eval_examples"
    return evaluate.run_evaluation(
        config,
        flag["checkpoint_dir"] or flag["model_dir"],
        continuous=not flag["run_once"],
        on_training_data=on_training_data,
        model_dir=flag["model_dir"],
        sample_1_of_n=flag[f"sample_1_of_n_{sampling}"],
        max_retries=flag["max_eval_retries"],
        timeout_secs=flag["eval_timeout_secs"],
    )


if __name__ == "__main__":
    sys.exit(main())
