"""`estimator-det detect`: runs an exported detector on images and draws what it finds."""

from __future__ import annotations

import argparse
import os
import sys

from estimator_det import console
from estimator_det.verbs.base import Verb


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files or folders")
    parser.add_argument("--model", required=True, metavar="DIR", help="folder of an export")
    parser.add_argument("--output_dir", default="detections", help="(default: %(default)s)")
    parser.add_argument(
        "--min_score", type=float, default=0.5, help="least score told (default: %(default)s)"
    )


def _run(options: argparse.Namespace) -> int:
    from exporters import predictor

    files = predictor.list_images(options.images)
    model = predictor.Predictor(options.model)
    failed = 0
    for result in predictor.detect_files(model, files, options.output_dir, options.min_score):
        if result.detections is None:
            failed += 1
            print(f"{result.path}: {result.error}", file=sys.stderr, flush=True)
            continue
        names = [model.name(class_id) for class_id in result.detections.class_ids]
        told = [f"{name} {score:.2f}" for name, score in zip(names, result.detections.scores)]
        console.say(f"{result.path}: {', '.join(told) or 'nothing'} -> {result.picture}")
    console.say(f"all detections: {os.path.join(options.output_dir, predictor.LINES_FILE)}")
    return console.EXIT_FAILED if failed else console.EXIT_OK


VERB = Verb(
    "detect",
    "Runs an exported detector on images and draws what it finds",
    "--model exported photos/ image.jpg --output_dir detections",
    _add_arguments,
    _run,
)
