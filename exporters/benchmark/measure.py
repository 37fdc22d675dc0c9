"""Measures one model in the process that calls this."""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_det.compat import tf
from estimator_det.console import printing
from estimator_det.detectors.base import BatchDetections
from estimator_det.errors import RunError
from estimator_det.protos import pipeline_pb2
from exporters.formats import FORMATS, FoundModel
from exporters.formats.base import ExportFormat, num_bytes
from exporters.formats.check import CheckpointDetector, compare
from exporters.loaded_model import BOXES, CLASSES, NUM, SCORES, LoadedModel, resized
from inputs import schema
from model_fn.evaluation.detections.scoring import original_images, score
from model_fn.evaluation.readers import named_readers
from model_fn.serving.graph import CLASS_OFFSET

CHECKPOINT = "checkpoint"  # in place of a format
WARM_UP_RUNS = 3  # TensorFlow optimizes a graph in its first runs
MIN_RUNS = 10

Outputs = Dict[str, np.ndarray]


class MeasureTask(NamedTuple):
    """Task of a measuring process; it is pickled."""

    name: str  # a format, or CHECKPOINT
    path: str  # file, folder or prefix
    images: Sequence[np.ndarray]  # uint8 [h, w, 3] each, for speed and difference
    batch_sizes: Tuple[int, ...]
    seconds: float  # time of all runs for each batch size
    config: bytes  # `TrainEvalPipelineConfig` of the export; empty without one
    records: bytes  # `TrainEvalPipelineConfig` that reads the records
    num_records: Optional[int]  # number of images for the mAP; None for all
    expected: Sequence[Outputs]  # outputs of the checkpoint for each image; empty: no difference


class Timing(NamedTuple):
    """How fast a model is for batches of one size."""

    batch_size: int
    runs: int
    median_ms: float
    p95_ms: float
    images_per_second: float


def measure(task: MeasureTask) -> Tuple[Dict[str, Any], List[Outputs]]:
    """Loads and runs the model of a task.

    Returns:
        The entry of the model in benchmark.json, and for CHECKPOINT the outputs for each image.
    """
    entry: Dict[str, Any] = {"format": task.name, "path": task.path}
    entry["bytes"] = size_of_files(task.path, task.name)
    before, started = memory("VmRSS"), time.perf_counter()
    model = _load(task)
    entry["load_seconds"] = time.perf_counter() - started
    size = task.images[0].shape[:2]
    images = [resized(resized(pixels, size), model.image_size) for pixels in task.images]
    timings = []
    for count in task.batch_sizes:
        if model.batch_size in (None, count):
            printing.report(f"{task.name}: batches of {count}, {task.seconds:g} s", sys.stderr)
            timings.append(time_batches(model.run, images, count, task.seconds)._asdict())
    # Before anything else needs memory.
    entry.update(memory_before_bytes=before, memory_peak_bytes=memory("VmHWM"), timings=timings)
    outputs: List[Outputs] = []
    if task.name == CHECKPOINT:
        outputs = [model.run(pixels[None]) for pixels in task.images]
    difference = _difference(task, model)
    printing.report(f"{task.name}: mAP of the records", sys.stderr)
    metrics = evaluate_model(model, _parsed(task.records), task.num_records)
    entry["metrics"] = dict(sorted(metrics.items()))
    entry["difference_from_checkpoint"] = difference
    return entry, outputs


def evaluate_model(
    model: LoadedModel,
    records_config: pipeline_pb2.TrainEvalPipelineConfig,
    num_images: Optional[int],
) -> Dict[str, float]:
    """The metrics of a model on records, image by image in their own sizes.

    Args:
        records_config: `TrainEvalPipelineConfig` with one evaluation reader, see
            `scoring.config_of_records`.
        num_images: Evaluates only the first ones; None for all.
    """
    (reader_name,) = named_readers(records_config)
    make_dataset = original_images(records_config, reader_name)

    def detect(features: Dict[str, np.ndarray]) -> BatchDetections:
        pixels = features[schema.IMAGE][0].astype(np.uint8)
        outputs = model.run(resized(pixels, model.image_size)[None])
        boxes, scores = tf.constant(outputs[BOXES]), tf.constant(outputs[SCORES])
        return BatchDetections(
            boxes=boxes,
            scores=scores,
            classes=tf.constant(outputs[CLASSES] - CLASS_OFFSET),
            num=tf.constant(outputs[NUM]),
            raw_boxes=boxes,
            raw_scores=scores[..., tf.newaxis],
        )

    count = -1 if num_images is None else num_images
    return score(lambda: make_dataset().take(count), detect, records_config).metrics


def time_batches(
    run: Callable[[np.ndarray], Any],
    images: Sequence[np.ndarray],
    batch_size: int,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Runs batches for a time, at least MIN_RUNS.

    Args:
        run: Takes uint8 [batch_size, h, w, 3].
        seconds: The last run starts within this time.
    """
    turns = itertools.cycle(images)
    # More different batches would not fit into memory for large sizes.
    count = max(1, len(images) // batch_size)
    batches = [np.stack([each for _, each in zip(range(batch_size), turns)]) for _ in range(count)]
    for _ in range(WARM_UP_RUNS):
        run(batches[0])
    spent: List[float] = []
    for batch in itertools.cycle(batches):
        if len(spent) >= MIN_RUNS and sum(spent) >= seconds:
            break
        started = clock()
        run(batch)
        spent.append(clock() - started)
    median, p95 = np.percentile(spent, [50, 95])
    rate = len(spent) * batch_size / sum(spent)
    return Timing(batch_size, len(spent), 1e3 * float(median), 1e3 * float(p95), rate)


def size_of_files(path: str, name: str) -> int:
    """Bytes of a file, of all files in a folder, or of a checkpoint's index and data files."""
    if name != CHECKPOINT:
        return num_bytes(path)
    return sum(map(num_bytes, [f"{path}.index", *tf.io.gfile.glob(f"{path}.data-*")]))


def memory(field: str) -> int:
    """Bytes of main memory of this process in Linux: VmRSS is now, VmHWM is at most.

    The maximum of `getrusage` also counts the process that started this one.
    """
    with open("/proc/self/status", encoding="ascii") as file:
        (line,) = (line for line in file if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def _load(task: MeasureTask) -> LoadedModel:
    if task.name == CHECKPOINT:
        return CheckpointDetector(_parsed(task.config), task.path)
    return FoundModel(FORMATS.get(task.name)(), task.path).load()


def _difference(task: MeasureTask, model: LoadedModel) -> Optional[Dict[str, float]]:
    is_resized = any(resized(each, model.image_size) is not each for each in task.images)
    if not task.expected or is_resized:  # the checkpoint gets images of their own size
        return None
    chosen = FORMATS.get(task.name)
    has_raw = chosen.load_with_raw is ExportFormat.load_with_raw  # most models do
    raw = model if has_raw else chosen().load_with_raw(task.path)
    difference = compare(_parsed(task.config).model, task.expected, raw, task.images)
    if difference.other_shape:
        raise RunError(f"{printing.plain(task.path)}: {difference.other_shape}; export it again")
    no_numbers = ("rows", "other_shape")
    return {name: value for name, value in difference._asdict().items() if name not in no_numbers}


def _parsed(serialized: bytes) -> Any:
    return pipeline_pb2.TrainEvalPipelineConfig.FromString(serialized)
