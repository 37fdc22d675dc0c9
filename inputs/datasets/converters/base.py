"""The registry of converters, and the options that each one takes."""

from __future__ import annotations

from dataclasses import fields
from typing import Callable, Dict, NamedTuple, Tuple

from estimator_det.config.registry import Registry
from estimator_det.config.text import ConfigError
from inputs.datasets.source import Source, SourceOptions

Converter = Callable[[SourceOptions], Source]

CONVERTERS: Registry[Converter] = Registry("dataset format")


# Fields of SourceOptions that are options of `convert`.
FIELDS = tuple(field.name for field in fields(SourceOptions) if field.name != "scratch")


class ConverterOptions(NamedTuple):
    """Options of a converter besides its files."""

    required: Tuple[str, ...]  # fields of SourceOptions
    optional: Tuple[str, ...] = ()
    masks: bool = False  # whether the format has masks
    masks_from: str = ""  # the field that names them; "" if they are among the annotations


_TAKES: Dict[Converter, ConverterOptions] = {}


def takes(
    *required: str, optional: Tuple[str, ...] = (), masks: bool = False, masks_from: str = ""
) -> Callable[[Converter], Converter]:
    """Decorator that names the fields of `SourceOptions` that a converter uses."""

    def enter(converter: Converter) -> Converter:
        _TAKES[converter] = ConverterOptions(required, optional, masks, masks_from)
        return converter

    return enter


def options_of(name: str) -> ConverterOptions:
    """Options that the converter of a format accepts."""
    return _TAKES[CONVERTERS.get(name)]


def open_source(name: str, options: SourceOptions, *, masks: bool = False) -> Source:
    """The data set of a format."""
    convert, known = CONVERTERS.get(name), options_of(name)
    for field in FIELDS:
        is_given = getattr(options, field) not in ("", None)
        if field in known.required and not is_given:
            raise ConfigError(None, f"--from {name} needs --{field}", "add it")
        if is_given and field not in (*known.required, *known.optional):
            raise ConfigError(None, f"--{field} has no effect with --from {name}", "remove it")
    if masks and not known.masks:
        raise ConfigError(
            None, f"--masks has no effect with --from {name}, which has none", "remove it"
        )
    if masks and known.masks_from and not getattr(options, known.masks_from):
        raise ConfigError(None, f"--masks needs --{known.masks_from} with --from {name}", "add it")
    return convert(options)
