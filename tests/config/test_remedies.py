"""What a check recommends can be done, removes the problem and leads to no other refusal.

Every field of a configuration is set to wrong and to unusual values, one at a time. Checks must end
with problems, never with an exception, and each remedy that can be carried out is.
"""

from __future__ import annotations

import pathlib
import re
from typing import Any, Dict, Iterator, List, Optional, Tuple

import pytest
from google.protobuf.message import Message

import estimator_det
from estimator_det.config import pipeline
from estimator_det.config.text import entries, is_map, is_repeated
from estimator_det.errors import Problem
from model_fn.checks import config_check

CONFIGS = sorted(pathlib.Path(estimator_det.__file__).parent.glob("configs/*.config"))
OPEN = re.compile(r"=(…|\{…\})")  # for the user to fill in


def messages(config: Any) -> Dict[str, Any]:
    """All messages in a configuration, itself included, by the beginning of their fields' paths."""
    inner = {f"{path}.": value for path, *_, value in entries(config) if isinstance(value, Message)}
    return {"": config, **inner}


def values(field: Any) -> List[Any]:
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return [0.0, -1.0, 0.5, 1e12]
    if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_INT64):
        return [0, -1, 7, 2**31 - 1]
    if field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64):
        return [0, 1, 7, 2**31 - 1]
    if field.cpp_type == field.CPPTYPE_BOOL:
        return [not field.default_value]
    if field.cpp_type == field.CPPTYPE_ENUM:
        return [one.number for one in field.enum_type.values]
    return ["nonsense"] if field.cpp_type == field.CPPTYPE_STRING else []


def changed(config: Any) -> Iterator[Tuple[str, Any]]:
    """Copies of a configuration with one field changed or one message added."""
    for path, message in messages(config).items():
        for field in message.DESCRIPTOR.fields:
            for value in [None] if field.message_type else values(field):
                copy = type(config)()
                copy.CopyFrom(config)
                parent = messages(copy)[path]
                if is_map(field):
                    continue
                if field.message_type and is_repeated(field):
                    getattr(parent, field.name).add()
                elif field.message_type:
                    getattr(parent, field.name).SetInParent()
                elif is_repeated(field):
                    getattr(parent, field.name)[:1] = [value]
                else:
                    setattr(parent, field.name, value)
                yield f"{path}{field.name}={value}", copy


def assignments(problem: Problem) -> List[str]:
    """What `--set` takes to do as the remedy says; empty if it leaves something to the user."""
    found = [*problem.edits, *re.findall(r"--set (\S+)", problem.remedy)]
    nearest = re.search(r"did you mean '([^']+)'", problem.remedy)
    if nearest:
        found = [f"{problem.field}={nearest[1]}"]
    value = re.fullmatch(r"set it to (true|false|[\d.]+)", problem.remedy)
    if value:
        found = [f"{problem.field}={value[1]}"]
    return [] if any(OPEN.search(one) for one in found) else [one.strip("'") for one in found]


def carried_out(config: Any, problem: Problem) -> Optional[Any]:
    """The configuration after the remedy; None if the user has to choose something."""
    if problem.remedy != "remove it" or problem.field.endswith("]"):
        edits = assignments(problem)
        return pipeline.apply_overrides(config, edits) if edits else None
    result = type(config)()
    result.CopyFrom(config)
    parent, _, name = problem.field.rpartition(".")
    messages(result)[f"{parent}." if parent else ""].ClearField(name)
    return result


def keys(problems: List[Problem], severity: str = "") -> Dict[Tuple[str, str], Problem]:
    return {(one.field, one.message): one for one in problems if severity in ("", one.severity)}


def check(config: Any) -> List[Problem]:
    return config_check.check(config, config_check.NAMES).problems


def walk(path: pathlib.Path, every: int) -> int:
    """Tries each `every`th change; returns how many remedies were carried out."""
    config = pipeline.read_pipeline(str(path))
    before = keys(check(config))
    carried = 0
    for index, (change, wrong) in enumerate(changed(config)):
        if index % every:
            continue
        problems = keys(check(wrong))
        errors = {field for field, _ in keys(list(problems.values()), "error")}
        for key in problems.keys() - before.keys():
            better = carried_out(wrong, problems[key])
            if better is None:
                continue
            carried += 1
            after = check(better)
            assert key not in keys(after), (change, str(problems[key]))
            for error in keys(after, "error").values():
                known = error.field in errors - {key[0]}
                assert known, (change, str(problems[key]), str(error))
    return carried


def test_remedies_of_some_changes():
    path = next(path for path in CONFIGS if "ssd_mobilenet_v1_300x300" in path.name)
    assert walk(path, every=9) > 10


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_remedies_of_every_change(path):
    assert walk(path, every=1) > 100


def test_an_absurd_number_of_classes_takes_no_memory():
    config = pipeline.read_pipeline(str(CONFIGS[0]))
    model = getattr(config.model, config.model.WhichOneof("model"))
    model.num_classes = 2**31 - 1
    assert any(problem.field.endswith("num_classes") for problem in check(config))
