"""Tables from name to maker; a component enters itself where it is defined."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    Generic,
    Iterator,
    Sequence,
    Tuple,
    TypeVar,
)

from google.protobuf.message import Message

from estimator_det.config import plugins
from estimator_det.config.text import nearest
from estimator_det.errors import Problem, UsageError, error
from estimator_det.protos import custom_pb2

Maker = TypeVar("Maker")


def import_modules(package: str, path: Collection[str]) -> None:
    """Imports every module of a package, so that a component in a new file is registered."""
    for module in pkgutil.walk_packages(path, f"{package}."):
        importlib.import_module(module.name)


CHOOSERS: Dict[str, Registry[Any]] = {}  # registries by what names an entry; see `chosen_by`


class Registry(Generic[Maker]):
    """Makers of one kind of component by name.

    Args:
        kind: What the entries are, in the words of an error message, e.g. "box coder".
        tpu: What to choose if a TPU cannot run an operation of an entry; empty if it runs all
            entries and plug-ins add none.
        arguments: What functions of plug-ins are called with, by position.
        chosen_by: What names an entry in a configuration: a oneof group, such as
            "BoxCoder.box_coder_oneof", a field with its name, or a field whose message has a group.
    """

    def __init__(
        self, kind: str, tpu: str = "", chosen_by: str = "", arguments: Sequence[str] = ()
    ) -> None:
        self.kind = kind
        self.arguments = arguments
        if chosen_by:
            CHOOSERS[chosen_by] = self
        self.tpu = tpu
        self._makers: Dict[str, Maker] = {}

    def register(self, *names: str) -> Callable[[Maker], Maker]:
        """Decorator that enters a maker under each of `names`; UsageError if one is taken."""

        def enter(maker: Maker) -> Maker:
            plugins.note_registration(sys._getframe(1).f_globals["__name__"])
            for name in names:
                if name in self._makers:
                    raise UsageError(
                        f"{self.kind} {name!r} is registered twice; choose another name"
                    )
                self._makers[name] = maker
            return maker

        return enter

    def custom(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator that enters a function of a plug-in as `custom { name: … }`."""
        if not isinstance(name, str):
            raise UsageError(
                f'custom {self.kind}: the decorator needs a name, as in @….custom("my_name")'
            )
        return self._customs.register(name)

    @functools.cached_property
    def _customs(self) -> Registry[Callable[..., Any]]:
        return Registry(f"custom {self.kind}")

    def check_custom(self, config: custom_pb2.Custom, at: str) -> Iterator[Problem]:
        """Problems of a `Custom` message: its name, and its parameters."""
        if config.name not in self._customs:
            what, remedy = self._customs.refusal(config.name)
            what += f" as a custom {self.kind}"
            if config.name in self:
                what = f"{config.name!r} is the name of a field, not of a plug-in"
                remedy = f"set the field, or register a function by @….custom({config.name!r})"
            yield error(f"{at}.name", what, remedy)
            return
        functions = {config.name: self._customs.get(config.name)}
        message, remedy = plugins.wrong_arguments(functions[config.name], self.arguments)
        if message:
            yield error(f"{at}.name", f"{config.name!r}: {message}", remedy)
        yield from plugins.check_parameters(
            functions, config.parameters, config.name, f"{at}.parameters"
        )

    def custom_function(self, config: custom_pb2.Custom) -> functools.partial[Any]:
        """The function that a `Custom` message names, with its parameters."""
        functions = {config.name: self._customs.get(config.name)}
        return plugins.bind(functions, config.parameters)[config.name]

    def get(self, name: str) -> Maker:
        """The maker entered under `name`."""
        if name not in self._makers:
            what, remedy = self.refusal(name)
            raise UsageError(f"{self.kind} {what}. Remedy: {remedy}")
        return self._makers[name]

    def refusal(self, name: str, reserved: Collection[str] = ()) -> Tuple[str, str]:
        """Message and remedy for a name that has no entry; `reserved` are not misspelt."""
        supported = ", ".join(sorted(self))
        if name in reserved:
            return f"{name!r} is not supported yet", f"supported: {supported}"
        hint = nearest(name, list(self)).removeprefix("; ")
        known = f"Supported: {supported or 'none'}. {plugins.HINT}"
        return f"{name!r} is not known", f"{hint} {known}".strip()

    def make_chosen(self, message: Message, *arguments: Any) -> Any:
        """Result of the maker of the member that is set in a message, called with `arguments`.

        The message has a single oneof.
        """
        (oneof,) = message.DESCRIPTOR.oneofs
        kind = message.WhichOneof(oneof.name)
        maker: Any = self._makers[kind]
        return maker(getattr(message, kind), *arguments)

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)
