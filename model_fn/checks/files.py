"""Files that a configuration names: readable, and label maps that fit model and records."""

from __future__ import annotations

import concurrent.futures
import os
from typing import Any, Dict, Iterator, List, Optional, Tuple, Union

from estimator_det.compat import tf
from estimator_det.config.check import PLACEHOLDER, named_paths
from estimator_det.config.check_model import readers
from estimator_det.config.files import is_remote, special_kind
from estimator_det.config.printing import counted, quoted
from estimator_det.config.problem import Problem, error, from_error, refuse, warning
from estimator_det.config.ranges import MOST_CLASSES
from estimator_det.config.text import ConfigError
from inputs.checks.first_records import check_class_names
from inputs.decoding.hierarchy import make_hierarchy
from inputs.label_map import LabelMap, read_label_map
from inputs.records.stream import find_files, input_patterns

RENUMBER = "number the classes from 1 without gaps, in the label map and in the records"
_LABEL_MAP = ".label_map_path"
_FILES_AT_ONCE = 16


class LabelMaps:
    """The label maps of a check, each file read once."""

    def __init__(self) -> None:
        self._results: Dict[str, Union[LabelMap, ConfigError]] = {}

    def read(self, path: str) -> LabelMap:
        """Raises ConfigError if the file is not a label map."""
        if path not in self._results:
            try:
                self._results[path] = read_label_map(path)
            except ConfigError as reason:
                self._results[path] = reason
        result = self._results[path]
        if isinstance(result, ConfigError):
            raise result
        return result

    def get(self, path: str) -> Optional[LabelMap]:
        """The label map; None without a path, or if the file is not a label map."""
        try:
            return self.read(path) if path else None
        except ConfigError:
            return None

    def read_of(self, reader: str, path: str) -> Tuple[Optional[LabelMap], List[Problem]]:
        """The label map of a reader, and the problem if it has none that can be read."""
        field = reader + _LABEL_MAP
        if not path:
            remedy = "set it, so that classes have names and are checked"
            return None, [warning(field, "there is no label map", remedy)]
        try:
            return self.read(path), []
        except ConfigError as reason:
            remedy = "correct the label map: ids from 1, each name once"
            return None, [from_error(reason, field, remedy)]


def remedy_of_ids(label_map: LabelMap, setting: str, condition: str = "") -> str:
    """Remedy where the highest id is not num_classes.

    `setting` makes num_classes that id; `condition` follows it if no id is left out.
    """
    if label_map.max_id > MOST_CLASSES:
        return RENUMBER
    if label_map.max_id > len(label_map.names):
        return f"{RENUMBER}; only if a checkpoint needs these ids: {setting}"
    return setting + condition


def check_label_maps(config: Any, maps: LabelMaps) -> Iterator[Problem]:
    """Problems of the local label maps that a `TrainEvalPipelineConfig` names, each file once."""
    kind = config.model.WhichOneof("model")
    num_classes = getattr(getattr(config.model, kind), "num_classes", 0) if kind else 0
    seen = {""}
    for name, reader in readers(config):
        path, field = reader.label_map_path, name + _LABEL_MAP
        if path in seen or not _is_local(path):
            continue
        seen.add(path)
        try:
            label_map = maps.read(path)
        except ConfigError as failure:
            yield from_error(failure, field, "correct the path or the file")
            continue
        most = label_map.max_id
        classes = counted(num_classes, "class")
        if most > MOST_CLASSES:
            yield error(
                field,
                f"{quoted(path)} has id {most}; a model has {MOST_CLASSES:,} classes at most",
                RENUMBER,
            )
        elif num_classes and most != num_classes:
            make, message = warning, f"ends at id {most}, the model has {classes}"
            if most > num_classes:
                make, message = error, f"has id {most}, the model has {classes}"
            setting = f"--set model.{kind}.num_classes={most}"
            yield make(field, f"{quoted(path)} {message}", remedy_of_ids(label_map, setting))


def check_hierarchies(config: Any, maps: LabelMaps) -> Iterator[Problem]:
    """Problems of the local label hierarchies that readers use with a readable label map."""
    for name, reader in readers(config):
        paths = (reader.label_map_path, reader.label_hierarchy_path)
        if not (all(paths) and all(map(_is_local, paths)) and reader.expand_labels_hierarchy):
            continue
        label_map = maps.get(reader.label_map_path)
        if label_map is None:
            continue
        try:
            make_hierarchy(reader, label_map)
        except ConfigError as failure:
            field = f"{name}.label_hierarchy_path"
            yield from_error(failure, field, "correct the path or the file")


def check_first_records(config: Any, maps: LabelMaps) -> Iterator[Problem]:
    """Label maps without any class name of the first records, which training refuses.

    Label maps and records that cannot be read are left to other checks.
    """
    for name, reader in readers(config):
        label_map = maps.get(reader.label_map_path)
        if label_map is None:
            continue
        try:
            paths = find_files(input_patterns(reader)[0])
        except (ConfigError, OSError, tf.errors.OpError):
            continue
        try:
            check_class_names(reader, paths, label_map)
        except ConfigError as reason:
            remedy = "use the label map of the records"
            yield from_error(reason, name + _LABEL_MAP, remedy)
        except (OSError, tf.errors.OpError):
            continue


def refuse_foreign_label_maps(config: Any) -> None:
    """Refuses label maps without any class name of the first records.

    An evaluation would refuse its own only when its first checkpoint is trained.
    """
    refuse(check_first_records(config, LabelMaps()))


def check_files(config: Any, maps: LabelMaps) -> List[Problem]:
    """Errors for files that cannot be read, remote ones (gs://…) included, and bad label maps.

    Missing local files are left to `config.check`.
    """
    problems = []
    for field, pattern in named_paths(config):
        if field == "train_config.fine_tune_checkpoint":  # a prefix
            if not is_remote(pattern):
                continue
            pattern += "*"
        problem = _unreadable(field, pattern)
        there = is_remote(pattern) or os.path.exists(pattern)
        if there and not problem and field.endswith(_LABEL_MAP):
            problem = maps.read_of(field[: -len(_LABEL_MAP)], pattern)[1]
        problems += problem
    return problems


def _is_local(path: str) -> bool:
    return not (PLACEHOLDER in path or is_remote(path))


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
