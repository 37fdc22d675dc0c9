"""Finds messages quoted in documentation among the string literals of the sources.

`python -m tests.messages docs/troubleshooting.md` prints each quoted message that no literal
contains, with the most similar literal.

In a quoted message, a number, `N` and `<name>` stand for one value, and `…` for any text.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import re
import sys
from typing import Iterable, Iterator, List, NamedTuple, Sequence

from estimator_det.config.text import ConfigError

ROOT = pathlib.Path(__file__).parent.parent
ROOMS = ("estimator_det", "exporters", "inputs", "model_fn")

VALUE = "\0"
_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?!\w)")
_PERCENT_FORMAT = re.compile(r"%[-+#0-9.]*[sdrfg]")
_BRACE_FORMAT = re.compile(r"\{[\w.!:]*\}")
_QUOTED_VALUE = re.compile(r"<[\w ]+>|\bN\b")
_VALUES = re.compile(f"'?{VALUE}+'?")
_NO_MESSAGE = re.compile(
    r"(estimator-det|python|docker|pip|--)\b"  # commands
    r"|--"
    r"|\w+: [\w.]+$"  # a field with its value
    r"|\w+ \{"  # a message of the configuration
)


class Literal(NamedTuple):
    """A string of the sources with each value in it replaced by `VALUE`."""

    text: str
    place: str  # file:line


def quoted_messages(page: str) -> List[str]:
    """The messages in a Markdown text: all quotes of several words but commands and settings."""
    prose = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    quotes = [" ".join(quote.split()) for quote in re.findall(r"`([^`]+)`", prose)]
    return [quote for quote in quotes if " " in quote and not _NO_MESSAGE.match(quote)]


@functools.cache
def literals(rooms: Sequence[str] = ROOMS) -> List[Literal]:
    """Every string literal and f-string of the rooms, docstrings left out."""
    return [
        literal
        for room in rooms
        for path in sorted((ROOT / room).rglob("*.py"))
        if not path.name.endswith("_pb2.py")
        for literal in literals_of(path.read_text(), str(path.relative_to(ROOT)))
    ]


def literals_of(source: str, file: str) -> Iterator[Literal]:
    """The literals of one module; parts that Python joins are one literal."""
    skipped = set()
    for node in ast.walk(ast.parse(source)):  # a node comes before its parts
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in node.values)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ConfigError":
            parts = [_template(part) for part in node.args if ast.unparse(part) != "None"]
            text = str(ConfigError(*(["", *parts] if len(parts) < len(node.args) else parts)))
            yield Literal(_normalized(text), f"{file}:{node.lineno}")
        elif not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if isinstance(node, (ast.JoinedStr, ast.Constant)) and id(node) not in skipped:
            yield Literal(_normalized(_template(node)), f"{file}:{node.lineno}")


def _template(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_template, node.values))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _BRACE_FORMAT.sub(VALUE, _PERCENT_FORMAT.sub(VALUE, node.value))
    return VALUE


def _normalized(text: str) -> str:
    """Numbers as values, adjacent values as one, each run of white space as one space."""
    return " ".join(_VALUES.sub(VALUE, _NUMBER.sub(VALUE, text)).split())


def contains(literal: Literal, message: str) -> bool:
    """Whether the quoted message is a part of what the literal becomes."""
    return bool(_pattern(message).search(literal.text))


def _pattern(message: str) -> re.Pattern[str]:
    with_values = _normalized(_QUOTED_VALUE.sub(VALUE, message))
    parts = [part.strip() for part in with_values.split("…")]
    return re.compile(".*?".join(map(re.escape, parts)))


def fixed_words(message: str) -> List[str]:
    """The words of a quoted message that stand for themselves."""
    return re.findall(r"[A-Za-z_]{2,}", _normalized(_QUOTED_VALUE.sub(VALUE, message)))


def unmatched(messages: Iterable[str], known: Sequence[Literal]) -> List[str]:
    """A line for each message that no literal contains, with the most similar literal."""
    lines = []
    # No literal contains a line break, and no pattern matches one: a search in all at once.
    texts = "\n".join(literal.text for literal in known)
    for message in messages:
        if _pattern(message).search(texts):
            continue
        words = set(fixed_words(message))

        def similarity(literal: Literal, words: set[str] = words) -> float:
            theirs = set(re.findall(r"[A-Za-z_]{2,}", literal.text))
            return len(words & theirs) ** 2 / max(len(words) * len(theirs), 1)

        best = max(known, key=similarity)
        shown = best.text.replace(VALUE, "<value>")
        lines.append(f"quoted:  {message}\nnearest: {shown}\n         {best.place}")
    return lines


if __name__ == "__main__":
    found = unmatched(quoted_messages(pathlib.Path(sys.argv[1]).read_text()), literals())
    print("\n".join(found))
    sys.exit(bool(found))
