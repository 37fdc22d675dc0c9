"""Text form of configuration messages: parsing with errors that point at the line, and printing."""

from __future__ import annotations

import difflib
import re
import warnings
from typing import Any, Iterable, Iterator, List, NamedTuple, Tuple, TypeVar

from google.protobuf import text_format
from google.protobuf.message import Message

from estimator_det.console.printing import plain, quoted
from estimator_det.errors import UsageError
from estimator_det.files.text import shortened

MessageT = TypeVar("MessageT", bound=Message)

# Separators of names and braces; strings and comments are consumed whole so that braces in
# them do not count.
_TOKEN = re.compile(r"\"(?:\\.|[^\"\\\n])*\"?|'(?:\\.|[^'\\\n])*'?|#[^\n]*|[{}<>]|\[[^\]\n]*\]|\w+")
_PREFIX = re.compile(r"^\d+:\d+ : (?:'.*': )?", re.DOTALL)
_NO_FIELD = re.compile(r'Message type "(?P<type>[\w.]+)" has no field named "(?P<name>.+)"\.')
_NO_VALUE = re.compile(r'Enum type "(?P<type>[\w.]+)" has no value named (?P<name>\w+)\.')
_TWICE = re.compile(r'should not have multiple "(\w+)" fields|Field "(\w+)" is specified along')
_MOST_COMPARED = 10_000  # names, which takes some tens of milliseconds
_EXTENSION = re.compile(r'Extension ".+" not registered|does not have extensions')


class ConfigWarning(UserWarning):
    """Something in a configuration file that is accepted, but probably not what was meant."""


class _OpenBrace(NamedTuple):
    name: str
    line: int  # line where its brace opens, from 1


class _ErrorPlace(NamedTuple):
    """Place of a parse error: the blocks around it, outermost first, and the last name read."""

    blocks: List[_OpenBrace]
    last_name: str


def nearest(name: str, known: List[str], *, likeness: float = 0.5) -> str:
    """Text such as "; did you mean 'momentum'?", empty where nothing known is close.

    Args:
        likeness: The least ratio of `difflib` that counts as close.
    """
    known = known[:_MOST_COMPARED]
    matches = difflib.get_close_matches(shortened(name), known, n=1, cutoff=likeness)
    return f"; did you mean {quoted(matches[0])}?" if matches else ""


def is_repeated(field: Any) -> bool:
    """Whether a field descriptor is of a repeated field or a map, in any protobuf release."""
    if hasattr(field, "is_repeated"):  # the newest releases have it instead of `label`
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)


def is_map(field: Any) -> bool:
    """Whether a field descriptor is of a map."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


class Entry(NamedTuple):
    """A value in a message: of a singular field, or one of a repeated field or a map."""

    path: str  # from the root, in the form that `--set` takes
    parent: Message
    field: Any  # its descriptor
    value: Any


def values_of(field: Any, value: Any, path: str) -> Iterable[Tuple[str, Any]]:
    """(path, value) of each value in a field at a path: of a list or a map, or the single one."""
    if is_map(field):
        return ((f"{path}[{key}]", entry) for key, entry in value.items())
    if is_repeated(field):
        return ((f"{path}[{index}]", entry) for index, entry in enumerate(value))
    return [(path, value)]


def entries(message: Message, prefix: str = "") -> Iterator[Entry]:
    """Every value that is set in `message`, each message before the values in it."""
    for field, value in message.ListFields():
        for here, entry in values_of(field, value, prefix + field.name):
            yield Entry(here, message, field, entry)
            if isinstance(entry, Message):
                yield from entries(entry, f"{here}.")


def parse_message(text: str, message: MessageT, source: str = "<text>") -> MessageT:
    """Parses `text` into `message`, which is empty, and returns it.

    A singular field given twice is accepted as the Object Detection API accepts it (the last one
    counts, or messages are merged), with a `ConfigWarning`. Messages name `source`, usually a path.
    """
    try:
        return text_format.Parse(text, message)
    except text_format.ParseError as error:
        twice = _TWICE.search(str(error))
        if not twice:
            raise _explained(error, text, message, source) from None
        first_line = error.GetLine()
    message.Clear()
    try:
        text_format.Merge(text, message)
    except text_format.ParseError as error:
        raise _explained(error, text, message, source) from None
    name = twice.group(1) or twice.group(2)
    warnings.warn(
        f"{plain(source)}:{first_line}: '{name}' is given more than once, or "
        "together with another choice of its group; the last one counts. Remove the others.",
        ConfigWarning,
        stacklevel=3,
    )
    return message


def _explained(error: text_format.ParseError, text: str, root: Message, source: str) -> UsageError:
    """The parser's complaint with file, line, enclosing block, nearest name and the line itself."""
    complaint = plain(_PREFIX.sub("", str(error)))
    line = error.GetLine() or 1
    lines = text.split("\n")  # the parser counts lines in the same way
    place = _place(text, line, error.GetColumn() or 1)
    near = f" near field '{plain(place.last_name)}'" if place.last_name else ""
    what = (
        _unknown_field(complaint, place, root)
        or _unknown_value(complaint, place, root)
        or _extension(complaint, lines[min(line, len(lines)) - 1])
        or _unbalanced(complaint, place, text, lines, line)
        or f"{complaint.rstrip('.')}{near}"
    )
    enclosing = plain(".".join(block.name for block in place.blocks))
    inside = f" (in {enclosing})" if enclosing else ""
    shown = plain(lines[min(line, len(lines)) - 1].strip())
    return UsageError(f"{plain(source)}:{line}: {what}{inside}\n    {shown}")


def _place(text: str, line: int, column: int) -> _ErrorPlace:
    """Follows the braces up to a position, which counts from 1."""
    lines = text.split("\n")
    before = "\n".join([*lines[: line - 1], lines[line - 1][: column - 1]])
    blocks: List[_OpenBrace] = []
    last_name = ""
    counted, opened = 0, 1  # the line at a position, carried on from brace to brace
    for token in _TOKEN.finditer(before):
        value = token.group()
        if value in "{<":
            opened += before.count("\n", counted, token.start())
            counted = token.start()
            blocks.append(_OpenBrace(plain(last_name), opened))
        elif value in "}>":
            if blocks:
                blocks.pop()
        elif value[0].isalpha() or value[0] in "[_":
            last_name = value
    return _ErrorPlace(blocks, last_name)


def _type_at(root: Message, blocks: List[_OpenBrace]) -> List[Any]:
    """Message descriptors of the blocks around a place, outermost first, as far as known."""
    descriptors: List[Any] = [root.DESCRIPTOR]
    for block in blocks:
        field = descriptors[-1].fields_by_name.get(block.name)
        if field is None or field.message_type is None:
            break
        descriptors.append(field.message_type)
    return descriptors


def _unknown_field(complaint: str, place: _ErrorPlace, root: Message) -> str:
    match = _NO_FIELD.match(complaint)
    if not match:
        return ""
    name = match["name"]
    descriptors = _type_at(root, place.blocks)
    for depth, outer in enumerate(descriptors[:-1]):
        if name in outer.fields_by_name:
            block = place.blocks[depth]
            return (
                f"'{name}' belongs outside of '{block.name}', opened on line {block.line}: "
                "a closing brace is missing above it"
            )
    fields = list(descriptors[-1].fields_by_name)
    what = f"{descriptors[-1].name} has no field '{name}'"
    return what + (nearest(name, fields) or f"; its fields: {', '.join(sorted(fields))}")


def _unknown_value(complaint: str, place: _ErrorPlace, root: Message) -> str:
    match = _NO_VALUE.match(complaint)
    if not match:
        return ""
    message = _type_at(root, place.blocks)[-1]
    for field in message.fields:
        if field.enum_type is not None and field.enum_type.full_name == match["type"]:
            values = list(field.enum_type.values_by_name)
            hint = nearest(match["name"], values)
            allowed = f"Allowed: {', '.join(values)}"
            name = place.last_name if place.last_name in message.fields_by_name else field.name
            return f"field '{name}' has no value {match['name']}{hint} {allowed}"
    return ""


def _extension(complaint: str, line: str) -> str:
    if not _EXTENSION.search(complaint):
        return ""
    name = re.search(r"\[[\w./]+\]", line)
    return (
        f"extension {name.group() if name else ''} is not known; remove its block, or import the "
        "_pb2 module that declares it for estimator_det.protos before reading"
    )


def _unbalanced(complaint: str, place: _ErrorPlace, text: str, lines: List[str], line: int) -> str:
    if complaint.endswith("got }.") and not place.blocks:
        return "one closing brace too many: every block above is closed already"
    if not complaint.startswith('Expected "}"') or line < text.rstrip().count("\n") + 1:
        return ""
    blocks = _place(text, len(lines), len(lines[-1]) + 1).blocks
    if not blocks:
        return ""
    return f"'{blocks[-1].name}', opened on line {blocks[-1].line}, is never closed: add '}}'"
