"""Contradictions between data, label map and model that no single record shows."""

from __future__ import annotations

from types import MappingProxyType
from typing import Iterator, Mapping, Optional

import numpy as np

from estimator_det.console.printing import counted, listed, quoted
from estimator_det.errors import Problem, error, warning
from inputs.checks import statistics
from inputs.checks.statistics import Columns
from inputs.label_map import LabelMap
from model_fn.checks.anchor_coverage import BETWEEN, ELONGATED, LARGE, SMALL, Coverage
from model_fn.checks.files import named_classes

FEW_BOXES = 10  # a class with fewer can hardly be learnt
TINY_SIDE = 4.0  # pixels of the network's input; hardly anything is left to see
NOTABLE_SHARE = 0.01  # share of boxes from which on a warning is worth it
EMPTY_SHARE = 0.5  # share of images without boxes
NUM_SHOWN = 5
MUCH_OF_A_CLASS = 0.2  # share of a class's boxes for which the class is named
TWO_STAGES = "model.faster_rcnn"
ANCHOR_GENERATOR = "anchor_generator"  # end of the paths of both kinds of models
KEEP_CROSSING = "set clip_anchors_to_image: true, which keeps anchors across the border"


def check_labels(
    field: str, label_map: LabelMap, columns: Columns, *, is_training: bool
) -> Iterator[Problem]:
    """Label map and boxes against each other.

    `field` is the path of the reader; classes without boxes matter only if it `is_training`.
    """
    ids = set(label_map.names)
    num_gaps = label_map.max_id - len(ids)
    if num_gaps:
        # Among as many numbers as there are ids, and as are shown, so many are free.
        few = range(1, min(label_map.max_id, len(ids) + NUM_SHOWN + 1))
        gaps = [i for i in few if i not in ids][:NUM_SHOWN]
        yield warning(
            f"{field}.label_map_path",
            f"{counted(num_gaps, 'id')} below {label_map.max_id} {_are(num_gaps)} of no class: "
            f"{listed(gaps, NUM_SHOWN, num_gaps)}",
            "number the classes from 1 without gaps, unless a checkpoint needs these ids",
        )
    counts = statistics.class_counts(columns)
    unused = [i for i in label_map.names if i not in counts]
    if is_training and unused and columns.num_boxes:
        yield warning(
            f"{field}.label_map_path",
            f"{_classes(len(unused), len(ids))} no box in the data: "
            f"{named_classes(unused, label_map)}",
            "add examples, remove the classes, or correct names or ids in the records",
        )
    few_boxes = [
        i for i, (boxes, _) in counts.items() if boxes < FEW_BOXES and i in label_map.names
    ]
    if is_training and few_boxes:
        yield warning(
            field,
            f"{_classes(len(few_boxes), len(ids))} fewer than {FEW_BOXES} boxes: "
            f"{named_classes(few_boxes, label_map)}",
            "add examples; the model will hardly find these classes",
        )


def check_content(field: str, columns: Columns) -> Iterator[Problem]:
    """Images without boxes, and names that several images share."""
    if not columns.num_images:
        remedy = "repair the faults above; check input_path and input_type"
        yield error(field, "not one record can be used", remedy)
        return
    if not columns.num_boxes:
        text = f"none of {counted(columns.num_images, 'image')} has a box that can be used"
        yield error(field, text, "see the faults above; records need image/object/bbox/…")
        return
    empty = int(np.sum(statistics.boxes_per_image(columns) == 0))
    if empty > EMPTY_SHARE * columns.num_images:
        yield warning(
            field,
            f"{empty} of {counted(columns.num_images, 'image')} without a box",
            "check that they are meant as background; fewer of them train faster",
        )
    repeated = statistics.repeated_ids(columns)
    if repeated:
        most = sorted(repeated, key=lambda name: -len(repeated[name]))[:NUM_SHOWN]
        shown = ", ".join(f"{quoted(name)} ({len(repeated[name])} times)" for name in most)
        yield warning(
            field,
            f"{counted(len(repeated), 'source_id')} shared by several records: {shown}",
            "give each image a source_id of its own: metrics identify images by it",
        )
    copies = statistics.copies(columns)
    if copies:
        name = columns.source_ids
        shown = ", ".join(
            f"{quoted(name[row])} of {quoted(name[first])}" for row, first in copies[:NUM_SHOWN]
        )
        yield warning(
            field,
            f"{counted(len(copies), 'duplicate')} of other images, with the same bytes: {shown}",
            "remove them, as convert does with --duplicates skip; they count twice",
        )


def check_overlap(train: Columns, others: Mapping[str, Columns]) -> Iterator[Problem]:
    """Images of evaluation that the model also trains on, by source id or bytes."""
    ids, contents = set(train.source_ids) - {""}, set(train.contents.tolist()) - {0}
    for field, columns in others.items():
        common = [
            name
            for name, content in zip(columns.source_ids, columns.contents.tolist())
            if name in ids or content in contents
        ]
        if common:
            shown = ", ".join(map(quoted, sorted(common)[:NUM_SHOWN]))
            yield warning(
                field,
                f"{counted(len(common), 'image')} shared with train_input_reader, by source_id or "
                f"bytes, e.g. {shown}",
                "evaluate on other images, or the metrics are too good",
            )


def check_anchors(
    model: str, coverage: Coverage, names: Mapping[int, str] = MappingProxyType({})
) -> Iterator[Problem]:
    """Boxes that the anchors do not match, and what would match them.

    Args:
        model: Path of the model.
        names: Class id -> name.
    """
    total = len(coverage.below)
    two_stages = model == TWO_STAGES
    field = f"{model}.{'first_stage_' * two_stages}{ANCHOR_GENERATOR}"
    lost = int(coverage.lost.sum())
    if lost:
        forced = coverage.forced
        yield (error if lost == total else warning)(
            field if two_stages else f"{model}.matcher",
            f"{_share(lost, total)} {'gets' if lost == 1 else 'get'} no anchor at all and "
            f"{_are(lost)} never learnt"
            + (": another box has taken the only anchor that fits" if forced else ""),
            "place anchors more densely (larger input, finer feature maps)"
            if forced
            else "set force_match_for_each_row: true, or lower matched_threshold",
        )
    for reason, below in coverage.reasons.items():
        rows = below & coverage.poor
        count = int(rows.sum())
        classes = _classes_behind(coverage, rows, names)
        # A rare class may have less than a notable share of all boxes.
        if count >= max(1, NOTABLE_SHARE * total) or classes:
            how = "matched by force alone" if coverage.forced else "matched by no anchor"
            yield warning(
                field,
                f"{_share(count, total)} {_are(count)} {_REASON_TEXTS[reason]}, {how} (below "
                f"{coverage.background:.2g}){classes}",
                _remedy(reason, coverage, coverage.pixels[rows], two_stages=two_stages),
            )
    tiny = int(np.sum(coverage.pixels.min(axis=1) < TINY_SIDE)) if total else 0
    if tiny >= max(1, NOTABLE_SHARE * total):
        yield warning(
            f"{model}.image_resizer",
            f"{_share(tiny, total)} {_has(tiny)} a side below {TINY_SIDE:.0f} pixels after "
            "resizing",
            "enlarge the input, cut large images into tiles, or remove such boxes",
        )


def _classes_behind(coverage: Coverage, rows: np.ndarray, names: Mapping[int, str]) -> str:
    """`: 71% of class 'dot', 25% of class 'bar'`, the classes of which many boxes are in `rows`."""
    counts = {i: int((coverage.class_ids == i).sum()) for i in np.unique(coverage.class_ids)}
    shares = [
        f"{share:.0%} of class {quoted(names.get(i, str(i)))}"
        for i, share in coverage.shares(rows).items()
        if share >= MUCH_OF_A_CLASS and counts[i] >= FEW_BOXES
    ]
    return f": {listed(shares[:NUM_SHOWN], NUM_SHOWN, len(shares))}" if shares else ""


_REASON_TEXTS = {
    SMALL: "too small for the smallest anchor",
    LARGE: "too large for the largest anchor",
    ELONGATED: "too narrow or too flat for any anchor of their size",
    BETWEEN: "between the places of anchors",
}


def _remedy(reason: str, coverage: Coverage, pixels: np.ndarray, *, two_stages: bool) -> str:
    shapes = np.concatenate([level.shapes for level in coverage.maps])
    sides = np.sqrt(np.prod(shapes, axis=1))
    median = float(np.median(np.sqrt(np.prod(pixels, axis=1))))
    if reason == SMALL:
        return (
            f"anchors begin at {sides.min():.0f} pixels, half of these boxes are below "
            f"{median:.0f}: add smaller scales or a finer feature map, or enlarge the input"
        )
    if reason == LARGE:
        return (
            f"anchors end at {sides.max():.0f} pixels, half of these boxes are above "
            f"{median:.0f}: "
            + (KEEP_CROSSING if coverage.num_left_out else "add larger scales")
            + ("" if two_stages else " or a coarser feature map")
        )
    if reason == ELONGATED:
        return _remedy_of_elongated(shapes, coverage.threshold, pixels, two_stages=two_stages)
    if two_stages:
        others = f", {KEEP_CROSSING}" if coverage.num_left_out else ""
        return f"place anchors more densely{others}, or enlarge the input"
    return "place anchors more densely, lower matched_threshold, or enlarge the input"


def _remedy_of_elongated(
    shapes: np.ndarray, threshold: Optional[float], pixels: np.ndarray, *, two_stages: bool
) -> str:
    pixels = np.maximum(pixels, 1e-3)
    ratios, anchor_ratios = statistics.aspect_ratios(pixels), statistics.aspect_ratios(shapes)
    sides_of = (ratios[ratios > 1], ratios[ratios <= 1])
    wanted = [np.median(side) for side in sides_of if len(side)]
    absent = [
        f"{ratio:.3g}" for ratio in wanted if not np.isclose(ratio, anchor_ratios, rtol=0.25).any()
    ]
    median = float(np.median(np.sqrt(np.prod(pixels, axis=1))))
    if not absent:
        lowest = "" if two_stages else ", and set reduce_boxes_in_lowest_layer: false"
        return (
            "anchors have such aspect ratios at other sizes, and half of these boxes are below "
            f"{median:.0f} pixels: add scales about there{lowest}"
        )
    areas = np.prod(shapes, axis=1) / np.prod(pixels, axis=1)[:, None]
    near = (np.minimum(areas, 1 / areas) >= (threshold or 0.0)).any(axis=0)
    present = dict.fromkeys(f"{ratio:.2g}" for ratio in np.sort(anchor_ratios[near]))
    return (
        f"aspect ratios of anchors of about their size are {listed(present, NUM_SHOWN) or 'none'}: "
        f"add aspect_ratios such as {' and '.join(absent)}"
    )


def _share(count: int, total: int) -> str:
    """`1 of 4 boxes (25.0%)`."""
    return f"{count} of {counted(total, 'box')} ({count / max(total, 1):.1%})"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _has(count: int) -> str:
    return "has" if count == 1 else "have"


def _classes(count: int, total: int) -> str:
    """`1 of 2 classes has`, `2 of 2 classes have`."""
    return f"{count} of {counted(total, 'class')} {_has(count)}"
