"""Guards the input pipeline: reports every record that it loses, and calls Python for no other.

A parallel map decodes the records and ignores its errors. A table in the graph has the place of
each record that is being decoded. If TensorFlow rejects a record, its place stays in the table.
Some records later the map has certainly finished this record: Python reads it again, examines it
and reports its faults to the `FaultLog`, which decides when the run must stop. Counts of corrected
boxes come with the batch.

TensorFlow's reader abandons a file at the first damage; Python reads the rest from that byte on,
also of a compressed file.

A dataset on another machine cannot call Python: the host of a TPU, or the data workers of a
`tf.data` service. There the `GraphGuard` ends the run at any fault with TensorFlow's message:
no record is skipped, regardless of `bad_records`. Boxes are corrected, but not counted;
`estimator-det check-data` reports them before the run.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
from typing import Any, Callable, Counter, Dict, Iterator, List, Sequence, Tuple

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.errors import UsageError
from inputs import schema
from inputs.bad_records.kinds import (
    CLIP,
    COUNTED,
    FAIL,
    FAULT_COUNTS,
    KINDS,
    RecordFault,
    effect,
)
from inputs.bad_records.log import FaultLog, RecordFaultError
from inputs.bad_records.policy import BadRecordPolicy
from inputs.checks.examine import examine_record
from inputs.decoding.example import require
from inputs.records import tfrecord
from inputs.records.stream import BLOCK, StreamRecord, split_record_id
from inputs.records.tfrecord import Damage

# (number, record, stream index) -> an element of the pipeline; fails for an unusable record.
Read = Callable[[tf.Tensor, StreamRecord, tf.Tensor], Any]
# (serialized record, number) -> why TensorFlow cannot use it, "" if it can.
Retry = Callable[[bytes, int], str]
Frames = Iterator[Tuple[tfrecord.Frame, tfrecord.BytesOrDamage]]

# Numbers of records; a call for each number would take a twentieth of the time of a small image.
CHECKED_AT_ONCE = 8
MAX_LOSSES = 100  # times that one record may be lost while no other can be used
NO_MORE = -1  # the offset after a rest that cannot be read


class Guard:
    """The guard of one dataset in this process."""

    def __init__(
        self, paths: Sequence[str], policy: BadRecordPolicy, log: FaultLog, retry: Retry
    ) -> None:
        self._paths = list(paths)  # schema.RECORD has indices into them
        self._policy = policy
        self._log = log
        self._retry = retry
        # Number of a record -> its id and offset; not in checkpoints, as other runs cannot use it.
        self._pending = tf.lookup.experimental.MutableHashTable(
            tf.int64, tf.int64, [NO_MORE, NO_MORE], checkpoint=False
        )
        self._ends: Dict[str, int] = {}  # file -> bytes of its content, once Python has met its end
        # File -> its rest while Python reads it, and the offset of the next record.
        self._rests: Dict[str, Tuple[int, Frames]] = {}
        self._losses: Counter[int] = collections.Counter()  # by record id, since the last usable
        self._next_number = 0  # if that record is lost, none was usable since the last loss

    def read_rest(
        self, file: tf.Tensor, number: tf.Tensor, offset: tf.Tensor
    ) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Implements `inputs.records.stream.ReadRest`."""
        types = [tf.string, tf.int64, tf.int64]
        records, begins, end = tf.numpy_function(self._read_rest, [file, offset], types)
        return tf.reshape(records, [-1]), tf.reshape(begins, [-1]), tf.reshape(end, [])

    def numbers(self, first: int, num_parallel_calls: int) -> tf.data.Dataset:
        """The numbers of the records for `decode`, int64 from `first` on.

        Reports the records that were lost before; if the run must stop, the numbers end.
        """
        # The map works on `num_parallel_calls` records, and one more may wait for its consumer. A
        # record twice as far back is certainly done.
        distance = 2 * (num_parallel_calls + 1) + CHECKED_AT_ONCE

        # Tracing is several times faster without autograph, and nothing here needs it.
        @tf.autograph.experimental.do_not_convert
        def may_continue(block: tf.Tensor) -> tf.Tensor:
            earlier = block - distance
            locations = self._pending.lookup(earlier)
            return tf.cond(
                tf.reduce_all(locations < 0),
                lambda: tf.constant(True),
                lambda: tf.equal(self._report(earlier, locations), ""),
            )

        blocks = tf.data.Dataset.range(first, tf.int64.max).batch(CHECKED_AT_ONCE)
        return blocks.take_while(may_continue).unbatch()

    def decode(
        self, records: tf.data.Dataset, read: Read, num_parallel_calls: int
    ) -> tf.data.Dataset:
        """Applies `read` to (number, (record, stream index)), and leaves out what it rejects.

        The data end with an error if the run must stop.
        """

        @tf.autograph.experimental.do_not_convert
        def attempt(number: tf.Tensor, indexed_record: Tuple[StreamRecord, tf.Tensor]) -> Any:
            record, stream_index = indexed_record
            location = tf.stack([record.record_id, record.offset])
            with tf.control_dependencies([self._pending.insert(number, location)]):
                record = record._replace(serialized=tf.identity(record.serialized))
            element = read(number, record, stream_index)
            values = [value for value in tf.nest.flatten(element) if value is not None]
            operations = tf1.get_default_graph().get_operations()
            checks = [operation for operation in operations if operation.op_def.is_stateful]
            with tf.control_dependencies([*values, *checks]):
                self._pending.remove(number[tf.newaxis])
            return element

        @tf.autograph.experimental.do_not_convert
        def stop(_: tf.Tensor) -> tf.Tensor:
            error = self._report(*self._pending.export())
            with tf.control_dependencies([_stop_unless_empty(error)]):
                return tf.constant(False)

        @tf.autograph.experimental.do_not_convert
        def no_elements(_: tf.Tensor) -> tf.data.Dataset:
            return elements.take(0)

        # In order, so that a run reports the same records for any number of calls.
        elements = records.map(attempt, num_parallel_calls=num_parallel_calls, deterministic=True)
        elements = elements.ignore_errors()
        end = tf.data.Dataset.from_tensors(0).filter(stop).flat_map(no_elements)
        return elements.concatenate(end)

    def _report(self, numbers: tf.Tensor, locations: tf.Tensor) -> tf.Tensor:
        """Reports the lost ones among some records; a text, why the run must stop, or ""."""
        with tf.control_dependencies([self._pending.remove(numbers)]):
            return _text_of(self._report_losses, [numbers, locations])

    def check(self, features: Dict[str, tf.Tensor]) -> Dict[str, tf.Tensor]:
        """Features of a batch without FAULT_COUNTS, after reporting them."""
        features = dict(features)
        counts = features.pop(FAULT_COUNTS)
        arguments = [features[schema.RECORD], features[schema.SOURCE_ID], counts]
        error = tf.cond(
            tf.reduce_any(counts > 0),
            lambda: _text_of(self._report_counts, arguments),
            lambda: tf.constant(""),
        )
        with tf.control_dependencies([_stop_unless_empty(error)]):
            features[schema.RECORD] = tf.identity(features[schema.RECORD])
        return features

    def _read_rest(self, file: int, offset: int) -> Tuple[np.ndarray, np.ndarray, np.int64]:
        """The results of `ReadRest`; what cannot be read counts as one record."""
        path, begin = self._paths[file], int(offset)
        contents, begins, end = [], [], begin
        if begin not in (NO_MORE, self._ends.get(path)):
            following, rest = self._rests.pop(path, (NO_MORE, iter(())))
            is_new = following != begin
            try:
                rest = tfrecord.read_frames(path, begin) if is_new else rest
                for frame, record in itertools.islice(rest, BLOCK):
                    contents.append(b"" if isinstance(record, Damage) else record)
                    begins.append(frame.offset)
                    end = frame.end
            except (OSError, tf.errors.OpError):
                contents.append(b"")
                begins.append(end)
                end = NO_MORE
            if contents:
                self._rests[path] = end, rest
            elif is_new:
                self._ends[path] = begin
        return np.array(contents, object), np.array(begins, np.int64), np.int64(end)

    def _report_losses(self, numbers: np.ndarray, locations: np.ndarray) -> bytes:
        """Reports lost records; returns why the run must stop, or b""."""
        for number, (record_id, offset) in sorted(zip(numbers.tolist(), locations.tolist())):
            if record_id >= 0:
                self._lose(number, record_id, offset)
        return self._log.stop_reason.encode()

    def _lose(self, number: int, record_id: int, offset: int) -> None:
        """Reports why a record is lost."""
        if number != self._next_number:
            self._losses.clear()
        self._next_number = number + 1
        self._losses[record_id] += 1
        file, place = split_record_id(record_id)
        if self._losses[record_id] == 1:  # else it was reported
            with contextlib.suppress(RecordFaultError):
                self._explain(self._paths[file], place, offset, number)
        elif self._losses[record_id] > MAX_LOSSES:
            self._log.stop(
                "no record can be used: all of them are skipped, the last one is "
                f"{self._paths[file]}, record {place}. Remedy: write the records again"
            )

    def _explain(self, path: str, place: int, offset: int, number: int) -> None:
        """Reports the faults of a record; `place` is its number in the file."""
        try:
            record = next(tfrecord.read_records(path, offset), b"")
        except (OSError, tf.errors.OpError) as error:
            self._add_faults([self._policy.fault("lost_records", str(error))], path)
            return
        if isinstance(record, Damage):
            self._add_faults([self._policy.fault(record.kind, record.message)], path, place)
            return
        examined = examine_record(record, self._policy)
        faults = list(examined.faults)
        if examined.usable:
            reason = self._retry(record, number) or "it failed once, but not when tried again"
            faults.append(self._policy.fault("unexplained", f"TensorFlow rejects it: {reason}"))
        self._add_faults(faults, path, place, examined.source_id)

    def _report_counts(self, records: np.ndarray, names: np.ndarray, counts: np.ndarray) -> bytes:
        """Reports the corrected boxes of a batch; returns why the run must stop, or b""."""
        with contextlib.suppress(RecordFaultError):
            for row in np.flatnonzero(counts.any(1)).tolist():
                file, place = records[row].tolist()
                faults = [
                    self._corrected(kind, count)
                    for kind, count in zip(COUNTED, counts[row].tolist())
                    if count
                ]
                name = names[row].decode("utf-8", "replace")
                self._add_faults(faults, self._paths[file], place, name)
        return self._log.stop_reason.encode()

    def _corrected(self, kind: str, count: int) -> RecordFault:
        # A rejected kind comes this far only as too_many_boxes, in mixtures of records.
        action = CLIP if self._policy.rejects(kind) else self._policy.actions[kind]
        message = f"{KINDS[kind].description}: {count}, {effect(kind, action)}"
        return dataclasses.replace(self._policy.fault(kind, message, count), action=action)

    def _add_faults(
        self, faults: Sequence[RecordFault], path: str, place: int = -1, source_id: str = ""
    ) -> None:
        # A fault that stops the run comes last, since the log accepts none after it.
        for fault in sorted(faults, key=lambda candidate: candidate.action == FAIL):
            is_of_file = KINDS[fault.kind].unit == "file"
            fault = fault.at(path, -1 if is_of_file else place, source_id)
            self._log.report(fault, self._policy.max_skipped)


class GraphGuard:
    """A `Guard` of TensorFlow operations alone: any fault raises InvalidArgumentError."""

    def __init__(self, paths: Sequence[str]) -> None:
        compressed = [path for path in paths if tfrecord.compression_of(path)]
        if compressed:
            raise UsageError(
                f"{compressed[0]}: compressed files cannot be read on the host of a TPU or by a "
                "data worker, where damage to them would go unnoticed. Decompress them; reading "
                "becomes faster, too"
            )
        self._paths = list(paths)
        self._sizes = [tf.io.gfile.stat(path).length for path in paths]

    def read_rest(
        self, file: tf.Tensor, number: tf.Tensor, offset: tf.Tensor
    ) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """No record; raises an error unless the reader got to the end of the file."""
        size = tf.gather(tf.constant(self._sizes, tf.int64), file)
        path = tf.gather(tf.constant(self._paths), file)
        is_complete = require(
            tf.equal(offset, size),
            tf.strings.join([path, ", record ", tf.strings.as_string(number)]),
            ["damaged_record"],
            "Records cannot be skipped here. Bytes read, and bytes of the file:",
            [offset, size],
        )
        with tf.control_dependencies([is_complete]):
            return tf.zeros([0], tf.string), tf.zeros([0], tf.int64), tf.identity(offset)

    def numbers(self, first: int, num_parallel_calls: int) -> tf.data.Dataset:
        """The numbers of the records for `decode`, int64 from `first` on."""
        return tf.data.Dataset.range(first, tf.int64.max)

    def decode(
        self, records: tf.data.Dataset, read: Read, num_parallel_calls: int
    ) -> tf.data.Dataset:
        """Applies `read` to (number, (record, stream index))."""

        @tf.autograph.experimental.do_not_convert
        def decode(number: tf.Tensor, indexed_record: Tuple[StreamRecord, tf.Tensor]) -> Any:
            return read(number, *indexed_record)

        return records.map(decode, num_parallel_calls=num_parallel_calls, deterministic=True)

    def check(self, features: Dict[str, tf.Tensor]) -> Dict[str, tf.Tensor]:
        """Features of a batch without FAULT_COUNTS."""
        return {key: value for key, value in features.items() if key != FAULT_COUNTS}


def _text_of(function: Callable[..., bytes], arguments: List[tf.Tensor]) -> tf.Tensor:
    """String scalar that a Python function returns."""
    return tf.ensure_shape(tf.numpy_function(function, arguments, tf.string), [])


def _stop_unless_empty(error: tf.Tensor) -> tf.Operation:
    return tf.debugging.Assert(tf.equal(error, ""), [error], summarize=1)
