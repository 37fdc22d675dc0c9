"""`estimator-det demo`: all steps from records to an exported detector, on coloured shapes."""

from __future__ import annotations

import argparse

from estimator_det.programs import console
from estimator_det.programs.verbs.base import add_set_argument

SUMMARY = "Makes a data set of shapes; trains, evaluates, exports and runs a small detector"
EXAMPLE = "--output_dir demo_output --seed 1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    parser.add_argument(
        "--model",
        default="ssd",
        help="ssd (default), or mask_rcnn: two stages, with masks; takes longer",
    )
    parser.add_argument("--output_dir", default="demo_output", help="(default: %(default)s)")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the data and the initial weights (default: %(default)s)",
    )
    parser.add_argument("--num_train_steps", type=int, help="default: train_config.num_steps")
    parser.add_argument(
        "--size", default="small", help="of the data set: tiny, small (default) or large"
    )
    add_set_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Runs the verb; returns an exit code."""
    from estimator_det.programs import demo
    from model_fn.checkpoints import writing

    with writing.writable_folder(options.output_dir, "output_dir"):
        demo.run_demo(
            options.output_dir,
            model=options.model,
            seed=options.seed,
            size=options.size,
            num_train_steps=options.num_train_steps,
            assignments=options.set,
        )
    return console.EXIT_OK
