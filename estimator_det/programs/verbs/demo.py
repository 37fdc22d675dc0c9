"""`estimator-det demo`: all steps from records to an exported detector, on coloured shapes."""

from __future__ import annotations

import argparse

from estimator_det.programs.verbs.base import add_options, add_set_argument, natural, positive

SUMMARY = "Makes a data set of shapes; trains, evaluates, exports and runs a small detector"
EXAMPLE = "--output_dir demo_output --seed 1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = (
        "network: ssd; mask_rcnn, with two stages and masks, which takes longer; or "
        "centernet_keypoints, for figures and their joints, which takes longer"
    )
    models = ("ssd", "mask_rcnn", "centernet_keypoints")
    add_options(parser, str, {"--model": text}, default="ssd", choices=models)
    text = "folder of the data, the run and the export (default: %(default)s)"
    add_options(parser, str, {"--output_dir": text}, default="demo_output")
    text = "seed of the data and the initial weights (default: %(default)s)"
    add_options(parser, natural, {"--seed": text}, default=0)
    text = "steps of the training (default: train_config.num_steps)"
    add_options(parser, positive, {"--num_train_steps": text})
    text = "size of the data set (default: %(default)s)"
    add_options(parser, str, {"--size": text}, default="small", choices=("tiny", "small", "large"))
    add_set_argument(parser)


def run(options: argparse.Namespace) -> None:
    from estimator_det.programs import demo
    from model_fn.checkpoints import find, writing

    find.refuse_pattern(options.output_dir, "--output_dir")  # before the data are made
    with writing.writable_folder(options.output_dir, "output_dir"):
        demo.run_demo(
            options.output_dir,
            model=options.model,
            size=options.size,
            seed=options.seed,
            num_train_steps=options.num_train_steps,
            assignments=options.set,
        )
