"""What can be wrong with records, what is done about it, and the log of all that was found.

`KINDS` is the one table of faults: every message, count and JSON line speaks of one of its names.
`FaultLog` collects them while a model trains or a program reads its data. No TensorFlow here, but
for a log in remote storage.
"""

from __future__ import annotations

import json
import os
import threading
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

from estimator_det.config import files

# Actions.
FAIL = "fail"  # stops the program
SKIP = "skip"  # leaves out the record (or file), within the budget
CLIP = "clip"  # mends: see `Kind.mend`
KEEP = "keep"  # taken as it is, but counted
ACTIONS = (FAIL, SKIP, CLIP, KEEP)

LOG_FILE = "bad_records.jsonl"  # in model_dir
MAX_KEPT = 1000  # entries of each kind that stay in memory; the file has them all


class Kind(NamedTuple):
    """One row of the table of faults."""

    what: str  # for summaries
    remedy: str
    reference: str  # action that equals what the reference does with such data
    mend: str = ""  # what CLIP does; "" where nothing mends it, and the record is skipped
    unit: str = "record"  # what is counted
    is_choice: bool = False  # follows from the configuration as well: SKIP mends it, too


BAD_BOX = "correct the box, or set bad_records { policy: CLIP } to leave such boxes out"
BAD_RECORD = (
    "write the record anew, or set bad_records { policy: SKIP } in the input reader to leave such "
    "records out"
)

KINDS: Dict[str, Kind] = {
    "no_file": Kind(
        "an input_path matches no file", "correct input_path in the input reader", FAIL,
        unit="pattern",
    ),
    "empty_file": Kind(
        "a file without records", "write the file anew, or remove it", KEEP, unit="file"
    ),
    "damaged_record": Kind(
        "a record's frame or checksum is damaged", BAD_RECORD + "; copy the file anew first", FAIL
    ),
    "lost_records": Kind(
        "the rest of a file cannot be read",
        "copy or write the file anew; only uncompressed files can be read on after damage", FAIL,
        unit="file",
    ),
    "unparsable": Kind("a record is no such message as the reader expects", BAD_RECORD, FAIL),
    "missing_key": Kind("a key that is needed is missing or empty", BAD_RECORD, FAIL),
    "length_mismatch": Kind("lists that belong together differ in length", BAD_RECORD, FAIL),
    "undecodable_image": Kind("a picture cannot be decoded", BAD_RECORD, FAIL),
    "truncated_image": Kind("a picture's file ends too early", BAD_RECORD, FAIL),
    "huge_image": Kind(
        "a picture claims to be larger than the limit",
        "remove it, or raise bad_records { max_megapixels } where it is real", FAIL,
    ),
    "size_mismatch": Kind(
        "image/height and image/width are not the picture's",
        "write image/height and image/width as decoded; where the picture was turned or shrunk "
        "afterwards, its boxes are wrong as well", KEEP,
    ),
    "box_nan": Kind(
        "boxes with a coordinate that is NaN or infinite", BAD_BOX, CLIP, "left out", "box"
    ),
    "box_inverted": Kind(
        "boxes whose minimum exceeds their maximum", BAD_BOX, FAIL, "left out", "box"
    ),
    "box_degenerate": Kind(
        "boxes without height or width", BAD_BOX, KEEP, "left out", "box"
    ),
    "box_outside": Kind(
        "boxes that leave the picture",
        "divide pixels by the picture's own height and width; bad_records { policy: CLIP } cuts "
        "boxes at the border", KEEP, "cut at the border, left out if nothing remains", "box",
    ),
    "unknown_text": Kind(
        "boxes of a class name that the label map lacks",
        "add the name to the label map, or let the boxes be left out", CLIP, "left out", "box",
        is_choice=True,
    ),
    "unknown_id": Kind(
        "boxes of a class id outside 1..num_classes",
        "correct num_classes, the label map or the record (ids start at 1), or set bad_records "
        "{ policy: CLIP } to leave such boxes out", FAIL, "left out", "box",
    ),
    "label_contradiction": Kind(
        "boxes whose class text and class label differ",
        "read the records with the label map they were written with; the text counts", KEEP,
        unit="box",
    ),
    "too_many_boxes": Kind(
        "boxes beyond max_number_of_boxes", "raise max_number_of_boxes in the input reader", CLIP,
        "cut off", "box", is_choice=True,
    ),
    "unexplained": Kind("a record that TensorFlow refuses", BAD_RECORD, FAIL),
}  # fmt: skip

FAULT_COUNTS = "fault_counts"  # key inside the pipeline: int32, how many of each kind of COUNTED

# Kinds that the input pipeline itself counts, in the order of its vector of counts.
COUNTED = (
    "box_nan", "box_inverted", "box_degenerate", "box_outside", "unknown_text", "unknown_id",
    "label_contradiction", "size_mismatch", "too_many_boxes",
)  # fmt: skip


class RecordFault(NamedTuple):
    """One fault of one record."""

    kind: str  # of `KINDS`
    message: str  # what is wrong, with the values
    remedy: str
    action: str  # of `ACTIONS`
    # Boxes, where the kind is one of boxes.
    count: int = 1  # type: ignore[assignment]  # hides tuple.count


class Entry(NamedTuple):
    """A finding with the place where it was found; one JSON line."""

    kind: str
    action: str
    file: str
    record: int  # number in the file from 0; -1 where the whole file is meant
    source_id: str  # "" where it cannot be read
    count: int  # type: ignore[assignment]  # hides tuple.count
    message: str
    remedy: str

    def sentence(self) -> str:
        """The whole story: file, record, source id, what is wrong and the remedy."""
        return describe(self, self.file, self.record, self.source_id)


class TooManySkippedError(ValueError):
    """More records had to be skipped than the configuration allows."""


def describe(finding: Any, file: str, record: int, source_id: str = "") -> str:
    """What is wrong with a record, in one line that needs no other."""
    number = f", record {record}" if record >= 0 else ""
    name = f" (source_id {source_id})" if source_id else ""  # TensorFlow escapes quotes in errors
    message = finding.message.rstrip(".")
    return f"{file}{number}{name}: {message}. Remedy: {finding.remedy}"


class FaultLog:
    """Collects faults from any thread; the same record's fault counts once, whatever the epochs.

    `path`, mostly LOG_FILE in model_dir, gets a JSON line for each new entry, with the fields of
    `Entry`; lines that are there already (of a run before) are not repeated. `counts()` gives
    TensorBoard numbers, `summary()` the text for the end of a run, and `records` the entries.

    Attributes:
        path: Where the lines go; None keeps them in memory alone.
        stopped: Why the run must end; "" as long as it need not.
    """

    def __init__(self, path: Optional[str] = None) -> None:
        self.path = path
        self.stopped = ""
        self._lock = threading.RLock()
        self._entries: List[Entry] = []
        self._seen: Set[Tuple[str, int, str]] = set()
        self._written: Set[Tuple[str, int, str]] = set()
        self._counts: Dict[str, int] = {}
        self._entries_of: Dict[str, int] = {}
        self._actions: Dict[Tuple[str, str], int] = {}
        self._skipped: Set[Tuple[str, int]] = set()
        self._times = 0
        self._news = False
        if path is not None:
            self._read_written(path)

    @property
    def records(self) -> List[Entry]:
        """Entries in the order found, at most MAX_KEPT of each kind."""
        with self._lock:
            return list(self._entries)

    @property
    def num_skipped(self) -> int:
        """Different records that were left out."""
        with self._lock:
            return len(self._skipped)

    @property
    def has_news(self) -> bool:
        """Whether anything was found that the file did not have before."""
        with self._lock:
            return self._news

    @property
    def occurrences(self) -> int:
        """How often anything was told, repetitions in later epochs included."""
        with self._lock:
            return self._times

    def counts(self) -> Dict[str, int]:
        """Kind -> boxes, records or files, each counted once; "skipped_records" besides."""
        with self._lock:
            found = {kind: self._counts[kind] for kind in KINDS if kind in self._counts}
            if self._skipped:
                found["skipped_records"] = len(self._skipped)
            return found

    def tell(
        self,
        finding: RecordFault,
        file: str,
        record: int,
        source_id: str = "",
        max_skipped: Optional[int] = None,
    ) -> None:
        """Enters a finding; a second time it changes nothing, nor once the run must stop.

        Raises:
            TooManySkippedError: if this is one skipped record more than `max_skipped`.
            ValueError: if the finding's action is to fail; the text is that of `describe`. Also if
                the run must stop already.
        """
        entry = Entry(
            finding.kind, finding.action, file, int(record), source_id, int(finding.count),
            finding.message, finding.remedy,
        )  # fmt: skip
        key = (file, entry.record, finding.kind)
        with self._lock:
            if self.stopped:
                raise ValueError(self.stopped)
            self._times += 1
            if key not in self._seen:
                self._seen.add(key)
                self._enter(entry, key)
            if finding.action == FAIL:
                self.stopped = self.stopped or entry.sentence()
                raise ValueError(entry.sentence())
            if finding.action == SKIP and record >= 0:
                self._skipped.add((file, entry.record))
                if max_skipped is not None and len(self._skipped) > max_skipped:
                    text = (
                        f"{len(self._skipped)} records had to be skipped, and bad_records "
                        f"{{ max_skipped: {max_skipped} }} is the limit. The last one: "
                        f"{entry.sentence()}"
                    )
                    self.stopped = self.stopped or text
                    raise TooManySkippedError(text)

    def summary(self) -> str:
        """What was found, a line for each kind and action; "" if nothing was."""
        with self._lock:
            if not self._actions:
                return ""
            lines = []
            for (kind, action), count in sorted(self._actions.items(), key=_by_table):
                done = done_about(kind, action)
                where = self._entries_of[kind]
                found = counted(count, KINDS[kind].unit)
                if KINDS[kind].unit == "box":
                    found += f" in {counted(where, 'record')}"
                lines.append(f"  {kind}: {KINDS[kind].what}: {found}, {done}")
            head = f"Faults of the data ({counted(len(self._skipped), 'record')} left out):"
            tail = [f"  Every one is in {self.path}"] if self.path else []
            return "\n".join([head, *lines, *tail])

    def _enter(self, entry: Entry, key: Tuple[str, int, str]) -> None:
        self._counts[entry.kind] = self._counts.get(entry.kind, 0) + entry.count
        self._entries_of[entry.kind] = self._entries_of.get(entry.kind, 0) + 1
        by_action = (entry.kind, entry.action)
        self._actions[by_action] = self._actions.get(by_action, 0) + entry.count
        if self._entries_of[entry.kind] <= MAX_KEPT:
            self._entries.append(entry)
        if key in self._written:
            return
        self._news = True
        self._written.add(key)
        if self.path is not None:
            _append(self.path, json.dumps(entry._asdict(), ensure_ascii=False) + "\n")

    def _read_written(self, path: str) -> None:
        for line in _lines(path):
            try:
                old = json.loads(line)
                self._written.add((old["file"], old["record"], old["kind"]))
            except (ValueError, KeyError, TypeError):
                continue  # a line cut short by a crash: its fault will be written again


def counted(number: int, unit: str) -> str:
    """`1 box`, `2 boxes`."""
    end = "" if number == 1 else "es" if unit.endswith("x") else "s"
    return f"{number:,} {unit}{end}"


def done_about(kind: str, action: str) -> str:
    """What an action means for a kind, in words."""
    if action == CLIP:
        return KINDS[kind].mend or "mended"
    left_out = "record left out" if KINDS[kind].unit != "file" else "left out"
    return {FAIL: "stops the run", SKIP: left_out, KEEP: "taken as they are"}[action]


def resolve(policy: str, exceptions: Mapping[str, str]) -> Dict[str, str]:
    """Kind -> action of a policy, one of "reference", "fail", "skip", "clip".

    `exceptions` gives single kinds a policy of their own.

    Raises:
        ValueError: if an exception names an unknown kind.
    """
    for kind in exceptions:
        if kind not in KINDS:
            from estimator_det.config.registry import nearest

            hint = nearest(kind, list(KINDS)) or "."
            raise ValueError(
                f"bad_records: {kind!r} is no kind of fault{hint} Known: {list(KINDS)}"
            )
    return {kind: _action(row, exceptions.get(kind, policy)) for kind, row in KINDS.items()}


def _action(row: Kind, policy: str) -> str:
    if policy == "reference":
        return row.reference
    if policy == FAIL:
        return FAIL
    if row.reference == KEEP and not row.mend:
        return KEEP if policy == CLIP or row.unit == "file" else SKIP
    if policy == CLIP or row.is_choice:
        return CLIP if row.mend else SKIP
    return SKIP


def _by_table(item: Any) -> Tuple[int, str]:
    (kind, action), _ = item
    return list(KINDS).index(kind), action


def _lines(path: str) -> List[str]:
    return files.read_text(path).splitlines() if files.exists(path) else []


def _append(path: str, line: str) -> None:
    if files.is_remote(path):
        from estimator_det.compat import tf

        with tf.io.gfile.GFile(path, "a") as remote:
            remote.write(line)
        return
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "a", encoding="utf-8") as local:
        local.write(line)
