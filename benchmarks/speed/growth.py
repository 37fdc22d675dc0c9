"""Processor time as data sets grow: it should grow no faster than they do."""

from __future__ import annotations

import argparse
import functools
import pathlib
import resource
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

from benchmarks.speed import components
from inputs import label_map, machine
from model_fn.evaluation.metrics import EvaluatedBatch
from model_fn.evaluation.metrics.coco import CocoBoxMetrics

CONVERTED = (200, 2_000, 20_000)  # images
CONVERTED_SIDE = 128
EVALUATED = (10, 100, 1_000, 5_000)  # images
BOXES = (10, 100, 300)  # an image has this many boxes, and as many detections
CLASSES = (10, 1_000, 10_000)
FEW_IMAGES, FEW_BOXES, FEW_CLASSES = 100, 10, 10  # while something else grows
SIDE = 600.0  # side of an evaluated image in pixels

Row = List[Tuple[int, float]]  # size and processor time in ms


def growth(arguments: argparse.Namespace) -> Dict[str, Any]:
    """Processor time in ms of each size, by what grows."""
    folder = arguments.scratch / "growth"
    folder.mkdir()
    _evaluate(FEW_IMAGES, FEW_BOXES, FEW_CLASSES)  # warm up
    rows: Dict[str, Row] = {
        "COCO metrics, images": _row(EVALUATED, lambda n: _evaluate(n, FEW_BOXES, FEW_CLASSES)),
        "COCO metrics, boxes of an image": _row(
            BOXES, lambda n: _evaluate(FEW_IMAGES, n, FEW_CLASSES)
        ),
        "COCO metrics, classes": _row(CLASSES, lambda n: _evaluate(FEW_IMAGES, FEW_BOXES, n)),
        "label map, classes": _row(CLASSES, _read_label_map),
        "convert, images": [(n, _convert(folder, n)) for n in CONVERTED],
    }
    return {"growth_ms": rows}


def _row(sizes: Tuple[int, ...], work: Callable[[int], Any]) -> Row:
    return [(size, processor_ms(functools.partial(work, size))) for size in sizes]


def processor_ms(work: Callable[[], Any]) -> float:
    """Processor time of this process and its child processes."""
    before = _processor_seconds()
    work()
    return 1000 * (_processor_seconds() - before)


def _processor_seconds() -> float:
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def _evaluate(num_images: int, num_boxes: int, num_classes: int) -> None:
    """COCO metrics of boxes, and detections some pixels beside them."""
    random = np.random.default_rng(0)
    metrics = CocoBoxMetrics([{"id": 1 + k, "name": str(k)} for k in range(num_classes)])
    for _ in range(num_images):
        low = random.uniform(0, SIDE / 2, (1, num_boxes, 2))
        boxes = np.concatenate([low, low + random.uniform(20, 200, low.shape)], axis=-1)
        classes = random.integers(1, 1 + num_classes, (1, num_boxes), np.int32)
        count = np.array([num_boxes], np.int32)
        moved = boxes + random.normal(0, 5, boxes.shape)
        scores = random.uniform(0, 1, (1, num_boxes)).astype(np.float32)
        detections = (moved.astype(np.float32), scores, classes, count)
        metrics.add(EvaluatedBatch(*detections, boxes.astype(np.float32), classes, count))
    metrics.results()


def _read_label_map(num_classes: int) -> None:
    items = (f"item {{ id: {1 + k} name: 'class {k}' }}\n" for k in range(num_classes))
    label_map.parse_label_map("".join(items))


def _convert(folder: pathlib.Path, count: int) -> float:
    """`convert --from coco` with its default number of processes."""
    from inputs.conversion import engine
    from inputs.datasets.source import SourceOptions

    images, annotations = components.write_coco(folder / str(count), count, CONVERTED_SIDE)
    source = SourceOptions(str(images), str(annotations))
    options = engine.ConvertOptions("coco", source, str(folder / f"records_{count}"))
    return processor_ms(lambda: engine.convert(options, jobs=machine.available_cpus()))


def report_lines(rows: Dict[str, Row]) -> List[str]:
    """The time of each size, and how much faster than linearly it grew since the size before."""
    lines = []
    for name, row in rows.items():
        texts = [f"{row[0][0]:,}: {row[0][1]:.3g} ms"]
        for (few, before), (many, after) in zip(row, row[1:]):
            ratio = after * few / max(before * many, 1e-9)
            texts.append(f"{many:,}: {after:.4g} ms, {ratio:.2f} × linear")
        lines.append(f"{name}: {'; '.join(texts)}")
    return lines
