"""Counts of a conversion that add up over its shards, and need no more memory for more images."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Optional, Sequence

import numpy as np

from inputs.checks import statistics
from inputs.checks.statistics import Columns
from inputs.datasets.source import SourceFault

NUM_EXAMPLES = 3  # faults of a kind that a report shows

Tally = Dict[str, Any]  # numbers, lists of numbers and dictionaries of them, as JSON keeps them


def count_columns(columns: Columns, resized_boxes: Optional[np.ndarray] = None) -> Tally:
    """The counts of some images of one part; `resized_boxes` as for `count_by_scales`."""
    counts = statistics.count_by_scales(columns, resized_boxes)
    return {
        "images": columns.num_images,
        "boxes": columns.num_boxes,
        "images_without_boxes": int((statistics.boxes_per_image(columns) == 0).sum()),
        "classes": {
            str(i): list(class_count) for i, class_count in statistics.class_counts(columns).items()
        },
        **{key: values.tolist() for key, values in counts.items()},
    }


def count_faults(faults: Iterable[SourceFault]) -> Tally:
    """Kind and action with a space between -> how many, and the first of them as sentences."""
    tally: Tally = {}
    for fault in faults:
        row = tally.setdefault(f"{fault.kind} {fault.action}", {"count": 0, "examples": []})
        row["count"] += 1
        if len(row["examples"]) < NUM_EXAMPLES:
            row["examples"].append(fault.sentence())
    return tally


def add(tallies: Sequence[Any]) -> Any:
    """The sum of numbers, lists of numbers, and dictionaries key by key; examples are joined."""
    first = tallies[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for each in tallies for key in each)
        return {key: add([each[key] for each in tallies if key in each]) for key in keys}
    if isinstance(first, list):
        if any(isinstance(value, str) for each in tallies for value in each):
            return [value for each in tallies for value in each][:NUM_EXAMPLES]
        return [sum(values) for values in zip(*tallies)]
    return sum(tallies)
