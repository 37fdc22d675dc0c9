"""`estimator-det train`: trains a detector and evaluates it on the way."""

from __future__ import annotations

import argparse

from estimator_det import console
from estimator_det.verbs.base import CONFIG_EXAMPLE, CONFIG_FILE, Verb, add_config_arguments, load


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    parser.add_argument(
        "--model_dir", required=True, help="checkpoints and event files; a run in it goes on"
    )
    parser.add_argument("--num_train_steps", type=int, help="default: train_config.num_steps")
    parser.add_argument("--seed", type=int, help="of first weights, shuffling and augmentation")


def _run(options: argparse.Namespace) -> int:
    from estimator_det.config import pipeline

    config = pipeline.override(load(options), num_train_steps=options.num_train_steps)
    console.check_config(config)
    from model_fn import runner

    metrics = runner.train_and_evaluate(config, options.model_dir, seed=options.seed)
    if metrics:
        console.say_metrics("last evaluation:", metrics)
    console.say(f"checkpoints, event files and {CONFIG_FILE}: {options.model_dir}")
    return console.EXIT_OK


VERB = Verb(
    "train",
    "Trains a detector and evaluates it on the way",
    f"{CONFIG_EXAMPLE} --model_dir run --set train_config.batch_size=8",
    _add_arguments,
    _run,
)
