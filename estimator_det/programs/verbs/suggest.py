"""`estimator-det suggest`: the pictures that are worth labelling next, with drafts of labels."""

from __future__ import annotations

import argparse
import csv
import io
import os
import sys
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence

from estimator_det.console import printing
from estimator_det.errors import UsageError
from estimator_det.programs import console
from estimator_det.programs.verbs.base import add_options, positive, print_report, run_folder
from estimator_det.programs.verbs.detect import AUTO, DRAFT_FORMATS, require_export, score_or_auto

if TYPE_CHECKING:
    from exporters import Detections, Detector
    from exporters.detector import ClassThresholds
    from exporters.suggestions import Picture

SUMMARY = "Suggests the pictures that a detector would learn most from, with drafts of their labels"
EXAMPLE = "exported --images unlabelled --number 100 --output_dir suggestions"
FILES = LIST_FILE, SHEET_FILE = "suggestions.csv", "suggestions.png"
COLUMNS = ("rank", "file", "worth", "doubt", "disagreement", "drafts", "classes")
MOST_PRINTED = 10
SHEET_COLUMNS, SHEET_SIDE, MOST_DRAWN = 5, 280, 100  # side in pixels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "an export of any format, or the folder of a run or project, whose best export is used"
    parser.add_argument("model", metavar="EXPORT", help=text)
    text = "images and folders of images that have no labels"
    parser.add_argument("pictures", nargs="*", metavar="IMAGE", help=text)
    text = "the same as an argument; may be repeated"
    add_options(parser, str, {"--images PATH": text}, action="append", default=[])
    add_options(parser, bool, {"--recursive": "also the images in subfolders of folders"})
    text = "pictures to suggest at most (default: %(default)s)"
    add_options(parser, positive, {"--number N": text}, default=100)
    text = "list, contact sheet and drafts, in a folder without drafts yet (default: %(default)s)"
    add_options(parser, str, {"--output_dir": text}, default="suggestions")
    text = (
        "the score around which a detection is doubtful, and that a draft needs; auto: for each "
        "class the score of the best F1 in the evaluation of the exported checkpoint (default: "
        "%(default)s)"
    )
    add_options(parser, score_or_auto, {"--threshold SCORE": text}, default=AUTO)
    parser.add_argument(
        "--save_annotations",
        choices=DRAFT_FORMATS,
        metavar="FORMAT",
        default="coco",
        help="format of the drafts: %(choices)s (default: %(default)s)",
    )
    text = "images that run at once, each with its mirror image (default: %(default)s)"
    add_options(parser, positive, {"--batch_size N": text}, default=8)


def run(options: argparse.Namespace) -> int:
    from estimator_det.files import ownership
    from exporters import Detector, label_drafts, suggestions
    from exporters.detector import ClassThresholds
    from exporters.image_files import list_images
    from exporters.server.versions import newest_version, served_folder
    from model_fn.checkpoints import writing

    require_export("suggest", options.model)
    sources = [*options.images, *options.pictures]
    if not sources:
        raise UsageError(f"give images or folders of images beside the export {options.model}")
    ownership.refuse_inputs(options.output_dir, filter(os.path.isdir, sources))
    paths = list_images(sources, recursive=options.recursive, skipped=options.output_dir)
    with writing.writable_folder(options.output_dir, "output_dir"):
        ownership.check_files(options.output_dir, "suggest", FILES)
        folder = label_drafts.new_folder(options.output_dir)
        label_drafts.check_names(options.save_annotations, paths)
        _, model = newest_version(served_folder(run_folder(options.model)))
        detector = Detector(model)
        thresholds = (
            detector.best_thresholds()
            if options.threshold == AUTO
            else ClassThresholds(options.threshold, {})
        )
        ownership.mark(options.output_dir, "suggest")
        looked = _look_at(detector, paths, thresholds, options.batch_size)
        failed = [each for each in looked if each.error is not None]
        chosen = suggestions.choose([each for each in looked if not each.error], options.number)
        detections = detector([each.path for each in chosen])
        results = {each.path: image.above(thresholds) for each, image in zip(chosen, detections)}
        make = label_drafts.FORMATS.get(options.save_annotations)
        drafts = make(folder, label_drafts.common_folder(paths), detector.class_names)
        for item in results.items():
            drafts.add(*item)
        drafts.close()
        rows = [_row(*each, results) for each in enumerate(chosen, start=1)]
        _write(rows, os.path.join(options.output_dir, LIST_FILE))
        _draw(rows, results, os.path.join(options.output_dir, SHEET_FILE))
    document = {
        "looked_at": len(looked),
        "pictures": rows,
        "failed": [{"file": each.path, "error": each.error} for each in failed],
    }
    lines = [
        *(f"{row['file']}: {_note(row)}" for row in rows[:MOST_PRINTED]),
        f"{printing.counted(len(chosen), 'picture')} of {len(looked):,} suggested: "
        f"{', '.join(os.path.join(options.output_dir, name) for name in FILES)}",
        f"drafts of labels: {folder}",
    ]
    print_report(document, lines)
    return console.EXIT_FAILED if failed else console.EXIT_OK


def _look_at(
    detector: Detector, paths: Sequence[str], thresholds: ClassThresholds, batch_size: int
) -> List[Picture]:
    """The worth of each picture; reports those that cannot be used."""
    from estimator_det.console.bars import progress_bar
    from exporters import suggestions

    weights, looked = suggestions.class_weights(detector), []
    pictures = suggestions.look_at(detector, paths, thresholds, weights, batch_size)
    with progress_bar("looking at", len(paths), "images") as advance:
        for picture in pictures:
            if picture.error is not None:
                printing.report(picture.error, sys.stderr)
            looked.append(picture)
            advance(1)
    return looked


def _row(rank: int, picture: Picture, results: Mapping[str, Detections]) -> Dict[str, Any]:
    detections = results[picture.path]
    worth = picture.worth
    return {
        "rank": rank,
        "file": picture.path,
        "worth": worth.total,
        "doubt": worth.doubt,
        "disagreement": worth.disagreement,
        "drafts": len(detections),
        "classes": sorted(set(detections.names)),
    }


def _note(row: Mapping[str, Any]) -> str:
    numbers = f"doubt {row['doubt']:.2f}, disagreement {row['disagreement']:.2f}"
    return f"worth {row['worth']:.2f} ({numbers}), {printing.counted(row['drafts'], 'draft')}"


def _write(rows: Sequence[Mapping[str, Any]], file: str) -> None:
    from estimator_det.files import atomic

    table = io.StringIO()
    writer = csv.DictWriter(table, COLUMNS)
    writer.writeheader()
    writer.writerows({**row, "classes": " ".join(row["classes"])} for row in rows)
    # A path may contain bytes that are not UTF-8.
    atomic.write(file, table.getvalue().encode("utf-8", "backslashreplace"))


def _draw(rows: Sequence[Mapping[str, Any]], results: Mapping[str, Detections], file: str) -> None:
    """Draws the first pictures in the order of the list, with the drafts of their labels."""
    from exporters.image_files import read_image
    from exporters.loaded_model import resized
    from model_fn.drawing.batch_grid import GridCell, draw_grid

    cells = []
    for row in rows[:MOST_DRAWN]:
        pixels, detections = read_image(row["file"]).pixels, results[row["file"]]
        scale = min(SHEET_SIDE / max(pixels.shape), 1)
        size = [max(round(side * scale), 1) for side in pixels.shape[:2]]
        pairs = zip(detections.names, detections.scores)
        cells.append(
            GridCell(
                resized(pixels, size),
                size,
                detections.normalized_boxes,
                [f"{name} {score:.2f}" for name, score in pairs],
                detections.classes.tolist(),
                f"{row['rank']}. {printing.plain(os.path.basename(row['file']))}",
                note=f"worth {row['worth']:.2f} · {printing.counted(row['drafts'], 'draft')}",
            )
        )
    if cells:
        draw_grid(cells, columns=SHEET_COLUMNS, side=SHEET_SIDE).save(file)
