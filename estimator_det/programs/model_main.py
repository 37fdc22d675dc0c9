"""Trains and evaluates with the flags of the TensorFlow Object Detection API.

    python -m estimator_det.model_main --pipeline_config_path=ssd.config --model_dir=run

`--checkpoint_dir` evaluates without training. `--use_tpu` trains on a TPU and requires all files in
Cloud Storage; `--rehearse_tpu` runs the same loop on this machine, without a TPU. The command
`estimator-det` has more functions and shorter options.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, ContextManager, Dict, Optional, Sequence

from absl import flags
from absl.logging import converter

from estimator_det.console import printing
from estimator_det.errors import UsageError
from estimator_det.programs import console
from estimator_det.programs.cloud import environment
from estimator_det.programs.model_flags import check_flags, define_flags, refuse_old_flags
from estimator_det.programs.verbs import evaluate
from model_fn.runs.options import CheckpointOptions, EvaluationOptions, TpuOptions, TrainOptions

if TYPE_CHECKING:
    from estimator_det.protos import pipeline_pb2


def help_text(values: flags.FlagValues) -> str:
    """The module's description, every flag, and the exit codes."""
    lines = [(__doc__ or "").strip(), "", "flags:"]
    names = (name for name in values if name != values[name].short_name)
    for name in sorted(names):
        flag = values[name]
        short = f", -{flag.short_name}" if flag.short_name else ""
        is_default = flag.default is None or flag.default == "" or flag.default is False
        default = "" if is_default else f" (default: {flag.default})"
        lines.append(f"  --{name}{short}\n        {flag.help}{default}")
    return "\n".join([*lines, "", console.EXIT_CODES_HELP])


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs the program; returns an exit code of `console`. `argv` is `sys.argv` by default."""
    printing.open_closed_streams()
    values = define_flags()
    # Before flags are parsed, so that their errors are JSON in a cloud job as well.
    printing.use_json(environment.is_cloud_job(os.environ))
    try:
        arguments = list(sys.argv if argv is None else argv)
        # Else absl reports them as unknown flags, without the replacement.
        refuse_old_flags(arguments[1:])
        rest = values(arguments)
        if values["help"].value:
            console.print_line(help_text(values))
            return console.EXIT_OK
        if values["log_format"].value:
            printing.use_json(values["log_format"].value == "json")
        check_flags(values, rest[1:])
    except (flags.Error, UsageError) as error:
        printing.report(f"error: {error}\nAll flags: --help", sys.stderr, severity="ERROR")
        return console.EXIT_USAGE
    console.quiet_logging(
        converter.absl_to_standard(min(values["verbosity"].value or 0, converter.ABSL_DEBUG)),
        of_libraries=bool(values["logtostderr"].value or values["alsologtostderr"].value),
    )
    return console.run(lambda: _run(values))


def _run(values: flags.FlagValues) -> None:
    from estimator_det.config import pipeline, plugins

    flag: Dict[str, Any] = values.flag_values_dict()
    plugins.load(flag["import"], [flag["model_dir"], flag["checkpoint_dir"]])
    config = pipeline.override(
        console.load_config(flag["pipeline_config_path"], flag["config_override"]),
        batch_size=flag["train_batch_size"],
        num_train_steps=flag["num_train_steps"],
    )
    if flag["checkpoint_dir"] or flag["mode"] == "eval":
        _evaluate(config, flag)
        return
    options = _train_options(flag)
    label_maps = console.check_training(config, flag["model_dir"], options)
    from model_fn.runs import runner

    with _copied_events(flag["model_dir"]):
        evaluates = flag["mode"] != "train"
        metrics = runner.run(
            config, flag["model_dir"], options, evaluates=evaluates, label_maps=label_maps
        )
    if metrics:
        console.say_metrics("last evaluation:", metrics)


def _copied_events(model_dir: str) -> ContextManager[None]:
    """Copies event files to AIP_TENSORBOARD_LOG_DIR, if that is another folder."""
    log_dir = os.environ.get(environment.TENSORBOARD_VARIABLE, "").rstrip("/")
    from model_fn.runs import cluster

    # Copies by other tasks would overwrite the copies by the chief.
    if log_dir in ("", model_dir.rstrip("/")) or not cluster.read_cluster().is_chief:
        return contextlib.nullcontext()
    from estimator_det.programs.cloud import event_files

    printing.report(f"event files are copied to {log_dir}", sys.stderr)
    return event_files.copied(model_dir, log_dir)


def _train_options(flag: Dict[str, Any]) -> TrainOptions:
    tpu = None
    if flag["use_tpu"] or flag["rehearse_tpu"]:
        tpu = TpuOptions(
            name=flag["tpu_name"],
            zone=flag["tpu_zone"],
            project=flag["gcp_project"],
            num_shards=flag["num_shards"],
            iterations_per_loop=flag["iterations_per_loop"],
            evaluates=flag["eval_on_tpu"],
            rehearses=flag["rehearse_tpu"],
        )
    return TrainOptions(
        tpu=tpu,
        checkpoints=CheckpointOptions(steps=flag["checkpoint_every_n"]),
        precision=flag["precision"],
        task_timeout_secs=flag["task_timeout_secs"],
        evaluation=EvaluationOptions(
            sample_1_of_n=flag["sample_1_of_n_eval_examples"],
            on_training_data=flag["eval_training_data"],
            training_data_sample_1_of_n=flag["sample_1_of_n_eval_on_train_examples"],
        ),
    )


def _evaluate(config: pipeline_pb2.TrainEvalPipelineConfig, flag: Dict[str, Any]) -> None:
    on_training_data = flag["eval_training_data"]
    # The API has a flag of each name, with different defaults.
    sampling = "eval_on_train_examples" if on_training_data else "eval_examples"
    evaluate.run_evaluation(
        config,
        flag["checkpoint_dir"] or flag["model_dir"],
        flag["model_dir"],
        continuous=not flag["run_once"],
        on_training_data=on_training_data,
        sample_1_of_n=flag[f"sample_1_of_n_{sampling}"],
        max_retries=flag["max_eval_retries"],
        timeout_secs=flag["eval_timeout_secs"],
        precision=flag["precision"],
        folder_option="model_dir",
    )
