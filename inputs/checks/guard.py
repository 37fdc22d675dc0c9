"""Watches the input pipeline: nothing is lost without its name, and clean data pay nothing for it.

Records are decoded by a parallel map whose errors are ignored, so a record that cannot be used is a
gap in the positions of the stream. A table in the graph knows which record is at which position;
once a batch is together, its gaps are looked up, and Python explains each: it reads the record
again, examines it, and tells the `FaultLog`, which knows when the run must stop. Counts of what
was mended travel with the batch as well. Python runs only where there is something to tell.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from estimator_det.compat import tf
from inputs import schema
from inputs.bad_records.kinds import (
    COUNTED,
    FAIL,
    FAULT_COUNTS,
    KINDS,
    FaultLog,
    done_about,
)
from inputs.bad_records.policy import BadRecordPolicy
from inputs.checks.examine import examine_record
from inputs.records import tfrecord
from inputs.records.tfrecord import Damage

POSITION = "position"  # of a record in the stream; leaves the batch again
RECORD_ID = "place"  # see `pack_record_id`; becomes RECORD in the batch

# Keys in the table of pending records, beside positions.
STOP = -2  # 1 where the run must stop
EXPECTED = -3  # the position that is to arrive next
NUMBER_BITS = 40  # file and number share an int64 in the table
BLOCK = 16  # records whose bytes are counted, or that are read here, at once
MAX_BARREN = 1000  # files in a row that give nothing, while nothing moves
MAX_PENDING = 1024  # records that may be on their way; more, and nothing has arrived for long

Retry = Callable[[bytes, int], str]


def pack_record_id(file: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """Index of a file and numbers of records in it, as one int64 each."""
    return tf.bitwise.left_shift(file, NUMBER_BITS) + numbers


def unpack_record_id(places: tf.Tensor) -> tf.Tensor:
    """int64 [k] -> [k, 2]: file and number."""
    bits = tf.constant(NUMBER_BITS, places.dtype)
    file = tf.bitwise.right_shift(places, bits)
    return tf.stack([file, places - tf.bitwise.left_shift(file, bits)], axis=1)


class Guard:
    """The watch over one dataset.

    Args:
        paths: Files, in the order that `schema.RECORD` counts in.
        policy: What is a fault, and what is done about it.
        log: Where all is told.
        retry: (serialized record, position) -> why TensorFlow cannot use it, "" if it can.
    """

    def __init__(
        self,
        paths: Sequence[str],
        policy: BadRecordPolicy,
        log: FaultLog,
        retry: Optional[Retry] = None,
    ) -> None:
        self.paths = list(paths)
        self._policy = policy
        self._log = log
        self._retry = retry
        self._lock = threading.Lock()
        self._whole: Dict[str, int] = {}  # compressed or remote file -> its number of records
        # What was on its way, and the number of files since then that gave nothing.
        self._barren = ((0, 0), 0)
        self._pending = _table()
        self._lengths = _table()  # local file -> number of records, once it was found to be whole

    # In the graph.

    def is_full(self) -> tf.Tensor:
        """Whether so many records are on their way that some must have failed."""
        return self._pending.size() > MAX_PENDING

    def goes_on(self) -> tf.Tensor:
        """Whether more files are to be read: False once the run must stop."""
        return tf.not_equal(self._pending.lookup(tf.constant(STOP, tf.int64)), 1)

    def length(self, file: tf.Tensor) -> tf.Tensor:
        """How many records a file has, int64; -1 where they are to be counted."""
        unknown = tf.constant(-1, tf.int64)
        return tf.where(self.is_full(), unknown, self._lengths.lookup(file))

    def note_whole(self, file: tf.Tensor, length: tf.Tensor) -> tf.Operation:
        """Takes note that a file has just been read to its end."""
        return self._lengths.insert(file, length)

    def note_missing(self, file: tf.Tensor) -> tf.Operation:
        """Takes note that a file has become shorter: it will be counted again."""
        return self._lengths.remove(tf.reshape(file, [1]))

    def rest_of_file(
        self, file: tf.Tensor, number: tf.Tensor, read: tf.Tensor
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """The next records that the fast reader did not give; mostly none.

        Args:
            file: Index of the file.
            number: Records of it that are there already.
            read: Bytes that the fast reader gave, frames included.

        Returns:
            Numbers, int64 [k], and contents, string [k], "" of damaged ones; k is 0 at the end of
            the file and at most BLOCK.
        """
        keys, values = self._pending.export()
        given = [file, number, read, keys, values]
        types = [tf.int64, tf.string, tf.int64, tf.int64]
        numbers, records, swept, stop = tf.numpy_function(self._rest_of_file, given, types)
        done = [
            self._pending.remove(tf.reshape(swept, [-1])),
            self._pending.insert(tf.constant(STOP, tf.int64), tf.reshape(stop, [])),
        ]
        with tf.control_dependencies(done):
            return tf.reshape(numbers, [-1]), tf.reshape(records, [-1])

    def from_start(self, records: tf.data.Dataset, first: int) -> tf.data.Dataset:
        """The same records; each time they are read anew, position `first` is expected."""

        @tf.autograph.experimental.do_not_convert
        def note(_: tf.Tensor) -> tf.Tensor:
            key, value = tf.constant(EXPECTED, tf.int64), tf.constant(first, tf.int64)
            with tf.control_dependencies([self._pending.insert(key, value)]):
                return tf.constant(False)

        return _empty(note, records.element_spec).concatenate(records)

    def begin(self, position: tf.Tensor, place: tf.Tensor, serialized: tf.Tensor) -> tf.Tensor:
        """Notes a record on its way; returns its bytes."""
        with tf.control_dependencies([self._pending.insert(position, place)]):
            return tf.identity(serialized)

    def watch(
        self,
        batches: tf.data.Dataset,
        *,
        drop_remainder: bool,
        is_endless: bool,
        keep_source_id: bool,
        base_seed: int,
    ) -> tf.data.Dataset:
        """Batches without POSITION and FAULT_COUNTS, and without faults that nobody was told of.

        Raises:
            InvalidArgumentError: from the dataset, with the whole story, if the run must stop.
        """

        # The table keeps what is expected. As the state of a `scan` it would be simpler, but that
        # takes a fifth more time for the whole pipeline of small images.
        @tf.autograph.experimental.do_not_convert
        def look(features: Any, labels: Any) -> Any:
            features = dict(features)
            positions, counts = features.pop(POSITION), features.pop(FAULT_COUNTS)
            names, places = features[schema.SOURCE_ID], features.pop(RECORD_ID)
            if not keep_source_id:
                del features[schema.SOURCE_ID]
            first, following = positions[0], positions[-1] + 1
            expected = self._pending.lookup(tf.constant(EXPECTED, tf.int64))
            expected = tf.where((expected >= 0) & (expected < first), expected, first)
            num_gaps = following - expected - tf.size(positions, out_type=tf.int64)
            odd = tf.reduce_any(counts > 0) | (num_gaps > 0) | tf.logical_not(self.goes_on())
            span = tf.range(expected, following)

            def told() -> tf.Tensor:
                given = [span, self._pending.lookup(span), positions, places, names, counts]
                return tf.ensure_shape(tf.numpy_function(self._look, given, tf.string), [])

            message = tf.cond(odd, told, lambda: tf.constant(""))
            stop = tf.debugging.Assert(tf.equal(message, ""), [message], summarize=1)
            with tf.control_dependencies([stop]):
                done = [
                    self._pending.remove(span),
                    self._pending.insert(tf.constant(EXPECTED, tf.int64), following),
                ]
            with tf.control_dependencies(done):
                features[schema.RECORD] = unpack_record_id(places)
            features[schema.AUGMENTATION_SEED] = tf.stack(
                [tf.fill(tf.shape(positions), tf.constant(base_seed, tf.int64)), positions], axis=1
            )
            return features, labels

        # One call at a time, but beside the other stages, which saves a tenth as well.
        watched = batches.map(look, num_parallel_calls=1, deterministic=True)

        @tf.autograph.experimental.do_not_convert
        def last_look(_: tf.Tensor) -> tf.Tensor:
            given = [*self._pending.export(), drop_remainder, is_endless]
            message = tf.ensure_shape(tf.numpy_function(self._last_look, given, tf.string), [])
            stop = tf.debugging.Assert(tf.equal(message, ""), [message], summarize=1)
            with tf.control_dependencies([stop]):
                return tf.constant(False)

        return watched.concatenate(_empty(last_look, watched.element_spec))

    # In Python, called from the graph.

    def _rest_of_file(
        self, file: int, number: int, read: int, keys: np.ndarray, values: np.ndarray
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray, np.int64]:
        swept: List[int] = []
        numbers: List[int] = []
        records: List[bytes] = []
        try:
            if len(keys) > MAX_PENDING and not self._log.stopped:
                order = np.argsort(keys)
                swept = self._explain_pending(keys[order], values[order], len(keys) // 2)
            if not self._log.stopped:
                path = self.paths[file]
                numbers = list(self._rest(path, int(number), int(read)))[:BLOCK]
                records = [_content(tfrecord.read_record(path, one)) for one in numbers]
            if not numbers and not number:
                self._check_barren(dict(zip(keys.tolist(), values.tolist())))
        except ValueError:
            if not self._log.stopped:
                raise
        stop = np.int64(bool(self._log.stopped))
        contents = np.array(records, object)
        return np.array(numbers, np.int64), contents, np.array(swept, np.int64), stop

    def _check_barren(self, pending: Dict[int, int]) -> None:
        """Stops a run whose files have all become empty; their epochs would follow for ever."""
        now = (pending.get(EXPECTED, -1), len(pending))
        count = self._barren[1] + 1 if now == self._barren[0] else 0
        self._barren = (now, count)
        if count > MAX_BARREN and not self._log.stopped:
            self._log.stopped = (
                f"the files hold no record any more; the first is {self.paths[0]}. Remedy: write "
                "them anew, and start again"
            )

    def _rest(self, path: str, number: int, read: int) -> range:
        """Numbers of the records from `number` on, none of a compressed file."""
        with self._lock:
            if self._whole.get(path) == number:
                return range(0)
        try:
            if tfrecord.is_compressed(path):
                self._tell_rest_of_compressed(path, number)
                return range(0)
            count = number if tfrecord.file_size(path) == read else tfrecord.count_records(path)
        except (OSError, tf.errors.OpError) as error:
            self._log.tell(self._policy.finding("lost_records", f"{error}"), path, -1)
            return range(0)
        if count == number:
            with self._lock:
                self._whole[path] = number
        return range(number, count)

    def _tell_rest_of_compressed(self, path: str, number: int) -> None:
        found = list(_outline(path))
        with self._lock:
            self._whole[path] = number
        intact = 0
        for position, damage in found[number:]:
            if damage is not None:
                self._tell_damage(damage, path, position)
            intact += damage is None
        if intact:
            message = (
                f"{intact} records that follow the damage are lost; decompress the file to use them"
            )
            self._log.tell(self._policy.finding("lost_records", message, intact), path, -1)

    def _name(self, place: int) -> Tuple[str, int]:
        return self.paths[place >> NUMBER_BITS], int(place & ((1 << NUMBER_BITS) - 1))

    def _look(
        self,
        span: np.ndarray,
        pending: np.ndarray,
        positions: np.ndarray,
        places: np.ndarray,
        names: np.ndarray,
        counts: np.ndarray,
    ) -> bytes:
        """What stops the run, "" if nothing does."""
        try:
            arrived = set(positions.tolist())
            for position, place in zip(span.tolist(), pending.tolist()):
                if position not in arrived:
                    self._explain(position, place, is_certain=True)
            for row in np.flatnonzero(counts.any(1)).tolist():
                self._tell_counts(counts[row], int(places[row]), names[row])
        except ValueError as error:
            return str(error).encode()
        return self._log.stopped.encode()

    def _last_look(
        self, keys: np.ndarray, values: np.ndarray, drop_remainder: bool, is_endless: bool
    ) -> bytes:
        """What is wrong at the end of the data, "" if nothing is."""
        try:
            if not self._log.stopped:
                pending = sorted(zip(keys.tolist(), values.tolist()))
                for position, place in pending:
                    if position >= 0:
                        self._explain(position, place, is_certain=not drop_remainder)
        except ValueError as error:
            return str(error).encode()
        if is_endless and not self._log.stopped:
            return f"no file holds a record: {self.paths[:3]}".encode()
        return self._log.stopped.encode()

    def _explain_pending(self, keys: np.ndarray, values: np.ndarray, count: int) -> List[int]:
        """Explains the older half of many; those that have failed, for certain."""
        older = [(position, place) for position, place in zip(keys, values) if position >= 0]
        return [
            int(position)
            for index, (position, place) in enumerate(older[:count])
            if self._explain(int(position), int(place), is_certain=index == 0)
        ]

    def _explain(self, position: int, place: int, is_certain: bool) -> bool:
        """Tells why a record did not arrive; False if there is no reason.

        Raises:
            ValueError: if the run must stop.
        """
        if place < 0:
            text = "an input file cannot be opened; its name is in TensorFlow's own messages"
            raise ValueError(text)
        path, number = self._name(place)
        try:
            record = tfrecord.read_record(path, number)
        except (IndexError, OSError, tf.errors.OpError) as error:
            record = Damage("lost_records", f"it was there in an earlier pass: {error}", 0, 0)
        if isinstance(record, Damage):
            self._tell_damage(record, path, number)
            return True
        examined = examine_record(record, self._policy)
        findings = list(examined.findings)
        if examined.usable:
            if not is_certain:
                return False
            why = self._retry(record, position) if self._retry is not None else ""
            why = why or "it was refused once, but not when it was tried again"
            findings.append(self._policy.finding("unexplained", f"TensorFlow refuses it: {why}"))
        # What stops the run comes last, for nothing is told after it.
        for finding in sorted(findings, key=lambda one: one.action == FAIL):
            self._log.tell(
                finding, path, number, examined.source_id, max_skipped=self._policy.max_skipped
            )
        return True

    def _tell_damage(self, damage: Damage, path: str, number: int) -> None:
        finding = self._policy.finding(damage.kind, damage.message)
        self._log.tell(finding, path, number, max_skipped=self._policy.max_skipped)

    def _tell_counts(self, counts: np.ndarray, place: int, name: bytes) -> None:
        path, number = self._name(place)
        for kind, count in zip(COUNTED, counts.tolist()):
            if not count:
                continue
            done = done_about(kind, self._policy.actions[kind])
            finding = self._policy.finding(kind, f"{KINDS[kind].what}: {count}, {done}", count)
            source_id = name.decode("utf-8", "replace")
            self._log.tell(finding, path, number, source_id)


def _table() -> tf.lookup.experimental.MutableHashTable:
    """From int64 to int64, -1 where empty; not in checkpoints: it says nothing to other runs."""
    return tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1, checkpoint=False)


def _outline(path: str) -> Any:
    """Number and damage, or None, of each record."""
    for number, record in tfrecord.read_records(path):
        yield number, record if isinstance(record, Damage) else None


def _empty(act: Callable[[tf.Tensor], tf.Tensor], spec: Any) -> tf.data.Dataset:
    """A dataset without elements; `act`, which gives False, runs when they are asked for."""
    nothing = tf.data.Dataset.from_tensors(0).filter(act)
    return nothing.map(lambda _: tf.nest.map_structure(_zeros, spec))


def _content(record: tfrecord.Record) -> bytes:
    return b"" if isinstance(record, Damage) else record


def _zeros(spec: tf.TensorSpec) -> tf.Tensor:
    shape = [length or 0 for length in spec.shape.as_list()]
    return tf.fill(shape, "") if spec.dtype == tf.string else tf.zeros(shape, spec.dtype)
