"""Counts of several parts of the data, readers or splits: as text, as charts and for JSON."""

from __future__ import annotations

import collections
from typing import Any, Counter, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from estimator_det.console.printing import cut
from inputs.checks.statistics import SCALES, Tally
from model_fn.drawing import charts

BAR_CELLS = 32  # width of a bar of text
NAME_CELLS = 26
MAX_BARS = 40  # bars of text: the first and the last ones
NUM_EXAMPLES = 3  # faults of a kind
_EIGHTHS = " ▏▎▍▌▋▊▉"


class CountTable(NamedTuple):
    """Counts by name."""

    title: str
    unit: str  # the thing that is counted
    names: Sequence[str]
    parts: Mapping[str, Sequence[int]]  # part -> a count for each name
    images: Mapping[str, Sequence[int]] = {}  # part -> images that have any, if boxes are counted


def make_tables(tallies: Mapping[str, Tally], names: Mapping[int, str]) -> List[CountTable]:
    """Boxes by class, the most frequent first, and a table for each scale.

    Arguments are the counts by part, and the name of each class id.
    """
    classes = {part: class_counts(tally) for part, tally in tallies.items()}
    totals: Counter[int] = collections.Counter()
    for rows in classes.values():
        totals.update({number: boxes for number, (boxes, _) in rows.items()})
    order = sorted(totals, key=lambda number: (-totals[number], number))
    boxes, images = (
        {
            part: [rows.get(number, (0, 0))[column] for number in order]
            for part, rows in classes.items()
        }
        for column in (0, 1)
    )
    labels = [f"{number} {names.get(number, '(in no label map)')}" for number in order]
    tables = [CountTable("boxes by class", "boxes", labels, boxes, images)] if order else []
    for key, scale in SCALES.items():
        parts = {part: tally[key] for part, tally in tallies.items() if key in tally}
        if parts:
            tables.append(CountTable(scale.title, scale.unit, scale.names, parts))
    return tables


def class_counts(tally: Tally) -> Dict[int, Tuple[int, int]]:
    """Class id -> boxes, and images that have any; by rising id."""
    counts = {int(number): (boxes, images) for number, (boxes, images) in tally["classes"].items()}
    return dict(sorted(counts.items()))


def text_bars(table: CountTable, part: str) -> List[str]:
    """A title, and a bar for each name with its count and share; empty ends are left out."""
    counts = np.asarray(table.parts.get(part, ()), np.int64)
    used = np.flatnonzero(counts)
    if not len(used):
        return []
    lines = [f"  {table.title}" + (", and images that have any" if table.images else "")]
    rows = range(used[0], used[-1] + 1)
    for place, row in enumerate(rows):
        if len(rows) > MAX_BARS and MAX_BARS // 2 <= place < len(rows) - MAX_BARS // 2:
            if place == MAX_BARS // 2:
                lines.append(f"    … {len(rows) - MAX_BARS:,} between")
            continue
        count = int(counts[row])
        name, bar = cut(table.names[row], NAME_CELLS), _bar(count / counts.max())
        line = f"    {name:<{NAME_CELLS}} {bar} {count:>9,} {count / counts.sum():>6.1%}"
        lines.append(line + (f" {table.images[part][row]:>9,}" if table.images else ""))
    return lines


def panel(table: CountTable) -> charts.Panel:
    """The table as a chart, in which bars of the parts are side by side."""
    counts = [count for part in table.parts.values() for count in part if count]
    return charts.bar_chart(
        table.title,
        table.names,
        table.parts,
        y_label=table.unit,
        log=bool(table.images) and max(counts) > 100 * min(counts),
        width=3 if table.images else 1,
    )


def to_dictionary(tally: Tally, names: Mapping[int, str]) -> Dict[str, Any]:
    """The classes and histograms of a part as JSON takes them."""
    return {
        "images": tally["images"],
        "boxes": tally["boxes"],
        "images_without_boxes": tally["images_without_boxes"],
        "classes": [
            {"id": number, "name": names.get(number, ""), "boxes": boxes, "images": images}
            for number, (boxes, images) in class_counts(tally).items()
        ],
        "histograms": {
            scale.title: dict(zip(scale.names, tally[key]))
            for key, scale in SCALES.items()
            if key in tally
        },
    }


def examples(shown: Sequence[str], total: int) -> List[str]:
    """The first examples of a fault, and how many more there are."""
    lines = [f"    {text}" for text in shown[:NUM_EXAMPLES]]
    return lines + ([f"    … and {total - len(lines):,} more"] if total > len(lines) else [])


def at_most(lines: Sequence[str], most: int, nouns: str) -> List[str]:
    """The first `most` lines of a summary; the last one counts the lines that are left out."""
    if len(lines) <= most:
        return list(lines)
    return [*lines[: most - 1], f"… and {len(lines) - most + 1:,} more {nouns}"]


def _bar(share: float) -> str:
    """`BAR_CELLS` wide, filled in eighths of a cell from the left; anything above 0 is seen."""
    eighths = max(round(share * BAR_CELLS * 8), 1 if share > 0 else 0)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(BAR_CELLS)
