"""Whether local label maps and hierarchies can be read and fit each other and the model."""

from __future__ import annotations

from typing import Any, Iterator

from estimator_det.config.check import PLACEHOLDER, readers
from estimator_det.config.files import is_remote
from estimator_det.config.printing import counted, quoted
from estimator_det.config.problem import Problem, error, warning
from estimator_det.config.ranges import MOST_CLASSES
from estimator_det.config.text import ConfigError
from inputs.decoding.hierarchy import make_hierarchy
from inputs.label_map import LabelMap, read_label_map

RENUMBER = "number the classes from 1 without gaps, in the label map and in the records"


def remedy_of_ids(label_map: LabelMap, setting: str, condition: str = "") -> str:
    """Remedy where the highest id is not num_classes.

    `setting` makes num_classes that id; `condition` follows it if no id is left out.
    """
    if label_map.max_id > MOST_CLASSES:
        return RENUMBER
    if label_map.max_id > len(label_map.names):
        return f"{RENUMBER}; only if a checkpoint needs these ids: {setting}"
    return setting + condition


def check_label_maps(config: Any) -> Iterator[Problem]:
    """Problems of the label maps that a `TrainEvalPipelineConfig` names, each file once."""
    kind = config.model.WhichOneof("model")
    num_classes = getattr(getattr(config.model, kind), "num_classes", 0) if kind else 0
    seen = {""}
    for name, reader in readers(config):
        path, field = reader.label_map_path, f"{name}.label_map_path"
        if path in seen or PLACEHOLDER in path or is_remote(path):
            continue
        seen.add(path)
        try:
            label_map = read_label_map(path)
        except ConfigError as failure:
            yield error(field, str(failure).rstrip("."), "correct the path or the file")
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
            make, found = warning, f"ends at id {most}, the model has {classes}"
            if most > num_classes:
                make, found = error, f"has id {most}, the model has {classes}"
            setting = f"--set model.{kind}.num_classes={most}"
            yield make(field, f"{quoted(path)} {found}", remedy_of_ids(label_map, setting))


def check_hierarchies(config: Any) -> Iterator[Problem]:
    """Problems of the label hierarchies that readers use; label maps that cannot be read are not
    reported.
    """
    for name, reader in readers(config):
        paths = (reader.label_map_path, reader.label_hierarchy_path)
        local = not any(PLACEHOLDER in path or is_remote(path) for path in paths)
        if not (all(paths) and local and reader.expand_labels_hierarchy):
            continue
        try:
            label_map = read_label_map(reader.label_map_path)
        except ConfigError:
            continue  # An error that `check_label_maps` reports.
        try:
            make_hierarchy(reader, label_map)
        except ConfigError as failure:
            text = str(failure).rstrip(".")
            yield error(f"{name}.label_hierarchy_path", text, "correct the path or the file")
