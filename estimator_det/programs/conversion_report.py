"""The report of a conversion to records: as text, for JSON, and as charts."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

from estimator_det.console.printing import counted, listed, quoted
from inputs.bad_records.kinds import SOURCE_KINDS
from inputs.conversion.engine import Conversion
from inputs.datasets.source import CLIPPED, KEPT, fault_unit
from model_fn.checks import tables

EFFECTS = {CLIPPED: "clipped to the image", KEPT: "used unchanged"}  # other actions are shown as is
SUMMARY_SPLITS, SUMMARY_FAULTS = 4, 3  # lines of a summary


def text_lines(conversion: Conversion) -> List[str]:
    """The whole report."""
    lines: List[str] = []
    all_tables = make_tables(conversion)
    for name, heading in _headings(conversion).items():
        lines += [heading, f"  {conversion.patterns[name]}"]
        for table in all_tables:
            lines += tables.text_bars(table, name)
        lines.append("")
    for kind, action, row in _faults(conversion):
        lines.append(_fault_heading(kind, action, row))
        lines += tables.examples(row["examples"], row["count"])
    return [*lines, *([""] if lines[-1] else []), *_notes(conversion)]


def summary_lines(conversion: Conversion) -> List[str]:
    """The report in 13 lines at most: splits, kinds of faults, notes."""
    headings = list(_headings(conversion).values())
    faults = [_fault_heading(*fault) for fault in _faults(conversion)]
    return [
        *tables.at_most(headings, SUMMARY_SPLITS, "splits"),
        *tables.at_most(faults, SUMMARY_FAULTS, "kinds of faults: see --verbose"),
        *_notes(conversion),
    ]


def make_tables(conversion: Conversion) -> List[tables.CountTable]:
    """Boxes by class and a table for each scale, of all splits."""
    return tables.make_tables(conversion.tally["splits"], conversion.names)


def to_dictionary(conversion: Conversion) -> Dict[str, Any]:
    """The report as JSON takes it."""
    return {
        "splits": {
            name: {
                "records": conversion.patterns[name],
                **tables.to_dictionary(counts, conversion.names),
            }
            for name, counts in conversion.tally["splits"].items()
        },
        "label_map": conversion.label_map,
        "faults": [
            {"kind": kind, "action": action, **row} for kind, action, row in _faults(conversion)
        ],
        "masks_left_out": conversion.tally["masks_left_out"],
        "keypoints_without_names": conversion.tally["keypoints_without_names"],
        "images_left_empty": conversion.tally["images_left_empty"],
        "images_encoded_again": conversion.tally["encoded_again"],
        "box_parts_cut": conversion.tally["box_parts_cut"],
        "boxes_in_no_tile": conversion.tally["boxes_in_no_tile"],
        "images_in_no_split": conversion.num_unlisted,
        "shards_of_an_earlier_run": conversion.num_resumed,
        "seconds": round(conversion.seconds, 3),
    }


def _faults(conversion: Conversion) -> List[Tuple[str, str, Any]]:
    """Kind, action, and row with count and examples, in the order of the table of faults."""
    order = list(SOURCE_KINDS)
    faults = [(*key.split(), row) for key, row in conversion.tally["faults"].items()]
    return sorted(faults, key=lambda fault: (order.index(fault[0]), fault[1]))


def _fault_heading(kind: str, action: str, row: Any) -> str:
    table = SOURCE_KINDS[kind]
    count_text = counted(row["count"], fault_unit(kind, action))
    return f"{kind}: {table.description}: {count_text}, {EFFECTS.get(action, action)}"


def _headings(conversion: Conversion) -> Dict[str, str]:
    """Split -> its numbers of images and boxes."""
    headings = {}
    for name, counts in conversion.tally["splits"].items():
        empty = counts["images_without_boxes"]
        headings[name] = (
            f"{name}: {counted(counts['images'], 'image')}, {counted(counts['boxes'], 'box')}"
            + (f"; {counted(empty, 'image')} without boxes" if empty else "")
            + ("" if counts["images"] else "; warning: this split is empty")
        )
    return headings


def _notes(conversion: Conversion) -> List[str]:
    tally = conversion.tally
    notes = (
        (tally["images_left_empty"], "image", "whose boxes are all dropped, used without boxes"),
        (tally["masks_left_out"], "mask", "of the source not written; --masks writes them"),
        (
            tally["keypoints_without_names"],
            "object",
            "with keypoints that the class does not name: training learns only named ones; add "
            "their names to the categories of COCO, or give a --label_map that has them",
        ),
        (tally["encoded_again"], "image", "encoded again"),
        (tally["box_parts_cut"], "part", "of boxes, below half of the box, cut off by tiles"),
        (tally["boxes_in_no_tile"], "box", "too large for a tile, left out; take larger --tiles"),
        (conversion.num_unlisted, "image", "in no list of --split, left out"),
        (conversion.num_resumed, "shard", "of an earlier run kept"),
    )
    lines = [f"{counted(number, noun)} {text}" for number, noun, text in notes if number]
    return [*lines, *_similar_classes(conversion.names), f"label map: {conversion.label_map}"]


def _similar_classes(names: Mapping[int, str]) -> List[str]:
    """A warning of classes that are probably one: they differ in case, blanks or a plural s."""
    groups: Dict[str, List[str]] = {}
    for name in names.values():
        groups.setdefault("".join(name.split()).casefold().removesuffix("s"), []).append(name)
    similar = [" and ".join(map(quoted, group)) for group in groups.values() if len(group) > 1]
    if not similar:
        return []
    return [
        f"warning: classes that differ in case, blanks or plural only: {listed(similar, 5)}; if "
        "they are one, give them one name in the annotations"
    ]
