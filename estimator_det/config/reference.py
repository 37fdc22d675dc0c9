"""Reference of the configuration: facts about each message and field from the .proto files."""

from __future__ import annotations

import collections
import functools
import itertools
import pathlib
import re
from typing import Any, Dict, FrozenSet, Iterator, List, Match, Set

from google.protobuf.descriptor import FieldDescriptor

import estimator_det
from estimator_det.config.field_rules import range_of, rule_of
from estimator_det.config.text import is_map, is_repeated, nearest
from estimator_det.console.printing import listed
from estimator_det.errors import UsageError
from estimator_det.protos import pipeline_pb2

ROOT = pipeline_pb2.TrainEvalPipelineConfig.DESCRIPTOR
_PACKAGE = "estimator_det.protos."
_FOLDER = pathlib.Path(estimator_det.__file__).parent.parent  # names of .proto files start here
_DECLARED = re.compile(r"(?:message (\w+) \{)|(?:[\w.<>, ]+ (\w+) = \d+)")
# Inline code with a name first, such as `train_config.batch_size=8`; blocks of code, headings and
# links have none.
_FILES_SHOWN = 8
_DETECTION = ("boxes", "detectors", "extractors", "images", "losses", "nets", "predictors")
_ROOMS = (*(f"estimator_det/{room}" for room in _DETECTION), "inputs", "model_fn", "exporters")
_CODE = re.compile(
    r"```.*?```|^#.*?$|\[[^\]]*\]\([^)]*\)|`(?P<name>[a-z][\w.\[\]]*)(?:[:= {][^`]*)?`",
    re.DOTALL | re.MULTILINE,
)
_TYPES = {
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_INT32: "whole number",
    FieldDescriptor.CPPTYPE_INT64: "whole number",
    FieldDescriptor.CPPTYPE_UINT32: "whole number",
    FieldDescriptor.CPPTYPE_UINT64: "whole number",
    FieldDescriptor.CPPTYPE_FLOAT: "number",
    FieldDescriptor.CPPTYPE_DOUBLE: "number",
    FieldDescriptor.CPPTYPE_STRING: "text",
}


def name_of(descriptor: Any) -> str:
    """Name of a message, or of a field with its message, within the schema."""
    return str(descriptor.full_name).removeprefix(_PACKAGE)


def messages() -> Iterator[Any]:
    """Descriptors of all messages of the schema below a configuration, each once."""
    todo, seen = [ROOT], {ROOT.full_name}
    while todo:
        message = todo.pop(0)
        yield message
        for field in message.fields:
            inner = _inner(field)
            if inner is not None and inner.full_name not in seen:
                seen.add(inner.full_name)
                todo.append(inner)


def facts(field: Any) -> List[str]:
    """Lines about a field: its comment, type, default, range, and what it needs."""
    rule, limits, users = rule_of(field), range_of(field), _users(field)
    lines = [comment_of(field), _type(field)]
    if field.has_default_value:
        lines.append(f"default: {_default(field)}")
    if limits is not None and rule.HasField("largest"):
        lines.append(f"range: {limits.text()}")
    if field.containing_oneof is not None:
        others = [each.name for each in field.containing_oneof.fields if each is not field]
        lines.append(f"excludes: {', '.join(others)}" if others else "")
    lines += [
        f"refused: {rule.refused}" if rule.refused else "",
        f"no effect: {rule.no_effect}" if rule.no_effect else "",
        f"no effect without: {rule.needs}" if rule.needs else "",
        f"deprecated: {rule.replaced_by}" if rule.replaced_by else "",
        f"on a TPU: {str(rule.tpu.value).lower()}" if rule.tpu.HasField("value") else "",
        f"used by: {listed(users, _FILES_SHOWN)}" if users else "",
    ]
    return list(filter(None, lines))


def explain(path: str) -> List[str]:
    """The facts about the field at a path, in the form that `--set` takes, and its fields."""
    field = _field_at(path)
    lines, message = facts(field), _inner(field)
    if message is not None and message.fields:
        lines.append(f"fields: {', '.join(message.fields_by_name)}")
    return [path, *(f"  {line}" for line in lines)]


def _field_at(path: str) -> Any:
    message, field = ROOT, None
    for step in re.sub(r"\[[^\]]*\]", "", path).split("."):
        known = list(message.fields_by_name) if message is not None else []
        if step not in known:
            name = name_of(message) if message is not None else name_of(field)
            fields = f"; its fields: {', '.join(sorted(known))}" if known else ""
            what = f"{name} has no field {step!r}"
            raise UsageError(f"{path}: {what}{nearest(step, known) or fields}")
        field = message.fields_by_name[step]
        message = _inner(field)
    return field


def page() -> str:
    """The reference as a page in Markdown, with a section for each message."""
    parts = [
        "# Configuration\n\nEvery message and field of a pipeline configuration, from its `.proto` "
        "files. `estimator-det check-config --explain PATH` prints the same for one field.\n"
    ]
    for message in sorted(messages(), key=name_of):
        comment = comment_of(message)
        parts.append(f"## {name_of(message)}\n" + (f"\n{_escaped(comment)}\n" if comment else ""))
        rows = [
            f'| <a id="{name_of(field)}"></a>`{field.name}` | '
            f"{'<br>'.join(map(_escaped, facts(field)))} |"
            for field in message.fields
        ]
        parts.append("\n".join(["| Field | |", "|---|---|", *rows, ""]) if rows else "")
    return "\n".join(parts)


def with_links(markdown: str) -> str:
    """A page in which fields link to `page`: those with a path, and names of a single field."""
    return _CODE.sub(lambda match: _linked(match) if match["name"] else match[0], markdown)


def _linked(code: Match[str]) -> str:
    try:
        field = _field_at(code["name"]) if "." in code["name"] else _fields()[code["name"]]
    except (UsageError, KeyError):
        return code[0]
    return f"[{code[0]}](configuration.md#{name_of(field)})"


@functools.cache
def _fields() -> Dict[str, Any]:
    """Fields by name, if only one message has a field of that name."""
    fields = [field for message in messages() for field in message.fields if "_" in field.name]
    counts = collections.Counter(field.name for field in fields)
    return {field.name: field for field in fields if counts[field.name] == 1}


def _users(field: Any) -> List[str]:
    """Files of components that name a field, and its message or a field that contains it.

    A component that a oneof group chooses is registered under the name of the field.
    """
    message = field.containing_type
    near = {message.name, *_holders()[message.full_name]}
    near |= {"register"} if field.containing_oneof is not None else set()
    return [file for file, words in _words().items() if field.name in words and near & words]


@functools.cache
def _holders() -> Dict[str, Set[str]]:
    """Names of the fields that contain each message."""
    holders: Dict[str, Set[str]] = collections.defaultdict(set)
    for field in (field for message in messages() for field in message.fields):
        if (inner := _inner(field)) is not None:
            holders[inner.full_name].add(field.name)
    return holders


@functools.cache
def _words() -> Dict[str, FrozenSet[str]]:
    """Words of each file of components: of every room below the programs but `config`."""
    files = itertools.chain.from_iterable((_FOLDER / room).rglob("*.py") for room in _ROOMS)
    return {
        file.relative_to(_FOLDER).as_posix(): frozenset(re.findall(r"\w+", file.read_text("utf-8")))
        for file in sorted(files)
    }


def comment_of(descriptor: Any) -> str:
    """The comment above a message or field in its .proto file."""
    return _comments(descriptor.file.name).get(name_of(descriptor), "")


@functools.cache
def _comments(file: str) -> Dict[str, str]:
    """Comments of a .proto file by the names of messages and fields."""
    comments: Dict[str, str] = {}
    scopes: List[str] = []  # names of the blocks around a line; "" for oneofs and enums
    lines: List[str] = []
    inside_options = False  # within the options of a field
    for line in map(str.strip, (_FOLDER / file).read_text(encoding="utf-8").split("\n")):
        if inside_options:
            inside_options = not line.endswith(";")
            continue
        if line.startswith("//"):
            lines.append(line.removeprefix("//").strip())
            continue
        declared = _DECLARED.match(line)
        if declared:
            name = declared[1] or declared[2]
            comments[".".join([*filter(None, scopes), name])] = " ".join(lines)
        if line.endswith("{"):
            scopes.append(declared[1] if declared and declared[1] else "")
        elif line.startswith("}"):
            scopes.pop()
        inside_options = declared is not None and bool(declared[2]) and not line.endswith(";")
        lines = []
    return comments


def _inner(field: Any) -> Any:
    """Descriptor of the messages of the schema in a field; None for other fields."""
    message = field.message_type
    if message is not None and is_map(field):
        message = message.fields_by_name["value"].message_type
    return message if message is not None and message.full_name.startswith(_PACKAGE) else None


def _type(field: Any) -> str:
    if is_map(field):
        entry = field.message_type.fields_by_name
        return f"map from {_type(entry['key'])} to {_type(entry['value'])}"
    if field.enum_type is not None:
        kind = f"one of {', '.join(field.enum_type.values_by_name)}"
    elif field.message_type is not None:
        kind = name_of(field.message_type)
    else:
        kind = _TYPES[field.cpp_type]
    return f"list of {kind}" if is_repeated(field) else kind


def _default(field: Any) -> str:
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[field.default_value].name)
    if isinstance(field.default_value, bool):
        return str(field.default_value).lower()
    if isinstance(field.default_value, float):
        return f"{field.default_value:.7g}"
    return str(field.default_value) or "empty"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("_", "\\_").replace("*", "\\*")
