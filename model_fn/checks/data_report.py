"""The report of a check of data: as text, and as a dictionary for JSON."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from estimator_det.config.printing import counted, quoted
from estimator_det.config.problem import Problem
from inputs.bad_records.kinds import (
    CLIP,
    FAIL,
    KINDS,
    SKIP,
    effect,
    resolve_actions,
)
from inputs.bad_records.log import LogEntry
from inputs.checks import statistics
from inputs.checks.scan import Scan
from inputs.checks.statistics import Histogram
from model_fn.checks.anchor_coverage import Coverage

ERROR, WARNING = "error", "warning"
BAR_CELLS = 32  # of a bar of text
NAME_CELLS = 26
NUM_SHOWN = 3  # findings of a kind
NUM_CLASSES_SHOWN = 40  # in text; the most and the least frequent
NUM_SIZES_SHOWN = 4
_EIGHTHS = " ▏▎▍▌▋▊▉"


class DataReport(NamedTuple):
    """The result of a check of data."""

    config: str  # path of the configuration
    scans: List[Scan]  # a reader each
    names: Dict[int, str]  # class id -> name
    resized: Dict[str, np.ndarray]  # reader -> [M, 2], boxes in pixels of the network's input
    problems: List[Problem]
    anchors: Optional[Coverage] = None  # None: this model has no anchors to compare with
    anchors_of: str = ""  # the reader whose boxes are compared with the anchors

    @property
    def num_errors(self) -> int:
        """Findings and problems that stop a run or make it useless."""
        found = sum(severity(entry) == ERROR for scan in self.scans for entry in scan.entries)
        return found + sum(problem.severity == ERROR for problem in self.problems)

    @property
    def num_warnings(self) -> int:
        """All other findings and problems."""
        total = len(self.problems) + sum(len(scan.entries) for scan in self.scans)
        return total - self.num_errors


def severity(entry: LogEntry) -> str:
    """`ERROR` for what stops a run under the reader's policy, else `WARNING`."""
    return ERROR if entry.action == FAIL else WARNING


def text_lines(report: DataReport) -> List[str]:
    """The report for a terminal."""
    lines: List[str] = []
    for scan in report.scans:
        lines += ["", *_scan_lines(scan)]
        if scan.columns.num_images:
            lines += _statistics_lines(report, scan)
    if report.anchors is not None and len(report.anchors.below):
        lines += ["", *_anchor_lines(report.anchors, report.anchors_of)]
    if report.problems:
        lines += ["", "beyond single records"]
        lines += [f"  {problem}" for problem in report.problems]
    for scan in report.scans:
        settings = repair(scan)
        if settings is not None:
            lines += ["", _repair_line(scan.reader, settings)]
    return lines[1:]


class Repair(NamedTuple):
    """Settings to train with records that have faults."""

    settings: List[str]  # in the form that `--set` takes
    num_skipped: int  # records that are skipped then


def repair(scan: Scan) -> Optional[Repair]:
    """Settings under which no fault of a record stops a run; None if none does now."""
    if all(entry.action != FAIL for entry in scan.entries):
        return None
    actions = resolve_actions(CLIP, {})
    skipped = {
        (e.file, e.record) for e in scan.entries if actions[e.kind] == SKIP and e.record >= 0
    }
    policy = f"{scan.reader}.bad_records.policy=CLIP"
    limit = f"{scan.reader}.bad_records.max_skipped={len(skipped)}"
    return Repair([policy, limit] if skipped else [policy], len(skipped))


def _repair_line(reader: str, settings: Repair) -> str:
    left_out = counted(settings.num_skipped, "record")
    text = " ".join(f"--set {setting}" for setting in settings.settings)
    return f"{reader}: to train on the rest, with {left_out} skipped and boxes clipped:\n  {text}"


def text_bars(histogram: Histogram, *, indent: str = "    ") -> List[str]:
    """A histogram with a title and a bar of text for each name; empty ends are left out."""
    used = np.flatnonzero(histogram.counts)
    if not len(used):
        return []
    total, most = int(histogram.counts.sum()), int(histogram.counts.max())
    lines = [f"{indent[:-2]}{histogram.title}"]
    for place in range(used[0], used[-1] + 1):
        count = int(histogram.counts[place])
        name = _cut(histogram.names[place])
        bar = _bar(count / most)
        lines.append(f"{indent}{name:<{NAME_CELLS}} {bar} {count:>9,} {count / total:>6.1%}")
    return lines


def as_dictionary(report: DataReport) -> Dict[str, Any]:
    """The report as JSON takes it; findings of records are counted by kind."""
    readers = {}
    for scan in report.scans:
        columns = scan.columns
        readers[scan.reader] = {
            "files": len(scan.files),
            "records": scan.num_records,
            "images": columns.num_images,
            "boxes": columns.num_boxes,
            "skipped": scan.num_skipped,
            "findings": [
                {
                    "kind": kind,
                    "action": action,
                    "severity": severity(found[0]),
                    "records": len({(entry.file, entry.record) for entry in found}),
                    "count": sum(entry.count for entry in found),
                }
                for (kind, action), found in by_kind(scan).items()
            ],
            "classes": [
                {"id": number, "name": report.names.get(number, ""), "boxes": boxes, "images": n}
                for number, (boxes, n) in statistics.class_counts(columns).items()
            ],
            "mend": settings._asdict() if (settings := repair(scan)) is not None else None,
            "histograms": {
                histogram.title: dict(zip(histogram.names, histogram.counts.tolist()))
                for histogram in _histograms(report, scan)
            },
        }
    return {
        "config": report.config,
        "readers": readers,
        "anchors": _anchor_dictionary(report),
        "problems": [problem.__dict__ for problem in report.problems],
        "errors": report.num_errors,
        "warnings": report.num_warnings,
    }


def by_kind(scan: Scan) -> Dict[Tuple[str, str], List[LogEntry]]:
    """Findings by kind and action; errors come first, then the order of `faults.KINDS`."""
    kinds: Dict[Tuple[str, str], List[LogEntry]] = {}
    for entry in scan.entries:
        kinds.setdefault((entry.kind, entry.action), []).append(entry)
    table = list(KINDS)
    order = sorted(kinds, key=lambda k: (severity(kinds[k][0]) != ERROR, table.index(k[0]), k[1]))
    return {key: kinds[key] for key in order}


def _scan_lines(scan: Scan) -> List[str]:
    columns = scan.columns
    read = f"{counted(len(scan.files), 'file')}, {counted(scan.num_records, 'record')}"
    used = f"{counted(columns.num_images, 'image')} and {counted(columns.num_boxes, 'box')}"
    lines = [f"{scan.reader}: {read}; {used} are used"]
    for (kind, action), found in by_kind(scan).items():
        row = KINDS[kind]
        total = sum(entry.count for entry in found)
        records = f" in {counted(len(found), 'record')}" if row.unit == "box" else ""
        amount = counted(total, row.unit) + records
        lines.append(
            f"  {severity(found[0])}: {kind}: {row.description}: {amount}, {effect(kind, action)}"
        )
        for entry in found[:NUM_SHOWN]:
            number = f", record {entry.record}" if entry.record >= 0 else ""
            name = f" (source_id {quoted(entry.source_id)})" if entry.source_id else ""
            lines.append(f"    {entry.file}{number}{name}: {entry.message}")
        if len(found) > NUM_SHOWN:
            lines.append(f"    … and {len(found) - NUM_SHOWN:,} more")
        lines.append(f"    Remedy: {row.remedy}")
    return lines


def _statistics_lines(report: DataReport, scan: Scan) -> List[str]:
    columns = scan.columns
    lines = class_lines(statistics.class_counts(columns), columns.num_boxes, report.names)
    for histogram in _histograms(report, scan):
        lines += text_bars(histogram)
    shown = statistics.common_sizes(columns.sizes)
    common = ", ".join(f"{w}×{h} ({n:,})" for (h, w), n in shown[:NUM_SIZES_SHOWN])
    low, high = columns.sizes.min(axis=0), columns.sizes.max(axis=0)
    lines.append(
        f"    {counted(len(shown), 'size')}, {low[1]}…{high[1]} wide, {low[0]}…{high[0]} high; "
        f"most frequent: {common}"
    )
    return lines


def class_lines(
    counts: Mapping[int, Tuple[int, int]], total: int, names: Mapping[int, str]
) -> List[str]:
    """A bar of text for each class, the most frequent first.

    `counts` has the boxes of a class and the images that have any; `total` is all boxes.
    """
    if not counts:
        return []
    order = sorted(counts, key=lambda i: (-counts[i][0], i))
    left_out = len(order) - NUM_CLASSES_SHOWN
    most = counts[order[0]][0]
    lines = ["  classes: boxes, and images that have any"]
    for rank, number in enumerate(order):
        if left_out > 0 and NUM_CLASSES_SHOWN // 2 <= rank < len(order) - NUM_CLASSES_SHOWN // 2:
            if rank == NUM_CLASSES_SHOWN // 2:
                lines.append(f"    … {counted(left_out, 'class')} between")
            continue
        boxes, images = counts[number]
        name = _cut(f"{number} {names.get(number, '(in no label map)')}")
        bar = _bar(boxes / most)
        lines.append(
            f"    {name:<{NAME_CELLS}} {bar} {boxes:>9,} {boxes / total:>6.1%} {images:>9,}"
        )
    return lines


def _histograms(report: DataReport, scan: Scan) -> List[Histogram]:
    pixels = statistics.box_sizes(scan.columns)
    found = [statistics.area_histogram(pixels, "area of boxes in the records, pixels")]
    if scan.reader in report.resized:
        title = "area of boxes after resizing, pixels"
        found.append(statistics.area_histogram(report.resized[scan.reader], title))
    return [
        *found,
        statistics.ratio_histogram(pixels),
        statistics.count_histogram(scan.columns),
        statistics.side_histogram(scan.columns.sizes),
    ]


def _anchor_lines(coverage: Coverage, reader: str) -> List[str]:
    total, below = len(coverage.below), int(coverage.below.sum())
    sizes = [f"{w}×{h}" for h, w in coverage.input_sizes[:NUM_SIZES_SHOWN]]
    lines = [
        f"anchors against {counted(total, 'box')} of {reader}, network input {', '.join(sizes)}"
        + (" and others" if len(coverage.input_sizes) > NUM_SIZES_SHOWN else ""),
        "  feature map     anchors   side in pixels   width : height   boxes at best   mean IoU",
    ]
    for level in coverage.maps:
        sides = np.sqrt(np.prod(level.shapes, axis=1))
        ratios = statistics.aspect_ratios(level.shapes)
        lines.append(
            f"  {level.size[1]:>4} × {level.size[0]:<6} {level.num_anchors:>9,}"
            f"   {f'{sides.min():.0f} … {sides.max():.0f}':>14}"
            f"   {f'{ratios.min():.2g} … {ratios.max():.2g}':>14}"
            f"   {level.num_best:>13,}"
            f"   {f'{level.mean_iou:.2f}' if level.num_best else '–':>8}"
        )
    if coverage.num_left_out:
        lines.append(
            f"  {counted(coverage.num_left_out, 'anchor')} across the border of a {sizes[0]} "
            "input: training leaves them out"
        )
    matched = coverage.num_anchors[~coverage.lost]
    mean = f"{matched.mean():.1f}" if len(matched) else "0"
    lines.append(f"  a box is learnt by {mean} anchors on average")
    if coverage.threshold is not None:
        how = "; each still gets its best one by force" if coverage.forced and below else ""
        lines.append(
            f"  {counted(below, 'box')} ({below / total:.1%}) below the threshold of "
            f"{coverage.threshold:.2g} with every anchor{how}"
        )
        for reason, rows in coverage.reasons.items():
            if rows.any():
                lines.append(f"    {reason:<18} {int(rows.sum()):>9,}")
    lost = int(coverage.lost.sum())
    lines.append(f"  {counted(lost, 'box')} ({lost / total:.1%}) learnt by no anchor at all")
    return lines


def _anchor_dictionary(report: DataReport) -> Optional[Dict[str, Any]]:
    coverage = report.anchors
    if coverage is None:
        return None
    return {
        "reader": report.anchors_of,
        "boxes": len(coverage.below),
        "threshold": coverage.threshold,
        "forced": coverage.forced,
        "below_threshold": int(coverage.below.sum()),
        "reasons": {reason: int(rows.sum()) for reason, rows in coverage.reasons.items()},
        "learnt_by_no_anchor": int(coverage.lost.sum()),
        "feature_maps": [
            {
                "height": level.size[0],
                "width": level.size[1],
                "anchors": level.num_anchors,
                "boxes_at_best": level.num_best,
                "mean_iou": round(level.mean_iou, 4),
            }
            for level in coverage.maps
        ],
    }


def _bar(share: float) -> str:
    """`BAR_CELLS` wide, filled in eighths of a cell from the left; anything above 0 is seen."""
    eighths = max(round(share * BAR_CELLS * 8), 1 if share > 0 else 0)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(BAR_CELLS)


def _cut(text: str) -> str:
    return text if len(text) <= NAME_CELLS else text[: NAME_CELLS - 1] + "…"
