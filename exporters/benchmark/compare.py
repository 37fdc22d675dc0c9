"""Measures the models of an export, each in a process of its own."""

from __future__ import annotations

import logging
import os
import platform
import sys
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

from estimator_det.compat import failures, tf
from estimator_det.config import pipeline, plugins
from estimator_det.console import printing
from estimator_det.errors import RunError, UsageError
from estimator_det.files import bracket_hint, matching
from estimator_det.protos import input_reader_pb2
from exporters import formats
from exporters.benchmark.measure import CHECKPOINT, MeasureTask, Outputs, measure
from exporters.formats.samples import sample_images
from exporters.loaded_model import label_map_of
from exporters.network import CHECKPOINT_NAME
from inputs import machine
from inputs.checks.first_records import unknown_class_names
from inputs.label_map import check_same_ids, read_label_map
from model_fn.evaluation.detections.scoring import config_of_records

NUM_IMAGES = 16  # for speed and difference


@dataclass(frozen=True)
class BenchmarkOptions:
    """Measurements of a benchmark, and their length."""

    records: Sequence[str]  # TFRecord files or patterns
    label_map: Optional[str] = None  # path; None: label map of the export
    batch_sizes: Tuple[int, ...] = (1, 8)  # each is measured for every model that takes it
    seconds: float = 5.0
    num_records: Optional[int] = None

    def __post_init__(self) -> None:
        if not self.batch_sizes or min(self.batch_sizes) < 1:
            raise UsageError(f"batch sizes {list(self.batch_sizes)}: must be 1 or more")
        if not 0 < self.seconds < float("inf"):
            raise UsageError(f"seconds is {self.seconds:g}; it must be above 0")
        if self.num_records is not None and self.num_records < 1:
            raise UsageError(f"the number of images is {self.num_records}; it must be 1 or more")


def benchmark(path: str, options: BenchmarkOptions) -> Dict[str, Any]:
    """Measures the checkpoint of an export and each of its models, or one of them by its path.

    Returns:
        The content of benchmark.json; what was not measured is None.
    """
    models = formats.exported_models(path)
    folder = models[0].folder
    config = _config_of(folder)
    records = _records(options, folder)
    images = sample_images(records, (), NUM_IMAGES)
    if not images:
        raise FileNotFoundError(f"no record in {', '.join(map(printing.plain, options.records))}")
    base = MeasureTask(
        "", "", images, options.batch_sizes, options.seconds,
        b"" if config is None else config.SerializeToString(), records.SerializeToString(),
        options.num_records, (),
    )  # fmt: skip
    entries: List[Dict[str, Any]] = []
    expected: Sequence[Outputs] = ()
    if config is None:
        printing.report(
            f"{printing.plain(folder)} has no {pipeline.PIPELINE_FILE} and {CHECKPOINT_NAME}: no "
            "difference from the checkpoint is measured",
            sys.stderr,
        )
    else:
        prefix = os.path.join(folder, CHECKPOINT_NAME)
        entry, expected = _measured(base._replace(name=CHECKPOINT, path=prefix))
        entries.append(entry)
    for number, each in enumerate(models, 1):
        name = each.format.name
        printing.report(
            f"{name} ({number} of {printing.counted(len(models), 'model')})", sys.stderr
        )
        entry, _ = _measured(base._replace(name=name, path=each.path, expected=expected))
        entries.append(entry)
    height, width = images[0].shape[:2]
    return {
        "path": path,
        "tensorflow": tf.__version__,
        "machine": {"processors": os.cpu_count(), "kind": platform.machine()},
        "image": {"height": height, "width": width},  # size for speed
        "models": entries,
    }


def _measured(task: MeasureTask) -> Tuple[Dict[str, Any], Sequence[Outputs]]:
    """Measures in a new process; the entry of a model that cannot be measured has an error."""
    try:
        modules = list(plugins.module_files())
        (measurement,) = machine.run_in_processes(_measure_alone, modules, [task], jobs=1)
        return measurement
    except machine.ProcessDiedError:
        reason = "its process died, perhaps because memory ran out"
    except (RunError, UsageError) as error:
        reason = str(error)
    return {"format": task.name, "path": task.path, "error": reason}, ()


def _measure_alone(modules: Sequence[str], task: MeasureTask) -> Any:
    # The new process inherits the path for modules, but no imported module.
    plugins.load(modules)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    try:
        return measure(task)
    except tf.errors.OpError as error:  # which other processes cannot get
        raise RunError(failures.reason(error)) from error


def _config_of(folder: str) -> Optional[Any]:
    """The configuration of an export with a checkpoint."""
    config = os.path.join(folder, pipeline.PIPELINE_FILE)
    index = os.path.join(folder, f"{CHECKPOINT_NAME}.index")
    if not tf.io.gfile.exists(config) or not tf.io.gfile.exists(index):
        return None
    plugins.load_record(folder)
    return pipeline.read_pipeline(config)


def _records(options: BenchmarkOptions, folder: str) -> Any:
    """A configuration that reads the records."""
    for pattern in options.records:
        if not matching(pattern):
            raise FileNotFoundError(
                f"no such records: {printing.plain(pattern)}{bracket_hint(pattern)}"
            )
    label_map = options.label_map or label_map_of(folder)
    if label_map is None:
        raise UsageError(
            f"{printing.plain(folder)} contains no label map, which says what the classes of the "
            "records are; give one with --label_map"
        )
    config = config_of_records(options.records, label_map)
    _check_label_map(config.eval_input_reader[0], folder)
    return config


def _check_label_map(reader: input_reader_pb2.InputReader, folder: str) -> None:
    """Refuses a label map that does not fit the records, or the models of an export."""
    labels = read_label_map(reader.label_map_path)
    unknown_class_names(reader, label_map=labels)  # the processes warn of what it returns
    if exported := label_map_of(folder):
        check_same_ids(labels, read_label_map(exported))
