"""Reads all records of some readers, in several processes, and lists the faults of each.

Training uses the same examiner, so both find the same faults. The result does not depend on the
number of processes or their speed.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np

from estimator_det import files
from estimator_det.compat import tf
from inputs import machine
from inputs.bad_records.kinds import KINDS, SKIP, RecordFault
from inputs.bad_records.policy import BadRecordPolicy
from inputs.checks.examine import examine_record
from inputs.checks.statistics import Columns, ImageRow, columns_of, join
from inputs.records import tfrecord
from inputs.records.stream import input_patterns, match_files

RECORDS_PER_TASK = 64  # in files whose records can be read in any order

# Examining so much takes less time than starting another process, which takes seconds of a CPU.
FEW_BYTES = 40_000_000


class ScanTask(NamedTuple):
    """Some records of one file."""

    reader: str
    file: str
    start: int = 0  # number of the first record
    num_records: Optional[int] = None  # None: to the end of the file
    offset: int = 0  # first byte of the first record


class ScanPlan(NamedTuple):
    """The files and tasks of one reader."""

    reader: str  # path of the reader in the configuration
    policy: BadRecordPolicy
    files: List[str]
    tasks: List[ScanTask]
    num_records: Optional[int]  # None if it is not known before reading
    entries: List[RecordFault]  # faults of paths and files


class Scan(NamedTuple):
    """The content and faults of one reader's records, or of a part of them."""

    reader: str  # path of the reader in the configuration
    files: List[str]
    num_records: int  # a gap in a damaged file counts as one
    columns: Columns  # contain only the records that training uses
    entries: List[RecordFault]  # in the order of files and records

    @property
    def num_skipped(self) -> int:
        """Records that training skips."""
        return len({(e.file, e.record) for e in self.entries if e.action == SKIP and e.record >= 0})


def plan(reader: str, policy: BadRecordPolicy, max_records: Optional[int] = None) -> ScanPlan:
    """Finds the files of a reader and divides them into tasks; `max_records` is of each file."""
    paths: List[str] = []
    entries: List[RecordFault] = []
    for pattern in input_patterns(policy.reader):
        try:
            paths += match_files(pattern)
        except FileNotFoundError as error:
            entries.append(policy.fault("no_file", str(error)).at(pattern))
    tasks: List[ScanTask] = []
    total: Optional[int] = 0
    for path in paths:
        if kind := files.special_kind(path):
            message = f"it cannot be read: it is {kind}, not a regular file"
            entries.append(policy.fault("lost_records", message).at(path))
            continue
        if _is_sequential(path):
            tasks.append(ScanTask(reader, path, num_records=max_records))
            total = None if total is None or max_records is None else total + max_records
            continue
        try:
            offsets = itertools.islice(tfrecord.record_offsets(path), max_records)
            begins = np.fromiter(offsets, np.int64)
        except OSError as error:
            entries.append(policy.fault("lost_records", f"it cannot be read: {error}").at(path))
            continue
        if not len(begins):
            entries.append(policy.fault("empty_file", "the file contains no record").at(path))
        for start in range(0, len(begins), RECORDS_PER_TASK):
            num_records = min(RECORDS_PER_TASK, len(begins) - start)
            tasks.append(ScanTask(reader, path, start, num_records, int(begins[start])))
        total = None if total is None else total + len(begins)
    return ScanPlan(reader, policy, paths, tasks, total, entries)


def run(
    plans: Sequence[ScanPlan],
    *,
    jobs: int = 1,
    advance: Callable[[int], Any] = lambda records: None,
) -> List[Scan]:
    """Reads and examines all records in `jobs` processes; a scan for each plan.

    A few records are always read in this process. `advance` gets the number of records done since
    its last call.
    """
    policies = {plan.reader: plan.policy for plan in plans}
    tasks = [task for plan in plans for task in plan.tasks]
    results: Iterator[Scan]
    paths = {task.file for task in tasks}
    if jobs <= 1 or sum(map(tfrecord.file_size, paths)) <= FEW_BYTES:
        results = (_examine(policies, task) for task in tasks)
    else:
        results = machine.run_in_processes(
            _examine, policies, tasks, jobs=jobs,
            task_name=lambda task: f"{task.file} from record {task.start} on",
        )  # fmt: skip
    scans = []
    for plan in plans:
        parts = []
        for part in itertools.islice(results, len(plan.tasks)):
            parts.append(part)
            advance(part.num_records)
        scans.append(
            Scan(
                plan.reader,
                plan.files,
                sum(part.num_records for part in parts),
                join([part.columns for part in parts]),
                [*plan.entries, *(entry for part in parts for entry in part.entries)],
            )
        )
    return scans


def _examine(policies: Dict[str, BadRecordPolicy], task: ScanTask) -> Scan:
    policy = policies[task.reader]
    rows: List[ImageRow] = []
    entries: List[RecordFault] = []
    count = 0
    try:
        records = itertools.islice(tfrecord.read_records(task.file, task.offset), task.num_records)
        for number, record in enumerate(records, task.start):
            count += 1
            if isinstance(record, tfrecord.Damage):
                fault = policy.fault(record.kind, record.message)
                is_whole_file = KINDS[fault.kind].unit == "file"
                count -= is_whole_file
                entries.append(fault.at(task.file, -1 if is_whole_file else number))
                continue
            examined = examine_record(record, policy)
            entries += [x.at(task.file, number, examined.source_id) for x in examined.faults]
            if examined.usable and examined.image_size is not None:
                rows.append(
                    ImageRow(
                        examined.image_size, examined.source_id, examined.boxes,
                        examined.class_ids, examined.content,
                    )
                )  # fmt: skip
    except (OSError, tf.errors.OpError) as error:
        entries.append(policy.fault("lost_records", f"it cannot be read: {error}").at(task.file))
    if task.num_records is None and not count and not entries:
        entries.append(policy.fault("empty_file", "the file contains no record").at(task.file))
    return Scan(task.reader, [task.file], count, columns_of(rows), entries)


def _is_sequential(path: str) -> bool:
    """True for a remote or compressed file, which is read from its beginning."""
    return files.is_remote(path) or tfrecord.compression_of(path) != ""
