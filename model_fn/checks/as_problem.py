"""A `ConfigError` as a problem of the field that it is about."""

from __future__ import annotations

import re
from typing import Any

from estimator_det.config.problem import Problem, error
from estimator_det.config.text import ConfigError

_NAMED_FIELD = re.compile(r"(?P<path>[a-z_][\w.\[\]']*): (?P<rest>.+)", re.DOTALL)


def as_problem(reason: ConfigError, config: Any) -> Problem:
    """An error of the field that the text of a `ConfigError` begins with, else of the model."""
    text = str(reason).rstrip(".")
    named = _NAMED_FIELD.fullmatch(text)
    kind = config.model.WhichOneof("model")
    field = f"model.{kind}" if kind else "model"
    if named is not None:
        first = re.split(r"[.\[]", named["path"])[0]
        for prefix, message in (
            ("", config),
            ("model.", config.model),
            (f"{field}.", getattr(config.model, kind) if kind else config.model),
            ("train_config.", config.train_config),
        ):
            if first in message.DESCRIPTOR.fields_by_name:
                field, text = prefix + named["path"], named["rest"]
                break
    return error(field, text, "choose what is supported, or remove it")
