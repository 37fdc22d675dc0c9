"""The charts of a check of data."""

from __future__ import annotations

from typing import Dict, Iterable, List, Mapping, Sequence

import numpy as np

from inputs.checks import statistics
from inputs.checks.statistics import Columns
from model_fn.checks.anchor_coverage import Coverage
from model_fn.checks.data_report import DataReport
from model_fn.drawing import charts

IOU_EDGES = np.linspace(0.0, 1.0, 41)
CENTRE_CELLS = 24  # rows and columns that the image is divided into


def panels(report: DataReport) -> List[charts.Panel]:
    """Charts of all readers together."""
    scans = {scan.reader: scan for scan in report.scans if scan.columns.num_images}
    if not scans:
        return []
    columns = {name: scan.columns for name, scan in scans.items()}
    result = [
        _classes_panel(report, columns),
        _areas_panel(report, columns),
        _sides_panel(report, columns),
        charts.histogram(
            "shape of boxes",
            statistics.FINE_RATIOS,
            {
                name: np.histogram(_clipped_ratios(c), statistics.FINE_RATIOS)[0]
                for name, c in columns.items()
            },
            x_label="width : height",
            y_label="boxes",
            log_x=True,
            ticks={
                **{1 / n: f"1:{n}" for n in (8, 4, 2)},
                **{float(n): f"{n}:1" for n in (1, 2, 4, 8)},
            },
        ),
        charts.bar_chart(
            "boxes per image",
            statistics.COUNT_NAMES,
            {name: statistics.count_histogram(c).counts.tolist() for name, c in columns.items()},
            y_label="images",
        ),
        _image_sizes_panel(columns.values()),
        charts.heatmap(
            "centres of boxes in the image",
            _centres(columns.values()),
            y_label="top to bottom",
            x_label="left to right",
        ),
    ]
    coverage = report.anchors
    if coverage is not None and len(coverage.below):
        result += _anchor_panels(coverage)
    return result


def _classes_panel(report: DataReport, columns: Mapping[str, Columns]) -> charts.Panel:
    counts = {name: statistics.class_counts(c) for name, c in columns.items()}
    ids = sorted(
        set(report.names).union(*counts.values()),
        key=lambda i: (-sum(of.get(i, (0, 0))[0] for of in counts.values()), i),
    )
    per_class = {name: [of.get(i, (0, 0))[0] for i in ids] for name, of in counts.items()}
    many = len(ids) > charts.MAX_NAMED_BARS
    return charts.bar_chart(
        f"boxes by class{', most frequent first' if many else ''}",
        [report.names.get(i, str(i)) for i in ids],
        per_class,
        y_label="boxes",
        log=_spread(per_class) > 100,
        width=3,
    )


def _anchor_panels(coverage: Coverage) -> List[charts.Panel]:
    counts = np.histogram(coverage.best_iou, IOU_EDGES)[0]
    marks = {} if coverage.threshold is None else {"threshold": coverage.threshold}
    fates = {
        "matched": ~coverage.below & ~coverage.lost,
        "by force alone": coverage.below & ~coverage.lost,
        "lost": coverage.lost,
    }
    areas = statistics.area_classes(coverage.pixels)
    return [
        charts.histogram(
            "best anchor of each box",
            IOU_EDGES.tolist(),
            {"boxes": counts},
            x_label="IoU",
            y_label="boxes",
            marks=marks,
        ),
        charts.bar_chart(
            "boxes and anchors by area after resizing",
            statistics.AREA_NAMES,
            {name: np.bincount(areas[rows], minlength=3).tolist() for name, rows in fates.items()},
            y_label="boxes",
        ),
        charts.bar_chart(
            "feature map of the best anchor",
            [f"{level.size[1]}×{level.size[0]}" for level in coverage.maps],
            {"boxes": [level.num_best for level in coverage.maps]},
            y_label="boxes",
        ),
    ]


def _areas_panel(report: DataReport, columns: Mapping[str, Columns]) -> charts.Panel:
    series = {
        title: np.bincount(statistics.area_classes(pixels), minlength=3)
        for title, pixels in _pixels(report, columns).items()
    }
    labels = ["small, <32²", "medium", "large, ≥96²"]
    return charts.bar_chart("area of boxes, pixels", labels, series, y_label="boxes")


def _pixels(report: DataReport, columns: Mapping[str, Columns]) -> Dict[str, np.ndarray]:
    """What is measured -> [M, 2], heights and widths of the boxes of all readers."""
    found = {"in the records": [statistics.box_sizes(c) for c in columns.values()]}
    if report.resized:
        found["after resizing"] = list(report.resized.values())
    return {title: np.concatenate(sizes) for title, sizes in found.items()}


def _sides_panel(report: DataReport, columns: Mapping[str, Columns]) -> charts.Panel:
    series = {}
    edges = statistics.FINE_SIDES
    for title, pixels in _pixels(report, columns).items():
        sides = np.sqrt(np.maximum(np.prod(pixels, axis=1), 0))
        series[title] = np.histogram(np.clip(sides, edges[0], edges[-1]), edges)[0]
    return charts.histogram(
        "size of boxes",
        statistics.FINE_SIDES,
        series,
        x_label="√area, pixels",
        y_label="boxes",
        log_x=True,
        marks={"small": 32.0, "large": 96.0},
        ticks={side: str(side) for side in (2, 8, 32, 96, 256, 1024)},
    )


def _image_sizes_panel(columns: Iterable[Columns]) -> charts.Panel:
    sizes = statistics.common_sizes(np.concatenate([c.sizes for c in columns]))
    return charts.scatter(
        "sizes of images",
        [w for (_, w), _ in sizes],
        [h for (h, _), _ in sizes],
        [n for _, n in sizes],
        x_label="width, pixels",
        y_label="height, pixels",
    )


def _centres(columns: Iterable[Columns]) -> np.ndarray:
    """[CENTRE_CELLS, CENTRE_CELLS]: boxes whose centre lies in each part of the image."""
    boxes = np.concatenate([c.boxes for c in columns])
    middle = np.clip((boxes[:, :2] + boxes[:, 2:]) / 2, 0, 1)
    return np.histogram2d(middle[:, 0], middle[:, 1], bins=CENTRE_CELLS, range=[[0, 1], [0, 1]])[0]


def _clipped_ratios(columns: Columns) -> np.ndarray:
    ratios = statistics.aspect_ratios(statistics.box_sizes(columns))
    return np.clip(ratios, statistics.FINE_RATIOS[0], statistics.FINE_RATIOS[-1])


def _spread(series: Mapping[str, Sequence[float]]) -> float:
    """Greatest over least of the values above 0."""
    values = [value for of in series.values() for value in of if value > 0]
    return max(values) / min(values) if values else 1.0
