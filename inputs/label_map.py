"""Label maps: class ids and their names. Imports no TensorFlow for local files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Tuple

from estimator_det.config import files
from estimator_det.config.text import ConfigError, parse_message
from estimator_det.protos import string_int_label_map_pb2

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

    @property
    def max_id(self) -> int:
        """The largest id; a model for this map needs at least as many classes."""
        return max(self.names)

    def categories(self) -> List[Dict[str, Any]]:
        """The classes in the form for metrics and drawing: [{"id": 1, "name": "cat"}, …]."""
        return [{"id": identifier, "name": name} for identifier, name in self.names.items()]


def read_label_map(path: str) -> LabelMap:
    """Reads a `StringIntLabelMap` in text form.

    Raises:
        ConfigError: if there is no such file, it does not parse, or its items contradict each
            other; the text names file and item.
    """
    return parse_label_map(files.read_text(path), path)


def parse_label_map(text: str, source: str = "<text>") -> LabelMap:
    """Like `read_label_map`, from text; errors name it `source`."""
    message = parse_message(text, string_int_label_map_pb2.StringIntLabelMap(), source)
    items = [
        item
        for position, item in enumerate(message.item, 1)
        if _is_class(item, f"{source}: item {position}")
    ]
    if not items:
        raise ConfigError(f"{source}: no item has an id of 1 or more; list the classes")
    items.sort(key=lambda item: item.id)
    _refuse_duplicates(source, "id", items)
    _refuse_duplicates(source, "name", [item for item in items if item.name])
    display_ids = {item.display_name: item.id for item in items if item.display_name}
    label_map = LabelMap(
        path=source,
        names={item.id: item.display_name or item.name for item in items},
        ids={**display_ids, **{item.name: item.id for item in items if item.name}},
        ancestors={item.id: tuple(item.ancestor_ids) for item in items},
        descendants={item.id: tuple(item.descendant_ids) for item in items},
        keypoint_ids=_keypoint_ids(source, items),
    )
    for kind in ("ancestors", "descendants"):
        for identifier, relatives in getattr(label_map, kind).items():
            unknown = sorted(set(relatives) - set(label_map.names))
            if unknown:
                raise ConfigError(
                    f"{source}: item {label_map.names[identifier]!r} (id {identifier}) lists "
                    f"{kind} {unknown}, which are ids of no item"
                )
    return label_map


def _is_class(item: Any, where: str) -> bool:
    """Whether an item is a class, not the background; ConfigError if it is neither."""
    name = item.display_name or item.name
    if not item.HasField("id"):
        raise ConfigError(f"{where} ({name!r}) has no id")
    if not name:
        raise ConfigError(f"{where} (id {item.id}) has neither name nor display_name")
    if item.id > 0:
        return True
    if item.id == 0 and item.name == BACKGROUND:
        return False
    raise ConfigError(
        f"{where} ({name!r}) has id {item.id}; ids start at 1, since 0 is the background"
    )


def _refuse_duplicates(source: str, field: str, items: List[Any]) -> None:
    seen: Dict[Any, Any] = {}
    for item in items:
        other = seen.setdefault(getattr(item, field), item)
        if other is not item:
            raise ConfigError(
                f"{source}: {field} {getattr(item, field)!r} is given twice: item {other.name!r} "
                f"(id {other.id}) and item {item.name!r} (id {item.id})"
            )


def _keypoint_ids(source: str, items: List[Any]) -> Dict[str, int]:
    ids: Dict[str, int] = {}
    for item in items:
        for keypoint in item.keypoints:
            known = ids.setdefault(keypoint.label, keypoint.id)
            if known != keypoint.id:
                raise ConfigError(
                    f"{source}: item {item.name!r}: keypoint {keypoint.label!r} has id "
                    f"{keypoint.id}, but {known} before"
                )
    return ids
