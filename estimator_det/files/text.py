"""Text of any length, for messages and lines of a file."""

from __future__ import annotations

LONGEST_VALUE = 200  # characters of one value in a message


def shortened(text: str, most: int = LONGEST_VALUE) -> str:
    """`text` without its middle if it has more than `most` characters."""
    # The end is kept because it usually says what to do.
    if len(text) <= most:
        return text
    head = most * 3 // 4
    tail = most - head
    return f"{text[:head]} … ({len(text) - most:,} characters more) … {text[-tail:]}"
