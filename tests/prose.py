"""Lint for English: `python -m tests.prose` lists findings that `prose_allowed.txt` does not have.

    python -m tests.prose --write    # allow what there is now, after a look at each finding

It reads names, docstrings, comments and messages of the product. Each rule finds a pattern that
makes text hard to read; a finding can be right, and is then on the list of allowed ones.
"""

from __future__ import annotations

import argparse
import ast
import collections
import io
import pathlib
import re
import sys
import tokenize
from typing import Counter, Iterator, Tuple

ROOT = pathlib.Path(__file__).parent.parent
ALLOWED = pathlib.Path(__file__).with_name("prose_allowed.txt")
FOLDERS = ("estimator_det", "inputs", "model_fn", "exporters", "benchmarks")

# A name is a noun that says what the value is.
_EMPTY_NAME = re.compile(
    r"_*(made|found|given|passed|taken|drawn|gone|said|settled|heeded|untouched|around|within|"
    r"one|own|other|more|whole|remarks|terminable|unfailing)$|(of|in|on|as|by|where)_[a-z]+$"
)
# A docstring begins with a verb or with a noun phrase that names the result.
_FRAGMENT = re.compile(
    r"(Of|That of|That which|Those|The one|What|Where|How (many|much|often|long)|Within,|All of it|"
    r"As (in|of|by|there)|In place of|To that end)\b"
)
_EMPTY_ENTRY = re.compile(r"(Of[ `]|As of|As in|That of|See )")
_COMMENT_FRAGMENT = re.compile(r"# *(of|what|whose|where|that of|those|as)\b", re.IGNORECASE)
_STIFF = re.compile(
    r"\b(mend(s|ed)?|tells?|told|goes? (on|along)|gives? back|given back|without end|so many|"
    r"so much as|lays?|laid|hears?|stands? (for|in|beside)|comes? down|none of its|(are|is) news|"
    r"slip of the keyboard|most often|anew|beside other|in its place|found again|left alone|"
    r"for ever|takes? part)\b"
)
_ENTRY = re.compile(r"^    (\w+): (.{1,44})$", re.MULTILINE)

Finding = Tuple[str, str, str]  # file, rule, text


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _docstrings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""


def _comments(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def findings(text: str) -> Iterator[Tuple[str, str]]:
    """Rule and text of each finding in the source of a Python file."""
    tree = ast.parse(text)
    yield from (("name without a noun", name) for name in _names(tree) if _EMPTY_NAME.match(name))
    for docstring in _docstrings(tree):
        if _FRAGMENT.match(docstring):
            yield "docstring begins with a fragment", docstring.split("\n")[0]
        for name, entry in _ENTRY.findall(docstring):
            if _EMPTY_ENTRY.match(entry):
                yield "argument entry says nothing", f"{name}: {entry}"
    for comment in _comments(text):
        if _COMMENT_FRAGMENT.match(comment):
            yield "comment is a fragment", comment
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for match in _STIFF.finditer(node.value):
                yield "stiff words", match[0]


def all_findings() -> Counter[Finding]:
    """Findings of the product's files, with how often each occurs."""
    counts: Counter[Finding] = collections.Counter()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.name.endswith("_pb2.py"):
                file = str(path.relative_to(ROOT))
                counts.update((file, *finding) for finding in findings(path.read_text()))
    return counts


def _lines(counts: Counter[Finding]) -> Iterator[str]:
    for finding, count in sorted(counts.items()):
        yield from [": ".join(finding)] * count


def main() -> int:
    """Prints findings that are not allowed, and entries without a finding; 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {ALLOWED.name}")
    now = list(_lines(all_findings()))
    if parser.parse_args().write:
        ALLOWED.write_text("".join(f"{line}\n" for line in now))
        return 0
    allowed = ALLOWED.read_text().splitlines()
    added = collections.Counter(now) - collections.Counter(allowed)
    gone = collections.Counter(allowed) - collections.Counter(now)
    for line in added.elements():
        print(line)
    for line in gone.elements():
        print(f"{ALLOWED.name}: no longer there, remove the line: {line}")
    return bool(added or gone)


if __name__ == "__main__":
    sys.exit(main())
