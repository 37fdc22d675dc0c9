"""`estimator-det evaluate`: evaluates the latest checkpoint, or each new checkpoint."""

from __future__ import annotations

import argparse
import os
from typing import Any, Optional

from estimator_det import console
from estimator_det.verbs.base import CONFIG_FILE, add_config_arguments, load

SUMMARY = "Evaluates the latest checkpoint, or each new checkpoint"
EXAMPLE = "--checkpoint_dir run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    add_config_arguments(parser, default=f"{CONFIG_FILE} in checkpoint_dir")
    parser.add_argument("--checkpoint_dir", required=True, help="model_dir of the training run")
    parser.add_argument("--model_dir", help="folder for event files; default: checkpoint_dir")
    parser.add_argument("--continuous", action="store_true", help="evaluate each new checkpoint")
    parser.add_argument(
        "--timeout_secs",
        type=float,
        help="with --continuous: stop after this time without a new checkpoint",
    )
    parser.add_argument(
        "--eval_training_data", action="store_true", help="evaluate on the training records"
    )


def run(options: argparse.Namespace) -> int:
    """Runs the verb; returns an exit code."""
    if options.timeout_secs is not None and not options.continuous:
        raise console.UsageError("--timeout_secs requires --continuous: add it")
    return run_evaluation(
        load(options, os.path.join(options.checkpoint_dir, CONFIG_FILE)),
        options.checkpoint_dir,
        continuous=options.continuous,
        on_training_data=options.eval_training_data,
        model_dir=options.model_dir,
        timeout_secs=options.timeout_secs,
    )


def run_evaluation(
    config: Any,
    checkpoint_dir: str,
    *,
    continuous: bool,
    on_training_data: bool,
    max_retries: int = 0,
    timeout_secs: Optional[float] = None,
    **settings: Any,
) -> int:
    """Checks the configuration, evaluates and prints the metrics; returns an exit code.

    The settings are those of `model_fn.runs.evaluator`.
    """
    console.check_config(config, ignore=console.unused_in_evaluation(on_training_data))
    console.warn_of_float_model(config)
    from inputs.checks import decoder_warnings
    from model_fn.runs import evaluator

    settings["on_training_data"] = on_training_data
    if continuous:
        settings.update(max_retries=max_retries, timeout_secs=timeout_secs)
    evaluate = evaluator.continuous_eval if continuous else evaluator.evaluate
    with decoder_warnings.count():
        results = evaluate(config, checkpoint_dir, **settings)
    for name, metrics in results.items():
        console.say_metrics(f"evaluation {name}:", metrics)
    return console.EXIT_OK
