"""Explains records that the input pipeline lost: reads them again, examines them, reports them.

The guard calls these functions from the graph, with NumPy arrays, if there is a fault to report.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import threading
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from estimator_det.compat import tf
from inputs.bad_records.kinds import CLIP, COUNTED, FAIL, KINDS, effect
from inputs.bad_records.log import FaultLog, RecordFaultError
from inputs.bad_records.policy import BadRecordPolicy
from inputs.checks.examine import examine_record
from inputs.records import tfrecord
from inputs.records.stream import BLOCK, split_record_id
from inputs.records.tfrecord import Damage

# (serialized record, sequence number) -> why TensorFlow cannot use it, "" if it can.
Retry = Callable[[bytes, int], str]


class Explainer:
    """The Python half of a guard. Once the log has a reason to stop, it explains nothing more."""

    def __init__(
        self, paths: Sequence[str], policy: BadRecordPolicy, log: FaultLog, retry: Optional[Retry]
    ) -> None:
        self._paths = list(paths)
        self._policy = policy
        self._log = log
        self._retry = retry
        self._is_explaining = threading.Lock()
        self._known_lengths: Dict[str, int] = {}  # records in files that Python read to the end

    def read_rest(
        self, file: int, number: int, num_bytes: int, size: int
    ) -> Tuple[np.ndarray, np.ndarray, np.bool_]:
        """Numbers and contents as `FileGuard.read_rest`; and True to stop the run."""
        path = self._paths[file]
        numbers, records = range(0), []
        # Once the log has a reason to stop, the next batch or the end of the data raises it.
        with contextlib.suppress(RecordFaultError):
            numbers = self._remaining(path, int(number), int(num_bytes), int(size))[:BLOCK]
            records = [tfrecord.read_record(path, record_number) for record_number in numbers]
        contents = np.array([b"" if isinstance(x, Damage) else x for x in records], object)
        return np.array(numbers, np.int64), contents, np.bool_(self._log.stop_reason != "")

    def _remaining(self, path: str, number: int, num_bytes: int, size: int) -> range:
        """Numbers of the records from `number` on; none of a compressed file."""
        known = self._known_lengths.get(path, 0)
        if known == number > 0:
            return range(0)
        try:
            if tfrecord.compression_of(path):
                self._report_compressed_rest(path, number)
                return range(0)
            size_now = tfrecord.file_size(path)
            count = number if size_now == num_bytes else tfrecord.count_records(path)
        except (OSError, tf.errors.OpError) as error:
            self._log.report(self._policy.fault("lost_records", f"{error}").at(path))
            return range(0)
        if size_now < size or count < known:
            message = f"the file was changed during the run: it has {size_now} bytes now"
            self._log.report(self._policy.fault("lost_records", message).at(path))
        if count == number:
            self._known_lengths[path] = number
        return range(number, count)

    def _report_compressed_rest(self, path: str, number: int) -> None:
        damages = [x if isinstance(x, Damage) else None for _, x in tfrecord.read_records(path)]
        self._known_lengths[path] = number
        for record, damage in enumerate(damages[number:], number):
            if damage is not None:
                self._report_damage(damage, path, record)
        if intact := damages[number:].count(None):
            message = (
                f"{intact} records that follow the damage are lost; decompress the file to use them"
            )
            self._log.report(self._policy.fault("lost_records", message, intact).at(path))

    def find_oldest(self, keys: np.ndarray, values: np.ndarray) -> Tuple[np.ndarray, np.bool_]:
        """Sequence numbers of records that did not arrive, reported; and True to stop the run."""
        pending = sorted(pair for pair in zip(keys.tolist(), values.tolist()) if pair[0] >= 0)
        older = pending[: len(pending) // 2]  # the others may still arrive
        explained: List[int] = []
        if not self._log.stop_reason and self._is_explaining.acquire(blocking=False):
            try:
                explained = [key for key, id_ in older if self._explain(key, id_, False, False)]
                if not explained:  # TensorFlow rejects what the examiner does not
                    tried = (key for key, id_ in older if self._explain(key, id_, False))
                    explained = list(itertools.islice(tried, 1))
            except RecordFaultError:  # the log has the reason to stop
                pass
            finally:
                self._is_explaining.release()
        return np.array(explained, np.int64), np.bool_(self._log.stop_reason != "")

    def report_batch(
        self,
        span: np.ndarray,
        pending: np.ndarray,
        sequence_numbers: np.ndarray,
        record_ids: np.ndarray,
        names: np.ndarray,
        counts: np.ndarray,
    ) -> bytes:
        """The reason to stop the run; empty if there is none."""
        with contextlib.suppress(RecordFaultError):
            arrived = set(sequence_numbers.tolist())
            for sequence_number, record_id in zip(span.tolist(), pending.tolist()):
                if sequence_number not in arrived and record_id >= 0:  # else it is explained
                    self._explain(sequence_number, record_id)
            for row in np.flatnonzero(counts.any(1)).tolist():
                self._report_counts(counts[row], int(record_ids[row]), names[row])
        return self._log.stop_reason.encode()

    def find_end(
        self, keys: np.ndarray, values: np.ndarray, drop_remainder: bool, is_endless: bool
    ) -> bytes:
        """The error at the end of the data; empty if there is none."""
        with contextlib.suppress(RecordFaultError):
            if not self._log.stop_reason:
                is_certain = not drop_remainder
                for sequence_number, record_id in sorted(zip(keys.tolist(), values.tolist())):
                    if sequence_number >= 0:
                        self._explain(sequence_number, record_id, is_certain, retries=is_certain)
        if is_endless and not self._log.stop_reason:
            return (
                "all files have become empty, or all of their records are skipped; the first file "
                f"is {self._paths[0]}. Remedy: write them again, and restart the run"
            ).encode()
        return self._log.stop_reason.encode()

    def _explain(
        self, sequence_number: int, record_id: int, is_certain: bool = True, retries: bool = True
    ) -> bool:
        """Reports why a record did not arrive; False if it may still do so.

        A record without a fault is tried again if `retries`; if it is usable then as well, it has
        failed only if that `is_certain`.
        """
        file, number = split_record_id(record_id)
        path = self._paths[file]
        try:
            record = tfrecord.read_record(path, number)
        except (IndexError, OSError, tf.errors.OpError) as error:
            record = Damage("lost_records", f"an earlier pass could read it: {error}")
        if isinstance(record, Damage):
            self._report_damage(record, path, number)
            return True
        examined = examine_record(record, self._policy)
        faults = list(examined.faults)
        if examined.usable:
            why = self._retry(record, sequence_number) if retries and self._retry else ""
            if not why and not is_certain:
                return False
            why = why or "it failed once, but not when it was tried again"
            faults.append(self._policy.fault("unexplained", f"TensorFlow rejects it: {why}"))
        # A fault that stops the run comes last, since the log accepts none after it.
        for fault in sorted(faults, key=lambda candidate: candidate.action == FAIL):
            fault = fault.at(path, number, examined.source_id)
            self._log.report(fault, self._policy.max_skipped)
        return True

    def _report_damage(self, damage: Damage, path: str, number: int) -> None:
        fault = self._policy.fault(damage.kind, damage.message).at(path, number)
        self._log.report(fault, self._policy.max_skipped)

    def _report_counts(self, counts: np.ndarray, record_id: int, name: bytes) -> None:
        file, number = split_record_id(record_id)
        source_id = name.decode("utf-8", "replace")
        for kind, count in zip(COUNTED, counts.tolist()):
            if count:
                # A rejected kind arrives only where records are mixed: as too many boxes.
                action = CLIP if self._policy.rejects(kind) else self._policy.actions[kind]
                message = f"{KINDS[kind].description}: {count}, {effect(kind, action)}"
                fault = dataclasses.replace(self._policy.fault(kind, message, count), action=action)
                self._log.report(fault.at(self._paths[file], number, source_id))
