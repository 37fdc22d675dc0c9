"""Rules of a configuration, and the one walk that applies them.

A rule of a single field is an option of its line in the .proto file; see `field_rules`. A rule of
several fields is a function `(message, at) -> problems`. Its home is the file of the component
that the message configures, registered for the class of the message:

    @rules(matcher_pb2.ArgMaxMatcher)
    def _check_thresholds(config: ArgMaxMatcher, at: str) -> Iterator[Problem]:

`at` is the path of the message, in the form that `--set` takes; "" for a whole configuration, which
has the rules about more than one of its parts. One table by message class serves all components,
those without a registry too, wherever a configuration contains the message.

A rule that holds on a TPU only is registered with `target="tpu"`, and takes a `Tpu` as well:

    @rules(train_pb2.TrainConfig, target="tpu")
    def _check_shards(config: TrainConfig, at: str, tpu: Tpu) -> Iterator[Problem]:

`check` runs where a configuration enters: in programs, which print all problems, and by `require`
in functions of the library (`make_detector`, `create_train_input_fn`, `train_and_evaluate`, …).
Both then call functions that trust what they get (`build_detector`, `ModelFn`, `runner.run`, …).
"""

from __future__ import annotations

import collections
import dataclasses
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Literal,
    NamedTuple,
    Optional,
    Tuple,
    Type,
    TypeVar,
)

from google.protobuf.message import Message

from estimator_det.config.field_rules import check_on_tpu, check_use, check_value
from estimator_det.config.registry import CHOOSERS, Registry
from estimator_det.config.text import entries, is_map, is_repeated, values_of
from estimator_det.errors import Problem, error, raise_errors

Rule = Callable[..., Iterable[Problem]]
RuleT = TypeVar("RuleT", bound=Rule)

# By target, "" for every one, and full name of the message.
_RULES: Dict[Tuple[str, str], List[Rule]] = collections.defaultdict(list)


@dataclasses.dataclass(frozen=True)
class Tpu:
    """The TPU that a configuration is to run on."""

    num_shards: int = 8  # cores that share a batch, at least 1
    model_dir: Optional[str] = None  # folder of checkpoints; None if it is not known yet
    # True if predictions are computed on the TPU too, not the training alone.
    inference: bool = False
    # True if the machine of the TPU has the files, as a TPU VM of one host may; otherwise they
    # must lie in Google Cloud Storage.
    local_files: bool = False


def rules(*messages: Type[Message], target: Literal["", "tpu"] = "") -> Callable[[RuleT], RuleT]:
    """Decorator that registers a rule for classes of messages, and for one target or all."""

    def enter(rule: RuleT) -> RuleT:
        for message in messages:
            _RULES[target, message.DESCRIPTOR.full_name].append(rule)
        return rule

    return enter


def check(message: Message, at: str = "", holder: Any = None) -> Iterator[Problem]:
    """Problems of a message at a path: of its fields, of the messages in it, and by its rules.

    Parts of a component that no run can make are not checked. `holder` is the descriptor of the
    field that contains the message; callers leave it out.
    """
    for field, value in message.ListFields():
        path = f"{at}.{field.name}" if at else field.name
        yield from check_use(message, field, path)
        for here, entry in values_of(field, value, path):
            chosen = _component(field, entry, holder, here, message)
            if chosen and field.name == "custom":
                yield from chosen.registry.check_custom(entry, here)
            elif chosen and chosen.name not in chosen.registry:
                # All members of a oneof are names of the schema.
                refusal = chosen.registry.refusal(chosen.name, reserved=(field.name,))
                yield error(here, *refusal)
            elif isinstance(entry, Message):
                yield from check(entry, here, field)
            else:
                yield from check_value(field, entry, here)
    for rule in _RULES["", message.DESCRIPTOR.full_name]:
        yield from rule(message, at)


def check_tpu(
    message: Message, tpu: Tpu, at: str = "", holder: Any = None, *, is_set: bool = True
) -> Iterator[Problem]:
    """Problems of a message at a path that are none on other devices.

    Fields of a message that is not set have defaults, which must suit a TPU too. Callers leave out
    the arguments after `tpu`.
    """
    for field in message.DESCRIPTOR.fields:
        path = f"{at}.{field.name}" if at else field.name
        yield from check_on_tpu(message, field, path, inference=tpu.inference)
        if field.message_type is None or is_map(field):
            continue
        has_part = is_repeated(field) or message.HasField(field.name)
        if not has_part and field.containing_oneof is not None:
            continue
        for here, part in values_of(field, getattr(message, field.name), path):
            chosen = _component(field, part, holder, here, message)
            if chosen is None or chosen.name in chosen.registry:
                yield from check_tpu(part, tpu, here, field, is_set=is_set and has_part)
    if is_set:
        for rule in _RULES["tpu", message.DESCRIPTOR.full_name]:
            yield from rule(message, at, tpu)


def require(config: Message, *parts: str) -> None:
    """Raises the errors of a configuration, or of parts of it, which are beginnings of paths."""
    if not isinstance(config, Message):
        raise TypeError(
            f"the configuration is a {type(config).__name__}; give what read_pipeline returns"
        )
    raise_errors(problem for problem in check(config) if problem.field.startswith(parts or ""))


class Component(NamedTuple):
    """A component that a configuration names."""

    path: str  # field that names it, in the form that `--set` takes
    registry: Registry[Any]
    name: str  # entry of the registry, or "custom"
    message: Any  # its settings


def components(config: Message) -> Iterator[Component]:
    """Components that a configuration names, each before those in its settings."""
    holders = {}
    for path, parent, field, value in entries(config):
        holders[path] = field
        holder = holders.get(path.rpartition(".")[0])
        component = _component(field, value, holder, path, parent)
        if component is not None:
            yield component


def _component(
    field: Any, value: Any, holder: Any, path: str, parent: Message
) -> Optional[Component]:
    """The component that a field names: as a member of a oneof, or as a text."""
    group = field.containing_oneof
    if group is not None:
        holder_registry = CHOOSERS.get(_name(holder)) if holder is not None else None
        name, message, registry = field.name, value, holder_registry or CHOOSERS.get(_name(group))
    elif isinstance(value, str) and value:
        name, message, registry = value, parent, CHOOSERS.get(_name(field))
    else:
        return None
    return None if registry is None else Component(path, registry, name, message)


def _name(descriptor: Any) -> str:
    return str(descriptor.full_name).removeprefix("estimator_det.protos.")


def missing_choice(message: Message, at: str) -> Iterator[Problem]:
    """An error if no member is set in a oneof group of a message."""
    for group in message.DESCRIPTOR.oneofs:
        if message.WhichOneof(group.name) is None:
            members = ", ".join(field.name for field in group.fields)
            yield error(at, "is empty", f"choose one of {members}")
