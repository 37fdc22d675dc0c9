"""Finds TFRecord files and streams their records, still serialized, in the order asked for.

TensorFlow's reader gives up a file at the first damage. So the bytes it gives are counted the first
time; where they are not all the file has, the other records come from `inputs.records.tfrecord`.
Of a file that was whole, the same number of records is expected from then on, which costs nothing.
"""

from __future__ import annotations

import itertools
import os
import re
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

from estimator_det.compat import tf
from estimator_det.config import files
from estimator_det.protos import input_reader_pb2
from inputs.bad_records import kinds
from inputs.bad_records.policy import BadRecordPolicy, make_policy
from inputs.checks.guard import BLOCK, Guard, pack_record_id
from inputs.records import cursor, tfrecord
from inputs.records.cursor import CursorState

COMPRESSIONS = {".gz": "GZIP", ".gzip": "GZIP", ".zlib": "ZLIB", ".zz": "ZLIB"}

# Bytes read ahead from each open file; remote storage answers late, so it takes larger bites.
LOCAL_BUFFER = 512 * 1024
REMOTE_BUFFER = 8 * 1024 * 1024

SIZE_UNKNOWN = -1  # of compressed files: only reading them tells whether they are whole


class Files(NamedTuple):
    """The files of a reader; `schema.RECORD` counts in `paths`."""

    paths: List[str]
    sizes: List[int]  # in bytes; SIZE_UNKNOWN of remote ones
    stream_lengths: List[int]  # one stream of all files, or with weights one for each input_path


class Found(NamedTuple):
    """A record as its file gives it."""

    place: tf.Tensor  # int64: file and number in one, see `guard.pack_record_id`
    serialized: tf.Tensor  # string; "" where it is damaged


class Record(NamedTuple):
    """A record on its way to the decoder."""

    place: tf.Tensor  # int64: file and number in one, see `guard.pack_record_id`
    stream_index: (
        tf.Tensor
    )  # int64: where it stands in the order of records, see `inputs.records.cursor`
    serialized: tf.Tensor  # string; "" where it is damaged


def find_files(pattern: str) -> List[str]:
    """Files that a path or glob pattern names, local or remote, in sorted order.

    Raises:
        FileNotFoundError: if there are none.
    """
    found: List[str] = sorted(tf.io.gfile.glob(pattern))
    if not found:
        raise FileNotFoundError(
            f"input_path {pattern!r} matches no file. A relative path counts from the folder in "
            "which the program runs; sharded files need a pattern such as 'train.record-*'."
        )
    return found


def compression_of(path: str) -> str:
    """Compression by file suffix: "GZIP", "ZLIB", or "" for none."""
    return next((kind for end, kind in COMPRESSIONS.items() if path.endswith(end)), "")


def input_patterns(config: input_reader_pb2.InputReader) -> List[str]:
    """The path patterns of a reader.

    Raises:
        ValueError: if the reader names none, or is not a TFRecord reader.
    """
    kind = config.WhichOneof("input_reader")
    if kind == "external_input_reader":
        raise ValueError(
            "input_reader.external_input_reader: external readers are not supported; convert the "
            "data to TFRecords and name them in tf_record_input_reader { input_path: … }"
        )
    patterns = list(config.tf_record_input_reader.input_path)
    if not patterns:
        raise ValueError(
            "input_reader: tf_record_input_reader { input_path: … } names no file to read"
        )
    return patterns


def list_files(
    config: input_reader_pb2.InputReader,
    policy: Optional[BadRecordPolicy] = None,
    log: Optional[kinds.FaultLog] = None,
) -> Files:
    """All files of a reader: its input_paths in order, those of a pattern sorted.

    Patterns without a file and empty files are told to `log`, where the policy let them pass.

    Raises:
        FileNotFoundError: if an input_path matches nothing, or no file holds anything.
        ValueError: if the weights do not fit the paths, no path is given, or an empty file is
            refused.
    """
    policy = make_policy(config) if policy is None else policy
    log = kinds.FaultLog() if log is None else log
    patterns = input_patterns(config)
    weights = list(config.sample_from_datasets_weights)
    if weights and len(weights) != len(patterns):
        raise ValueError(
            f"sample_from_datasets_weights has {len(weights)} values for {len(patterns)} "
            "input_path entries; give one weight for each path"
        )
    groups: List[List[str]] = []
    missing = None
    for pattern in patterns:
        try:
            groups.append(find_files(pattern))
        except FileNotFoundError as error:
            if not policy.may_skip("no_file"):
                raise
            missing = error
            groups.append([])
            log.tell(policy.finding("no_file", "input_path matches no file"), pattern, -1)
    paths = [path for group in groups for path in group]
    if not paths:
        raise missing or FileNotFoundError("input_reader: there is no file")
    sizes = [_size(path) for path in paths]
    for path, size in zip(paths, sizes):
        if size == 0:
            log.tell(policy.finding("empty_file", "the file is empty"), path, -1)
    if not any(sizes):
        raise FileNotFoundError(
            f"input_reader: all {len(paths)} files are empty, the first is {paths[0]}; write the "
            "records anew"
        )
    return Files(paths, sizes, [len(group) for group in groups] if weights else [len(paths)])


def _size(path: str) -> int:
    """Bytes of a local file; SIZE_UNKNOWN of others, for asking takes long."""
    if files.is_remote(path):
        return SIZE_UNKNOWN
    if not os.access(path, os.R_OK):
        raise PermissionError(f"{path}: the file cannot be read; grant read permission")
    return os.path.getsize(path)


def record_dataset(
    config: input_reader_pb2.InputReader,
    guard: Guard,
    *,
    shuffle: bool,
    start: CursorState,
    stream_lengths: Optional[List[int]] = None,
    num_epochs: Optional[int] = None,
    sample_1_of_n: int = 1,
    shard: Tuple[int, int] = (1, 0),
) -> tf.data.Dataset:
    """Serialized records of all files of a reader.

    Files are read `num_readers` at a time, `read_block_length` records in turn. Shuffling takes
    first the files (unless the stream is divided), then the records, in a buffer of
    `shuffle_buffer_size` encoded records; every epoch is a pass over all records, in another
    order. With `sample_from_datasets_weights` each
    input_path is a stream of its own, and the next record comes from a stream drawn by weight.

    Args:
        config: The reader; its own `shuffle`, `num_epochs` and `sample_1_of_n_examples` are for
            the caller to pass.
        guard: Knows the files, and is asked where one is damaged.
        shuffle: Whether to shuffle files and records.
        start: Has the seed, from which the order follows, and the place of the first record.
        stream_lengths: Of `list_files`; None for one stream of all files.
        num_epochs: Passes over the data; None for endless.
        sample_1_of_n: Keeps every n-th record, the same ones whatever the order.
        shard: Number of workers that divide the records among them, and the index of this one.

    Returns:
        Dataset of `Record`.

    Raises:
        ValueError: if sample_1_of_n is not positive.
    """
    if sample_1_of_n < 1:
        raise ValueError(f"sample_1_of_n_examples is {sample_1_of_n}; it must be 1 or more")
    weights = list(config.sample_from_datasets_weights)
    # Parts of a stream are only the same everywhere if its order is.
    in_parts = sample_1_of_n > 1 or shard[0] > 1
    streams, chosen, begin = [], [], 0
    for stream, length in enumerate(stream_lengths or [len(guard.paths)]):
        if not length:
            continue
        indices = range(begin, begin + length)
        begin += length
        if num_epochs is None:
            _check_not_empty([guard.paths[index] for index in indices], shard)

        def read_epoch(seed: tf.Tensor, indices: range = indices) -> tf.data.Dataset:
            shuffles_files = shuffle and not in_parts
            records = _records_of(indices, guard, config, seed if shuffles_files else None)
            for parts, index in (shard, (sample_1_of_n, 0)):
                records = records.shard(parts, index) if parts > 1 else records
            if shuffle and config.shuffle_buffer_size > 1:
                records = records.shuffle(config.shuffle_buffer_size, seed)
            return records

        streams.append(_epochs(read_epoch, guard, stream, start, num_epochs))
        chosen.append(weights[stream] if weights else 1.0)
    if len(streams) == 1:
        return streams[0]
    return tf.data.Dataset.choose_from_datasets(
        streams, _choices(chosen, start), stop_on_empty_dataset=False
    )


def _check_not_empty(paths: List[str], shard: Tuple[int, int]) -> None:
    """Endless epochs of nothing would never end."""
    least = shard[1] + 1  # of the records of this worker the first is always among the sample
    records = itertools.chain.from_iterable(map(tfrecord.read_records, paths))
    found = sum(1 for _ in itertools.islice(records, least))
    if found < least:
        raise ValueError(
            f"{paths[0]} and the other files of its input_path hold {found} records, too few for "
            f"worker {shard[1] + 1} of {shard[0]} to have any"
        )


def _epochs(
    read_epoch: Callable[[tf.Tensor], tf.data.Dataset],
    guard: Guard,
    stream: int,
    start: CursorState,
    num_epochs: Optional[int],
) -> tf.data.Dataset:
    """`Record`s of one epoch after the other, each in its own order, from the place in `start`."""
    first = start.place(stream)

    @tf.autograph.experimental.do_not_convert
    def one(epoch: tf.Tensor) -> tf.data.Dataset:
        seed = tf.random.stateless_uniform([], [start.seed + stream, epoch], 0, 2**31 - 1, tf.int64)
        records = read_epoch(seed)
        stream_index = cursor.first_stream_index(stream, epoch)
        end = stream_index + cursor.LAST_NUMBER
        if first.number:
            skipped = tf.where(tf.equal(epoch, first.epoch), tf.constant(first.number, tf.int64), 0)
            records, stream_index = records.skip(skipped), stream_index + skipped
        return tf.data.Dataset.zip((records, tf.data.Dataset.range(stream_index, end)))

    last = cursor.LAST_EPOCH if num_epochs is None else num_epochs
    epochs = tf.data.Dataset.range(first.epoch, max(last, first.epoch))
    epochs = epochs.take_while(lambda _: guard.goes_on())
    return epochs.flat_map(one).map(
        lambda found, stream_index: Record(found.place, stream_index, found.serialized)
    )


def _choices(weights: List[float], start: CursorState) -> tf.data.Dataset:
    """Which stream the next record comes from, drawn by weight."""
    logits = tf.math.log(tf.constant([weights]))

    @tf.autograph.experimental.do_not_convert
    def choose(count: tf.Tensor) -> tf.Tensor:
        seed = tf.stack([tf.constant(start.seed, tf.int64), count])
        return tf.random.stateless_categorical(logits, 1, seed)[0, 0]

    return tf.data.Dataset.range(start.count, tf.int64.max).map(choose)


def _records_of(
    indices: range,
    guard: Guard,
    config: input_reader_pb2.InputReader,
    seed: Optional[tf.Tensor],
) -> tf.data.Dataset:
    """`Found` of one pass over some files, which are shuffled where there is a seed."""
    paths = [guard.paths[index] for index in indices]
    buffer = REMOTE_BUFFER if files.is_remote(paths[0]) else LOCAL_BUFFER
    plain = not any(re.search(r"[*?\[\]\\]", path) for path in paths)

    @tf.autograph.experimental.do_not_convert
    def read(file: tf.Tensor, path: tf.Tensor, compression: tf.Tensor, size: tf.Tensor) -> Any:
        # The reader never ends on a file that has gone; a pattern finds out, where it is none.
        found = tf.io.matching_files(path) if plain else path[tf.newaxis]
        given = tf.data.TFRecordDataset(found, compression_type=compression, buffer_size=buffer)
        given = given.ignore_errors()
        length = guard.length(file)
        uncounted = tf.data.Dataset.range(tf.cast(length < 0, tf.int64))
        counted = uncounted.flat_map(lambda _: _counted(given, guard, file, size))
        return _expected(given, guard, file, tf.maximum(length, 0)).concatenate(counted)

    compressions = [compression_of(path) for path in paths]
    sizes = [
        SIZE_UNKNOWN if compression else _size(path)
        for path, compression in zip(paths, compressions)
    ]
    listed = (
        tf.range(indices.start, indices.stop, dtype=tf.int64),
        paths,
        compressions,
        tf.constant(sizes, tf.int64),
    )
    dataset = tf.data.Dataset.from_tensor_slices(listed).take_while(lambda *_: guard.goes_on())
    if seed is not None and config.filenames_shuffle_buffer_size > 1:
        dataset = dataset.shuffle(config.filenames_shuffle_buffer_size, seed)
    num_readers = max(1, min(config.num_readers, len(paths)))
    return dataset.interleave(
        read,
        cycle_length=num_readers,
        block_length=max(1, config.read_block_length),
        num_parallel_calls=tf.data.AUTOTUNE if num_readers > 1 else None,
        deterministic=True if num_readers > 1 else None,
    )


def _expected(
    given: tf.data.Dataset, guard: Guard, file: tf.Tensor, length: tf.Tensor
) -> tf.data.Dataset:
    """`Found` of a file known to have `length` records, "" for those that do not come any more."""

    @tf.autograph.experimental.do_not_convert
    def miss(_: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([guard.note_missing(file)]):
            return tf.constant("")

    missing = tf.data.Dataset.from_tensors(0).map(miss).repeat()
    first = pack_record_id(file, tf.constant(0, tf.int64))
    places = tf.data.Dataset.range(first, first + length)
    return tf.data.Dataset.zip(Found(places, given.concatenate(missing).take(length)))


def _counted(
    given: tf.data.Dataset, guard: Guard, file: tf.Tensor, size: tf.Tensor
) -> tf.data.Dataset:
    """`Found` of a file whose bytes are counted, the guard being asked at the end of what came."""
    end = tf.data.Dataset.from_tensors(tf.zeros([0], tf.string)).repeat()

    @tf.autograph.experimental.do_not_convert
    def count(state: Any, block: tf.Tensor) -> Any:
        number, read_bytes = state
        length = tf.size(block, out_type=tf.int64)

        def whole() -> Any:
            with tf.control_dependencies([guard.note_whole(file, number)]):
                return tf.zeros([0], tf.int64), tf.zeros([0], tf.string)

        def at_end() -> Any:
            return tf.cond(
                tf.equal(read_bytes, size) & tf.logical_not(guard.is_full()),
                whole,
                lambda: guard.rest_of_file(file, number, read_bytes),
            )

        numbers, block = tf.cond(length > 0, lambda: (number + tf.range(length), block), at_end)
        lengths = tf.cast(tf.strings.length(block), tf.int64) + tfrecord.OVERHEAD
        # At the end a block begins where the one before it ended, but the bytes stay those that
        # the reader gave.
        read_now = tf.where(length > 0, tf.reduce_sum(lengths), 0)
        state = (number + tf.size(numbers, tf.int64), read_bytes + read_now)
        return state, Found(pack_record_id(file, numbers), block)

    zero = tf.constant(0, tf.int64)
    blocks = given.batch(BLOCK).concatenate(end).scan((zero, zero), count)
    return blocks.take_while(lambda found: tf.size(found.place) > 0).unbatch()
