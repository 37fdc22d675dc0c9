"""Label maps: class ids and their names. Imports no TensorFlow for local files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

from estimator_det import files
from estimator_det.config.text import parse_message
from estimator_det.console.printing import plain, quoted
from estimator_det.errors import UsageError
from estimator_det.protos.string_int_label_map_pb2 import (
    LVISFrequency,
    StringIntLabelMap,
    StringIntLabelMapItem,
)

MAX_BYTES = 10_000_000  # largest file; 100,000 classes need half of it
BACKGROUND = "background"  # the only name that may have id 0; it is no class


@dataclass(frozen=True)
class LabelMap:
    """Classes of a data set; ids start at 1 and may have gaps."""

    path: str
    names: Dict[int, str]  # id -> display name, or name without one; in the order of ids
    ids: Dict[str, int]  # name -> id, and display name -> id unless it is another class's name
    # Id -> ids of its more general, or more special, classes, without itself.
    ancestors: Dict[int, Tuple[int, ...]] = field(default_factory=dict)
    descendants: Dict[int, Tuple[int, ...]] = field(default_factory=dict)
    keypoint_ids: Dict[str, int] = field(default_factory=dict)  # label -> index in a box's
    keypoints: Dict[int, Dict[str, int]] = field(default_factory=dict)  # id -> its keypoints
    frequencies: Dict[int, str] = field(default_factory=dict)  # id -> "r", "c" or "f", as LVIS

    @property
    def max_id(self) -> int:
        """The largest id; a model for this map needs at least as many classes."""
        return max(self.names)

    def categories(self) -> List[Dict[str, Any]]:
        """The classes in the form for metrics and drawing: [{"id": 1, "name": "cat"}, …].

        Classes with keypoints also contain "keypoints", [{"id": 0, "name": "nose"}, …], and classes
        with a frequency contain "frequency", "r", "c" or "f".
        """
        categories: List[Dict[str, Any]] = []
        for identifier, name in self.names.items():
            categories.append({"id": identifier, "name": name})
            if identifier in self.keypoints:
                points = self.keypoints[identifier].items()
                categories[-1]["keypoints"] = [{"id": x, "name": label} for label, x in points]
            if identifier in self.frequencies:
                categories[-1]["frequency"] = self.frequencies[identifier]
        return categories


def check_same_ids(labels: LabelMap, trained: LabelMap) -> None:
    """Refuses labels of which a name has another id than in the label map of a model."""
    for name, number in labels.ids.items():
        if trained.ids.get(name, number) != number:
            raise UsageError(
                f"{plain(labels.path)}: {quoted(name)} has id {number}, and id "
                f"{trained.ids[name]} in {plain(trained.path)}, the label map of the model; give "
                "one with the same ids, or none"
            )


def read_label_map(path: str) -> LabelMap:
    """Reads a `StringIntLabelMap` in text form."""
    return parse_label_map(files.read_text(path, MAX_BYTES), path)


def optional_label_map(path: str) -> Optional[LabelMap]:
    """`read_label_map` of a path that may be empty."""
    return read_label_map(path) if path else None


def parse_label_map(text: str, source: str = "<text>") -> LabelMap:
    """Like `read_label_map`, from text; errors name it `source`."""
    items = parse_message(text, StringIntLabelMap(), source).item
    classes = [item for number, item in enumerate(items, 1) if _is_class(item, number, source)]
    if not classes:
        raise UsageError(f"{source}: no item has an id of 1 or more; list the classes")
    classes.sort(key=lambda item: item.id)
    items_by_id = _unique("id", [(item.id, item) for item in classes], source)
    items_by_name = _unique("name", [(item.name, item) for item in classes if item.name], source)
    displayed = {item.display_name: item.id for item in classes if item.display_name}
    label_map = LabelMap(
        path=source,
        names={number: item.display_name or item.name for number, item in items_by_id.items()},
        ids={**displayed, **{name: item.id for name, item in items_by_name.items()}},
        ancestors=dict.fromkeys(items_by_id, ()),
        descendants=dict.fromkeys(items_by_id, ()),
    )
    for item in classes:
        _add_details(label_map, item)
    return label_map


def _shown(item: StringIntLabelMapItem) -> str:
    return quoted(item.display_name or item.name)


def _is_class(item: StringIntLabelMapItem, number: int, source: str) -> bool:
    """True for a class, False for the background; UsageError if it is neither."""
    where = f"{source}: item {number}"
    if not item.HasField("id"):
        raise UsageError(f"{where} ({_shown(item)}) has no id")
    if not (item.name or item.display_name):
        raise UsageError(f"{where} (id {item.id}) has neither name nor display_name")
    if item.id > 0:
        return True
    if item.id == 0 and item.name == BACKGROUND:
        return False
    raise UsageError(
        f"{where} ({_shown(item)}) has id {item.id}; ids start at 1, since 0 is the background"
    )


def _unique(
    field: str, pairs: List[Tuple[Any, StringIntLabelMapItem]], source: str
) -> Dict[Any, StringIntLabelMapItem]:
    """Items by their values; UsageError if two have the same."""
    unique: Dict[Any, StringIntLabelMapItem] = {}
    for value, item in pairs:
        earlier = unique.setdefault(value, item)
        if earlier is not item:
            first, second = (f"item {_shown(x)} (id {x.id})" for x in (earlier, item))
            shown = quoted(value) if isinstance(value, str) else value
            raise UsageError(f"{source}: {field} {shown} is given twice: {first} and {second}")
    return unique


def _add_details(label_map: LabelMap, item: StringIntLabelMapItem) -> None:
    for kind, relatives in (("ancestors", item.ancestor_ids), ("descendants", item.descendant_ids)):
        unknown = sorted({relative for relative in relatives if relative not in label_map.names})
        if unknown:
            raise UsageError(
                f"{label_map.path}: item {_shown(item)} (id {item.id}) lists {kind} "
                f"{plain(unknown)}, which are ids of no item"
            )
        getattr(label_map, kind)[item.id] = tuple(relatives)
    if item.frequency:
        label_map.frequencies[item.id] = LVISFrequency.Name(item.frequency)[0].lower()
    for keypoint in item.keypoints:
        label_map.keypoint_ids.setdefault(keypoint.label, keypoint.id)
        ids = label_map.keypoints.setdefault(item.id, {})
        known = ids.setdefault(keypoint.label, keypoint.id)
        if known != keypoint.id:
            raise UsageError(
                f"{label_map.path}: item {_shown(item)}: keypoint {quoted(keypoint.label)} has id "
                f"{keypoint.id}, but {known} before"
            )
