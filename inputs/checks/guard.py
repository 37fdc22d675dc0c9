"""Guards the input pipeline: reports every record it loses, at no cost for clean data.

A parallel map decodes the records and ignores its errors, so a record that cannot be used is a gap
in the sequence numbers. A table in the graph has the id of the record of each sequence number.
Once a batch is complete, Python explains each gap in it: it reads the record again, examines it and
reports its faults to the `FaultLog`, which decides when the run must stop. If no batch gets
complete, the table fills, and Python explains the oldest gaps. Counts of corrected boxes come with
the batch. Python runs only if there is a fault to report.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from estimator_det.compat import tf
from inputs import schema
from inputs.bad_records.kinds import CLIP, COUNTED, FAIL, FAULT_COUNTS, KINDS, effect
from inputs.bad_records.log import FaultLog, RecordFaultError
from inputs.bad_records.policy import BadRecordPolicy
from inputs.checks.examine import examine_record
from inputs.records import tfrecord
from inputs.records.cursor import CursorState
from inputs.records.stream import BLOCK, split_record_id, unpack_record_ids
from inputs.records.tfrecord import Damage

# Keys inside the pipeline that the guard removes from the batch.
SEQUENCE_NUMBER = "sequence_number"  # of a record in the dataset, bad ones included
RECORD_ID = "record_id"  # see `inputs.records.stream`; becomes RECORD in the batch

# Keys in the table of pending records, in addition to sequence numbers.
STOP = -2  # 1 if the run must stop
EXPECTED = -3  # the next sequence number
NUM_STARTS = -4  # files and epochs that began since the last batch
MAX_PENDING = 1024  # pending records, besides those that wait; beyond it, some must have failed
MAX_STARTS = 1000  # besides one epoch for each record that waits; beyond it, none is usable

# (serialized record, sequence number) -> why TensorFlow cannot use it, "" if it can.
Retry = Callable[[bytes, int], str]


class Guard:
    """The guard of one dataset; implements `inputs.records.stream.FileGuard`."""

    def __init__(
        self,
        paths: Sequence[str],  # schema.RECORD has indices into them
        policy: BadRecordPolicy,
        log: FaultLog,
        retry: Optional[Retry] = None,
        *,
        num_waiting: int = 0,  # usable records that wait between decoding and the check
    ) -> None:
        self.paths = list(paths)
        self._policy = policy
        self._log = log
        self._retry = retry
        self._max_pending = MAX_PENDING + num_waiting
        self._max_starts = MAX_STARTS + 2 * len(self.paths) * (1 + num_waiting)
        self._is_explaining = threading.Lock()
        self._known_lengths: Dict[str, int] = {}  # of files that Python read to their end
        # int64 -> int64, -1 for missing keys; not in checkpoints, as other runs cannot use it.
        self._pending = tf.lookup.experimental.MutableHashTable(
            tf.int64, tf.int64, -1, checkpoint=False
        )

    # In the graph.

    def may_continue(self) -> tf.Tensor:
        starts = self._lookup(NUM_STARTS) + 1
        updates = [self._insert(NUM_STARTS, starts), self._stop_if(starts > self._max_starts)]
        with tf.control_dependencies(updates):
            return tf.logical_not(self._is_stopped())

    def read_rest(
        self, file: tf.Tensor, number: tf.Tensor, num_bytes: tf.Tensor, size: tf.Tensor
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        arguments, types = [file, number, num_bytes, size], [tf.int64, tf.string, tf.bool]
        numbers, records, stop = tf.numpy_function(self._read_rest, arguments, types)
        with tf.control_dependencies([self._stop_if(stop)]):
            return tf.reshape(numbers, [-1]), tf.reshape(records, [-1])

    def add_pending(
        self, sequence_number: tf.Tensor, record_id: tf.Tensor, serialized: tf.Tensor
    ) -> tf.Tensor:
        """Enters a record as pending; returns its bytes."""
        with tf.control_dependencies([self._pending.insert(sequence_number, record_id)]):
            is_full = self._pending.size() > self._max_pending
        with tf.control_dependencies([tf.cond(is_full, self._explain_oldest, tf.no_op)]):
            return tf.identity(serialized)

    def check_batches(
        self,
        batches: tf.data.Dataset,
        *,
        start: CursorState,
        drop_remainder: bool,
        is_endless: bool,
        keep_source_id: bool,
    ) -> tf.data.Dataset:
        """The same batches with RECORD and AUGMENTATION_SEED, after reporting all their faults.

        SEQUENCE_NUMBER, RECORD_ID and FAULT_COUNTS are removed. Endless data must not end.
        """

        @tf.autograph.experimental.do_not_convert
        def check(features: Any, labels: Any) -> Any:
            return without_guard_keys(features, keep_source_id, start, self._check_batch), labels

        # One call at a time, but in parallel with the other stages, which saves a tenth.
        checked = batches.map(check, num_parallel_calls=1, deterministic=True)

        @tf.autograph.experimental.do_not_convert
        def begin(_: tf.Tensor) -> tf.Tensor:  # each pass expects the same first record
            with tf.control_dependencies([self._insert(EXPECTED, start.count)]):
                return tf.constant(False)

        @tf.autograph.experimental.do_not_convert
        def check_end(_: tf.Tensor) -> tf.Tensor:
            arguments = [*self._pending.export(), drop_remainder, is_endless]
            error = tf.ensure_shape(tf.numpy_function(self._find_end, arguments, tf.string), [])
            with tf.control_dependencies([_stop_unless_empty(error)]):
                return tf.constant(False)

        return _empty(begin, checked).concatenate(checked).concatenate(_empty(check_end, checked))

    def _check_batch(
        self,
        sequence_numbers: tf.Tensor,
        record_ids: tf.Tensor,
        names: tf.Tensor,
        counts: tf.Tensor,
    ) -> List[tf.Operation]:
        """Reports the faults of a batch and of the gaps before and in it."""
        # The table has the expected number. As the state of a `scan` it would be simpler, but
        # that takes a fifth more time for the whole pipeline of small images.
        first, following = sequence_numbers[0], sequence_numbers[-1] + 1
        expected = tf.minimum(self._lookup(EXPECTED), first)
        num_gaps = following - expected - tf.size(sequence_numbers, out_type=tf.int64)
        is_faulty = tf.reduce_any(counts > 0) | (num_gaps > 0) | self._is_stopped()
        span = tf.range(expected, following)

        def report() -> tf.Tensor:
            pending = self._pending.lookup(span)
            arguments = [span, pending, sequence_numbers, record_ids, names, counts]
            return tf.ensure_shape(tf.numpy_function(self._report_batch, arguments, tf.string), [])

        error = tf.cond(is_faulty, report, lambda: tf.constant(""))
        with tf.control_dependencies([_stop_unless_empty(error)]):
            return [
                self._pending.remove(span),
                self._insert(EXPECTED, following),
                self._insert(NUM_STARTS, 0),
            ]

    def _explain_oldest(self) -> tf.Operation:
        """Fails once the run must stop, so that no record is decoded in vain."""
        explained, stop = tf.numpy_function(
            self._find_oldest, self._pending.export(), [tf.int64, tf.bool]
        )
        explained = tf.reshape(explained, [-1])
        with tf.control_dependencies([self._pending.remove(explained), self._stop_if(stop)]):
            return tf.debugging.Assert(tf.logical_not(stop), ["the run must stop"])

    def _lookup(self, key: int) -> tf.Tensor:
        return self._pending.lookup(tf.constant(key, tf.int64))

    def _insert(self, key: int, value: Any) -> tf.Operation:
        return self._pending.insert(tf.constant(key, tf.int64), tf.cast(value, tf.int64))

    def _is_stopped(self) -> tf.Tensor:
        return tf.equal(self._lookup(STOP), 1)

    def _stop_if(self, condition: tf.Tensor) -> tf.Operation:
        return tf.cond(tf.reshape(condition, []), lambda: self._insert(STOP, 1), tf.no_op)

    # In Python, called from the graph.

    def _read_rest(
        self, file: int, number: int, num_bytes: int, size: int
    ) -> Tuple[np.ndarray, np.ndarray, np.bool_]:
        path = self.paths[file]
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
            if tfrecord.is_compressed(path):
                self._report_rest_of_compressed(path, number)
                return range(0)
            size_now = tfrecord.file_size(path)
            count = number if size_now == num_bytes else tfrecord.count_records(path)
        except (OSError, tf.errors.OpError) as error:
            self._log.report(self._policy.fault("lost_records", f"{error}"), path, -1)
            return range(0)
        if size_now < size or count < known:
            message = f"the file was changed during the run: it has {size_now} bytes now"
            self._log.report(self._policy.fault("lost_records", message), path, -1)
        if count == number:
            self._known_lengths[path] = number
        return range(number, count)

    def _report_rest_of_compressed(self, path: str, number: int) -> None:
        damages = [x if isinstance(x, Damage) else None for _, x in tfrecord.read_records(path)]
        self._known_lengths[path] = number
        for record, damage in enumerate(damages[number:], number):
            if damage is not None:
                self._report_damage(damage, path, record)
        if intact := damages[number:].count(None):
            message = (
                f"{intact} records that follow the damage are lost; decompress the file to use them"
            )
            self._log.report(self._policy.fault("lost_records", message, intact), path, -1)

    def _find_oldest(self, keys: np.ndarray, values: np.ndarray) -> Tuple[np.ndarray, np.bool_]:
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

    def _report_batch(
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

    def _find_end(
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
                f"is {self.paths[0]}. Remedy: write them again, and restart the run"
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
        path = self.paths[file]
        try:
            record = tfrecord.read_record(path, number)
        except (IndexError, OSError, tf.errors.OpError) as error:
            record = Damage("lost_records", f"an earlier pass could read it: {error}", 0, 0)
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
            self._log.report(
                fault, path, number, examined.source_id, max_skipped=self._policy.max_skipped
            )
        return True

    def _report_damage(self, damage: Damage, path: str, number: int) -> None:
        fault = self._policy.fault(damage.kind, damage.message)
        self._log.report(fault, path, number, max_skipped=self._policy.max_skipped)

    def _report_counts(self, counts: np.ndarray, record_id: int, name: bytes) -> None:
        file, number = split_record_id(record_id)
        source_id = name.decode("utf-8", "replace")
        for kind, count in zip(COUNTED, counts.tolist()):
            if count:
                # What the policy rejects arrives only where records are mixed: as too many boxes.
                action = CLIP if self._policy.rejects(kind) else self._policy.actions[kind]
                message = f"{KINDS[kind].description}: {count}, {effect(kind, action)}"
                fault = self._policy.fault(kind, message, count)._replace(action=action)
                self._log.report(fault, self.paths[file], number, source_id)


def without_guard_keys(
    features: Any,
    keep_source_id: bool,
    start: CursorState,
    check: Callable[..., List[tf.Operation]] = lambda *_: [],
) -> Dict[str, tf.Tensor]:
    """A batch's features with RECORD and AUGMENTATION_SEED instead of the keys for the guard.

    `check(sequence_numbers, record_ids, source_ids, fault_counts)` makes operations to run first.
    """
    features = dict(features)
    sequence_numbers, record_ids = features.pop(SEQUENCE_NUMBER), features.pop(RECORD_ID)
    source_ids, counts = features[schema.SOURCE_ID], features.pop(FAULT_COUNTS)
    if not keep_source_id:
        del features[schema.SOURCE_ID]
        features.pop(schema.FILENAME, None)
    with tf.control_dependencies(check(sequence_numbers, record_ids, source_ids, counts)):
        features[schema.RECORD] = unpack_record_ids(record_ids)
    seeds = tf.fill(tf.shape(sequence_numbers), tf.constant(start.seed, tf.int64))
    features[schema.AUGMENTATION_SEED] = tf.stack([seeds, sequence_numbers], axis=1)
    return features


def _empty(act: Callable[[tf.Tensor], tf.Tensor], like: tf.data.Dataset) -> tf.data.Dataset:
    """A dataset without elements, of the types of another; reading it runs `act`.

    `act` must return False.
    """

    # Traced faster than a map that makes an element of these types.
    @tf.autograph.experimental.do_not_convert
    def none(_: tf.Tensor) -> tf.data.Dataset:
        return like.take(0)

    return tf.data.Dataset.from_tensors(0).filter(act).flat_map(none)


def _stop_unless_empty(error: tf.Tensor) -> tf.Operation:
    return tf.debugging.Assert(tf.equal(error, ""), [error], summarize=1)
