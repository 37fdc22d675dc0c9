"""The assignment language of `--set`: one field of a message by path.

train_config.batch_size=8                           a number, true/false, or an enum's name
train_config.fine_tune_checkpoint=gs://b/model.ckpt text, with or without quotes
train_config.optimizer.adam_optimizer.epsilon=1e-7  chooses this member of the oneof group
model.ssd.loss.hard_example_miner={}                a message in text form replaces it
graph_rewriter=null                                 removes a message, or unsets a number
eval_input_reader[0].label_map_path=x               an entry that is there; [-1] is the last
eval_input_reader.label_map_path=x                  the same, if it is the only entry
train_config.freeze_variables=[a, b]                a repeated field as a whole
train_config.freeze_variables+=c                    one more entry, or several: +=[c, d]
eval_config.super_categories[dog]=animal            an entry of a map
….custom.parameters.gamma=2                         a parameter of a plug-in, as JSON or text
"""

from __future__ import annotations

import itertools
import json
import re
import warnings
from typing import Any, Iterator, List, NamedTuple, Optional

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct

from estimator_det.config.text import ConfigWarning, is_map, is_repeated, nearest, parse_message
from estimator_det.console.printing import plain, quoted
from estimator_det.errors import UsageError

_ASSIGNMENT = re.compile(
    r"\s*(?P<path>[A-Za-z_]\w*(?:\[[^\]]*\]|\.[A-Za-z_]\w*)*)\s*(?P<sign>\+?=)(?P<value>.*)",
    re.DOTALL,
)
_STEP = re.compile(r"(?P<name>\w+)(?:\[(?P<key>[^\]]*)\])?")
_ITEM = re.compile(
    r"\s*(?P<item>\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[^,]*?)\s*(?P<end>,|$)", re.DOTALL
)
_KINDS = {
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_INT32: "a whole number of 32 bits",
    FieldDescriptor.CPPTYPE_INT64: "a whole number of 64 bits",
    FieldDescriptor.CPPTYPE_UINT32: "a whole number from 0 to 4294967295",
    FieldDescriptor.CPPTYPE_UINT64: "a whole number from 0",
    FieldDescriptor.CPPTYPE_FLOAT: "a number",
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_STRING: "text",
    FieldDescriptor.CPPTYPE_MESSAGE: "a message in braces, {…}, or null",
}
_MOST_SUGGESTIONS = 3
_MOST_DEPTH = 9


class _Step(NamedTuple):
    name: str
    key: Optional[str]  # the text in [brackets]
    path: str  # from the root up to here


def assign(root: Message, assignment: str) -> None:
    """Carries out one assignment on `root` in place."""
    match = _ASSIGNMENT.fullmatch(assignment)
    if not match:
        raise UsageError(
            f"{quoted(assignment)} is not an assignment: write PATH=VALUE, for example "
            "train_config.batch_size=8"
        )
    message = root
    # All steps but the last enter a message; the last one names the field to set.
    steps = _steps(match["path"])
    for step in steps[:-1]:
        message = _entered(root, message, step)
    text = match["value"]
    _set(root, message, steps[-1], match["sign"], text.strip())
    field = message.DESCRIPTOR.fields_by_name.get(steps[-1].name)
    is_text = field is not None and field.cpp_type == FieldDescriptor.CPPTYPE_STRING
    if is_text and text != text.rstrip() and text.strip()[:1] not in ("'", '"', "["):
        warnings.warn(
            f"{steps[-1].path}: the blanks at the end of {quoted(text)} are left out; write the "
            "text in quotes to keep them",
            ConfigWarning,
            stacklevel=2,
        )


def set_value(root: Message, path: str, value: Any) -> None:
    """Sets a number, truth or text, which is taken as it is, in place; an entry must be there."""
    *above, last = _steps(path)
    message = root
    for step in above:
        message = _entered(root, message, step)
    if last.key is None:
        setattr(message, last.name, value)
    else:
        getattr(message, last.name)[int(last.key)] = value


def assignment(path: str, value: Any) -> str:
    """The assignment that sets a field to a value; a text in quotes if it needs them."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, str) and (value != value.strip() or value[:1] in ("'", '"', "[")):
        text = _quoted(value)
    return f"{path}={text}"


def _steps(path: str) -> List[_Step]:
    return [
        _Step(match["name"], match["key"], plain(path[: match.end()]))
        for match in _STEP.finditer(path)
    ]


def _field(root: Message, message: Message, step: _Step) -> Any:
    """Descriptor of the field that a step names."""
    field = message.DESCRIPTOR.fields_by_name.get(step.name)
    if field is not None:
        return field
    known = list(message.DESCRIPTOR.fields_by_name)
    elsewhere = list(itertools.islice(_paths_to(root, step.name), _MOST_SUGGESTIONS))
    if elsewhere:
        hint = f"; did you mean {' or '.join(map(repr, elsewhere))}?"
    else:
        hint = nearest(step.name, known)
    fields = "" if hint else f"; its fields: {', '.join(sorted(known))}"
    raise UsageError(
        f"{step.path}: {message.DESCRIPTOR.name} has no field {quoted(step.name)}{hint}{fields}"
    )


def _paths_to(root: Message, name: str) -> Iterator[str]:
    """Shortest paths that end in a field of this name, within the oneof members in use."""
    level = [("", root)]
    # Breadth first, so that the shortest paths come first; messages may contain themselves.
    for _ in range(_MOST_DEPTH):
        deeper = []
        for prefix, message in level:
            for field in message.DESCRIPTOR.fields:
                group = field.containing_oneof
                chosen = message.WhichOneof(group.name) if group else None
                # Members that another choice excludes would be suggestions that cannot be used.
                if chosen not in (None, field.name):
                    continue
                if field.name == name:
                    yield prefix + name
                if field.message_type is None or is_map(field):
                    continue
                value = getattr(message, field.name)
                if not is_repeated(field):
                    deeper.append((f"{prefix}{field.name}.", value))
                elif value:
                    deeper.append((f"{prefix}{field.name}[0].", value[0]))
        level = deeper


def _index(field: Any, step: _Step, entries: Any) -> int:
    """The number in [brackets], checked against the entries that are there."""
    try:
        index = int(step.key or "")
    except ValueError:
        raise UsageError(
            f"{step.path}: {field.name} is repeated: a number belongs in the brackets, not "
            f"{quoted(step.key)}"
        ) from None
    if not -len(entries) <= index < len(entries):
        raise UsageError(
            f"{step.path}: {field.name} has {len(entries)} entries, counted from 0; "
            f"{step.path.rpartition('[')[0]}+=… appends one"
        )
    return index


def _map_key(field: Any, step: _Step) -> Any:
    key = field.message_type.fields_by_name["key"]
    if key.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return (step.key or "").strip("'\"")
    try:
        return int(step.key or "")
    except ValueError:
        raise UsageError(f"{step.path}: the key must be {_KINDS[key.cpp_type]}") from None


def _entered(root: Message, message: Message, step: _Step) -> Message:
    """The message that a step before the last one leads into."""
    field = _field(root, message, step)
    if field.message_type is None:
        raise UsageError(f"{step.path} is {_kind(field)}: it has no fields of its own")
    value = getattr(message, field.name)
    if is_map(field):
        if step.key is None:
            raise UsageError(f"{step.path} is a map: write {step.path}[KEY]")
        if field.message_type.fields_by_name["value"].message_type is None:
            raise UsageError(f"{step.path}: an entry of {field.name} has no fields of its own")
        return value[_map_key(field, step)]
    if is_repeated(field):
        if step.key is not None:
            return value[_index(field, step, value)]
        # Most configurations have one entry: its index may be left out.
        if len(value) == 1:
            return value[0]
        few = f"write {step.path}[0] for the first" if value else f"{step.path}+={{…}} adds one"
        raise UsageError(f"{step.path} is repeated and has {len(value)} entries: {few}")
    _refuse_key(field, step)
    return value


def _refuse_key(field: Any, step: _Step) -> None:
    if step.key is not None:
        raise UsageError(
            f"{step.path}: {field.name} is not repeated; leave out [{plain(step.key)}]"
        )


def _set(root: Message, message: Message, step: _Step, sign: str, value: str) -> None:
    if isinstance(message, Struct) and step.name not in message.DESCRIPTOR.fields_by_name:
        _set_parameter(message, step, sign, value)
        return
    field = _field(root, message, step)
    if is_map(field):
        _set_map_entry(message, field, step, sign, value)
    elif is_repeated(field) and step.key is not None:
        entries = getattr(message, field.name)
        index = _index(field, step, entries)
        if sign != "=":
            raise UsageError(f"{step.path}{sign}{plain(value)}: one entry takes '=', not '{sign}'")
        new = getattr(_parsed(message, field, step, value), field.name)
        if len(new) != 1:
            raise UsageError(
                f"{step.path}={plain(value)}: one entry takes one value, not {len(new)}"
            )
        # Entries that are messages have no assignment by index.
        if field.message_type is None:
            entries[index] = new[0]
        else:
            entries[index].CopyFrom(new[0])
    else:
        _refuse_key(field, step)
        if sign == "+=" and not is_repeated(field):
            raise UsageError(f"{step.path} is not repeated: write '=', not '+='")
        # A string may well be "null".
        clear = value == "null" and field.cpp_type != FieldDescriptor.CPPTYPE_STRING
        new_fields = None if clear else _parsed(message, field, step, value)
        if sign == "=":
            message.ClearField(field.name)
        if new_fields is not None:
            message.MergeFrom(new_fields)


def _set_map_entry(message: Message, field: Any, step: _Step, sign: str, value: str) -> None:
    if step.key is None or sign != "=":
        raise UsageError(f"{step.path} is a map: write {step.path.partition('[')[0]}[KEY]=VALUE")
    entry = field.message_type.fields_by_name["value"]
    # Parsed as text: an entry cannot be set by attribute when its value is a message.
    key = _map_key(field, step)
    if isinstance(key, str):
        key = _quoted(key)
    if entry.message_type is None:
        value = _literal(entry, step, value)
    text = f"{field.name} {{ key: {key} value: {value} }}"
    message.MergeFrom(parse_message(text, type(message)(), step.path))


def _set_parameter(struct: Struct, step: _Step, sign: str, value: str) -> None:
    _refuse_key(struct.DESCRIPTOR, step)
    if sign != "=":
        raise UsageError(f"{step.path} is a parameter of a plug-in: write '=', not '+='")
    try:
        struct[step.name] = json.loads(value)
    except ValueError:
        struct[step.name] = value


def _parsed(message: Message, field: Any, step: _Step, value: str) -> Message:
    """A message like `message` that has `field` alone, with the value that was written."""
    # The value is parsed into an empty message, so that an error leaves the real one unchanged.
    scratch = type(message)()
    if field.message_type is not None:
        if not value.startswith(("{", "[")):
            raise UsageError(f"{step.path}: expected {_kind(field)}, given {quoted(value)}")
        parse_message(f"{field.name}: {value}", scratch, step.path)
    else:
        if is_repeated(field) and value.startswith("[") and value.endswith("]"):
            items = (_literal(field, step, item) for item in _items(value[1:-1]))
            text = f"[{', '.join(items)}]"
        else:
            text = _literal(field, step, value)
        try:
            text_format.Parse(f"{field.name}: {text}", scratch)
        except text_format.ParseError:
            raise _unfit(field, step, value) from None
    # A value such as "1 other_field: 2" would set another field, too.
    if any(present.name != field.name for present, _ in scratch.ListFields()):
        raise _unfit(field, step, value)
    return scratch


def _unfit(field: Any, step: _Step, value: str) -> UsageError:
    hint = nearest(value, list(field.enum_type.values_by_name) if field.enum_type else [])
    return UsageError(f"{step.path}: expected {_kind(field)}, given {quoted(value)}{hint}")


def _items(text: str) -> Iterator[str]:
    """Entries of a list between its commas; commas in quotes separate nothing."""
    for match in _ITEM.finditer(text):
        if match["item"] or match["end"]:
            yield match["item"]


def _literal(field: Any, step: _Step, value: str) -> str:
    """A written value as the text form wants it: text in quotes, truth in small letters."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return value.lower()
    if field.cpp_type != FieldDescriptor.CPPTYPE_STRING:
        return value
    if value[:1] in ("'", '"'):
        if len(value) < 2 or value[-1] != value[0]:
            raise UsageError(
                f"{step.path}: the quote that opens {plain(value)} is not closed at its end"
            )
        return value
    return _quoted(value)


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _kind(field: Any) -> str:
    if field.enum_type is not None:
        return f"one of {', '.join(field.enum_type.values_by_name)}"
    return _KINDS[field.cpp_type]
