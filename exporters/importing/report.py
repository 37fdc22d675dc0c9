"""The report of an import: where each variable comes from, and what is missing or not used."""

from __future__ import annotations

from collections import Counter
from typing import List, NamedTuple, Sequence

from estimator_det.config.printing import escaped
from exporters.importing.mapping import COPIED, MISSING, OTHER_SHAPE, REBUILT, Mapped

REPORT_FILE = "import_report.txt"

_MEANINGS = {
    COPIED: "as in the file",
    REBUILT: "from batch norm that is folded in the file",
    OTHER_SHAPE: "in the file with another shape; not in the checkpoint",
    MISSING: "not in the file; not in the checkpoint",
}


class Note(NamedTuple):
    """A line about an import."""

    text: str
    is_warning: bool = False


def summary(mapped: Mapped) -> List[str]:
    """A line for each state of variables."""
    counts = Counter(row.state for row in mapped.rows)
    return [
        f"{counts[state]} of {len(mapped.rows)} variables: {state}, {meaning}"
        for state, meaning in _MEANINGS.items()
        if counts[state]
    ]


def report_text(source: str, mapped: Mapped, notes: Sequence[Note]) -> str:
    """The whole report.

    Args:
        source: Format and path of the file.
        notes: Further lines, e.g. about anchors.
    """
    lines = [f"Import of {source}", "", *summary(mapped)]
    lines += [f"warning: {note.text}" if note.is_warning else note.text for note in notes]
    lines += ["", "Variables: state, name, names in the file"]
    lines += [f"  {row.state:<8} {row.variable}: {row.source}" for row in mapped.rows]
    lines += ["", f"Layers whose batch norm is rebuilt: {len(mapped.folded)}"]
    lines += [f"  {each.name}" for each in mapped.folded]
    lines += ["", f"Arrays of the file that are not used: {len(mapped.unused)}"]
    lines += [f"  {name}" for name in mapped.unused]
    return "\n".join(map(escaped, lines)) + "\n"
