"""`estimator-det detect`: runs an exported detector on images and draws the detections."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Sequence, Union

from estimator_det.config import printing
from estimator_det.programs import console
from estimator_det.programs.verbs.base import score

SUMMARY = "Runs an exported detector on images and draws the detections"
AUTO = "auto"
EXAMPLE = "--model exported photos/ image.jpg --output_dir detections"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files or folders")
    parser.add_argument(
        "--model",
        required=True,
        metavar="PATH",
        help="folder of an export, or a model in it, of any format",
    )
    parser.add_argument(
        "--recursive", action="store_true", help="also the images in subfolders of folders"
    )
    parser.add_argument("--output_dir", default="detections", help="(default: %(default)s)")
    parser.add_argument(
        "--threshold",
        "--min_score",
        dest="min_score",
        type=_threshold,
        default=0.5,
        metavar="SCORE",
        help="draw and write only detections of this score or more (default: %(default)s); auto: "
        "for each class that of the best F1 in the evaluation of the exported checkpoint",
    )


def _threshold(text: str) -> Union[float, str]:
    try:
        return AUTO if text == AUTO else score(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or {AUTO}") from None


def run(options: argparse.Namespace) -> int:
    """Runs the verb; returns an exit code."""
    from exporters import formats
    from exporters.image_files import list_images
    from model_fn.checkpoints import writing

    if not options.recursive:
        _report_subfolders(options.images, options.output_dir)
    files = list_images(options.images, recursive=options.recursive, skipped=options.output_dir)
    with writing.writable_folder(options.output_dir, "output_dir"):
        return _detect(formats.load_model(options.model), files, options)


def _report_subfolders(paths: Sequence[str], output_dir: str) -> None:
    """Reports the subfolders of folders, whose images are skipped."""
    from exporters.image_files import subfolders_of

    output = os.path.realpath(output_dir)
    for path in filter(os.path.isdir, paths):
        subfolders = [each for each in subfolders_of(path) if os.path.realpath(each) != output]
        if subfolders:
            text = printing.counted(len(subfolders), "subfolder")
            printing.report(
                f"{path}: {text} skipped, such as {subfolders[0]}; add --recursive to read them",
                sys.stderr,
            )


def _detect(detector: Any, files: Sequence[str], options: argparse.Namespace) -> int:
    from exporters.saved_model_detector import DETECTIONS_FILE, detect_files

    is_auto = options.min_score == AUTO
    min_score = detector.best_thresholds() if is_auto else options.min_score
    failed = 0
    for result in detect_files(detector, files, options.output_dir, min_score):
        if result.detections is None:
            failed += 1
            printing.report(result.error, sys.stderr)
            continue
        names = [detector.name(class_id) for class_id in result.detections.class_ids]
        labels = [f"{name} {score:.2f}" for name, score in zip(names, result.detections.scores)]
        size = f" (at 1/{result.reduced_by} of its size)" if result.reduced_by > 1 else ""
        detections = ", ".join(labels) or "no detection"
        console.say(f"{result.path}{size}: {detections} -> {result.drawing}")
    console.say(f"all detections: {os.path.join(options.output_dir, DETECTIONS_FILE)}")
    return console.EXIT_FAILED if failed else console.EXIT_OK
