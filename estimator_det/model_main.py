"""Trains and evaluates, or evaluates alone, with the flags of the reference's programs.

    python -m estimator_det.model_main --pipeline_config_path=ssd.config --model_dir=run

`--checkpoint_dir` evaluates without training. `--use_tpu` trains on a TPU, and needs everything
in Cloud Storage; `--rehearse_tpu` tries that on this machine. The friendlier command is
`estimator-det`.
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
    """All flags, in a set of their own: nothing is added to absl's global flags."""
    values = flags.FlagValues()

    def text(name: str, default: Optional[str], help_text: str) -> None:
        flags.DEFINE_string(name, default, help_text, flag_values=values)

    def number(name: str, default: Optional[int], help_text: str, low: Optional[int]) -> None:
        flags.DEFINE_integer(name, default, help_text, lower_bound=low, flag_values=values)

    def switch(name: str, help_text: str) -> None:
        flags.DEFINE_boolean(name, False, help_text, flag_values=values)

    switch("help", "Show this text.")
    text("model_dir", None, "Folder for checkpoints and event files. Needed.")
    text("pipeline_config_path", None, "Pipeline configuration file. Needed.")
    text("config_override", "", "Pipeline text proto merged over the configuration.")
    number("num_train_steps", None, "Steps to train; default: train_config.num_steps.", 1)
    number("train_batch_size", None, "Batch size; default: train_config.batch_size.", 1)
    switch("eval_training_data", "Evaluate on the training records.")
    number("sample_1_of_n_eval_examples", None, "Evaluate every n-th record only.", 1)
    number(
        "sample_1_of_n_eval_on_train_examples",
        5,
        "Evaluate every n-th training record, with --eval_training_data.",
        1,
    )
    text("checkpoint_dir", None, "Evaluate this folder's checkpoints in place of training.")
    switch("run_once", "With --checkpoint_dir: evaluate the latest checkpoint, then stop.")
    number(
        "max_eval_retries",
        0,
        "Continuous evaluation: how often a checkpoint that fails is tried again; "
        "negative: without end.",
        None,
    )
    number(
        "eval_timeout_secs",
        None,
        "Continuous evaluation: end after so long without a new checkpoint; default: go on until "
        "training is over.",
        1,
    )
    flags.DEFINE_enum(
        "mode",
        None,
        MODES,
        "What to do; eval evaluates the checkpoints of --model_dir as they appear. Default: "
        "eval with --checkpoint_dir, else train_and_eval.",
        flag_values=values,
    )
    switch("use_tpu", "Train on a TPU. Needs --tpu_name.")
    switch("rehearse_tpu", "Run on this machine what --use_tpu would run, without a TPU.")
    switch("eval_on_tpu", "With --use_tpu: evaluate on the TPU, too; default: on this machine.")
    text("tpu_name", None, "Name of the TPU, its grpc:// address, or local on its own machine.")
    text("tpu_zone", None, "Zone of the TPU.")
    text("gcp_project", None, "Project of the TPU.")
    number("num_shards", 8, "TPU cores; they share a batch.", 1)
    number("iterations_per_loop", 100, "Steps between two returns from the TPU.", 1)
    text("job-dir", None, "Given by training services; stands in for a missing --model_dir.")
    return values


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
        raise console.UsageError(f"arguments that belong to no flag: {' '.join(rest)}")
    if values["use_tpu"].value and values["rehearse_tpu"].value:
        raise console.UsageError("--use_tpu runs on a TPU, --rehearse_tpu without one: give one")
    if values["use_tpu"].value and not values["tpu_name"].value:
        raise console.UsageError(
            "--use_tpu needs --tpu_name: the name of a Cloud TPU, its address such as "
            "grpc://10.0.0.2:8470, or local on the TPU's own machine. To try the run without a "
            "TPU, give --rehearse_tpu in its place"
        )
    runs_for_tpu = values["use_tpu"].value or values["rehearse_tpu"].value
    for name in ("tpu_name", "tpu_zone", "gcp_project", "eval_on_tpu"):
        if values[name].value and not runs_for_tpu:
            raise console.UsageError(f"--{name} is for a TPU: add --use_tpu, or leave it out")
    if values["model_dir"].value is None:
        values["model_dir"].value = values["job-dir"].value
    for name in ("model_dir", "pipeline_config_path"):
        if not values[name].value:
            raise console.UsageError(f"--{name} is needed")
    evaluates_only = values["checkpoint_dir"].value or values["mode"].value == "eval"
    if values["run_once"].value and not evaluates_only:
        raise console.UsageError("--run_once is for evaluation: give --checkpoint_dir too")


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
    """What the flags say of a TPU, once the configuration is found fit for it."""
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
