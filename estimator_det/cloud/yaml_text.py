"""Writes the YAML of job descriptions: mappings, lists, texts, numbers and booleans."""

from __future__ import annotations

import json
import re
from typing import Any, List

# What no reader of YAML takes for a number, a boolean or a date; other texts are quoted.
_PLAIN = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[A-Za-z][\w./-]*", re.IGNORECASE)


def to_yaml(value: Any) -> str:
    """The text of a mapping or list, in the order of its entries."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> List[str]:
    if isinstance(value, dict) and value:
        lines = []
        for key, entry in value.items():
            if isinstance(entry, (dict, list)) and entry:
                indent = "" if isinstance(entry, list) else "  "
                lines += [f"{key}:", *(indent + line for line in _lines(entry))]
            else:
                lines.append(f"{key}: {_scalar(entry)}")
        return lines
    if isinstance(value, list) and value:
        lines = []
        for entry in value:
            first, *rest = _lines(entry)
            lines += [f"- {first}", *(f"  {line}" for line in rest)]
        return lines
    return [_scalar(value)]


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value)  # JSON is YAML
