"""Label maps: class ids and their names. Imports no TensorFlow for local files."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Optional, Pattern, Sequence, Tuple

from google.protobuf import text_format

from estimator_det.config import files
from estimator_det.config.printing import plain, quoted
from estimator_det.config.text import ConfigError, parse_message
from estimator_det.protos.string_int_label_map_pb2 import (
    LVISFrequency,
    StringIntLabelMap,
    StringIntLabelMapItem,
)

MAX_BYTES = 10_000_000  # of a file; 100,000 classes have half of that
BACKGROUND = "background"  # the only name that may have id 0; it is no class

# The commonest item, for which the next expression takes twice the time.
_ID_AND_NAME = re.compile(
    r"\s*item\s*\{\s*id\s*:\s*([1-9][0-9]{0,8})\s+name\s*:\s*\"([^\"\\\n]*)\"\s*\}|(.+)", re.DOTALL
)
# An item of a name, an id and a display name at most, in the usual orders; no id of more than nine
# digits, which may not fit.
_SIMPLE_ITEM = re.compile(
    r"\s*item\s*:?\s*\{\s*"
    r"(?:name\s*:\s*\"([^\"\\\n]*)\"\s*(?=id\s*:\s*[0-9]+\s*[d}]))?"
    r"id\s*:\s*(0|[1-9][0-9]{0,8})(?![\w.+-])\s*"
    r"(?:name\s*:\s*\"([^\"\\\n]*)\"\s*)?"
    r"(?:display_name\s*:\s*\"([^\"\\\n]*)\"\s*)?"
    r"\}"
)
_SIMPLE_ITEMS = re.compile(rf"{_SIMPLE_ITEM.pattern}|(.+)", re.DOTALL)  # and the rest from there
_BRACE = re.compile(r"\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?|#[^\n]*|[{}]")


class _Items(NamedTuple):
    """The items in the order of the text, as columns, which are quicker for many; "" is no name."""

    ids: List[Optional[int]]
    names: List[str]
    display_names: List[str]
    messages: Dict[int, StringIntLabelMapItem]  # position -> an item that has other fields, too

    def quoted(self, position: int) -> str:
        """How errors name the item."""
        return quoted(self.display_names[position] or self.names[position])


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

        Those that have them also contain "keypoints", [{"id": 0, "name": "nose"}, …], and
        "frequency", "r", "c" or "f".
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


def read_label_map(path: str) -> LabelMap:
    """Reads a `StringIntLabelMap` in text form.

    Raises:
        ConfigError: if there is no such file, it is larger than MAX_BYTES, does not parse, or its
            items contradict each other; the text names file and item.
    """
    return parse_label_map(files.read_text(path, MAX_BYTES), path)


def parse_label_map(text: str, source: str = "<text>") -> LabelMap:
    """Like `read_label_map`, from text; errors name it `source`."""
    items = _read_items(text, source)
    # Whole columns at a time: a loop over a million items takes a second.
    numbers: List[Any] = items.ids
    names, display_names = items.names, items.display_names
    classes: Sequence[int] = range(len(numbers))
    if None in numbers or "" in names or min(numbers, default=0) <= 0:
        classes = [x for x in classes if _is_class(items, x, source)]
    if not classes:
        raise ConfigError(f"{source}: no item has an id of 1 or more; list the classes")
    ordered = sorted(classes, key=numbers.__getitem__)
    if ordered != list(range(len(numbers))):
        numbers, names, display_names = (
            [column[x] for x in ordered] for column in (numbers, names, display_names)
        )
    has_displayed = any(display_names)
    displayed = [x or y for x, y in zip(display_names, names)] if has_displayed else names
    by_id: Dict[int, str] = dict(zip(numbers, displayed))
    if len(by_id) < len(numbers):
        raise ConfigError(f"{source}: {_duplicate('id', items.ids, ordered, items)}")
    by_name: Dict[str, int] = dict(zip(names, numbers))
    named = [x for x in ordered if items.names[x]] if "" in by_name else ordered
    by_name.pop("", None)
    if len(by_name) < len(named):
        raise ConfigError(f"{source}: {_duplicate('name', items.names, named, items)}")
    ids = by_name
    if has_displayed:
        ids = dict(zip(display_names, numbers))
        ids.pop("", None)
        ids.update(by_name)
    label_map = LabelMap(
        path=source,
        names=by_id,
        ids=ids,
        ancestors=dict.fromkeys(by_id, ()),
        descendants=dict.fromkeys(by_id, ()),
    )
    for position in ordered if items.messages else ():
        if position in items.messages:
            _add_details(label_map, items.messages[position], items.quoted(position))
    return label_map


def _read_items(text: str, source: str) -> _Items:
    """Reads the text.

    Protocol buffers' parser takes 50 microseconds for an item. One of an id and plain names, as
    nearly all are, is read by a regular expression instead, and only what is between such items by
    the parser.
    """
    rows, position = _leading(_ID_AND_NAME, text, 0)
    ids: List[Optional[int]] = [int(row[0]) for row in rows]
    names = [row[1] for row in rows]
    display_names = [""] * len(rows)
    rows, position = _leading(_SIMPLE_ITEMS, text, position)
    ids += [int(row[1]) for row in rows]
    names += [row[0] or row[2] for row in rows]
    display_names += [row[3] for row in rows]
    items = _Items(ids, names, display_names, {})
    while position < len(text):
        simple = _SIMPLE_ITEM.match(text, position)
        if simple is not None:
            first, number, second, display_name = simple.groups("")
            _add(items, int(number), first or second, display_name)
            position = simple.end()
            continue
        end = _end_of_block(text, position)
        part = StringIntLabelMap()
        try:
            text_format.Parse(text[position:end], part)
        except text_format.ParseError:  # the lines of a part have other numbers
            items = _Items([], [], [], {})
            _add_messages(items, parse_message(text, StringIntLabelMap(), source))
            return items
        _add_messages(items, part)
        position = end
    return items


def _leading(pattern: Pattern[str], text: str, start: int) -> Tuple[List[Tuple[str, ...]], int]:
    """The groups of the items from `start` on that match, and where the first other text begins.

    The last group of the pattern is all text from there.
    """
    rows = pattern.findall(text, start)
    rest = rows.pop()[-1] if rows and rows[-1][-1] else ""
    return rows, len(text) - len(rest)


def _add(items: _Items, number: Optional[int], name: str, display_name: str) -> None:
    items.ids.append(number)
    items.names.append(name)
    items.display_names.append(display_name)


def _add_messages(items: _Items, part: StringIntLabelMap) -> None:
    for item in part.item:
        items.messages[len(items.ids)] = item
        _add(items, item.id if item.HasField("id") else None, item.name, item.display_name)


def _end_of_block(text: str, start: int) -> int:
    """Where the first block of braces from `start` on ends; the end of the text without one."""
    depth = 0
    for token in _BRACE.finditer(text, start):
        if token.group() == "{":
            depth += 1
        elif token.group() == "}":
            depth -= 1
            if depth <= 0:
                return token.end()
    return len(text)


def _is_class(items: _Items, position: int, source: str) -> bool:
    """Whether an item is a class, not the background; ConfigError if it is neither."""
    where = f"{source}: item {position + 1}"
    number, name = items.ids[position], items.quoted(position)
    if number is None:
        raise ConfigError(f"{where} ({name}) has no id")
    if not (items.names[position] or items.display_names[position]):
        raise ConfigError(f"{where} (id {number}) has neither name nor display_name")
    if number > 0:
        return True
    if number == 0 and items.names[position] == BACKGROUND:
        return False
    raise ConfigError(
        f"{where} ({name}) has id {number}; ids start at 1, since 0 is the background"
    )


def _duplicate(field: str, column: Sequence[Any], positions: List[int], items: _Items) -> str:
    """The first two items that have the same value, which there are."""
    seen: Dict[Any, int] = {}
    for position in positions:
        value = column[position]
        other = seen.setdefault(value, position)
        if other != position:
            break
    shown = quoted(value) if isinstance(value, str) else value
    first, second = (f"item {items.quoted(x)} (id {items.ids[x]})" for x in (other, position))
    return f"{field} {shown} is given twice: {first} and {second}"


def _add_details(label_map: LabelMap, item: StringIntLabelMapItem, name: str) -> None:
    for kind, relatives in (("ancestors", item.ancestor_ids), ("descendants", item.descendant_ids)):
        unknown = sorted({other for other in relatives if other not in label_map.names})
        if unknown:
            raise ConfigError(
                f"{label_map.path}: item {name} (id {item.id}) lists {kind} {plain(unknown)}, "
                "which are ids of no item"
            )
        getattr(label_map, kind)[item.id] = tuple(relatives)
    if item.frequency:
        label_map.frequencies[item.id] = LVISFrequency.Name(item.frequency)[0].lower()
    for keypoint in item.keypoints:
        label_map.keypoints.setdefault(item.id, {})[keypoint.label] = keypoint.id
        known = label_map.keypoint_ids.setdefault(keypoint.label, keypoint.id)
        if known != keypoint.id:
            raise ConfigError(
                f"{label_map.path}: item {name}: keypoint {quoted(keypoint.label)} has id "
                f"{keypoint.id}, but {known} before"
            )
