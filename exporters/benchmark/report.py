"""A benchmark as text, JSON and charts."""

from __future__ import annotations

import math
import os
import platform
from typing import Any, Dict, List, Optional, Sequence

from estimator_det.compat import tf
from estimator_det.config import files, json_lines, printing
from exporters.benchmark.compare import Benchmark, Row
from exporters.benchmark.measure import Measured
from model_fn.drawing import charts

TEXT_FILE = "benchmark.txt"
JSON_FILE = "benchmark.json"
PICTURE_FILE = "benchmark.png"
MAP = "DetectionBoxes_Precision/mAP"
MAP_50 = "DetectionBoxes_Precision/mAP@.50IOU"

_MEGA = 1e6
_NONE = "–"
_COLUMNS = ("format", "batch", "median ms", "p95 ms", "images/s", "load s", "file MB", "memory MB",
            "peak MB", "mAP", "mAP@.50", "scores differ", "boxes differ")  # fmt: skip


def text_lines(results: Benchmark) -> List[str]:
    """A table with a row for each model and batch size, and the errors below it."""
    table = [list(_COLUMNS)]
    for row in results.rows:
        table += _table_rows(row)
    widths = [max(map(len, column)) for column in zip(*table)]
    lines = [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths))
        ).rstrip()
        for cells in table
    ]
    errors = [f"{row.name}: {row.error}" for row in results.rows if row.measured is None]
    height, width = results.image_size
    return [
        f"{printing.plain(results.path)}: images of {width}x{height}, TensorFlow {tf.__version__}, "
        f"{os.cpu_count()} processors",
        *lines,
        *errors,
    ]


def _table_rows(row: Row) -> List[List[str]]:
    if row.measured is None:
        return [[row.name, *[_NONE] * (len(_COLUMNS) - 1)]]
    measured = row.measured
    model_cells = [
        f"{measured.load_seconds:.1f}",
        f"{measured.num_bytes / _MEGA:.1f}",
        f"{(measured.memory_peak - measured.memory_before) / _MEGA:.0f}",
        f"{measured.memory_peak / _MEGA:.0f}",
        _metric(measured, MAP),
        _metric(measured, MAP_50),
        *(
            [_NONE] * 2
            if measured.difference is None
            else [f"{measured.difference.scores:.1e}", f"{measured.difference.boxes:.1e}"]
        ),
    ]
    if not measured.timings:
        return [[row.name, *[_NONE] * 4, *model_cells]]
    rows = [
        [
            row.name,
            str(each.batch_size),
            f"{each.median_ms:.1f}",
            f"{each.p95_ms:.1f}",
            f"{each.images_per_second:.1f}",
        ]
        for each in measured.timings
    ]
    rows[0] += model_cells
    return [cells + [""] * (len(_COLUMNS) - len(cells)) for cells in rows]


def _metric(measured: Measured, name: str) -> str:
    value = measured.metrics.get(name, -1.0)
    return _NONE if value < 0 or math.isnan(value) else f"{value:.3f}"


def to_dictionary(results: Benchmark) -> Dict[str, Any]:
    """The benchmark for JSON; what was not measured is None."""
    return {
        "path": results.path,
        "tensorflow": tf.__version__,
        "machine": {"processors": os.cpu_count(), "kind": platform.machine()},
        "image": {"height": results.image_size[0], "width": results.image_size[1]},
        "models": [_model(row) for row in results.rows],
    }


def _model(row: Row) -> Dict[str, Any]:
    measured = row.measured
    if measured is None:
        return {"format": row.name, "path": row.path, "error": row.error}
    difference = None
    if measured.difference is not None:
        difference = {
            name: _finite(value)
            for name, value in measured.difference._asdict().items()
            if name != "rows"
        }
    return {
        "format": row.name,
        "path": row.path,
        "bytes": measured.num_bytes,
        "load_seconds": measured.load_seconds,
        "memory_before_bytes": measured.memory_before,
        "memory_peak_bytes": measured.memory_peak,
        "timings": [each._asdict() for each in measured.timings],
        "metrics": {name: _finite(value) for name, value in sorted(measured.metrics.items())},
        "difference_from_checkpoint": difference,
    }


def _finite(value: float) -> Optional[float]:
    return value if math.isfinite(value) else None


def picture(results: Benchmark) -> bytes:
    """Charts of all models that were measured: the bytes of a PNG file."""
    names = [row.name for row in results.rows if row.measured is not None]
    measured = [row.measured for row in results.rows if row.measured is not None]
    sizes = sorted({each.batch_size for model in measured for each in model.timings})
    panels = [
        charts.bar_chart("Latency, median", names, _by_batch(measured, sizes, "median_ms"),
                         y_label="ms for a batch"),
        charts.bar_chart("Latency, 95th percentile", names, _by_batch(measured, sizes, "p95_ms"),
                         y_label="ms for a batch"),
        charts.bar_chart("Throughput", names, _by_batch(measured, sizes, "images_per_second"),
                         y_label="images/s"),
        charts.bar_chart("File size", names, {"": [model.num_bytes / _MEGA for model in measured]},
                         y_label="MB"),
        charts.bar_chart(
            "Memory of the process",
            names,
            {
                "at most": [model.memory_peak / _MEGA for model in measured],
                "before loading": [model.memory_before / _MEGA for model in measured],
            },
            y_label="MB",
        ),
    ]  # fmt: skip
    if any(MAP in model.metrics for model in measured):
        values = {
            label: [max(model.metrics.get(name, 0.0), 0.0) for model in measured]
            for label, name in (("mAP", MAP), ("mAP@.50IOU", MAP_50))
        }
        panels.append(charts.bar_chart("Accuracy on the records", names, values))
    return charts.figure(panels, title=f"Benchmark of {results.path}")


def _by_batch(
    measured: Sequence[Measured], sizes: Sequence[int], field: str
) -> Dict[str, List[float]]:
    """Values for each model by batch size; 0 where it was not measured."""
    return {
        f"batch {size}": [
            next((getattr(each, field) for each in model.timings if each.batch_size == size), 0.0)
            for model in measured
        ]
        for size in sizes
    }


def write(results: Benchmark, folder: str) -> List[str]:
    """Writes text, JSON and charts to a folder; returns their paths."""
    paths = [os.path.join(folder, name) for name in (TEXT_FILE, JSON_FILE, PICTURE_FILE)]
    tf.io.gfile.makedirs(folder)
    files.write_text(paths[0], printing.printable("\n".join(text_lines(results))) + "\n")
    files.write_text(paths[1], json_lines.dumps(to_dictionary(results), indent=2) + "\n")
    if not any(row.measured for row in results.rows):
        return paths[:2]
    with tf.io.gfile.GFile(paths[2], "wb") as file:
        file.write(picture(results))
    return paths
