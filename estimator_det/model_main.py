"""Trains and evaluates with the flags of the TensorFlow Object Detection API.

    python -m estimator_det.model_main --pipeline_config_path=ssd.config --model_dir=run

`--checkpoint_dir` evaluates without training. `--use_tpu` trains on a TPU and requires all files in
Cloud Storage; `--rehearse_tpu` runs the same loop on this machine, without a TPU. The command
`estimator-det` has more functions and shorter options.
"""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Optional, Sequence

from absl import flags

from estimator_det import console
from model_fn.runs.backends import tpu_options
from model_fn.runs.backends.tpu_options import OnTpu

MODES = ("train_and_eval", "train", "eval")


def define_flags() -> flags.FlagValues:
    """All flags in a separate set, not in absl's global flags."""
    values = flags.FlagValues()
    _define_run_flags(values)
    _define_evaluation_flags(values)
    _define_tpu_flags(values)
    return values


def _text(values: flags.FlagValues, name: str, default: Optional[str], help_text: str) -> None:
    flags.DEFINE_string(name, default, help_text, flag_values=values)


def _number(
    values: flags.FlagValues, name: str, default: Optional[int], help_text: str, low: Optional[int]
) -> None:
    flags.DEFINE_integer(name, default, help_text, lower_bound=low, flag_values=values)


def _switch(values: flags.FlagValues, name: str, help_text: str) -> None:
    flags.DEFINE_boolean(name, False, help_text, flag_values=values)


def _define_run_flags(values: flags.FlagValues) -> None:
    _switch(values, "help", "Show this text.")
    _text(values, "model_dir", None, "Required. Folder for checkpoints and event files.")
    _text(values, "pipeline_config_path", None, "Required. Pipeline configuration file.")
    _text(values, "config_override", "", "Pipeline text proto merged over the configuration.")
    _number(values, "num_train_steps", None, "Training steps; default: train_config.num_steps.", 1)
    _number(values, "train_batch_size", None, "Batch size; default: train_config.batch_size.", 1)
    flags.DEFINE_enum(
        "mode",
        None,
        MODES,
        "What to run; eval evaluates each new checkpoint of --model_dir. Default: eval with "
        "--checkpoint_dir, else train_and_eval.",
        flag_values=values,
    )
    _text(values, "job-dir", None, "Set by training services; replaces a missing --model_dir.")


def _define_evaluation_flags(values: flags.FlagValues) -> None:
    _switch(values, "eval_training_data", "Evaluate on the training records.")
    _number(values, "sample_1_of_n_eval_examples", None, "Evaluate every n-th record only.", 1)
    _number(
        values,
        "sample_1_of_n_eval_on_train_examples",
        5,
        "With --eval_training_data: evaluate every n-th training record only.",
        1,
    )
    _text(values, "checkpoint_dir", None, "Evaluate the checkpoints of this folder; do not train.")
    _switch(values, "run_once", "With --checkpoint_dir: evaluate the latest checkpoint, then stop.")
    _number(
        values,
        "max_eval_retries",
        0,
        "Continuous evaluation: how often to retry a checkpoint whose evaluation fails; negative: "
        "without limit.",
        None,
    )
    _number(
        values,
        "eval_timeout_secs",
        None,
        "Continuous evaluation: stop after this time without a new checkpoint; default: continue "
        "until training ends.",
        1,
    )


def _define_tpu_flags(values: flags.FlagValues) -> None:
    _switch(values, "use_tpu", "Train on a TPU. Requires --tpu_name.")
    _switch(values, "rehearse_tpu", "Run the TPU training loop on this machine, without a TPU.")
    _switch(values, "eval_on_tpu", "With --use_tpu: also evaluate on the TPU, not on this machine.")
    _text(
        values,
        "tpu_name",
        None,
        "Name of the TPU, its grpc:// address, or local on the machine of the TPU.",
    )
    _text(values, "tpu_zone", None, "Zone of the TPU.")
    _text(values, "gcp_project", None, "Project of the TPU.")
    _number(values, "num_shards", 8, "TPU cores; each gets an equal part of the batch.", 1)
    _number(values, "iterations_per_loop", 100, "Steps per loop on the TPU.", 1)


def help_text(values: flags.FlagValues) -> str:
    """The module's description, every flag, and the exit codes."""
    lines = [(__doc__ or "").strip(), "", "flags:"]
    for name in sorted(values):
        flag = values[name]
        default = "" if flag.default in (None, "", False) else f" (default: {flag.default})"
        lines.append(f"  --{name}\n        {flag.help}{default}")
    return "\n".join([*lines, "", console.EXIT_CODES_HELP])


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the program.

    Args:
        argv: Program name and flags; `sys.argv` by default.

    Returns:
        An exit code of `estimator_det.console`.
    """
    values = define_flags()
    try:
        rest = values(list(sys.argv if argv is None else argv))
        if values["help"].value:
            console.say(help_text(values))
            return console.EXIT_OK
        _check_flags(values, rest[1:])
    except (flags.Error, console.UsageError) as error:
        print(f"error: {error}\nAll flags: --help", file=sys.stderr, flush=True)
        return console.EXIT_USAGE
    console.quiet_logging()
    return console.run(lambda: _run(values))


def _check_flags(values: flags.FlagValues, rest: List[str]) -> None:
    if rest:
        raise console.UsageError(f"unknown arguments: {' '.join(rest)}; see --help")
    if values["use_tpu"].value and values["rehearse_tpu"].value:
        raise console.UsageError(
            "--use_tpu and --rehearse_tpu exclude each other: give one of them"
        )
    if values["use_tpu"].value and not values["tpu_name"].value:
        raise console.UsageError(
            "--use_tpu requires --tpu_name: the name of a Cloud TPU, its address such as "
            "grpc://10.0.0.2:8470, or local on the machine of the TPU. To run without a TPU, give "
            "--rehearse_tpu instead"
        )
    runs_for_tpu = values["use_tpu"].value or values["rehearse_tpu"].value
    for name in ("tpu_name", "tpu_zone", "gcp_project", "eval_on_tpu"):
        if values[name].value and not runs_for_tpu:
            raise console.UsageError(f"--{name} requires --use_tpu: add it, or remove --{name}")
    if values["model_dir"].value is None:
        values["model_dir"].value = values["job-dir"].value
    for name in ("model_dir", "pipeline_config_path"):
        if not values[name].value:
            raise console.UsageError(f"--{name} is required")
    evaluates_only = values["checkpoint_dir"].value or values["mode"].value == "eval"
    if values["run_once"].value and not evaluates_only:
        raise console.UsageError("--run_once requires --checkpoint_dir or --mode=eval")


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
    console.check_config(config, ignore=console.unused_in_training(flag["model_dir"]))
    from model_fn.runs import runner
    from model_fn.runs.options import Evaluating

    if flag["mode"] == "train":
        runner.train(config, flag["model_dir"], on_tpu=on_tpu)
        return console.EXIT_OK
    metrics = runner.train_and_evaluate(
        config,
        flag["model_dir"],
        evaluating=Evaluating(
            sample_1_of_n=flag["sample_1_of_n_eval_examples"],
            on_training_data=flag["eval_training_data"],
            training_data_sample_1_of_n=flag["sample_1_of_n_eval_on_train_examples"],
        ),
        on_tpu=on_tpu,
    )
    if metrics:
        console.say_metrics("last evaluation:", metrics)
    return console.EXIT_OK


def _on_tpu(config: Any, flag: Dict[str, Any]) -> Optional[OnTpu]:
    """The TPU options of the flags; checks the configuration for a TPU first."""
    if not (flag["use_tpu"] or flag["rehearse_tpu"]):
        return None
    on_tpu = OnTpu(
        name=flag["tpu_name"],
        zone=flag["tpu_zone"],
        project=flag["gcp_project"],
        num_shards=flag["num_shards"],
        iterations_per_loop=flag["iterations_per_loop"],
        evaluates=flag["eval_on_tpu"],
        rehearses=flag["rehearse_tpu"],
    )
    for finding in tpu_options.check(config, flag["model_dir"], on_tpu):
        print(finding, file=sys.stderr, flush=True)
    return on_tpu


def _evaluate(config: Any, flag: Dict[str, Any]) -> int:
    on_training_data = flag["eval_training_data"]
    console.check_config(config, ignore=console.unused_in_evaluation(on_training_data))
    from model_fn.runs import evaluator

    checkpoint_dir = flag["checkpoint_dir"] or flag["model_dir"]
    settings: Dict[str, Any] = {
        "model_dir": flag["model_dir"],
        "on_training_data": on_training_data,
        "sample_1_of_n": flag["sample_1_of_n_eval_on_train_examples"]
        if on_training_data
        else flag["sample_1_of_n_eval_examples"],
    }
    if flag["run_once"]:
        results = evaluator.evaluate(config, checkpoint_dir, **settings)
    else:
        results = evaluator.continuous_eval(
            config,
            checkpoint_dir,
            max_retries=flag["max_eval_retries"],
            timeout_secs=flag["eval_timeout_secs"],
            **settings,
        )
    for name, metrics in results.items():
        console.say_metrics(f"evaluation {name}:", metrics)
    return console.EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
