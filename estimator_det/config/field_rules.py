"""Rules of single fields: the option `(rule)` of their lines in the .proto files.

`protos/rules.proto` says what a rule may contain. A value that equals the default of the schema
says nothing new: it may be out of range, and is not reported as refused or as without effect.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Iterable, Iterator, NamedTuple, Optional, Tuple, Type

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from estimator_det.config.text import is_repeated
from estimator_det.console.printing import quoted
from estimator_det.errors import Problem, error, warning
from estimator_det.protos import rules_pb2

_NOT_NUMBERS = (
    FieldDescriptor.CPPTYPE_BOOL,
    FieldDescriptor.CPPTYPE_ENUM,
    FieldDescriptor.CPPTYPE_MESSAGE,
    FieldDescriptor.CPPTYPE_STRING,
)
PLACEHOLDER = "PATH_TO_BE_CONFIGURED"  # in sample configurations, in place of a path
_ANY_NUMBER = 1e9  # largest absolute value of fields without a range: fractions, weights, colours


class Range(NamedTuple):
    """The numbers that a field may contain."""

    least: float
    largest: float
    unit: str  # the thing that is counted or measured; "" for a plain number
    above: bool  # whether `least` itself is too small

    def contains(self, value: float) -> bool:
        """Whether a value is allowed; NaN never is."""
        return self.least <= value <= self.largest and not (self.above and value == self.least)

    def text(self) -> str:
        """`1 to 100 images`, or `above 0 to 100`."""
        unit = f" {self.unit}" if self.unit else ""
        return f"{'above ' * self.above}{self.least:,.10g} to {self.largest:,.10g}{unit}"


@functools.cache
def rule_of(field: Any) -> rules_pb2.Rule:
    """The rule that a field descriptor declares; an empty one if there is none."""
    rule: rules_pb2.Rule = field.GetOptions().Extensions[rules_pb2.rule]
    return rule


@functools.cache
def range_of(field: Any) -> Optional[Range]:
    """The range of a numeric field; None for other fields."""
    if field.cpp_type in _NOT_NUMBERS:
        return None
    rule = rule_of(field)
    above = rule.HasField("above")
    least = rule.least if rule.HasField("least") else -_ANY_NUMBER
    largest = rule.largest if rule.HasField("largest") else _ANY_NUMBER
    return Range(rule.above if above else least, largest, rule.unit, above)


def most(message: Type[Message], field: str) -> int:
    """The largest value that a field of a message class may have."""
    limits = range_of(message.DESCRIPTOR.fields_by_name[field])
    assert limits is not None, f"{field} is not a number"
    return int(limits.largest)


def is_set_to_non_default(message: Message, field: Any) -> bool:
    """Whether a field is set to another value than its default."""
    if is_repeated(field):
        return len(getattr(message, field.name)) > 0
    if not message.HasField(field.name):
        return False
    return field.message_type is not None or getattr(message, field.name) != field.default_value


def non_default_fields(message: Message, names: Iterable[str]) -> Tuple[str, ...]:
    """Fields among some that are set to another value than their default."""
    fields = message.DESCRIPTOR.fields_by_name
    return tuple(name for name in names if is_set_to_non_default(message, fields[name]))


def check_value(field: Any, value: Any, path: str) -> Iterator[Problem]:
    """An error for a placeholder, and for a number that is not finite or out of its range."""
    if isinstance(value, str) and PLACEHOLDER in value:
        yield error(path, f"is still the placeholder {quoted(value)}", f"--set {path}=…")
    limits = range_of(field)
    if limits is None:
        return
    if not math.isfinite(value):
        yield error(path, f"is {value}, not a finite number", "set it to a finite number")
    elif not limits.contains(value):
        message = f"is {value:,.10g}; allowed are {limits.text()}"
        yield error(path, message, "set it to a number in this range")


def check_use(parent: Message, field: Any, path: str) -> Iterator[Problem]:
    """An error for a field that no run supports, a warning for a field without effect."""
    rule = rule_of(field)
    if not is_set_to_non_default(parent, field):
        return
    if rule.refused:
        yield error(path, rule.refused, rule.remedy or "remove it")
    elif rule.no_effect:
        yield no_effect(path, rule.no_effect, deprecated=field.GetOptions().deprecated)
    elif rule.replaced_by:
        yield warning(path, "is deprecated", rule.replaced_by)
    elif rule.needs and not getattr(parent, rule.needs):
        yield no_effect(path, f"{rule.needs} is not set")


def check_on_tpu(message: Message, field: Any, path: str, *, inference: bool) -> Iterator[Problem]:
    """A problem of a field of a message unless its value suits a TPU."""
    wanted = rule_of(field).tpu
    if wanted.HasField("value") and (inference or not wanted.inference):
        yield from check_equal(
            message,
            path,
            wanted.value,
            wanted.reason,
            wanted.severity,
            remedy=wanted.remedy,
            safe=wanted.safe,
        )


def check_equal(
    message: Message,
    path: str,
    wanted: bool,
    why: str,
    severity: str = "error",
    *,
    safe: bool = True,
    remedy: str = "",
) -> Iterator[Problem]:
    """A problem "is <value>: <why>" unless a field of a message has the wanted value."""
    if getattr(message, path.rpartition(".")[2]) != wanted:
        value, edit = (str(each).lower() for each in (not wanted, wanted))
        yield Problem(severity, path, f"is {value}: {why}", remedy, (f"{path}={edit}",), safe)


def no_effect(path: str, reason: str, *, deprecated: bool = False) -> Problem:
    """A warning for a field that a run does not use."""
    what = "is deprecated and has no effect" if deprecated else "has no effect"
    return warning(path, f"{what}: {reason}", "remove it")
