"""The page of all extractors."""

from __future__ import annotations

from typing import List, Sequence

from benchmarks.extractors import two_stage, usual
from benchmarks.extractors.graphs import Facts

COLUMNS = (
    "Type",
    "Also as",
    "Parameters (M)",
    "Multiply-adds (G)",
    "Input",
    "Feature maps",
    "TPU",
    "Refuses",
    "Ignores",
)

INTRODUCTION = """# Feature extractors

Written by `python -m benchmarks.extractors --table docs/extractors.md`; do not edit.

A type is what `feature_extractor {{ type: "…" }}` takes.

## Single shot

Each row is counted from the graph that the settings of its published configurations build:
`depth_multiplier` 1 ({embedded} has 0.125), `min_depth` 16, and `use_depthwise`
where the published configuration is an SSDLite.

* **Parameters**: trainable ones of backbone and feature maps, in millions; heads come on top.
* **Multiply-adds**: of the convolutions and matrix products that feature maps of one image of that
  size need, without heads, in thousand millions (10⁹).
* **Input**: height and width of an image in pixels. The embedded one takes no other.
* **Feature maps**: height x width x channels, finest first.
* **TPU**: yes, if every operation that gradients and batch-norm updates of the extractor depend on
  has an XLA kernel in the installed TensorFlow, and every tensor a shape that is known when the
  graph is built. That is what TPUs ask of a program; the rule is worked out, not tried on a TPU.
* **Refuses**: fields that must not be set ("unset": must be set); the error says what to do.
* **Ignores**: fields that have no effect, as in the reference.
"""


def cells(kind: str, aliases: List[str], found: Facts) -> List[str]:
    """The row of a type."""
    return [
        f"`{kind}`",
        "<br>".join(f"`{alias}`" for alias in aliases),
        f"{found.parameters / 1e6:.2f}",
        f"{found.multiply_adds / 1e9:.2f}",
        f"{found.size} x {found.size}",
        "<br>".join(" x ".join(str(side) for side in sides) for sides in found.maps),
        "no: " + ", ".join(found.obstacles) if found.obstacles else "yes",
        "<br>".join(f"`{field}`" for field in found.refuses),
        "<br>".join(f"`{field}`" for field in found.ignores),
    ]


def line(row: List[str]) -> str:
    """A row in Markdown."""
    return "| " + " | ".join(row) + " |"


def page(rows: List[List[str]], two_stage_rows: List[List[str]]) -> str:
    """The whole page."""
    return head(rows) + two_stage.INTRODUCTION + _table(two_stage.COLUMNS, two_stage_rows)


def head(rows: List[List[str]]) -> str:
    """The page down to the table of single-shot extractors."""
    embedded = next(kind for kind in usual.types() if kind.startswith("embedded"))
    return INTRODUCTION.format(embedded=f"`{embedded}`") + _table(COLUMNS, rows)


def _table(columns: Sequence[str], rows: List[List[str]]) -> str:
    lines = [line(list(columns)), line(["---"] * len(columns)), *map(line, rows)]
    return "\n" + "\n".join(lines) + "\n"
