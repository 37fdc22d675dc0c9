"""A benchmark as text, JSON and charts."""

from __future__ import annotations

import math
import os
from typing import Any, Dict, List, Optional, Sequence

from estimator_det import files
from estimator_det.compat import tf
from estimator_det.console import printing
from estimator_det.files import json_lines
from model_fn.drawing import charts

FILES = ("benchmark.txt", "benchmark.json", "benchmark.png")
MAP = "DetectionBoxes_Precision/mAP"
MAP_50 = "DetectionBoxes_Precision/mAP@.50IOU"

_MEGA = 1e6
_NONE = "–"
_COLUMNS = ("format", "batch", "median ms", "p95 ms", "images/s", "load s", "file MB", "memory MB",
            "peak MB", "mAP", "mAP@.50", "scores differ", "boxes differ")  # fmt: skip
_TIMINGS = {"batch_size": "d", "median_ms": ".1f", "p95_ms": ".1f", "images_per_second": ".1f"}


def text_lines(document: Dict[str, Any]) -> List[str]:
    """A table with a row for each model and batch size, and the errors below it.

    Args:
        document: Result of `compare.benchmark`.
    """
    table = [list(_COLUMNS)]
    for model in document["models"]:
        table += _table_rows(model)
    widths = [max(map(len, column)) for column in zip(*table)]
    lines = [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(cells, widths))
        ).rstrip()
        for cells in table
    ]
    models = document["models"]
    errors = [f"{model['format']}: {model['error']}" for model in models if "error" in model]
    return [
        f"{printing.plain(document['path'])}: images of {document['image']['width']}x"
        f"{document['image']['height']}, TensorFlow {document['tensorflow']}, "
        f"{document['machine']['processors']} processors",
        *lines,
        *errors,
    ]


def _table_rows(model: Dict[str, Any]) -> List[List[str]]:
    if "error" in model:
        return [[model["format"], *[_NONE] * (len(_COLUMNS) - 1)]]
    rows = [
        [model["format"], *(_cell(each.get(field), form) for field, form in _TIMINGS.items())]
        for each in model["timings"] or [{}]
    ]
    difference = model["difference_from_checkpoint"] or {}
    rows[0] += [
        _cell(model["load_seconds"], ".1f"),
        _cell(model["bytes"] / _MEGA, ".1f"),
        _cell((model["memory_peak_bytes"] - model["memory_before_bytes"]) / _MEGA, ".0f"),
        _cell(model["memory_peak_bytes"] / _MEGA, ".0f"),
        _cell(model["metrics"].get(MAP), ".3f"),
        _cell(model["metrics"].get(MAP_50), ".3f"),
        _cell(difference.get("scores"), ".1e"),
        _cell(difference.get("boxes"), ".1e"),
    ]
    return [cells + [""] * (len(_COLUMNS) - len(cells)) for cells in rows]


def _cell(value: Optional[float], form: str) -> str:
    """A number; a dash for none, for a metric without objects, which is -1, and for NaN."""
    return _NONE if value is None or value < 0 or math.isnan(value) else format(value, form)


def _finite(value: Any) -> Any:
    """A document with None in place of numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return list(map(_finite, value))
    return None if isinstance(value, float) and not math.isfinite(value) else value


def picture(document: Dict[str, Any]) -> bytes:
    """Charts of all models that were measured: the bytes of a PNG file."""
    models = [model for model in document["models"] if "error" not in model]
    names = [model["format"] for model in models]
    panels = [
        charts.bar_chart(title, names, _by_batch(models, field), y_label=unit)
        for title, field, unit in (
            ("Latency, median", "median_ms", "ms for a batch"),
            ("Latency, 95th percentile", "p95_ms", "ms for a batch"),
            ("Throughput", "images_per_second", "images/s"),
        )
    ]
    sizes = {"": [model["bytes"] / _MEGA for model in models]}
    panels.append(charts.bar_chart("File size", names, sizes, y_label="MB"))
    memory = {
        "at most": [model["memory_peak_bytes"] / _MEGA for model in models],
        "before loading": [model["memory_before_bytes"] / _MEGA for model in models],
    }
    panels.append(charts.bar_chart("Memory of the process", names, memory, y_label="MB"))
    if any(MAP in model["metrics"] for model in models):
        values = {
            label: [max(model["metrics"].get(name, 0.0), 0.0) for model in models]
            for label, name in (("mAP", MAP), ("mAP@.50IOU", MAP_50))
        }
        panels.append(charts.bar_chart("Accuracy on the records", names, values))
    return charts.figure(panels, title=f"Benchmark of {document['path']}")


def _by_batch(models: Sequence[Dict[str, Any]], field: str) -> Dict[str, List[float]]:
    """Values for each model by batch size; 0 where it was not measured."""
    tables = [{each["batch_size"]: each[field] for each in model["timings"]} for model in models]
    sizes = sorted(set().union(*tables))
    return {f"batch {size}": [table.get(size, 0.0) for table in tables] for size in sizes}


def write(document: Dict[str, Any], folder: str) -> List[str]:
    """Writes text, JSON and charts to a folder; returns their paths."""
    paths = [os.path.join(folder, name) for name in FILES]
    tf.io.gfile.makedirs(folder)
    files.write_text(paths[0], printing.printable("\n".join(text_lines(document))) + "\n")
    files.write_text(paths[1], json_lines.dumps(_finite(document), indent=2) + "\n")
    if all("error" in model for model in document["models"]):
        return paths[:2]
    with tf.io.gfile.GFile(paths[2], "wb") as file:
        file.write(picture(document))
    return paths
