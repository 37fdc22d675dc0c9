"""What the rules say about a message, for tests of components."""

from __future__ import annotations

from typing import Any

from google.protobuf import text_format

from estimator_det.config import rules


def faults(message: Any, text: str = "", at: str = "at") -> str:
    """Problems of a message into which a text is parsed, in lines; "" if there are none."""
    return "\n".join(map(str, rules.check(text_format.Parse(text, message), at)))
