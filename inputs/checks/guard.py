"""Guards the input pipeline: reports every record it loses, at no cost for clean data.

A parallel map decodes the records and ignores its errors, so a record that cannot be used is a gap
in the sequence numbers. A table in the graph has the id of the record of each sequence number.
Once a batch is complete, Python explains each gap in it: it reads the record again, examines it and
reports its faults to the `FaultLog`, which decides when the run must stop. Counts of corrected
boxes come with the batch. Python runs only if there is a fault to report.
"""

from __future__ import annotations

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
from inputs.records.record_id import split_record_id, unpack_record_ids
from inputs.records.stream import BLOCK
from inputs.records.tfrecord import Damage

# Keys inside the pipeline that the guard removes from the batch.
SEQUENCE_NUMBER = "sequence_number"  # of a record in the dataset, bad ones included
RECORD_ID = "record_id"  # see `inputs.records.record_id`; becomes RECORD in the batch

# Keys in the table of pending records, in addition to sequence numbers.
STOP = -2  # 1 if the run must stop
EXPECTED = -3  # the next sequence number
MAX_EMPTY_FILES = 1000  # files in a row that give no record while nothing else arrives
MAX_PENDING = 1024  # pending records, besides those that wait; beyond it, some must have failed

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
        self._lock = threading.Lock()
        self._complete: Dict[str, int] = {}  # compressed or remote file -> its number of records
        # Expected number and pending records, and how many files without records came since.
        self._empty_files = ((0, 0), 0)
        self._pending = _table()
        self._lengths = _table()  # local file that was read to its end -> its number of records

    # In the graph.

    def has_too_many_pending(self) -> tf.Tensor:
        return self._pending.size() > self._max_pending

    def may_continue(self) -> tf.Tensor:
        return tf.not_equal(self._pending.lookup(tf.constant(STOP, tf.int64)), 1)

    def known_length(self, file: tf.Tensor) -> tf.Tensor:
        unknown = tf.constant(-1, tf.int64)
        return tf.where(self.has_too_many_pending(), unknown, self._lengths.lookup(file))

    def set_length(self, file: tf.Tensor, length: tf.Tensor) -> tf.Operation:
        return self._lengths.insert(file, length)

    def clear_length(self, file: tf.Tensor) -> tf.Operation:
        return self._lengths.remove(tf.reshape(file, [1]))

    def read_rest(
        self, file: tf.Tensor, number: tf.Tensor, num_bytes: tf.Tensor
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        keys, values = self._pending.export()
        arguments = [file, number, num_bytes, keys, values]
        types = [tf.int64, tf.string, tf.int64, tf.int64]
        numbers, records, explained, stop = tf.numpy_function(self._read_rest, arguments, types)
        updates = [
            self._pending.remove(tf.reshape(explained, [-1])),
            self._pending.insert(tf.constant(STOP, tf.int64), tf.reshape(stop, [])),
        ]
        with tf.control_dependencies(updates):
            return tf.reshape(numbers, [-1]), tf.reshape(records, [-1])

    def expect_first(self, records: tf.data.Dataset, first: int) -> tf.data.Dataset:
        """The same records; each pass over them expects sequence number `first` first."""

        @tf.autograph.experimental.do_not_convert
        def reset(_: tf.Tensor) -> tf.Tensor:
            key, value = tf.constant(EXPECTED, tf.int64), tf.constant(first, tf.int64)
            with tf.control_dependencies([self._pending.insert(key, value)]):
                return tf.constant(False)

        return _empty(reset, records).concatenate(records)

    def add_pending(
        self, sequence_number: tf.Tensor, record_id: tf.Tensor, serialized: tf.Tensor
    ) -> tf.Tensor:
        """Enters a record as pending; returns its bytes."""
        with tf.control_dependencies([self._pending.insert(sequence_number, record_id)]):
            return tf.identity(serialized)

    def check_batches(
        self,
        batches: tf.data.Dataset,
        *,
        drop_remainder: bool,
        is_endless: bool,
        keep_source_id: bool,
        base_seed: int,
    ) -> tf.data.Dataset:
        """The same batches with RECORD and AUGMENTATION_SEED, after reporting all their faults.

        SEQUENCE_NUMBER, RECORD_ID and FAULT_COUNTS are removed. Endless data must not end.
        `base_seed` is the first number of every AUGMENTATION_SEED.

        Raises:
            InvalidArgumentError: from the dataset, with the fault, if the run must stop.
        """

        @tf.autograph.experimental.do_not_convert
        def check(features: Any, labels: Any) -> Any:
            found = without_guard_keys(features, keep_source_id, base_seed, self._check_batch)
            return found, labels

        # One call at a time, but in parallel with the other stages, which saves a tenth.
        checked = batches.map(check, num_parallel_calls=1, deterministic=True)

        @tf.autograph.experimental.do_not_convert
        def check_end(_: tf.Tensor) -> tf.Tensor:
            arguments = [*self._pending.export(), drop_remainder, is_endless]
            error = tf.ensure_shape(tf.numpy_function(self._find_end, arguments, tf.string), [])
            with tf.control_dependencies([_stop_unless_empty(error)]):
                return tf.constant(False)

        return checked.concatenate(_empty(check_end, checked))

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
        expected = self._pending.lookup(tf.constant(EXPECTED, tf.int64))
        expected = tf.where((expected >= 0) & (expected < first), expected, first)
        num_gaps = following - expected - tf.size(sequence_numbers, out_type=tf.int64)
        is_faulty = tf.reduce_any(counts > 0) | (num_gaps > 0) | tf.logical_not(self.may_continue())
        span = tf.range(expected, following)

        def report() -> tf.Tensor:
            pending = self._pending.lookup(span)
            arguments = [span, pending, sequence_numbers, record_ids, names, counts]
            return tf.ensure_shape(tf.numpy_function(self._report_batch, arguments, tf.string), [])

        error = tf.cond(is_faulty, report, lambda: tf.constant(""))
        with tf.control_dependencies([_stop_unless_empty(error)]):
            return [
                self._pending.remove(span),
                self._pending.insert(tf.constant(EXPECTED, tf.int64), following),
            ]

    # In Python, called from the graph.

    def _read_rest(
        self, file: int, number: int, num_bytes: int, keys: np.ndarray, values: np.ndarray
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray, np.int64]:
        explained: List[int] = []
        numbers: List[int] = []
        records: List[tfrecord.Record] = []
        pending = dict(zip(keys.tolist(), values.tolist()))
        try:
            if len(pending) > self._max_pending and not self._log.stop_reason:
                # Explains the older half; what remains may still arrive.
                older = sorted(one for one in pending.items() if one[0] >= 0)[: len(pending) // 2]
                explained = [
                    key for key, id_ in older if self._explain(key, id_, key == older[0][0])
                ]
            if not self._log.stop_reason:
                path = self.paths[file]
                numbers = list(self._remaining(path, int(number), int(num_bytes)))[:BLOCK]
                records = [tfrecord.read_record(path, one) for one in numbers]
            if not numbers and not number:
                self._check_empty_files(pending)
        except RecordFaultError:
            # The next batch, or the end of the data, raises the reason that the log has.
            if not self._log.stop_reason:
                raise
        stop = np.int64(bool(self._log.stop_reason))
        contents = np.array([b"" if isinstance(x, Damage) else x for x in records], object)
        return np.array(numbers, np.int64), contents, np.array(explained, np.int64), stop

    def _check_empty_files(self, pending: Dict[int, int]) -> None:
        """Stops a run whose files have all become empty; its epochs would never end."""
        now = (pending.get(EXPECTED, -1), len(pending))
        count = self._empty_files[1] + 1 if now == self._empty_files[0] else 0
        self._empty_files = (now, count)
        if count > MAX_EMPTY_FILES and not self._log.stop_reason:
            self._log.stop_reason = (
                f"all files have become empty; the first is {self.paths[0]}. Remedy: write them "
                "again, and restart the run"
            )

    def _remaining(self, path: str, number: int, num_bytes: int) -> range:
        """Numbers of the records from `number` on; none of a compressed file."""
        with self._lock:
            if self._complete.get(path) == number:
                return range(0)
        try:
            if tfrecord.is_compressed(path):
                self._report_rest_of_compressed(path, number)
                return range(0)
            is_complete = tfrecord.file_size(path) == num_bytes
            count = number if is_complete else tfrecord.count_records(path)
        except (OSError, tf.errors.OpError) as error:
            self._log.report(self._policy.fault("lost_records", f"{error}"), path, -1)
            return range(0)
        if count == number:
            with self._lock:
                self._complete[path] = number
        return range(number, count)

    def _report_rest_of_compressed(self, path: str, number: int) -> None:
        damages = [x if isinstance(x, Damage) else None for _, x in tfrecord.read_records(path)]
        with self._lock:
            self._complete[path] = number
        for record, damage in enumerate(damages[number:], number):
            if damage is not None:
                self._report_damage(damage, path, record)
        if intact := damages[number:].count(None):
            message = (
                f"{intact} records that follow the damage are lost; decompress the file to use them"
            )
            self._log.report(self._policy.fault("lost_records", message, intact), path, -1)

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
        try:
            arrived = set(sequence_numbers.tolist())
            for sequence_number, record_id in zip(span.tolist(), pending.tolist()):
                if sequence_number not in arrived:
                    self._explain(sequence_number, record_id, is_certain=True)
            for row in np.flatnonzero(counts.any(1)).tolist():
                self._report_counts(counts[row], int(record_ids[row]), names[row])
        except RecordFaultError as error:
            return str(error).encode()
        return self._log.stop_reason.encode()

    def _find_end(
        self, keys: np.ndarray, values: np.ndarray, drop_remainder: bool, is_endless: bool
    ) -> bytes:
        """The error at the end of the data; empty if there is none."""
        try:
            if not self._log.stop_reason:
                for sequence_number, record_id in sorted(zip(keys.tolist(), values.tolist())):
                    if sequence_number >= 0:
                        self._explain(sequence_number, record_id, is_certain=not drop_remainder)
        except RecordFaultError as error:
            return str(error).encode()
        if is_endless and not self._log.stop_reason:
            return f"no file contains a record: {self.paths[:3]}".encode()
        return self._log.stop_reason.encode()

    def _explain(self, sequence_number: int, record_id: int, is_certain: bool) -> bool:
        """Reports why a record did not arrive; False if nothing is wrong with it."""
        if record_id < 0:
            raise RecordFaultError(
                "an input file cannot be opened; TensorFlow's own messages have its name"
            )
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
            if not is_certain:
                return False
            why = self._retry(record, sequence_number) if self._retry is not None else ""
            why = why or "it failed once, but not when it was tried again"
            faults.append(self._policy.fault("unexplained", f"TensorFlow rejects it: {why}"))
        # A fault that stops the run comes last, since the log accepts none after it.
        for fault in sorted(faults, key=lambda one: one.action == FAIL):
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


def _table() -> tf.lookup.experimental.MutableHashTable:
    """int64 -> int64, -1 for missing keys; not in checkpoints, as other runs cannot use it."""
    return tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1, checkpoint=False)


def without_guard_keys(
    features: Any,
    keep_source_id: bool,
    base_seed: int,
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
    seeds = tf.fill(tf.shape(sequence_numbers), tf.constant(base_seed, tf.int64))
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
