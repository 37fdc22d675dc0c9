"""The flags and fields of the services as docs/cloud.md lists them."""

from __future__ import annotations

import re
from typing import Any, Iterator, Set

from tests.conftest import TESTS

PAGE = TESTS.parent / "docs" / "cloud.md"


def names(title: str) -> Set[str]:
    """The names in the first column of the table whose heading contains `title`."""
    _, heading, rest = PAGE.read_text().partition(f"| {title} |")
    assert heading, f"{PAGE.name} has no table {title}"
    table = rest.split("\n\n")[0]
    rows = re.findall(r"^\| (`.*?`(?:, `.*?`)*) \|", table, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(.*?)`", row)}


def fields(value: Any, prefix: str = "") -> Iterator[str]:
    """The dotted paths of a description, without the numbers of lists."""
    if isinstance(value, dict):
        for key, entry in value.items():
            yield f"{prefix}{key}"
            yield from fields(entry, f"{prefix}{key}.")
    elif isinstance(value, list):
        for entry in value:
            yield from fields(entry, prefix)
