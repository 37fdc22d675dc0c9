"""Text of any length, for messages and lines of a file, and names with commas between."""

from __future__ import annotations

import csv
from typing import List

LONGEST_VALUE = 200  # characters of one value in a message


def shortened(text: str, most: int = LONGEST_VALUE) -> str:
    """`text` without its middle if it has more than `most` characters."""
    # The end is kept because it usually says what to do.
    if len(text) <= most:
        return text
    head = most * 3 // 4
    tail = most - head
    return f"{text[:head]} … ({len(text) - most:,} characters more) … {text[-tail:]}"


def names_of(text: str) -> List[str]:
    """`'a, "b, c"'` -> `["a", "b, c"]`."""
    line = " ".join(text.replace("\0", " ").splitlines())  # Python 3.9 refuses the character 0
    names = next(csv.reader([line], skipinitialspace=True))
    return [name.strip() for name in names] or [text]
