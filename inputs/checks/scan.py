"""Reads all records of some readers, in several processes, and says of each what is wrong with it.

The examiner is that of training, so both find the same. What is found does not depend on the number
of processes, nor on which is faster.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import tf
from estimator_det.config import files
from inputs.bad_records.kinds import KINDS, SKIP, Entry, RecordFault
from inputs.bad_records.policy import BadRecordPolicy
from inputs.checks.examine import damage_finding, examine_record
from inputs.checks.statistics import Collector, Columns, join
from inputs.records import tfrecord
from inputs.records.stream import find_files, input_patterns

RECORDS_PER_TASK = 64  # of files whose records are found without reading them all

# Are examined sooner than another process has started, which takes seconds of a processor.
FEW_RECORDS = 400
FEW_SMALL_RECORDS = 4000  # in files of FEW_BYTES
FEW_BYTES = 100_000_000

_RULES: Dict[str, BadRecordPolicy] = {}  # of a worker process, by reader


class Task(NamedTuple):
    """Some records of one file."""

    reader: str
    file: str
    file_number: int
    start: int
    stop: Optional[int]  # None: to the end of the file


class Plan(NamedTuple):
    """What is to be read for one reader."""

    reader: str  # path of the reader in the configuration
    policy: BadRecordPolicy
    files: List[str]
    tasks: List[Task]
    num_records: Optional[int]  # None where it is not known beforehand
    entries: List[Entry]  # what is wrong with paths and files


class Scan(NamedTuple):
    """What one reader's records hold."""

    reader: str  # path of the reader in the configuration
    files: List[str]
    num_records: int  # a gap in a damaged file counts as one
    columns: Columns  # of the records that training uses
    entries: List[Entry]  # in the order of files and records

    @property
    def num_skipped(self) -> int:
        """Records that training leaves out as a whole."""
        return len({(e.file, e.record) for e in self.entries if e.action == SKIP and e.record >= 0})


class _Part(NamedTuple):
    num_records: int
    columns: Columns
    entries: List[Entry]


def plan(reader: str, policy: BadRecordPolicy, max_records: Optional[int] = None) -> Plan:
    """Finds the files of a reader and divides them.

    Args:
        reader: Path of the reader in the configuration; entries do not hold it.
        policy: Of `inputs.checks.examine.make_policy`.
        max_records: At most so many records of each file; None for all.

    Raises:
        ValueError: if the reader names no path, or is not a TFRecord reader.
    """
    found: List[str] = []
    entries: List[Entry] = []
    for pattern in input_patterns(policy.reader):
        try:
            found += find_files(pattern)
        except FileNotFoundError as error:
            entries.append(_entry(policy, "no_file", pattern, str(error)))
    tasks: List[Task] = []
    total: Optional[int] = 0
    for number, path in enumerate(found):
        stop, count = max_records, max_records
        # Only a local file that is not compressed can be entered at any record.
        if not (files.is_remote(path) or tfrecord.is_compressed(path)):
            try:
                count = tfrecord.count_records(path)
            except OSError as error:
                entries.append(_entry(policy, "lost_records", path, f"it cannot be read: {error}"))
                continue
            stop = count if max_records is None else min(count, max_records)
            for start in range(0, stop, RECORDS_PER_TASK):
                end = min(start + RECORDS_PER_TASK, stop)
                tasks.append(Task(reader, path, number, start, end))
            if not count:
                entries.append(_entry(policy, "empty_file", path, "the file holds no record"))
        else:
            tasks.append(Task(reader, path, number, 0, stop))
        total = None if total is None or stop is None else total + stop
    return Plan(reader, policy, found, tasks, total, entries)


def run(
    plans: Sequence[Plan],
    *,
    jobs: int = 1,
    advance: Callable[[int], Any] = lambda records: None,
) -> List[Scan]:
    """Reads and examines all records.

    Args:
        plans: Of `plan`.
        jobs: Processes; few records are read in this one whatever is given.
        advance: Called with the number of records done since the last call.

    Returns:
        A scan for each plan.

    Raises:
        ValueError: if a process dies; the text names the files that were being read.
    """
    policy = {one.reader: one.policy for one in plans}
    tasks = [task for one in plans for task in one.tasks]
    parts: Dict[str, List[_Part]] = {one.reader: [] for one in plans}
    results = (
        _in_turn(tasks, policy) if jobs <= 1 or _are_few(plans) else _at_once(tasks, policy, jobs)
    )
    for part, task in zip(results, tasks):
        parts[task.reader].append(part)
        advance(part.num_records)
    return [_scan(one, parts[one.reader]) for one in plans]


def _are_few(plans: Sequence[Plan]) -> bool:
    known = [one.num_records for one in plans if one.num_records is not None]
    if len(known) < len(plans) or sum(known) > FEW_SMALL_RECORDS:
        return False
    if sum(known) <= FEW_RECORDS:
        return True
    tasks = {task.file for one in plans for task in one.tasks}
    return sum(tfrecord.file_size(path) for path in tasks) <= FEW_BYTES


def _scan(of: Plan, parts: List[_Part]) -> Scan:
    return Scan(
        of.reader,
        of.files,
        sum(part.num_records for part in parts),
        join([part.columns for part in parts]),
        [*of.entries, *(entry for part in parts for entry in part.entries)],
    )


def _located(finding: RecordFault, file: str, number: int, source_id: str = "") -> Entry:
    """A finding with its place; -1 for the file as a whole."""
    place = (file, number, source_id)
    told = (finding.count, finding.message, finding.remedy)
    return Entry(finding.kind, finding.action, *place, *told)


def _entry(policy: BadRecordPolicy, kind: str, file: str, message: str) -> Entry:
    return _located(policy.finding(kind, message), file, -1)


def _in_turn(tasks: Sequence[Task], policy: Dict[str, BadRecordPolicy]) -> Iterator[_Part]:
    return (_examine(task, policy[task.reader]) for task in tasks)


def _at_once(
    tasks: Sequence[Task], policy: Dict[str, BadRecordPolicy], jobs: int
) -> Iterator[_Part]:
    """Results in the order of the tasks."""
    # Fresh processes: a fork of one in which TensorFlow has run may hang.
    context = multiprocessing.get_context("spawn")
    # Its other end closes when this process gives up, or is gone, however that ended. An Event
    # would not do: setting it waits for processes that may have died.
    lifeline, held = context.Pipe(duplex=False)
    pool = concurrent.futures.ProcessPoolExecutor(
        max_workers=min(jobs, max(len(tasks), 1)),
        mp_context=context,
        initializer=_start_worker,
        initargs=(policy, lifeline),
    )
    try:
        with _interrupts_held():
            futures = [pool.submit(_examine_in_worker, task) for task in tasks]
        for future in futures:
            try:
                yield future.result()
            except BrokenProcessPool as error:
                open_tasks = [t for t, f in zip(tasks, futures) if not _succeeded(f)][:jobs]
                where = ", ".join(f"{task.file} from record {task.start} on" for task in open_tasks)
                raise ValueError(
                    "a process that reads records died, perhaps for want of memory; it was one of "
                    f"those that read {where}. Remedy: try again with --jobs 1"
                ) from error
        pool.shutdown()
    finally:
        held.close()  # nobody waits for what is still being read
        pool.shutdown(wait=False, cancel_futures=True)
        lifeline.close()


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes started meanwhile never see Ctrl-C: the main one tells it and ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _succeeded(future: Any) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _start_worker(policy: Dict[str, BadRecordPolicy], lifeline: Any) -> None:
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    _RULES.update(policy)


def _end_with(lifeline: Any) -> None:
    """Ends this process when the other end of a pipe is closed."""
    lifeline.poll(None)
    os._exit(1)


def _examine_in_worker(task: Task) -> _Part:
    return _examine(task, _RULES[task.reader])


def _examine(task: Task, policy: BadRecordPolicy) -> _Part:
    collector = Collector()
    entries: List[Entry] = []
    count = 0
    try:
        for number, record in _records(task):
            count += 1
            if isinstance(record, tfrecord.Damage):
                finding = damage_finding(record, policy)
                whole_file = KINDS[finding.kind].unit == "file"
                count -= whole_file
                entries.append(_located(finding, task.file, -1 if whole_file else number))
                continue
            examined = examine_record(record, policy)
            for finding in examined.findings:
                entries.append(_located(finding, task.file, number, examined.source_id))
            if examined.usable and examined.image_size is not None:
                collector.add(
                    task.file_number,
                    number,
                    examined.image_size,
                    examined.source_id,
                    examined.boxes,
                    examined.class_ids,
                )
    except (OSError, tf.errors.OpError) as error:
        entries.append(_entry(policy, "lost_records", task.file, f"it cannot be read: {error}"))
    if task.stop is None and not count and not entries:
        entries.append(_entry(policy, "empty_file", task.file, "the file holds no record"))
    return _Part(count, collector.columns(), entries)


def _records(task: Task) -> Iterator[Tuple[int, tfrecord.Record]]:
    if not (files.is_remote(task.file) or tfrecord.is_compressed(task.file)):
        assert task.stop is not None  # as `plan` has it for such files
        for number in range(task.start, task.stop):
            yield number, tfrecord.read_record(task.file, number)
        return
    for number, record in tfrecord.read_records(task.file):
        if task.stop is not None and number >= task.stop:
            return
        yield number, record
