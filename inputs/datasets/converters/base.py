"""The registry of converters, and the options that each one uses."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Callable, NamedTuple, Tuple

from estimator_det.config import plugins
from estimator_det.config.registry import Registry
from estimator_det.errors import UsageError
from inputs.datasets.source import Source, SourceOptions

# Fields of SourceOptions that are options of `convert`.
FIELDS = tuple(field.name for field in fields(SourceOptions) if field.name != "scratch")


class Converter(NamedTuple):
    """The function of a format, and the options that it uses."""

    read: Callable[[SourceOptions], Source]
    required: Tuple[str, ...]  # fields of SourceOptions
    optional: Tuple[str, ...]
    masks: bool  # True if the format has masks
    masks_from: str  # the field whose file names masks; "" if the annotations have them


CONVERTERS: Registry[Any] = Registry("dataset format")  # the entries are `Converter`s


def takes(
    *required: str, optional: Tuple[str, ...] = (), masks: bool = False, masks_from: str = ""
) -> Callable[[Callable[[SourceOptions], Source]], Converter]:
    """Decorator that names the fields of `SourceOptions` that a converter uses."""
    plugins.require_names("@takes", required, FIELDS)
    plugins.require_names("optional of @takes", optional, FIELDS)
    return lambda read: Converter(read, required, optional, masks, masks_from)


def open_source(name: str, options: SourceOptions, *, masks: bool = False) -> Source:
    """The data set of a format."""
    converter = CONVERTERS.get(name)
    for field in FIELDS:
        is_given = getattr(options, field) not in ("", None)
        if field in converter.required and not is_given:
            raise UsageError(f"--from {name} needs --{field}; add it")
        if is_given and field not in (*converter.required, *converter.optional):
            raise UsageError(f"--{field} has no effect with --from {name}; remove it")
    if masks and not converter.masks:
        raise UsageError(f"--masks has no effect with --from {name}, which has none; remove it")
    if masks and converter.masks_from and not getattr(options, converter.masks_from):
        raise UsageError(f"--masks needs --{converter.masks_from} with --from {name}; add it")
    return converter.read(options)
