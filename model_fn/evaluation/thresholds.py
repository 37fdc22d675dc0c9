"""The score threshold that maximises F1, for each class and for all classes with one threshold.

F1 is the harmonic mean of precision and recall: 2 * correct / (detections + boxes), of the
detections with the threshold's score or more. `model_fn.evaluation.matching` says which are
correct. Of thresholds with the same F1 the highest is taken.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from estimator_det.config.printing import cut, plain
from model_fn.evaluation.matching import MATCH_IOU, ClassMatches, Matches

ALL_CLASSES = "all classes"
MAX_ROWS_PRINTED = 10
_NAME_WIDTH = 24


@dataclasses.dataclass(frozen=True)
class Row:
    """A class, or all of them.

    Without `threshold` the other values are None, too: the class has no box, or no correct
    detection.
    """

    name: str
    num_boxes: int
    num_detections: int
    threshold: Optional[float] = None
    precision: Optional[float] = None
    recall: Optional[float] = None
    f1: Optional[float] = None
    class_id: Optional[int] = None  # id in the label map; None for all classes


@dataclasses.dataclass(frozen=True)
class Table:
    """The thresholds of one evaluation."""

    all_classes: Row
    classes: Tuple[Row, ...]

    def to_json(self) -> Dict[str, Any]:
        """The table as JSON values; `from_json` reads it."""
        return {
            "match_iou": MATCH_IOU,
            "all_classes": dataclasses.asdict(self.all_classes),
            "classes": [dataclasses.asdict(row) for row in self.classes],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Table:
        """The table of `to_json`; KeyError or TypeError if a part is missing or wrong."""
        rows = [Row(**row) for row in (values["all_classes"], *values["classes"])]
        for row in rows:
            is_number = row.threshold is None or isinstance(row.threshold, float)
            if not (is_number and isinstance(row.class_id, (int, type(None)))):
                raise TypeError(f"not a row of a table: {row}")
        return cls(rows[0], tuple(rows[1:]))

    def per_class(self) -> Dict[int, float]:
        """Id -> threshold of each class that has one."""
        return {
            row.class_id: row.threshold
            for row in self.classes
            if row.class_id is not None and row.threshold is not None
        }


def make_table(matches: Matches) -> Table:
    """The thresholds of an evaluation."""
    classes = zip(matches.class_ids, matches.class_names, matches.per_class())
    rows = tuple(best_f1(name, matches, class_id) for class_id, name, matches in classes)
    return Table(best_f1(ALL_CLASSES, matches.all_classes_merged()), rows)


def best_f1(name: str, matches: ClassMatches, class_id: Optional[int] = None) -> Row:
    """The row of one class."""
    num_boxes, num_detections = matches.num_boxes, len(matches.scores)
    empty = Row(name, num_boxes, num_detections, class_id=class_id)
    if not num_boxes or not matches.correct.any():
        return empty
    correct = np.cumsum(matches.correct)
    counts = np.arange(1, num_detections + 1)
    f1 = 2.0 * correct / (counts + num_boxes)
    # A threshold takes all detections of its score, or none.
    is_last = np.append(matches.scores[1:] != matches.scores[:-1], True)
    best = int(np.argmax(np.where(is_last, f1, -1.0)))
    return dataclasses.replace(
        empty,
        threshold=float(matches.scores[best]),
        precision=float(correct[best] / counts[best]),
        recall=float(correct[best] / num_boxes),
        f1=float(f1[best]),
    )


def format_table(table: Table, path: str = "") -> str:
    """The table as text: the classes with most boxes, at most `MAX_ROWS_PRINTED` of them.

    `path` is of the file with all of them.
    """
    ranked = sorted(table.classes, key=lambda row: -row.num_boxes)[:MAX_ROWS_PRINTED]
    shown = {row.class_id for row in ranked}
    title = f"  {'best F1 at IoU':<{_NAME_WIDTH - 4}}{MATCH_IOU:>4g}"
    lines = [f"{title}   boxes  threshold  precision  recall     F1"]
    lines += map(_line, [table.all_classes, *(r for r in table.classes if r.class_id in shown)])
    num_hidden = len(table.classes) - len(ranked)
    rest = f"  … and {num_hidden} classes more" if num_hidden else ""
    where = f"  all in {path}" if path else ""
    return "\n".join([*lines, *filter(None, [rest + where])])


def _line(row: Row) -> str:
    start = f"  {cut(plain(row.name), _NAME_WIDTH):<{_NAME_WIDTH}} {row.num_boxes:>7}"
    if row.threshold is None:
        return f"{start}  {'no box' if not row.num_boxes else 'no correct detection'}"
    numbers: List[Any] = [row.threshold, row.precision, row.recall, row.f1]
    return start + "".join(f"{x:>{w}.3f}" for x, w in zip(numbers, (11, 11, 8, 7)))
