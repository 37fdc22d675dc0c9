"""The report of a conversion to records: as text, for JSON, and as charts."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from estimator_det.config.printing import counted
from inputs.bad_records.kinds import SOURCE_KINDS
from inputs.conversion import tally
from inputs.conversion.engine import Conversion
from inputs.datasets.source import CLIPPED, DROPPED, KEPT, SKIPPED
from model_fn.checks.data_report import class_lines, text_bars
from model_fn.drawing import charts

EFFECTS = {
    SKIPPED: "skipped",
    DROPPED: "dropped",
    CLIPPED: "clipped to the image",
    KEPT: "used unchanged",
}


def text_lines(conversion: Conversion) -> List[str]:
    """The report for a terminal."""
    lines: List[str] = []
    for name, counts in conversion.tally["splits"].items():
        empty = counts["images_without_boxes"]
        lines += [
            f"{name}: {counted(counts['images'], 'image')}, {counted(counts['boxes'], 'box')}"
            + (f"; {counted(empty, 'image')} without boxes" if empty else ""),
            f"  {conversion.patterns[name]}",
        ]
        if not counts["images"]:
            lines.append("  warning: this split is empty")
        lines += class_lines(_classes(counts), counts["boxes"], conversion.names)
        for histogram in tally.histograms(counts):
            lines += text_bars(histogram)
        lines.append("")
    lines += _fault_lines(conversion)
    notes = conversion.tally
    if notes["masks_left_out"]:
        found = counted(notes["masks_left_out"], "mask")
        lines.append(f"{found} of the source are not written; --masks writes them")
    if notes["encoded_again"]:
        lines.append(f"{counted(notes['encoded_again'], 'image')} encoded again")
    if conversion.num_unlisted:
        lines.append(f"{counted(conversion.num_unlisted, 'image')} in no list of --split, left out")
    if conversion.num_resumed:
        lines.append(f"{counted(conversion.num_resumed, 'shard')} of an earlier run kept")
    lines.append(f"label map: {conversion.label_map}")
    return lines


def faults(conversion: Conversion) -> Dict[Tuple[str, str], Any]:
    """(kind, action) -> how many, and examples; in the order of the table of faults."""
    found = {tuple(key.split()): row for key, row in conversion.tally["faults"].items()}
    order = list(SOURCE_KINDS)
    return {
        (kind, action): found[kind, action]
        for kind, action in sorted(found, key=lambda key: (order.index(key[0]), key[1]))
    }


def as_dictionary(conversion: Conversion) -> Dict[str, Any]:
    """The report as JSON takes it."""
    splits = {}
    for name, counts in conversion.tally["splits"].items():
        splits[name] = {
            "records": conversion.patterns[name],
            "images": counts["images"],
            "boxes": counts["boxes"],
            "images_without_boxes": counts["images_without_boxes"],
            "classes": [
                {"id": number, "name": conversion.names[number], "boxes": boxes, "images": images}
                for number, (boxes, images) in _classes(counts).items()
            ],
            "histograms": {
                one.title: dict(zip(one.names, one.counts.tolist()))
                for one in tally.histograms(counts)
            },
        }
    return {
        "splits": splits,
        "label_map": conversion.label_map,
        "faults": [
            {"kind": kind, "action": action, **row}
            for (kind, action), row in faults(conversion).items()
        ],
        "masks_left_out": conversion.tally["masks_left_out"],
        "images_encoded_again": conversion.tally["encoded_again"],
        "images_in_no_split": conversion.num_unlisted,
        "shards_of_an_earlier_run": conversion.num_resumed,
        "seconds": round(conversion.seconds, 3),
    }


def panels(conversion: Conversion) -> List[charts.Panel]:
    """Charts of all splits together."""
    splits = conversion.tally["splits"]
    classes = {name: _classes(counts) for name, counts in splits.items()}
    used = sorted(set().union(*classes.values()))
    result = []
    if used:
        result.append(
            charts.bar_chart(
                "boxes by class",
                [conversion.names[number] for number in used],
                {
                    name: [found.get(number, (0, 0))[0] for number in used]
                    for name, found in classes.items()
                },
                y_label="boxes",
                width=3,
            )
        )
    columns = {name: tally.histograms(counts) for name, counts in splits.items()}
    for parts in zip(*columns.values()):
        series = {name: part.counts.tolist() for name, part in zip(columns, parts)}
        unit = "boxes" if "of boxes" in parts[0].title else "images"
        result.append(charts.bar_chart(parts[0].title, parts[0].names, series, y_label=unit))
    return result


def _classes(counts: tally.Tally) -> Dict[int, Tuple[int, int]]:
    return {int(number): (boxes, n) for number, (boxes, n) in sorted(counts["classes"].items())}


def _fault_lines(conversion: Conversion) -> List[str]:
    lines = []
    for (kind, action), row in faults(conversion).items():
        table = SOURCE_KINDS[kind]
        found = counted(row["count"], table.unit)
        lines.append(f"{kind}: {table.description}: {found}, {EFFECTS[action]}")
        lines += [f"  {example}" for example in row["examples"]]
        if row["count"] > len(row["examples"]):
            lines.append(f"  … and {row['count'] - len(row['examples']):,} more")
    return [*lines, ""] if lines else []
