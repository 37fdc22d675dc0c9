"""What docs/ say is so: recipes run as they are printed, and messages are those of the programs."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
from typing import List

import pytest

from inputs.bad_records.kinds import KINDS

ROOT = pathlib.Path(__file__).parent.parent
TROUBLESHOOTING = ROOT / "docs" / "troubleshooting.md"
RECIPES = sorted((ROOT / "docs").glob("adding_*.md"))


def test_every_kind_of_part_has_its_recipe():
    kinds = {path.stem for path in RECIPES}
    assert {"adding_a_feature_extractor", "adding_a_loss", "adding_an_augmentation"} <= kinds


@pytest.mark.slow
@pytest.mark.parametrize("page", RECIPES, ids=lambda path: path.stem)
def test_recipe_runs(page):
    # A process of its own: a recipe registers parts, which must not leak into other tests.
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks, f"{page.name} has no example"
    result = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)],
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]


def test_troubleshooting_has_every_kind_of_fault():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", TROUBLESHOOTING.read_text(), re.MULTILINE)
    explained = {kind: what for kind, what in rows if kind in KINDS}
    assert explained == {kind: row.description for kind, row in KINDS.items()}


def test_messages_of_troubleshooting_are_those_of_the_programs():
    page = TROUBLESHOOTING.read_text()
    quoted = re.findall(r"^### (.*)$", page, re.MULTILINE)
    quoted += re.findall(r"^\| (`[^|]*`) \|[^|]*\|$", page, re.MULTILINE)
    messages = [text for line in quoted for text in re.findall(r"`(.*?)`", line)]
    assert len(messages) > 30
    sources = [
        path.read_text()
        for folder in ("estimator_det", "inputs", "model_fn")
        for path in (ROOT / folder).rglob("*.py")
    ]
    # Literals that go on in the next line, as one.
    literals = re.sub(r'"\s*\n\s*f?"', "", "\n".join(sources))
    missing = [text for text in messages if not any(part in literals for part in _pairs(text))]
    assert not missing


def _pairs(message: str) -> List[str]:
    """Neighbouring words; numbers, names and paths among them are filled in at run time."""
    words = message.split()
    return [" ".join(pair) for pair in zip(words, words[1:])] or words
