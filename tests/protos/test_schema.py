"""Every message, field, number, type, default, oneof and enum against the schema on record."""

from __future__ import annotations

import ast
import importlib
import pathlib
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FieldDescriptor

from tests.conftest import TESTS

PROTOS = TESTS.parent / "estimator_det" / "protos"
NOT_OF_CONFIGURATIONS = "prediction_log.proto"
PACKAGE = "estimator_det.protos"

_FIELD = re.compile(
    r"  (?P<name>\w+) = (?P<number>\d+) : (?P<type>[\w.]+)(?P<repeated> \[repeated\])?"
    r"(?: = (?P<default>\"[^\"]*\"|[^\[\s]+))?(?: \[oneof (?P<oneof>\w+)\])?"
    r"(?P<deprecated> \[deprecated\])?"
)
_ENUM = re.compile(r"\s*enum (?P<name>[\w.]+): (?P<values>.+)")
_MESSAGE = re.compile(r"message (?P<name>[\w.]+)(?:  \(extensions (?P<extensions>.+)\))?")


class Schema(NamedTuple):
    """The file on record: everything as plain values, keyed by file, message or enum name."""

    files: Dict[str, List[str]]
    messages: Dict[str, Dict[str, Dict[str, Any]]]
    extensions: Dict[str, Any]
    enums: Dict[str, Dict[str, int]]


def read_schema() -> Schema:
    schema = Schema({}, {}, {}, {})
    file = message = ""
    for line in (TESTS / "golden" / "pipeline_schema.txt").read_text().splitlines():
        if not line.strip() or line.startswith("# "):
            continue
        if line.startswith("## "):
            file = line[3:]
            schema.files[file] = []
        elif match := _ENUM.fullmatch(line):
            pairs = [pair.split("=") for pair in match["values"].split(", ")]
            schema.enums[match["name"]] = {name: int(number) for name, number in pairs}
            schema.files[file].append(match["name"])
        elif match := _MESSAGE.fullmatch(line):
            message = match["name"]
            schema.messages[message] = {}
            schema.extensions[message] = ast.literal_eval(match["extensions"] or "[]")
            schema.files[file].append(message)
        else:
            match = _FIELD.fullmatch(line)
            assert match, f"line not understood: {line!r}"
            fields = match.groupdict()
            schema.messages[message][fields.pop("name")] = fields
    return schema


SCHEMA = read_schema()


def _local(full_name: str) -> str:
    return full_name[len(PACKAGE) + 1 :]


def _modules() -> Iterator[Any]:
    for path in sorted(PROTOS.glob("*.proto")):
        if path.name == NOT_OF_CONFIGURATIONS:
            continue
        yield importlib.import_module(f"{PACKAGE}.{path.stem}_pb2")


def _nested(message: Any) -> Iterator[Any]:
    yield message
    for inner in message.nested_types:
        yield from _nested(inner)


MESSAGES = {
    _local(message.full_name): message
    for module in _modules()
    for top in module.DESCRIPTOR.message_types_by_name.values()
    for message in _nested(top)
}
ENUMS = {
    _local(enum.full_name): enum
    for module in _modules()
    for enum in [
        *module.DESCRIPTOR.enum_types_by_name.values(),
        *(inner for message in MESSAGES.values() for inner in message.enum_types),
    ]
}
SCALARS = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9,
    "bytes": 12, "uint32": 13,
}  # fmt: skip

OWN_NUMBERS = 1000  # additions to the schema are numbered from here
OWN_TYPES = {"BadRecords", "Cache", "CopyPaste", "Custom", "MixUp", "Mosaic", "RandAugment"}
OWN_FILES = {"custom.proto"}


def _is_own(name: str) -> bool:
    """Whether a message or enum is an addition: only fields numbered from 1000 lead there."""
    return name.split(".")[0] in OWN_TYPES


def test_every_message_and_enum_is_there_and_no_other() -> None:
    assert {name for name in MESSAGES if not _is_own(name)} == set(SCHEMA.messages)
    assert {name for name in ENUMS if not _is_own(name)} == set(SCHEMA.enums)
    for message in MESSAGES.values():
        for field in message.fields:
            field_type = field.message_type or field.enum_type
            if field_type is not None and not _is_own(message.name):
                own = field_type.name in {*OWN_TYPES, "Struct"}
                assert own == (field.number >= OWN_NUMBERS), field.full_name
    assert len(MESSAGES) > 150


def test_the_files_are_those_of_the_schema() -> None:
    files = {path.name for path in PROTOS.glob("*.proto")}
    assert files - {NOT_OF_CONFIGURATIONS} - OWN_FILES == set(SCHEMA.files)
    assert len(SCHEMA.files) == 34
    for file, names in SCHEMA.files.items():
        for name in names:
            descriptor = MESSAGES.get(name) or ENUMS[name]
            assert pathlib.PurePath(descriptor.file.name).name == file, name
            assert descriptor.file.package == PACKAGE


@pytest.mark.parametrize("name", sorted(SCHEMA.enums))
def test_enum(name: str) -> None:
    assert {value.name: value.number for value in ENUMS[name].values} == SCHEMA.enums[name]


@pytest.mark.parametrize("name", sorted(SCHEMA.messages))
def test_message(name: str) -> None:
    message = MESSAGES[name]
    expected = SCHEMA.messages[name]
    fields = [field for field in message.fields if field.number < OWN_NUMBERS]
    assert {field.name: field.number for field in fields} == {
        field: int(settings["number"]) for field, settings in expected.items()
    }
    for field in fields:
        _check_field(field, expected[field.name])
    ranges = [list(extensions) for extensions in message.extension_ranges]
    assert ranges == [list(extensions) for extensions in SCHEMA.extensions[name]]


def _check_field(field: Any, expected: Dict[str, Optional[str]]) -> None:
    where = field.full_name
    if field.message_type is not None:
        assert _local(field.message_type.full_name) == expected["type"], where
    elif field.enum_type is not None:
        assert _local(field.enum_type.full_name) == expected["type"], where
    else:
        assert field.type == SCALARS[str(expected["type"])], where
    # The declaration itself: descriptors of protobuf releases differ in what they tell of labels.
    message = descriptor_pb2.DescriptorProto()
    field.containing_type.CopyToProto(message)
    declared = next(entry for entry in message.field if entry.name == field.name)
    repeated = bool(expected["repeated"])
    assert declared.label == (declared.LABEL_REPEATED if repeated else declared.LABEL_OPTIONAL)
    group = field.containing_oneof.name if field.containing_oneof else None
    assert group == expected["oneof"], where
    assert field.GetOptions().deprecated == bool(expected["deprecated"]), where
    default = expected["default"]
    assert declared.HasField("default_value") == (default is not None), where
    if default is None:
        return
    if field.enum_type is not None:
        actual = field.enum_type.values_by_number[field.default_value].name
        assert actual == ast.literal_eval(default), where
    elif field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        assert field.default_value == {"true": True, "false": False}[default], where
    elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        assert field.default_value == ast.literal_eval(default), where
    else:
        # The schema prints the shortest decimal of a 32-bit float.
        assert field.default_value == pytest.approx(float(default), rel=1e-7, abs=0), where


def test_a_changed_default_would_be_noticed() -> None:
    field = MESSAGES["TrainConfig"].fields_by_name["batch_size"]
    expected = dict(SCHEMA.messages["TrainConfig"]["batch_size"], default="24")
    with pytest.raises(AssertionError):
        _check_field(field, expected)
