"""Files that a configuration names: readable, and label maps that fit model and records."""

from __future__ import annotations

import concurrent.futures
import functools
from typing import Any, Iterable, Iterator, List, NamedTuple, Optional, Tuple, Union

from estimator_det.compat import tf
from estimator_det.config.check import PLACEHOLDER
from estimator_det.config.files import is_remote, special_kind
from estimator_det.config.printing import counted, listed, quoted
from estimator_det.config.problem import Problem, error, from_error, warning
from estimator_det.config.ranges import MOST_CLASSES
from estimator_det.config.text import ConfigError
from inputs.checks.first_records import check_class_names
from inputs.decoding.hierarchy import make_hierarchy
from inputs.label_map import LabelMap, read_label_map
from inputs.records.stream import find_files, input_patterns

RENUMBER = "number the classes from 1 without gaps, in the label map and in the records"
_FILES_AT_ONCE = 16
_CLASSES_SHOWN = 5


class Reader(NamedTuple):
    """An input reader of a configuration, and its label map."""

    field: str  # its path, such as "eval_input_reader[0]"
    config: Any
    labels: Union[LabelMap, ConfigError, None]  # an error of the file; None if it was not read

    @property
    def label_map(self) -> Optional[LabelMap]:
        """None if there is none that can be used."""
        return self.labels if isinstance(self.labels, LabelMap) else None


def read_label_maps(
    named_readers: Iterable[Tuple[str, Any]], *, with_remote: bool = True
) -> List[Reader]:
    """Input readers by path with their label maps, each file read once."""

    @functools.cache
    def read(path: str) -> Union[LabelMap, ConfigError, None]:
        if not path or PLACEHOLDER in path or (is_remote(path) and not with_remote):
            return None
        try:
            return read_label_map(path)
        except ConfigError as reason:
            return reason

    return [Reader(field, config, read(config.label_map_path)) for field, config in named_readers]


def label_map_of_evaluations(table: Iterable[Reader]) -> Optional[LabelMap]:
    """The label map of the first eval reader that names one; None if it cannot be used."""
    readers = (each for each in table if each.field.startswith("eval_input_reader"))
    return next((each.label_map for each in readers if each.config.label_map_path), None)


def check_label_maps(table: Iterable[Reader], model: Any) -> Iterator[Problem]:
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
        if isinstance(labels, ConfigError):
            yield from_error(
                labels, field, "correct the path, or the file: ids from 1, each name once"
            )
        elif labels is not None and labels.max_id > MOST_CLASSES:
            yield error(
                field,
                f"{quoted(path)} has id {labels.max_id}; a model has {MOST_CLASSES:,} classes at "
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


def check_hierarchies(table: Iterable[Reader]) -> Iterator[Problem]:
    """Problems of the local label hierarchies that readers use with a readable label map."""
    for reader in table:
        path = reader.config.label_hierarchy_path
        is_local = path and not (PLACEHOLDER in path or is_remote(path))
        if reader.label_map and is_local and reader.config.expand_labels_hierarchy:
            try:
                make_hierarchy(reader.config, reader.label_map)
            except ConfigError as failure:
                field = f"{reader.field}.label_hierarchy_path"
                yield from_error(failure, field, "correct the path or the file")


def check_first_records(table: Iterable[Reader]) -> Iterator[Problem]:
    """Label maps without any class name of the first records, which training refuses.

    Label maps and records that cannot be read are left to other checks.
    """
    for reader in table:
        if reader.label_map is None:
            continue
        try:
            paths = find_files(input_patterns(reader.config)[0])
        except (ConfigError, OSError, tf.errors.OpError):
            continue
        try:
            check_class_names(reader.config, paths, reader.label_map)
        except ConfigError as reason:
            remedy = "use the label map of the records"
            yield from_error(reason, f"{reader.field}.label_map_path", remedy)
        except (OSError, tf.errors.OpError):
            continue


def check_files(paths: Iterable[Tuple[str, str]]) -> List[Problem]:
    """Errors for files that cannot be read, remote ones (gs://…) included.

    `paths` are fields and patterns of `config.check.named_paths`. Missing local files, and the
    contents of label maps, are left to other checks.
    """
    problems = []
    for field, pattern in paths:
        if field == "train_config.fine_tune_checkpoint":  # a prefix
            if not is_remote(pattern):
                continue
            pattern += "*"
        problems += _unreadable(field, pattern)
    return problems


def _unreadable(field: str, pattern: str) -> List[Problem]:
    try:
        paths = tf.io.gfile.glob(pattern)
    except tf.errors.OpError as reason:
        return [_no_access(field, pattern, reason)]
    if not paths and special_kind(pattern):  # a loop of links, which no glob reports
        paths = [pattern]
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
