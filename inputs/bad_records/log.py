"""The log of record faults: counts, and a file of JSON lines. No TensorFlow for local files."""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import Counter, Dict, Optional, Set, Tuple

from estimator_det.console.printing import counted
from estimator_det.files import json_lines
from inputs.bad_records.kinds import FAIL, KINDS, SKIP, RecordFault, effect

LOG_FILE = "bad_records.jsonl"


class RecordFaultError(ValueError):
    """A fault of a record that stops the run, with the text of `RecordFault.sentence`."""


class FaultLog:
    """Collects faults from any thread; each fault of a record counts once, in any number of epochs.

    Attributes:
        path: The file, mostly a LOG_FILE, gets a JSON line with the fields of `RecordFault` for
            each new entry. Lines of an earlier run are not repeated. None writes no file.
        stop_reason: Why the run must stop; "" while it may continue.
        has_new_faults: True if the file did not contain every fault at the start.
    """

    def __init__(self, path: Optional[str] = None) -> None:
        self.path = path
        self.stop_reason = ""
        self._lock = threading.RLock()
        self._seen: Set[Tuple[str, int, str]] = set()
        lines = [] if path is None else json_lines.read(path, ("file", "record", "kind"))
        self._earlier = {(line["file"], line["record"], line["kind"]) for line in lines}
        self._counts: Counter[str] = collections.Counter()
        self._record_counts: Counter[str] = collections.Counter()
        self._action_counts: Counter[Tuple[str, str]] = collections.Counter()
        self._skipped: Set[Tuple[str, int]] = set()
        self.has_new_faults = False

    def counts(self) -> Dict[str, int]:
        """Kind -> boxes, records or files, each counted once; and "skipped_records"."""
        with self._lock:
            counts = {kind: self._counts[kind] for kind in KINDS if kind in self._counts}
            if self._skipped:
                counts["skipped_records"] = len(self._skipped)
            return counts

    def report(self, fault: RecordFault, max_skipped: Optional[int] = None) -> None:
        """Adds a fault. A repeated report, or one after the run must stop, changes nothing."""
        key = (fault.file, fault.record, fault.kind)
        with self._lock:
            if self.stop_reason:
                raise RecordFaultError(self.stop_reason)
            if key not in self._seen:
                self._seen.add(key)
                self._add(fault, key)
            if fault.action == FAIL:
                self.stop_reason = fault.sentence()
                raise RecordFaultError(self.stop_reason)
            if fault.action == SKIP and fault.record >= 0:
                self._skipped.add((fault.file, fault.record))
                if max_skipped is not None and len(self._skipped) > max_skipped:
                    self.stop_reason = (
                        f"{len(self._skipped)} records had to be skipped, and bad_records "
                        f"{{ max_skipped: {max_skipped} }} is the limit. The last one: "
                        f"{fault.sentence()}"
                    )
                    raise RecordFaultError(self.stop_reason)

    def stop(self, reason: str) -> None:
        """Sets why the run must stop, unless there is a reason already."""
        with self._lock:
            self.stop_reason = self.stop_reason or reason

    def summary(self) -> str:
        """All faults, a line for each kind and action; "" if there are none."""
        with self._lock:
            if not self._action_counts:
                return ""
            lines = []
            rank = {kind: index for index, kind in enumerate(KINDS)}
            for kind, action in sorted(self._action_counts, key=lambda x: (rank[x[0]], x[1])):
                row = KINDS[kind]
                text = counted(self._action_counts[kind, action], row.unit)
                if row.unit == "box":
                    text += f" in {counted(self._record_counts[kind], 'record')}"
                lines.append(f"  {kind}: {row.description}: {text}, {effect(kind, action)}")
            head = f"Record faults ({counted(len(self._skipped), 'record')} skipped):"
            tail = [f"  All of them are in {self.path}"] if self.path else []
            return "\n".join([head, *lines, *tail])

    def _add(self, fault: RecordFault, key: Tuple[str, int, str]) -> None:
        self._counts[fault.kind] += fault.count
        self._record_counts[fault.kind] += 1
        self._action_counts[fault.kind, fault.action] += fault.count
        if key in self._earlier:
            return
        self.has_new_faults = True
        if self.path is not None:
            json_lines.append(self.path, dataclasses.asdict(fault))
