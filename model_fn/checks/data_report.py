"""The report of a check of data: as text, as charts, and as a dictionary for JSON."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np

from estimator_det.console.printing import counted, escaped, quoted
from estimator_det.errors import Problem
from inputs.bad_records.kinds import CLIP, FAIL, KINDS, SKIP, RecordFault, effect, resolve_actions
from inputs.checks import statistics
from inputs.checks.scan import Scan
from inputs.checks.statistics import Tally
from model_fn.checks import tables
from model_fn.checks.anchor_coverage import Coverage
from model_fn.checks.tables import CountTable
from model_fn.drawing import charts

ERROR, WARNING = "error", "warning"
NUM_SIZES_SHOWN = 4
CHART_SIZES = 12  # most frequent sizes of each reader
SUMMARY_READERS, SUMMARY_FINDINGS = 3, 6  # lines of a summary
IOU_EDGES = np.linspace(0.0, 1.0, 41)
CENTRE_CELLS = 24  # rows and columns that the image is divided into


class DataReport(NamedTuple):
    """The result of a check of data."""

    config: str  # path of the configuration
    scans: List[Scan]  # a reader each
    names: Dict[int, str]  # class id -> name
    resized: Dict[str, np.ndarray]  # reader -> [M, 2], boxes in pixels of the network's input
    problems: List[Problem]
    tallies: Dict[str, Tally]  # reader -> counts
    # For the boxes of the first reader; None if the model has no anchors to compare with.
    anchors: Optional[Coverage] = None

    @property
    def num_errors(self) -> int:
        """Findings and problems that stop a run or make it useless."""
        count = sum(severity(entry) == ERROR for scan in self.scans for entry in scan.entries)
        return count + sum(problem.severity == ERROR for problem in self.problems)

    @property
    def num_warnings(self) -> int:
        """All other findings and problems."""
        total = len(self.problems) + sum(len(scan.entries) for scan in self.scans)
        return total - self.num_errors


def severity(entry: RecordFault) -> str:
    """`ERROR` for what stops a run under the reader's policy, else `WARNING`."""
    return ERROR if entry.action == FAIL else WARNING


def text_lines(report: DataReport) -> List[str]:
    """The whole report."""
    lines: List[str] = []
    all_tables = tables.make_tables(report.tallies, report.names)
    for scan in report.scans:
        lines += ["", _heading(scan)]
        for heading, remedy, entries in _findings(scan):
            places = [_place(entry) for entry in entries[: tables.NUM_EXAMPLES]]
            lines += [
                f"  {heading}",
                *tables.examples(places, len(entries)),
                f"    Remedy: {remedy}",
            ]
        for table in all_tables:
            lines += tables.text_bars(table, scan.reader)
        if scan.columns.num_images:
            lines.append(_sizes_line(scan))
    if report.anchors is not None and len(report.anchors.below):
        lines += ["", *_anchor_lines(report.anchors, report.scans[0].reader)]
    if report.problems:
        lines += ["", "beyond single records"]
        lines += [f"  {problem}" for problem in report.problems]
    repair_lines = _repair_lines(report)
    return [*lines, "", *repair_lines][1:] if repair_lines else lines[1:]


def summary_lines(report: DataReport) -> List[str]:
    """The report in 12 lines at most: readers, errors and warnings, anchors, settings."""
    findings = [
        (severity(entries[0]), f"{heading}: {_place(entries[0])}")
        for scan in report.scans
        for heading, _, entries in _findings(scan)
    ]
    findings += [(problem.severity, str(problem)) for problem in report.problems]
    findings.sort(key=lambda finding: finding[0] != ERROR)
    headings = [_heading(scan) for scan in report.scans]
    lines = tables.at_most(headings, SUMMARY_READERS, "readers")
    lines += tables.at_most(
        [line for _, line in findings], SUMMARY_FINDINGS, "errors and warnings: see --verbose"
    )
    if report.anchors is not None and len(report.anchors.below):
        lines.append(f"anchors: {_lost_line(report.anchors)}")
    return lines + _repair_lines(report)


class Repair(NamedTuple):
    """Settings to train with records that have faults."""

    settings: List[str]  # in the form that `--set` takes
    num_skipped: int  # records that are skipped then


def repair(scan: Scan) -> Optional[Repair]:
    """Settings under which no fault of a record stops a run; None if none does, or none helps."""
    if all(entry.action != FAIL for entry in scan.entries):
        return None
    actions = resolve_actions(CLIP, {})
    skipped = {
        (e.file, e.record) for e in scan.entries if actions[e.kind] == SKIP and e.record >= 0
    }
    if len(skipped) >= scan.num_records:  # No record would be left.
        return None
    policy = f"{scan.reader}.bad_records.policy=CLIP"
    limit = f"{scan.reader}.bad_records.max_skipped={len(skipped)}"
    return Repair([policy, limit] if skipped else [policy], len(skipped))


def _repair_lines(report: DataReport) -> List[str]:
    repairs = [settings for settings in map(repair, report.scans) if settings is not None]
    if not repairs:
        return []
    skipped = counted(sum(settings.num_skipped for settings in repairs), "record")
    text = " ".join(f"--set {setting}" for settings in repairs for setting in settings.settings)
    return [f"to train on the rest, with {skipped} skipped and boxes clipped:", f"  {text}"]


def to_dictionary(report: DataReport) -> Dict[str, Any]:
    """The report as JSON takes it; findings of records are counted by kind."""
    readers = {}
    for scan in report.scans:
        readers[scan.reader] = {
            "files": len(scan.files),
            "records": scan.num_records,
            "skipped": scan.num_skipped,
            "findings": [
                {
                    "kind": kind,
                    "action": action,
                    "severity": severity(entries[0]),
                    "records": len({(entry.file, entry.record) for entry in entries}),
                    "count": sum(entry.count for entry in entries),
                }
                for (kind, action), entries in entries_by_kind(scan).items()
            ],
            "repair": settings._asdict() if (settings := repair(scan)) is not None else None,
            **tables.to_dictionary(report.tallies[scan.reader], report.names),
        }
    return {
        "config": report.config,
        "readers": readers,
        "anchors": _anchor_dictionary(report),
        "problems": [problem.__dict__ for problem in report.problems],
        "errors": report.num_errors,
        "warnings": report.num_warnings,
    }


def entries_by_kind(scan: Scan) -> Dict[Tuple[str, str], List[RecordFault]]:
    """Findings by kind and action; errors come first, then the order of `KINDS`."""
    kinds: Dict[Tuple[str, str], List[RecordFault]] = {}
    for entry in scan.entries:
        kinds.setdefault((entry.kind, entry.action), []).append(entry)
    table = list(KINDS)
    order = sorted(kinds, key=lambda k: (severity(kinds[k][0]) != ERROR, table.index(k[0]), k[1]))
    return {key: kinds[key] for key in order}


def _heading(scan: Scan) -> str:
    columns = scan.columns
    read = f"{counted(len(scan.files), 'file')}, {counted(scan.num_records, 'record')}"
    used = f"{counted(columns.num_images, 'image')} and {counted(columns.num_boxes, 'box')}"
    return f"{scan.reader}: {read}; {used} are used"


def _findings(scan: Scan) -> Iterator[Tuple[str, str, List[RecordFault]]]:
    """Heading, remedy and entries of each kind of fault."""
    for (kind, action), entries in entries_by_kind(scan).items():
        row = KINDS[kind]
        total = sum(entry.count for entry in entries)
        records = f" in {counted(len(entries), 'record')}" if row.unit == "box" else ""
        amount = counted(total, row.unit) + records
        heading = f"{severity(entries[0])}: {kind}: {row.description}: {amount}"
        yield f"{heading}, {effect(kind, action)}", row.remedy, entries


def _place(entry: RecordFault) -> str:
    number = f", record {entry.record}" if entry.record >= 0 else ""
    name = f" (source_id {quoted(entry.source_id)})" if entry.source_id else ""
    return escaped(f"{entry.file}{number}{name}: {entry.message}")


def _sizes_line(scan: Scan) -> str:
    sizes = scan.columns.sizes
    shown = statistics.common_sizes(sizes)
    common = ", ".join(f"{w}×{h} ({n:,})" for (h, w), n in shown[:NUM_SIZES_SHOWN])
    low, high = sizes.min(axis=0), sizes.max(axis=0)
    return (
        f"    {counted(len(shown), 'size')}, {low[1]}…{high[1]} wide, {low[0]}…{high[0]} high; "
        f"most frequent: {common}"
    )


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
    return [*lines, f"  {_lost_line(coverage)}"]


def _lost_line(coverage: Coverage) -> str:
    lost = int(coverage.lost.sum())
    return f"{counted(lost, 'box')} ({lost / len(coverage.lost):.1%}) learnt by no anchor at all"


def _anchor_dictionary(report: DataReport) -> Optional[Dict[str, Any]]:
    coverage = report.anchors
    if coverage is None:
        return None
    return {
        "reader": report.scans[0].reader,
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


def panels(report: DataReport) -> List[charts.Panel]:
    """Charts of all readers together."""
    if not any(tally["images"] for tally in report.tallies.values()):
        return []
    columns = {scan.reader: scan.columns for scan in report.scans}
    boxes = np.concatenate([c.boxes for c in columns.values()])
    pixels = {"in the records": [statistics.box_sizes(c) for c in columns.values()]}
    if report.resized:
        pixels["after resizing"] = list(report.resized.values())
    sizes = {reader: dict(statistics.common_sizes(c.sizes)) for reader, c in columns.items()}
    frequent = list(dict.fromkeys(size for of in sizes.values() for size in list(of)[:CHART_SIZES]))
    counts = {reader: [of.get(size, 0) for size in frequent] for reader, of in sizes.items()}
    labels = [f"{width}×{height}" for height, width in frequent]
    result = [
        *map(tables.panel, tables.make_tables(report.tallies, report.names)),
        tables.panel(CountTable("most frequent sizes of images", "images", labels, counts)),
        charts.histogram(
            "size of boxes",
            statistics.FINE_SIDES,
            {title: statistics.fine_sides(np.concatenate(p)) for title, p in pixels.items()},
            x_label="√area, pixels",
            y_label="boxes",
            log_x=True,
            marks={"small": 32.0, "large": 96.0},
            ticks={side: str(side) for side in (2, 8, 32, 96, 256, 1024)},
        ),
        charts.heatmap(
            "centres of boxes in the image",
            statistics.centres(boxes, CENTRE_CELLS),
            y_label="top to bottom",
            x_label="left to right",
        ),
    ]
    coverage = report.anchors
    if coverage is not None and len(coverage.below):
        result += _anchor_panels(coverage)
    return result


def _anchor_panels(coverage: Coverage) -> List[charts.Panel]:
    fates = {
        "matched": ~coverage.below & ~coverage.lost,
        "by force alone": coverage.below & ~coverage.lost,
        "lost": coverage.lost,
    }
    areas = statistics.area_classes(coverage.pixels)
    names = statistics.SCALES["areas"].names
    levels = [f"{level.size[1]}×{level.size[0]}" for level in coverage.maps]
    num_best = {"boxes": [level.num_best for level in coverage.maps]}
    shares = {
        name: np.bincount(areas[rows], minlength=len(names)).tolist()
        for name, rows in fates.items()
    }
    return [
        charts.histogram(
            "best anchor of each box",
            IOU_EDGES.tolist(),
            {"boxes": np.histogram(coverage.best_iou, IOU_EDGES)[0]},
            x_label="IoU",
            y_label="boxes",
            marks={} if coverage.threshold is None else {"threshold": coverage.threshold},
        ),
        tables.panel(
            CountTable("boxes and anchors by area after resizing", "boxes", names, shares)
        ),
        tables.panel(CountTable("feature map of the best anchor", "boxes", levels, num_best)),
    ]
