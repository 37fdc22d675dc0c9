"""Files that a configuration names: readable, and label maps that fit model and records."""

from __future__ import annotations

import concurrent.futures
import contextlib
from typing import Iterable, Iterator, List, Optional

from estimator_det.compat import tf
from estimator_det.config.field_rules import PLACEHOLDER, most
from estimator_det.config.paths import named_paths
from estimator_det.console.printing import counted, listed, quoted
from estimator_det.errors import Problem, UsageError, error, warning
from estimator_det.files import is_remote, matching, special_kind
from estimator_det.protos import model_pb2, ssd_pb2
from inputs.checks.first_records import files_of, unknown_class_names
from inputs.decoding.hierarchy import make_hierarchy
from inputs.label_map import LabelMap
from model_fn.checks.subject import CheckedConfig, CheckedReader

RENUMBER = "number the classes from 1 without gaps, in the label map and in the records"
_FILES_AT_ONCE = 16
_CLASSES_SHOWN = 5
_MOST_CLASSES = most(ssd_pb2.Ssd, "num_classes")


def check_label_maps(subject: CheckedConfig) -> Iterator[Problem]:
    """Problems of label maps with a sample of their records; of the others, with the model."""
    others = []
    for reader in subject.readers:
        problem = _problem_of_sample(reader) if subject.reads_all else None
        if problem is not None:
            yield problem
        if problem is None or problem.severity == "warning":
            others.append(reader)
    yield from compare_with_model(others, subject.config.model)


def compare_with_model(
    table: Iterable[CheckedReader], model: model_pb2.DetectionModel
) -> Iterator[Problem]:
    """Problems of label maps, each file once, for a `DetectionModel`."""
    kind = model.WhichOneof("model")
    num_classes = getattr(getattr(model, kind), "num_classes", 0) if kind else 0
    seen = set()
    for reader in table:
        path, labels = reader.config.label_map_path, reader.labels
        if path in seen:
            continue
        seen.add(path)
        field = f"{reader.field}.label_map_path"
        if isinstance(labels, UsageError):
            remedy = "correct the path, or the file: ids from 1, each name once"
            yield error(field, str(labels), remedy)
        elif labels is not None and labels.max_id > _MOST_CLASSES:
            yield error(
                field,
                f"{quoted(path)} has id {labels.max_id}; a model has {_MOST_CLASSES:,} classes at "
                "most",
                RENUMBER,
            )
        elif labels is not None and num_classes and labels.max_id != num_classes:
            setting = f"--set model.{kind}.num_classes={labels.max_id}"
            if labels.max_id > len(labels.names):
                setting = f"{RENUMBER}; only if a checkpoint needs these ids: {setting}"
            classes = f"the model has {counted(num_classes, 'class')}"
            if labels.max_id > num_classes:
                lost = named_classes((i for i in labels.names if i > num_classes), labels)
                text = f"{quoted(path)} has id {labels.max_id}, {classes}: {lost} cannot be learnt"
                yield error(field, text, setting)
            else:
                text = f"{quoted(path)} ends at id {labels.max_id}, {classes}: the others take"
                yield warning(field, f"{text} time and memory and never occur", setting)


def named_classes(ids: Iterable[int], label_map: LabelMap) -> str:
    """The first classes of a label map by name and id."""
    return listed((f"{quoted(label_map.names[i])} (id {i})" for i in ids), _CLASSES_SHOWN)


def check_hierarchies(subject: CheckedConfig) -> Iterator[Problem]:
    """Problems of the local label hierarchies that readers use with a readable label map."""
    for reader in subject.readers:
        path = reader.config.label_hierarchy_path
        is_local = path and not (PLACEHOLDER in path or is_remote(path))
        if reader.label_map and is_local and reader.config.expand_labels_hierarchy:
            try:
                make_hierarchy(reader.config, reader.label_map)
            except UsageError as failure:
                field = f"{reader.field}.label_hierarchy_path"
                yield error(field, str(failure), "correct the path or the file")


def _problem_of_sample(reader: CheckedReader) -> Optional[Problem]:
    """The problem of a label map that lacks class names of a sample of the records.

    Label maps and records that cannot be read are left to other checks.
    """
    if reader.label_map is None:
        return None
    field = f"{reader.field}.label_map_path"
    with contextlib.suppress(OSError, tf.errors.OpError):
        try:
            paths = files_of(reader.config)
        except UsageError:
            return None
        try:
            finding = unknown_class_names(reader.config, paths, reader.label_map)
        except UsageError as reason:
            return error(field, str(reason), "use the label map of the records")
        if finding:
            remedy = "correct the names in the records or the label map: these boxes are dropped"
            return warning(field, finding, remedy)
    return None


def check_files(subject: CheckedConfig) -> List[Problem]:
    """Errors for files that cannot be read, remote ones (gs://…) included.

    Missing local files, and the contents of label maps, are left to other checks.
    """
    problems = []
    for field, pattern in named_paths(subject.readable):
        if field.endswith(".label_map_path") and is_remote(pattern):
            continue  # `check_label_maps` reads it
        if field == "train_config.fine_tune_checkpoint":  # a prefix
            if not is_remote(pattern):
                continue
            pattern += "*"
        problems += _unreadable(field, pattern)
    return problems


def _unreadable(field: str, pattern: str) -> List[Problem]:
    try:
        paths = matching(pattern)
    except tf.errors.OpError as reason:
        return [_no_access(field, pattern, reason)]
    if not paths and is_remote(pattern):
        return [error(field, f"no file matches {pattern!r}", "correct the path")]

    def refusal(path: str) -> Optional[Problem]:
        if kind := special_kind(path):
            return error(field, f"{path!r} cannot be read: it is {kind}", "give a regular file")
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                file.read(1)
        except tf.errors.OpError as reason:
            return _no_access(field, path, reason)
        return None

    # Each remote file takes its time, however short it is.
    with concurrent.futures.ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        return [problem for problem in pool.map(refusal, paths) if problem is not None]


def _no_access(field: str, path: str, reason: tf.errors.OpError) -> Problem:
    remedy = "check the path, and the rights and credentials of this process"
    return error(field, f"{path!r} cannot be read: {reason.message}", remedy)
