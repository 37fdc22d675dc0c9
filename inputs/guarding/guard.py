"""Guards the input pipeline: reports every record it loses, at no cost for clean data.

A parallel map decodes the records and ignores its errors, so a record that cannot be used is a gap
in the sequence numbers. A table in the graph has the id of the record of each sequence number.
Once a batch is complete, Python explains each gap in it (`inputs.guarding.explain`): it reads the
record again, examines it and reports its faults to the `FaultLog`, which decides when the run must
stop. If no batch gets complete, the table fills, and Python explains the oldest gaps. Counts of
corrected boxes come with the batch. Python runs only if there is a fault to report.

A dataset on another machine cannot call Python: the host of a TPU, or the data workers of a
`tf.data` service. There the `GraphGuard` ends the run at any fault with TensorFlow's message:
no record is skipped, whatever `bad_records` says. Boxes are corrected, but not counted;
`estimator-det check-data` reports them before the run.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from estimator_det.compat import tf
from estimator_det.errors import UsageError
from inputs import schema
from inputs.bad_records.kinds import FAULT_COUNTS
from inputs.bad_records.log import FaultLog
from inputs.bad_records.policy import BadRecordPolicy
from inputs.decoding.example import require
from inputs.guarding.explain import Explainer, Retry
from inputs.records.cursor import CursorState
from inputs.records.stream import unpack_record_ids
from inputs.records.tfrecord import compression_of

# Keys inside the pipeline that the guard removes from the batch.
SEQUENCE_NUMBER = "sequence_number"  # counts records in the dataset, bad ones included
RECORD_ID = "record_id"  # see `inputs.records.stream`; becomes RECORD in the batch

# Keys in the table of pending records, in addition to sequence numbers.
STOP = -2  # 1 if the run must stop
EXPECTED = -3  # the next sequence number
NUM_STARTS = -4  # files and epochs that began since the last batch
MAX_PENDING = 1024  # pending records, besides those that wait; beyond it, some must have failed
MAX_STARTS = 1000  # besides one epoch for each record that waits; beyond it, none is usable


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
        self._explainer = Explainer(paths, policy, log, retry)
        self._max_pending = MAX_PENDING + num_waiting
        self._max_starts = MAX_STARTS + 2 * len(self.paths) * (1 + num_waiting)
        # int64 -> int64, -1 for missing keys; not in checkpoints, as other runs cannot use it.
        self._pending = tf.lookup.experimental.MutableHashTable(
            tf.int64, tf.int64, -1, checkpoint=False
        )

    def may_continue(self) -> tf.Tensor:
        starts = self._lookup(NUM_STARTS) + 1
        updates = [self._insert(NUM_STARTS, starts), self._stop_if(starts > self._max_starts)]
        with tf.control_dependencies(updates):
            return tf.not_equal(self._lookup(STOP), 1)

    def read_rest(
        self, file: tf.Tensor, number: tf.Tensor, num_bytes: tf.Tensor, size: tf.Tensor
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        arguments, types = [file, number, num_bytes, size], [tf.int64, tf.string, tf.bool]
        numbers, records, stop = tf.numpy_function(self._explainer.read_rest, arguments, types)
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
            error = _text_of(self._explainer.find_end, arguments)
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
        is_faulty = tf.reduce_any(counts > 0) | (num_gaps > 0) | tf.equal(self._lookup(STOP), 1)
        span = tf.range(expected, following)

        def report() -> tf.Tensor:
            pending = self._pending.lookup(span)
            arguments = [span, pending, sequence_numbers, record_ids, names, counts]
            return _text_of(self._explainer.report_batch, arguments)

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
            self._explainer.find_oldest, self._pending.export(), [tf.int64, tf.bool]
        )
        explained = tf.reshape(explained, [-1])
        with tf.control_dependencies([self._pending.remove(explained), self._stop_if(stop)]):
            return tf.debugging.Assert(tf.logical_not(stop), ["the run must stop"])

    def _lookup(self, key: int) -> tf.Tensor:
        return self._pending.lookup(tf.constant(key, tf.int64))

    def _insert(self, key: int, value: Any) -> tf.Operation:
        return self._pending.insert(tf.constant(key, tf.int64), tf.cast(value, tf.int64))

    def _stop_if(self, condition: tf.Tensor) -> tf.Operation:
        return tf.cond(tf.reshape(condition, []), lambda: self._insert(STOP, 1), tf.no_op)


class GraphGuard:
    """A `guard.Guard` of TensorFlow operations alone: any fault raises InvalidArgumentError."""

    def __init__(self, paths: Sequence[str]) -> None:
        compressed = [path for path in paths if compression_of(path)]
        if compressed:
            raise UsageError(
                f"{compressed[0]}: compressed files cannot be read on the host of a TPU or by a "
                "data worker, where damage to them would go unnoticed. Decompress them; reading "
                "becomes faster, too"
            )
        self.paths: List[str] = list(paths)
        self._sizes = [tf.io.gfile.stat(path).length for path in self.paths]

    def may_continue(self) -> tf.Tensor:
        """Always: a fault that must stop the run raises an error."""
        return tf.constant(True)

    def read_rest(
        self, file: tf.Tensor, number: tf.Tensor, num_bytes: tf.Tensor, size: tf.Tensor
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """No record; raises an error unless the reader got to the end of the file."""
        size = tf.gather(tf.constant(self._sizes, tf.int64), file)
        is_complete = require(
            tf.equal(num_bytes, size),
            tf.strings.join([tf.gather(tf.constant(self.paths), file), ", record ",
                             tf.strings.as_string(number)]),
            ["damaged_record"],
            "Records cannot be skipped here. Bytes read, and bytes of the file:",
            [num_bytes, size],
        )  # fmt: skip
        with tf.control_dependencies([is_complete]):
            return tf.zeros([0], tf.int64), tf.zeros([0], tf.string)

    def add_pending(
        self, sequence_number: tf.Tensor, record_id: tf.Tensor, serialized: tf.Tensor
    ) -> tf.Tensor:
        return serialized

    def check_batches(
        self, batches: tf.data.Dataset, *, start: CursorState, keep_source_id: bool, **_: Any
    ) -> tf.data.Dataset:
        """Batches with the features that `Guard.check_batches` gives them."""

        @tf.autograph.experimental.do_not_convert
        def complete(features: Any, labels: Any) -> Any:
            return without_guard_keys(features, keep_source_id, start), labels

        return batches.map(complete)


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


def _text_of(function: Callable[..., bytes], arguments: List[tf.Tensor]) -> tf.Tensor:
    """String scalar that a Python function returns."""
    return tf.ensure_shape(tf.numpy_function(function, arguments, tf.string), [])


def _stop_unless_empty(error: tf.Tensor) -> tf.Operation:
    return tf.debugging.Assert(tf.equal(error, ""), [error], summarize=1)
