"""`estimator-det detect`: runs an exported detector on images and videos."""

from __future__ import annotations

import argparse
import glob
import os
import sys
from typing import TYPE_CHECKING, Any, Optional, Sequence, Union

from estimator_det.console import printing
from estimator_det.errors import UsageError
from estimator_det.files.text import names_of
from estimator_det.programs import console
from estimator_det.programs.verbs.base import (
    add_options,
    positive,
    run_folder,
    score,
    tile_side,
)

if TYPE_CHECKING:
    from exporters.label_drafts import AnnotationWriter

SUMMARY = "Runs an exported detector on images and videos and draws the detections"
AUTO = "auto"
DRAFT_FORMATS = ("coco", "pascal_voc", "yolo", "labelme", "tfrecord")
MOST_PRINTED = 10  # detections in the line of an image; detections.jsonl has all
EXAMPLE = "exported photos/ image.jpg --output_dir detections"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "an export of any format, or the folder of a run or project, whose best export is used"
    parser.add_argument("export", nargs="?", metavar="EXPORT", help=text)
    text = "images, videos, folders of images"
    parser.add_argument("images", nargs="*", metavar="IMAGE", help=text)
    text = "the export as an option; all arguments are images then"
    add_options(parser, str, {"--model EXPORT": text})
    add_options(parser, bool, {"--recursive": "also the images in subfolders of folders"})
    text = "draw and write only detections of these classes, with commas between; a name "
    text += "that has a comma is in double quotes (default: all)"
    add_options(parser, names_of, {"--classes NAMES": text})
    text = "folder of detections.jsonl and the pictures (default: %(default)s)"
    add_options(parser, str, {"--output_dir": text}, default="detections")
    parser.add_argument(
        "--draw",
        choices=("jpg", "png", "none"),
        help="format of the drawings of images; none: only the JSON lines (default: jpg)",
    )
    parser.add_argument(
        "--threshold",
        "--min_score",
        dest="min_score",
        type=score_or_auto,
        metavar="SCORE",
        help="draw and write only detections of this score or more (default: 0.5, or auto with "
        "--save_annotations); auto: for each class the score of the best F1 in the evaluation of "
        "the exported checkpoint",
    )
    parser.add_argument(
        "--save_annotations",
        choices=DRAFT_FORMATS,
        metavar="FORMAT",
        help="also write the detections as drafts of labels to annotations/ in output_dir: "
        "%(choices)s",
    )
    group = parser.add_argument_group("large images with small objects")
    text = (
        "also look at overlapping tiles of this many pixels a side, which the model sees in full "
        "resolution"
    )
    add_options(group, tile_side, {"--tiles PIXELS": text})
    group = parser.add_argument_group("many images, in shards")
    texts = {
        "--runner": "run as an Apache Beam pipeline on this runner, e.g. DirectRunner; images and "
        "folders may be patterns and remote, and the results are shards",
        "--runner_options TEXT": "further options of Beam, e.g. '--project=p'",
    }
    add_options(group, str, texts)
    text = "images of record files in place of image files; may be repeated"
    add_options(group, str, {"--records PATTERN": text}, action="append")
    text = "shards of the work (default: one for each 1,000 images, or for each record file)"
    add_options(group, positive, {"--num_shards": text})


def score_or_auto(text: str) -> Union[float, str]:
    """The type of `--threshold`."""
    try:
        return AUTO if text == AUTO else score(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or {AUTO}") from None


def run(options: argparse.Namespace) -> int:
    from exporters.detect_files import DEFAULT_MIN_SCORE

    if options.min_score is None:
        options.min_score = AUTO if options.save_annotations else DEFAULT_MIN_SCORE
    _name_model(options)
    if options.runner:
        return _reported(_run_shards(options), options)
    for name in ("runner_options", "records", "num_shards"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} has no effect without --runner; remove it")
    if not options.images:
        raise UsageError(
            f"give images, videos or folders of images beside the export {options.model}"
        )
    return _reported(_run_here(options), options)


def require_export(verb: str, path: Optional[str]) -> str:
    """The path of an export; UsageError if it is an image, as where the export was forgotten."""
    from exporters.image_files import is_image

    if path is None or is_image(path):
        raise UsageError(
            f"no export is given: add its folder before the images, as in {verb} exported photos/"
        )
    return path


def _name_model(options: argparse.Namespace) -> None:
    """Sets `model` to the export of the first argument, which with `--model` is an image."""
    from exporters.server.versions import newest_version, served_folder

    if options.model is not None:
        options.images[:0] = [] if options.export is None else [options.export]
    else:
        options.model = require_export("detect", options.export)
    options.model = newest_version(served_folder(run_folder(options.model)))[1]


def _reported(code: int, options: argparse.Namespace) -> int:
    """The exit code, after the result for other programs."""
    document = {"output_dir": options.output_dir, "is_complete": code == console.EXIT_OK}
    console.report_result(document)
    return code


def _run_here(options: argparse.Namespace) -> int:
    from estimator_det.files import ownership
    from exporters import Detector, label_drafts, video
    from exporters.detect_files import DETECTIONS_FILE, DRAWINGS
    from exporters.image_files import list_images
    from exporters.tiles import TiledDetector
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
    with writing.writable_folder(options.output_dir, "output_dir"):
        earlier = glob.glob("*_detections.*", root_dir=options.output_dir)
        ownership.check_files(options.output_dir, "detect", [DETECTIONS_FILE, *earlier])
        folder = label_drafts.new_folder(options.output_dir) if save else ""
        if save:
            label_drafts.check_names(save, files)
        detector = (
            TiledDetector(options.model, options.tiles)
            if options.tiles
            else Detector(options.model)
        )
        passes = _filter(detector, options)
        ownership.mark(options.output_dir, "detect")
        failed = 0
        if files:
            drafts = None
            if save:
                make = label_drafts.FORMATS.get(save)
                drafts = make(folder, label_drafts.common_folder(files), detector.class_names)
            drawing = options.draw or DRAWINGS[0]
            failed = _detect_images(detector, files, options.output_dir, passes, drawing, drafts)
        failed += _detect_videos(detector, videos, options.output_dir, passes)
    return console.EXIT_FAILED if failed else console.EXIT_OK


def _filter(detector: Any, options: argparse.Namespace) -> Any:
    from exporters.detect_files import Filter

    ids = None if options.classes is None else sorted(detector.class_ids(options.classes))
    is_auto = options.min_score == AUTO
    return Filter(detector.best_thresholds() if is_auto else options.min_score, ids)


def _run_shards(options: argparse.Namespace) -> int:
    """Runs the detector as a pipeline."""
    from estimator_det.files import ownership
    from exporters import Detector, detect_shards, label_drafts, video
    from exporters.loaded_model import LABEL_MAP_FILE
    from inputs.conversion import beam_pipeline
    from inputs.datasets import writer
    from model_fn.checkpoints import writing

    if bool(options.images) == bool(options.records):
        raise UsageError("give either images or --records PATTERN")
    if videos := list(filter(video.is_video, options.images)):
        raise UsageError(f"--runner is for images; leave {videos[0]} out")
    if options.tiles:
        raise UsageError("--tiles has no effect with --runner; remove one of them")
    if options.draw not in (None, "none"):
        raise UsageError(f"--draw {options.draw} has no effect with --runner; remove it")
    if options.save_annotations not in (None, "tfrecord"):
        raise UsageError(
            f"--save_annotations {options.save_annotations} writes files that name all images; "
            "with --runner give tfrecord, which convert --to coco reads"
        )
    pipeline = beam_pipeline.make_pipeline(options.runner, options.runner_options or "")
    from exporters import beam_detect

    folder, records = options.output_dir, options.records or ()
    ownership.refuse_inputs(folder, options.images)
    paths, others = detect_shards.list_files(
        options.images, recursive=options.recursive, records=records
    )
    _report_others(", ".join(options.images), others)
    with writing.writable_folder(folder, "output_dir"):
        detector = Detector(options.model)
        per_shard = 1 if records else detect_shards.IMAGES_PER_SHARD
        job = detect_shards.DetectionJob(
            model=options.model,
            output_dir=folder,
            num_shards=min(options.num_shards or -(-len(paths) // per_shard), len(paths)),
            passes=_filter(detector, options),
            has_records=bool(records),
            saves_records=bool(options.save_annotations),
            version=detect_shards.version_of(options.model),
        )
        detect_shards.check_output(job)
        ownership.mark(folder, "detect")
        detection = beam_detect.run(job, paths, pipeline)
        if options.save_annotations:
            label_map = os.path.join(folder, label_drafts.FOLDER, LABEL_MAP_FILE)
            writer.write_label_map(detector.class_names, label_map)
    return _report_shards(job, detection)


def _report_shards(job: Any, detection: Any) -> int:
    """Prints the counts of a pipeline; returns the exit code."""
    from exporters import detect_shards
    from exporters.detect_files import DETECTIONS_FILE

    images, detections, shards = map(
        printing.counted,
        (detection.num_images, detection.num_detections, job.num_shards),
        ("image", "detection", "shard"),
    )
    kept = f", {detection.num_kept:,} of them by an earlier run" if detection.num_kept else ""
    console.print_line(f"{images}, {detections} in {shards}{kept}")
    console.print_line(f"all detections: {os.path.join(job.output_dir, DETECTIONS_FILE)}-*")
    if not detection.num_failed:
        return console.EXIT_OK
    count = printing.counted(detection.num_failed, "image")
    listed = os.path.join(job.output_dir, detect_shards.BAD_IMAGES_FILE)
    printing.report(f"{count} cannot be used: {listed}", sys.stderr)
    return console.EXIT_FAILED


def _report_skipped(paths: Sequence[str], output_dir: str, recursive: bool) -> None:
    """Reports the files of folders that are not images, and the subfolders that are not read."""
    from exporters.image_files import other_files, subfolders_of

    output = os.path.realpath(output_dir)
    for path in filter(os.path.isdir, paths):
        _report_others(path, other_files(path, recursive=recursive, skipped=output_dir))
        if recursive:
            continue
        subfolders = [each for each in subfolders_of(path) if os.path.realpath(each) != output]
        if subfolders:
            text = printing.counted(len(subfolders), "subfolder")
            printing.report(
                f"{path}: {text} skipped, such as {subfolders[0]}; add --recursive to read them",
                sys.stderr,
            )


def _report_others(source: str, others: Sequence[str]) -> None:
    from exporters.image_files import count_suffixes

    if others:
        printing.report(
            f"{source}: {printing.counted(len(others), 'file')} skipped, not images by name: "
            f"{count_suffixes(others)}, such as {others[0]}",
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

    failed = num_keypoints = 0
    for result in detect_files(detector, files, output_dir, passes, drawing):
        if result.detections is None:
            failed += 1
            printing.report(result.error, sys.stderr)
            continue
        if drafts:
            drafts.add(result.path, result.detections)
            if not drafts.has_keypoints and result.detections.keypoints is not None:
                num_keypoints += int(result.detections.is_keypoint().sum())
        pairs = zip(result.detections.names, result.detections.scores)
        labels = [f"{name} {score:.2f}" for name, score in pairs]
        size = f" (at 1/{result.reduced_by} of its size)" if result.reduced_by > 1 else ""
        detections = printing.listed(labels, MOST_PRINTED) or (
            f"no detection; the highest score is {result.highest_score:.2f}"
        )
        arrow = f" -> {result.drawing}" if result.drawing else ""
        console.print_line(f"{result.path}{size}: {detections}{arrow}")
    console.print_line(f"all detections: {os.path.join(output_dir, DETECTIONS_FILE)}")
    if drafts:
        drafts.close()
        console.print_line(f"drafts of labels: {drafts.folder}")
        if num_keypoints:
            text = printing.counted(num_keypoints, "keypoint")
            console.print_line(f"  without {text}, which coco, yolo and tfrecord would have")
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
