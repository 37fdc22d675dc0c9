"""Every message, field, number, type, default, oneof and enum against the schema on record."""

from __future__ import annotations

import importlib
import re
from typing import Any, Iterator, List

import pytest
from google.protobuf import descriptor_pb2

from tests.conftest import ROOT, TESTS

PACKAGE = "estimator_det.protos."
OWN_NUMBERS = 1000  # additions to the schema are numbered from here
OWN_TYPES = {
    *("BadRecords", "Cache", "CopyPaste", "Custom", "MixUp", "Mosaic", "RandAugment", "Recompute"),
    "Tiles",
}
OTHER_FILES = {"custom", "prediction_log", "rules"}
RECORD = {
    section.partition(".proto\n")[0]: section.partition("\n")[2]
    for section in (TESTS / "golden" / "pipeline_schema.txt").read_text().split("\n## ")[1:]
}


def recorded_lines(section: str) -> Iterator[str]:
    """Lines of a recorded file; a line of a field begins with the name of its message."""
    message = ""
    for line in filter(None, map(str.strip, section.splitlines())):
        if line.startswith("message "):
            message = line.split()[1]
        is_field = re.match(r"\w+ = ", line)
        yield f"{message}.{line}" if is_field else line


def lines_of(file: Any) -> Iterator[str]:
    """Lines of a file in the form of the record, without additions."""
    messages = [each for top in file.message_types_by_name.values() for each in nested(top)]
    for enum in (*file.enum_types_by_name.values(), *(e for m in messages for e in m.enum_types)):
        values = ", ".join(f"{value.name}={value.number}" for value in enum.values)
        yield f"enum {local_name(enum)}: {values}"
    for message in messages:
        declared = descriptor_pb2.DescriptorProto()
        message.CopyToProto(declared)
        ranges = [[each.start, each.end] for each in declared.extension_range]
        extensions = f"  (extensions {ranges})" if ranges else ""
        yield f"message {local_name(message)}{extensions}"
        for field, declaration in zip(message.fields, declared.field):
            if field.number < OWN_NUMBERS:
                yield f"{local_name(message)}.{field_line(field, declaration)}"


def nested(message: Any) -> Iterator[Any]:
    yield message
    for inner in message.nested_types:
        yield from nested(inner)


def local_name(descriptor: Any) -> str:
    return str(descriptor.full_name).removeprefix(PACKAGE)


def field_line(field: Any, declaration: Any) -> str:
    """A field in the form of the record; descriptors of protobuf releases differ in labels."""
    field_type = field.message_type or field.enum_type
    scalar = declaration.Type.Name(declaration.type).removeprefix("TYPE_").lower()
    line = f"{field.name} = {field.number} : {local_name(field_type) if field_type else scalar}"
    if declaration.label == declaration.LABEL_REPEATED:
        line += " [repeated]"
    if declaration.HasField("default_value"):
        is_text = field.enum_type or declaration.type == declaration.TYPE_STRING
        line += (
            f' = "{declaration.default_value}"' if is_text else f" = {declaration.default_value}"
        )
    if field.containing_oneof:
        line += f" [oneof {field.containing_oneof.name}]"
    return line + (" [deprecated]" if field.GetOptions().deprecated else "")


def with_plain_numbers(lines: Iterator[str]) -> List[str]:
    """Lines in order; the same floating-point number is the same text."""
    return sorted(
        re.sub(r"(?<=(?:float|ouble) = )\S+", lambda match: f"{float(match[0]):.7g}", line)
        for line in lines
        if not OWN_TYPES & set(re.split(r"[ .:]", line)[:3])
    )


def test_the_files_are_those_of_the_schema():
    files = {path.stem for path in (ROOT / "estimator_det" / "protos").glob("*.proto")}
    assert files - OTHER_FILES == set(RECORD)


@pytest.mark.parametrize("name", RECORD)
def test_each_file_has_what_is_on_record(name):
    file = importlib.import_module(f"{PACKAGE}{name}_pb2").DESCRIPTOR
    assert with_plain_numbers(lines_of(file)) == with_plain_numbers(recorded_lines(RECORD[name]))
