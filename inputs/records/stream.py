"""Finds TFRecord files and streams their serialized records.

`list_files` lists them, `record_dataset` chooses among streams and repeats them, `_epoch_reader`
shuffles files and records, `file_reader` reads one file.

TensorFlow's reader abandons a file at the first damage. So the bytes that it returns are counted;
if they are fewer than the file has, a guard reads the remaining records: see `inputs.guard`.
"""

from __future__ import annotations

import itertools
import os
import re
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import tf
from estimator_det.config.rules import Tpu, rules
from estimator_det.errors import Problem, UsageError, error, warning
from estimator_det.files import bracket_hint, is_remote, matching, special_kind
from estimator_det.protos import input_reader_pb2, pipeline_pb2
from inputs.bad_records.kinds import FAIL
from inputs.bad_records.log import FaultLog
from inputs.bad_records.policy import BadRecordPolicy, make_policy
from inputs.records import cursor, sharding, tfrecord
from inputs.records.cursor import CursorState
from inputs.records.tfrecord import compression_of

# Bytes read ahead from each open file; remote storage has a high latency, so it reads more at once.
LOCAL_BUFFER = 512 * 1024
REMOTE_BUFFER = 8 * 1024 * 1024

SIZE_UNKNOWN = -1  # a compressed file: only reading it shows if it is complete
BLOCK = 16  # records whose bytes are counted together
# Fields of the training reader that keep up with a TPU from a value on.
_TPU_SPEEDS = (
    ("num_readers", 8, "few files are read at once"),
    ("num_prefetch_batches", 2, "the TPU waits for its next batch"),
)
NUMBER_BITS = 40  # for the record in a record id; its file is in the bits above


def pack_record_ids(file: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """int64 file index and record numbers of any shape -> int64 ids of that shape."""
    return tf.bitwise.left_shift(file, NUMBER_BITS) + numbers


def unpack_record_ids(record_ids: tf.Tensor) -> tf.Tensor:
    """int64 [...] -> [..., 2]: file index and record number."""
    bits = tf.constant(NUMBER_BITS, record_ids.dtype)
    file = tf.bitwise.right_shift(record_ids, bits)
    return tf.stack([file, record_ids - tf.bitwise.left_shift(file, bits)], axis=-1)


def split_record_id(record_id: int) -> Tuple[int, int]:
    """File index and record number of an id, in Python."""
    return record_id >> NUMBER_BITS, record_id & ((1 << NUMBER_BITS) - 1)


class Files(NamedTuple):
    """The files of a reader; `schema.RECORD` counts in `paths`."""

    paths: List[str]
    sizes: List[int]  # in bytes; SIZE_UNKNOWN for remote files
    streams: List[List[str]]  # one of all paths, or with weights one for each input_path


class StreamRecord(NamedTuple):
    """A record as read from its file."""

    record_id: tf.Tensor  # int64, see `pack_record_ids`
    serialized: tf.Tensor  # string; "" if it is damaged
    offset: tf.Tensor  # int64; its first byte in the (uncompressed) file


# Builds the operations that read a file from where TensorFlow's reader abandoned it. Arguments, all
# int64: the file (index into `Files.paths`), the number of the next record, and its first byte.
# Returns k records, string [k], "" for a record that cannot be read; their first bytes, int64 [k];
# and the first byte after them. At the end of the file k is 0, else at most BLOCK.
ReadRest = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Tuple[tf.Tensor, tf.Tensor, tf.Tensor]]


def find_files(pattern: str) -> List[str]:
    """The files that match a path or glob pattern, local or remote, sorted."""
    paths = match_files(pattern)
    for path in paths:
        if kind := special_kind(path):
            raise UsageError(
                f"input_path {pattern!r} matches {path}, which is {kind}; record files must be "
                "regular files. Correct the path, or copy the records to a file"
            )
    return paths


def match_files(pattern: str) -> List[str]:
    """Like `find_files`, with folders and named pipes that match."""
    paths = matching(pattern)
    if not paths:
        raise FileNotFoundError(
            f"input_path {pattern!r} matches no file. Relative paths start at the folder in which "
            "the program runs; sharded files need a pattern such as 'train.record-*'"
            f"{bracket_hint(pattern)}."
        )
    return paths


@rules(input_reader_pb2.InputReader)
def _check_files(reader: input_reader_pb2.InputReader, at: str) -> Iterator[Problem]:
    if reader.HasField("external_input_reader"):
        return
    inputs, path = input_patterns(reader), f"{at}.tf_record_input_reader.input_path"
    if not inputs or not all(inputs):
        yield error(path, "no input path is given", f"--set {path}=data/train-*.record")
    weights = len(reader.sample_from_datasets_weights)
    if weights and weights != len(inputs):
        yield error(
            f"{at}.sample_from_datasets_weights",
            f"{weights} weights for {len(inputs)} input paths",
            "give one weight to each input path, or none",
        )
    if not reader.label_map_path:
        yield warning(
            f"{at}.label_map_path",
            "is not set: classes have no names, and class names in records cannot be read",
            f"--set {at}.label_map_path=label_map.pbtxt",
        )


@rules(pipeline_pb2.TrainEvalPipelineConfig, target="tpu")
def _check_speed(
    config: pipeline_pb2.TrainEvalPipelineConfig, _: str, tpu: Tpu
) -> Iterator[Problem]:
    """The input pipeline keeps up with a TPU."""
    if not config.HasField("train_input_reader"):
        return
    at, reader = "train_input_reader", config.train_input_reader
    for field, least, why in _TPU_SPEEDS:
        value, path = getattr(reader, field), f"{at}.{field}"
        if 0 <= value < least:
            text, edit = f"is {value}: {why}", f"{path}={least}"
            yield Problem("warning", path, text, edits=(edit,), safe=True)
    size, batch = reader.shuffle_buffer_size, config.train_config.batch_size
    if reader.shuffle and size < batch:
        path = f"{at}.shuffle_buffer_size"
        yield Problem(
            "warning",
            path,
            f"is {size}, less than a batch of {batch}: batches hardly differ between epochs",
            edits=(f"{path}={2 * batch}",),
            safe=True,
        )
    inputs = input_patterns(reader)
    if len(inputs) == 1 and not any(mark in inputs[0] for mark in "*?["):
        yield Problem(
            "advice",
            f"{at}.tf_record_input_reader.input_path[0]",
            f"{inputs[0]!r} is a single file, which a single reader reads",
            "split the records over many files and give a pattern, such as "
            "train.record-?????-of-00100",
        )


def input_patterns(config: input_reader_pb2.InputReader) -> List[str]:
    """The path patterns of a reader."""
    return list(config.tf_record_input_reader.input_path)


def list_files(
    config: input_reader_pb2.InputReader,
    policy: Optional[BadRecordPolicy] = None,
    log: Optional[FaultLog] = None,
) -> Files:
    """All files of a reader: in the order of its input_paths, the files of a pattern sorted.

    Patterns without a file and empty files are reported to `log`, unless the policy rejects them.
    """
    policy = make_policy(config) if policy is None else policy
    log = FaultLog() if log is None else log
    patterns = input_patterns(config)
    weights = list(config.sample_from_datasets_weights)
    groups: List[List[str]] = []
    missing = None
    for pattern in patterns:
        try:
            groups.append(find_files(pattern))
        except FileNotFoundError as error:
            if policy.actions["no_file"] == FAIL:
                raise
            missing = error
            groups.append([])
            log.report(policy.fault("no_file", "input_path matches no file").at(pattern))
    paths = [path for group in groups for path in group]
    if not paths:
        raise missing or FileNotFoundError("input_reader: there is no file to read")
    sizes = [_size(path) for path in paths]
    for path, size in zip(paths, sizes):
        if size == 0:
            log.report(policy.fault("empty_file", "the file is empty").at(path))
    if not any(sizes):
        raise FileNotFoundError(
            f"input_reader: all {len(paths)} files are empty, the first is {paths[0]}; write the "
            "records again"
        )
    return Files(paths, sizes, groups if weights else [paths])


def _size(path: str) -> int:
    """Bytes of a local file; SIZE_UNKNOWN for a remote one, since asking takes long."""
    if is_remote(path):
        return SIZE_UNKNOWN
    if not os.access(path, os.R_OK):
        raise PermissionError(f"{path}: the file cannot be read; grant read permission")
    return os.path.getsize(path)


class Order(NamedTuple):
    """Selection and order of the records of one dataset."""

    seed: Optional[int]  # None: drawn when the data begin
    num_epochs: Optional[int] = None  # passes over the data; None repeats for ever
    sample_1_of_n: int = 1  # keeps every n-th record, the same ones in any order
    shard: sharding.Shard = sharding.WHOLE
    drop_remainder: bool = False  # drops a last batch that is smaller


def record_dataset(
    config: input_reader_pb2.InputReader,
    files: Files,
    read_rest: ReadRest,
    order: Order,
    start: CursorState,
) -> tf.data.Dataset:
    """Each record of a reader's files with its stream index, in the order of the seed in `start`.

    Files are read `num_readers` at a time, `read_block_length` records in turn. Shuffling permutes
    the files (unless their records are shared or sampled), then the records, in a buffer of
    `shuffle_buffer_size` encoded records; every epoch is a pass over all records, in another
    order. With `sample_from_datasets_weights` each input_path is a separate stream, and the next
    record comes from a stream drawn by weight.
    """
    datasets, weights, begin = [], [], 0
    for stream, length in enumerate(map(len, files.streams)):
        if not length:
            continue
        indices, record_shard = list(range(begin, begin + length)), order.shard
        begin += length
        num_workers, worker = order.shard
        if length >= num_workers:
            indices, record_shard = indices[worker::num_workers], sharding.WHOLE
        if order.num_epochs is None:
            _check_not_empty([files.paths[index] for index in indices], record_shard, order.shard)
        parts = (record_shard, (order.sample_1_of_n, 0))
        first = start.offset(stream).epoch
        last = cursor.LAST_EPOCH if order.num_epochs is None else order.num_epochs
        epochs = tf.data.Dataset.range(first, max(last, first))
        read = file_reader(files, read_rest, indices)
        read_epoch = _epoch_reader(config, read, len(indices), parts, stream, start)
        datasets.append(epochs.flat_map(read_epoch))
        weights += config.sample_from_datasets_weights[stream : stream + 1]
    if len(datasets) == 1:
        return datasets[0]
    choices = _choices(weights, start)
    return tf.data.Dataset.choose_from_datasets(datasets, choices, stop_on_empty_dataset=False)


def _epoch_reader(
    config: input_reader_pb2.InputReader,
    read: Callable[..., tf.data.Dataset],
    num_files: int,
    parts: Sequence[sharding.Shard],
    stream: int,
    start: CursorState,
) -> Callable[[tf.Tensor], tf.data.Dataset]:
    """A function from an epoch to its numbered records: shuffle files, read, shuffle records.

    `read` reads one of the stream's files by its place; `parts` are nested shards of the records.
    """
    # Shards are disjoint only if all workers read the files in the same order.
    shuffles_files = config.shuffle and all(number == 1 for number, _ in parts)
    num_readers = max(1, min(config.num_readers, num_files))
    first = start.offset(stream)

    # Tracing is faster without autograph, and nothing here needs it.
    @tf.autograph.experimental.do_not_convert
    def read_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
        seed = tf.random.stateless_uniform([], [start.seed + stream, epoch], 0, 2**31 - 1, tf.int64)
        dataset = tf.data.Dataset.range(num_files)
        if shuffles_files and config.filenames_shuffle_buffer_size > 1:
            dataset = dataset.shuffle(config.filenames_shuffle_buffer_size, seed)
        dataset = dataset.interleave(
            read,
            cycle_length=num_readers,
            block_length=max(1, config.read_block_length),
            num_parallel_calls=tf.data.AUTOTUNE if num_readers > 1 else None,
            deterministic=True if num_readers > 1 else None,
        )
        for number, index in parts:
            dataset = dataset.shard(number, index) if number > 1 else dataset
        if config.shuffle and config.shuffle_buffer_size > 1:
            dataset = dataset.shuffle(config.shuffle_buffer_size, seed)
        begin = cursor.first_stream_index(stream, epoch)
        stream_indices = tf.data.Dataset.range(begin, begin + cursor.LAST_NUMBER)
        dataset = tf.data.Dataset.zip((dataset, stream_indices))
        if first.number:
            skipped = tf.constant(first.number, tf.int64)
            dataset = dataset.skip(tf.where(tf.equal(epoch, first.epoch), skipped, 0))
        return dataset

    return read_epoch


def file_reader(
    files: Files, read_rest: ReadRest, indices: Sequence[int]
) -> Callable[..., tf.data.Dataset]:
    """A function from a place in `indices` to the `StreamRecord`s of that file."""
    paths = [files.paths[index] for index in indices]
    compressions = [compression_of(path) for path in paths]
    sizes = [
        SIZE_UNKNOWN if compression else files.sizes[index]
        for index, compression in zip(indices, compressions)
    ]
    columns = (
        tf.constant(indices, tf.int64), tf.constant(paths), tf.constant(compressions),
        tf.constant(sizes, tf.int64),
    )  # fmt: skip
    buffer = REMOTE_BUFFER if is_remote(paths[0]) else LOCAL_BUFFER
    plain = not any(re.search(r"[*?\[\]\\]", path) for path in paths)

    @tf.autograph.experimental.do_not_convert
    def read(place: tf.Tensor) -> Any:
        file, path, compression, size = (tf.gather(column, place) for column in columns)
        # The reader never ends on a deleted file. As a pattern, its path matches nothing.
        present = tf.io.matching_files(path) if plain else path[tf.newaxis]
        records = tf.data.TFRecordDataset(present, compression, buffer)
        return _all_records(records.ignore_errors(), read_rest, file, size)

    return read


def _all_records(
    serialized: tf.data.Dataset, read_rest: ReadRest, file: tf.Tensor, size: tf.Tensor
) -> tf.data.Dataset:
    """All `StreamRecord`s of a file: by TensorFlow's reader, then by `read_rest`."""
    none = tf.zeros([0], tf.string)

    @tf.autograph.experimental.do_not_convert
    def count(state: Any, block: tf.Tensor) -> Any:
        number, offset = state
        lengths = tf.cast(tf.strings.length(block), tf.int64) + tfrecord.OVERHEAD
        ends = offset + tf.cumsum(lengths)
        records, begins, end = tf.cond(
            (tf.size(block) > 0) | tf.equal(offset, size),
            lambda: (block, ends - lengths, offset + tf.reduce_sum(lengths)),
            lambda: read_rest(file, number, offset),
        )
        numbers = number + tf.range(tf.size(records, tf.int64))
        state = (number + tf.size(records, tf.int64), end)
        return state, StreamRecord(pack_record_ids(file, numbers), records, begins)

    end = tf.data.Dataset.from_tensors(none).repeat()
    zero = tf.constant(0, tf.int64)
    blocks = serialized.batch(BLOCK).concatenate(end).scan((zero, zero), count)
    return blocks.take_while(lambda records: tf.size(records.record_id) > 0).unbatch()


def _choices(weights: List[float], start: CursorState) -> tf.data.Dataset:
    """The stream of each record, drawn by weight."""
    logits = tf.math.log(tf.constant([weights]))

    @tf.autograph.experimental.do_not_convert
    def choose(count: tf.Tensor) -> tf.Tensor:
        seed = tf.stack([tf.constant(start.seed, tf.int64), count])
        return tf.random.stateless_categorical(logits, 1, seed)[0, 0]

    return tf.data.Dataset.range(start.count, tf.int64.max).map(choose)


def _check_not_empty(paths: List[str], record_shard: sharding.Shard, shard: sharding.Shard) -> None:
    """Without any record, reading endless epochs would never return."""
    least = record_shard[1] + 1  # the first record of this worker is always in the sample
    records = itertools.chain.from_iterable(map(tfrecord.read_records, paths))
    count = sum(1 for _ in itertools.islice(records, least))
    if count < least:
        others = " and others" if len(paths) > 3 else ""
        raise UsageError(
            f"{', '.join(paths[:3])}{others}: {count} records, too few for worker {shard[1] + 1} "
            f"of {shard[0]}. Add records, or use fewer workers"
        )
