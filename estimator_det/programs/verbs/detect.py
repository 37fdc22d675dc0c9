"""`estimator-det detect`: runs an exported detector on images and videos."""

from __future__ import annotations

import argparse
import glob
import os
import sys
from typing import TYPE_CHECKING, Any, Optional, Sequence, Union

from estimator_det.console import printing
from estimator_det.errors import UsageError
from estimator_det.programs import console
from estimator_det.programs.verbs.base import add_options, names_of, score

if TYPE_CHECKING:
    from exporters.label_drafts import AnnotationWriter

SUMMARY = "Runs an exported detector on images and videos and draws the detections"
AUTO = "auto"
MOST_PRINTED = 10  # detections in the line of an image; detections.jsonl has all
EXAMPLE = "--model exported photos/ image.jpg --output_dir detections"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "images", nargs="+", metavar="IMAGE", help="images, videos, folders of images"
    )
    text = "folder of an export, or a model in it, of any format"
    add_options(parser, str, {"--model PATH": text}, required=True)
    add_options(parser, bool, {"--recursive": "also the images in subfolders of folders"})
    text = "draw and write only detections of these classes, with commas between; default: all"
    add_options(parser, names_of, {"--classes NAMES": text})
    add_options(parser, str, {"--output_dir": "(default: %(default)s)"}, default="detections")
    parser.add_argument(
        "--draw",
        choices=("jpg", "png", "none"),
        default="jpg",
        help="format of the drawings of images; none: only the JSON lines (default: %(default)s)",
    )
    parser.add_argument(
        "--threshold",
        "--min_score",
        dest="min_score",
        type=_threshold,
        metavar="SCORE",
        help="draw and write only detections of this score or more (default: 0.5, or auto with "
        "--save_annotations); auto: for each class that of the best F1 in the evaluation of the "
        "exported checkpoint",
    )
    parser.add_argument(
        "--save_annotations",
        choices=("coco", "pascal_voc", "yolo", "labelme", "tfrecord"),
        metavar="FORMAT",
        help="also write the detections as drafts of labels to annotations/ in output_dir: "
        "%(choices)s",
    )


def _threshold(text: str) -> Union[float, str]:
    try:
        return AUTO if text == AUTO else score(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or {AUTO}") from None


def run(options: argparse.Namespace) -> int:
    from estimator_det.files import ownership
    from exporters import Detector, label_drafts, video
    from exporters.detect_files import DEFAULT_MIN_SCORE, DETECTIONS_FILE, Filter
    from exporters.image_files import list_images
    from model_fn.checkpoints import writing

    videos = [path for path in options.images if video.is_video(path) and not os.path.isdir(path)]
    paths = [path for path in options.images if path not in videos]
    if videos:
        video.check_installed()
    _report_skipped(paths, options.output_dir, options.recursive)
    list_images(videos)  # raises for what does not exist
    ownership.refuse_inputs(options.output_dir, filter(os.path.isdir, paths))
    files = list_images(paths, recursive=options.recursive, skipped=options.output_dir)
    save = options.save_annotations
    if videos and save:
        raise UsageError(f"--save_annotations is for images; leave {videos[0]} out")
    if options.min_score is None:
        options.min_score = AUTO if save else DEFAULT_MIN_SCORE
    with writing.writable_folder(options.output_dir, "output_dir"):
        earlier = glob.glob("*_detections.*", root_dir=options.output_dir)
        ownership.check_files(options.output_dir, "detect", [DETECTIONS_FILE, *earlier])
        folder = os.path.join(options.output_dir, label_drafts.FOLDER)
        if save and os.path.exists(folder):
            raise FileExistsError(
                f"{folder} exists, and its labels may have been corrected; give another "
                "--output_dir"
            )
        detector = Detector(options.model)
        is_auto = options.min_score == AUTO
        passes = Filter(
            detector.best_thresholds() if is_auto else options.min_score,
            None if options.classes is None else detector.class_ids(options.classes),
        )
        ownership.mark(options.output_dir, "detect")
        failed = 0
        if files:
            drafts = None
            if save:
                parents = [os.path.dirname(os.path.abspath(path)) for path in files]
                make = label_drafts.FORMATS.get(save)
                drafts = make(folder, os.path.commonpath(parents), detector.class_names)
            failed = _detect_images(
                detector, files, options.output_dir, passes, options.draw, drafts
            )
        failed += _detect_videos(detector, videos, options.output_dir, passes)
    return console.EXIT_FAILED if failed else console.EXIT_OK


def _report_skipped(paths: Sequence[str], output_dir: str, recursive: bool) -> None:
    """Reports the files of folders that are not images, and the subfolders that are not read."""
    from exporters.image_files import count_suffixes, other_files, subfolders_of

    output = os.path.realpath(output_dir)
    for path in filter(os.path.isdir, paths):
        others = other_files(path, recursive=recursive, skipped=output_dir)
        if others:
            printing.report(
                f"{path}: {printing.counted(len(others), 'file')} skipped, not images by name: "
                f"{count_suffixes(others)}, such as {others[0]}",
                sys.stderr,
            )
        if recursive:
            continue
        subfolders = [each for each in subfolders_of(path) if os.path.realpath(each) != output]
        if subfolders:
            text = printing.counted(len(subfolders), "subfolder")
            printing.report(
                f"{path}: {text} skipped, such as {subfolders[0]}; add --recursive to read them",
                sys.stderr,
            )


def _detect_images(
    detector: Any,
    files: Sequence[str],
    output_dir: str,
    passes: Any,
    drawing: str,
    drafts: Optional[AnnotationWriter],
) -> int:
    """Prints a line for each image; returns the number of those that cannot be used."""
    from exporters.detect_files import DETECTIONS_FILE, detect_files

    failed = 0
    for result in detect_files(detector, files, output_dir, passes, drawing):
        if result.detections is None:
            failed += 1
            printing.report(result.error, sys.stderr)
            continue
        if drafts:
            drafts.add(result.path, result.detections)
        pairs = zip(result.detections.names, result.detections.scores)
        labels = [f"{name} {score:.2f}" for name, score in pairs]
        size = f" (at 1/{result.reduced_by} of its size)" if result.reduced_by > 1 else ""
        detections = printing.listed(labels, MOST_PRINTED) or "no detection"
        arrow = f" -> {result.drawing}" if result.drawing else ""
        console.print_line(f"{result.path}{size}: {detections}{arrow}")
    console.print_line(f"all detections: {os.path.join(output_dir, DETECTIONS_FILE)}")
    if drafts:
        drafts.close()
        console.print_line(f"drafts of labels: {drafts.folder}")
    return failed


def _detect_videos(detector: Any, videos: Sequence[str], output_dir: str, passes: Any) -> int:
    """Prints a line for each video; returns the number of those that cannot be used."""
    from exporters.video import detect_video

    failed = 0
    for path in videos:
        try:
            result = detect_video(detector, path, output_dir, passes)
        except OSError as error:
            failed += 1
            printing.report(str(error), sys.stderr)
            continue
        frames = printing.counted(result.num_frames, "frame")
        rate = result.num_frames / result.seconds
        console.print_line(
            f"{path}: {frames}, {rate:.1f} frames/s -> {result.clip}, {result.lines}"
        )
    return failed
