"""`estimator-det replay`: repeats a training step whose loss or gradients were not finite."""

from __future__ import annotations

import argparse
import math
import os

from estimator_det.programs import console
from estimator_det.programs.verbs.base import (
    CONFIG_FILE,
    add_config_arguments,
    add_options,
    load,
    positive,
)

SUMMARY = "Repeats a training step that was not finite; try remedies with --set"
EXAMPLE = "run/faults/bad_step-120 --steps 5 --set train_config.gradient_clipping_by_norm=10"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", metavar="BAD_STEP_DIR", help="the folder faults/bad_step-<step> of model_dir"
    )
    text = (
        "steps to run on this batch; a change of the learning rate has an effect from the second "
        "one (default: %(default)s)"
    )
    add_options(parser, positive, {"--steps": text}, default=1)
    add_config_arguments(parser, default=f"{CONFIG_FILE} in BAD_STEP_DIR")


def run(options: argparse.Namespace) -> int:
    folder = options.folder.rstrip("/")
    config = load(options, os.path.join(folder, CONFIG_FILE))
    from model_fn.debugging import replay

    result = replay.replay(config, folder, options.steps)
    console.print_line(replay.replay_text(result))
    steps = [
        {
            "step": step.step,
            "values": {k: x if math.isfinite(x) else str(x) for k, x in step.values.items()},
        }
        for step in result.steps
    ]
    console.report_result({"is_finite": result.is_finite, "steps": steps})
    return console.EXIT_OK if result.is_finite else console.EXIT_FAILED
