"""Every field of the schema works, is refused by name, or is reported as without effect.

A field that nothing reads, and that no table of `config.fields` or registry refuses or reports,
fails `test_every_field_is_accounted_for`.
"""

from __future__ import annotations

import ast
import functools
from typing import Any, Iterator, List, NamedTuple, Set, Tuple

import pytest

from estimator_det.config import fields, pipeline
from estimator_det.config.text import ConfigError, is_map, is_repeated
from estimator_det.programs import console, demo
from estimator_det.protos import input_reader_pb2, pipeline_pb2
from model_fn.checks import config_check, names
from tests.messages import ROOMS, ROOT


class Field(NamedTuple):
    """A field of the schema, with the fields that lead to its message."""

    path: Tuple[Any, ...]  # field descriptors from the root
    descriptor: Any

    @property
    def name(self) -> str:
        return fields.schema_name(self.descriptor)


def refused_by_registry(found: Field) -> bool:
    group = found.descriptor.containing_oneof
    holder = found.path[-1].name if found.path else ""
    registry = names.CHOICES_OF_FIELDS.get(holder, names.CHOICES.get(group.name)) if group else None
    return registry is not None and found.descriptor.name not in (*registry, "custom")


def reachable() -> Iterator[Field]:
    """Every field, each message once for a set of choices; refused fields without their parts."""
    seen: Set[Tuple[str, str]] = set()
    todo: List[Tuple[Tuple[Any, ...], Any]] = [
        ((), pipeline_pb2.TrainEvalPipelineConfig.DESCRIPTOR)
    ]
    while todo:
        path, message = todo.pop(0)
        holder = path[-1].name if path else ""
        key = message.full_name, holder if holder in names.CHOICES_OF_FIELDS else ""
        if key in seen:
            continue
        seen.add(key)
        for field in message.fields:
            found = Field(path, field)
            yield found
            inner = field.message_type
            if is_map(field):
                inner = inner.fields_by_name["value"].message_type
            if inner is None or inner.file.package == "google.protobuf":
                continue
            if found.name in fields.REFUSED or refused_by_registry(found):
                continue
            todo.append(((*path, field), inner))


# A choice that one model refuses and another takes is listed as the other has it.
FIELDS = {f.name: f for f in sorted(reachable(), key=refused_by_registry, reverse=True)}
REFUSED = [n for n, f in FIELDS.items() if n in fields.REFUSED or refused_by_registry(f)]
ANNOUNCED = sorted(fields.NO_EFFECT)
WORKING = sorted(set(FIELDS) - set(REFUSED) - set(ANNOUNCED))


@functools.cache
def names_read() -> Set[str]:
    """Attributes and texts in the product, but for schema, checks and printed messages."""
    names_in_sources: Set[str] = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            if not path.name.endswith("_pb2.py") and path.name not in ("fields.py", "ranges.py"):
                for node in ast.walk(ast.parse(path.read_text())):
                    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                        names_in_sources.add(node.attr)
                    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                        names_in_sources.add(node.value)
    return names_in_sources


@pytest.mark.parametrize("name", WORKING)
def test_every_field_is_accounted_for(name: str) -> None:
    group = FIELDS[name].descriptor.containing_oneof
    if group is None or group.name not in names.CHOICES:  # whose registry has an entry
        read = FIELDS[name].descriptor.name in names_read()
        assert read, "nothing reads it: make it work, or enter it in config.fields"


def test_the_tables_name_fields_of_the_schema_once() -> None:
    tables = [fields.REFUSED, fields.NO_EFFECT, fields.REPLACED, fields.NEEDS]
    for table in tables:
        assert list(table) == sorted(table)
        assert set(table) <= set(FIELDS)
    entered = [name for table in tables[:2] for name in table]
    assert len(entered) == len(set(entered))
    for name, needed in fields.NEEDS.items():
        assert f"{name.rpartition('.')[0]}.{needed}" in WORKING
    assert {f.name for f in FIELDS.values() if f.descriptor.GetOptions().deprecated} <= {
        *fields.NO_EFFECT,
        *fields.REPLACED,
    }


def another_value(field: Any) -> Any:
    """A value that is not the default."""
    if field.enum_type is not None:
        return next(n for n in field.enum_type.values_by_number if n != field.default_value)
    if field.type == field.TYPE_BOOL:
        return not field.default_value
    if field.type in (field.TYPE_FLOAT, field.TYPE_DOUBLE):
        return field.default_value / 2 or 0.5
    return "x" if field.type == field.TYPE_STRING else field.default_value + 1


def with_field(field: Field) -> Tuple[Any, str]:
    """A configuration that sets a field, and the path of the field in it."""
    config = pipeline.read_pipeline(str(demo.CONFIG_FILE))
    message, path = config, ""
    for step in field.path:
        held = getattr(message, step.name)
        path += f"{step.name}."
        if is_map(step):
            message = held[1]
            path = f"{path[:-1]}[1]."
        elif is_repeated(step):
            message = held[0] if held else held.add()
            path = f"{path[:-1]}[0]."
        else:
            held.SetInParent()
            message = held
    descriptor = field.descriptor
    held = getattr(message, descriptor.name)
    if is_map(descriptor):
        held["a"] = "b"
    elif is_repeated(descriptor) and descriptor.message_type is not None:
        held.add()
    elif is_repeated(descriptor):
        held.append(2)
    elif descriptor.message_type is not None:
        held.SetInParent()
    else:
        setattr(message, descriptor.name, another_value(descriptor))
    return config, path + descriptor.name


def problem_of(name: str) -> Any:
    config, path = with_field(FIELDS[name])
    found = config_check.check(config, config_check.NAMES).problems
    (problem,) = (p for p in found if p.field == path)
    return problem


@pytest.mark.parametrize("name", REFUSED)
def test_refused_fields_are_errors(name: str) -> None:
    problem = problem_of(name)
    assert problem.severity == "error"
    assert "not supported" in problem.message and "not known" not in problem.message


@pytest.mark.parametrize("name", ANNOUNCED)
def test_fields_without_effect_are_reported(name: str) -> None:
    problem = problem_of(name)
    assert problem.severity == "warning"
    assert "has no effect" in problem.message and fields.NO_EFFECT[name] in problem.message


@pytest.mark.parametrize("name", sorted(fields.NEEDS))
def test_fields_that_need_another_are_reported_without_it(name: str) -> None:
    needed = FIELDS[f"{name.rpartition('.')[0]}.{fields.NEEDS[name]}"].descriptor
    config, path = with_field(FIELDS[name])

    def messages(value: Any) -> List[str]:
        changed = pipeline.apply_overrides(
            config, [f"{path.rpartition('.')[0]}.{needed.name}={value}"]
        )
        found = config_check.check(changed, config_check.NAMES).problems
        return [problem.message for problem in found if problem.field == path]

    on = "1" if needed.enum_type is None else needed.enum_type.values[1].name
    off = "0" if needed.enum_type is None else needed.enum_type.values[0].name
    if needed.type == needed.TYPE_BOOL:
        on, off = "true", "false"
    missing = f"has no effect: {needed.name} is not set"
    assert messages(off) == [missing]
    assert missing not in messages(on)


def test_training_prints_what_has_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    config, path = with_field(FIELDS["TrainConfig.sync_replicas"])
    console.check_config(config, ignore=["train_input_reader", "eval_input_reader"])
    assert f"warning: {path}: has no effect" in capsys.readouterr().err


def test_a_value_that_equals_the_default_is_no_news() -> None:
    config = pipeline.read_pipeline(str(demo.CONFIG_FILE))
    config.train_config.sync_replicas = False
    config.train_input_reader.load_track_id = False
    assert not list(fields.check_fields(config))


def test_components_refuse_what_they_do_not_support() -> None:
    reader = input_reader_pb2.InputReader(load_track_id=True)
    with pytest.raises(ConfigError, match=r"reader\.load_track_id is not supported yet"):
        fields.check_supported(reader, "reader")
    fields.check_supported(input_reader_pb2.InputReader(load_track_id=False), "reader")
