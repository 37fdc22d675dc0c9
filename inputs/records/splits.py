"""Records in splits that the workers of a `tf.data` service share among them.

A split is one file in one epoch. The service gives each split to one of its data workers, so that
each record is read once an epoch, whatever their number is, as long as none of them fails.
"""

from __future__ import annotations

import warnings
from typing import Any, Optional

from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from estimator_det.protos import input_reader_pb2
from inputs.records import cursor
from inputs.records.cursor import CursorState
from inputs.records.stream import FileGuard, Record, file_reader, list_contents

_EPOCH_FACTOR = 1_000_003  # a prime, so that numbers of different epochs differ


def split_dataset(
    config: input_reader_pb2.InputReader,
    guard: FileGuard,
    *,
    shuffle: bool,
    start: CursorState,
    num_epochs: Optional[int] = None,
    sample_1_of_n: int = 1,
) -> tf.data.Dataset:
    """Serialized records of all files of a reader; the files of each epoch have an order of theirs.

    Args:
        guard: Has the files; works without Python.
        shuffle: Whether to shuffle files, and records in a buffer of each data worker.
        start: Has the seed.
        num_epochs: Passes over the data; None repeats without end.
        sample_1_of_n: Keeps every n-th record of each file.

    Returns:
        Dataset of `Record`, for `ShardingPolicy.DYNAMIC`.
    """
    if config.sample_from_datasets_weights:
        raise ConfigError(
            "train_input_reader.sample_from_datasets_weights does not work with a tf.data service "
            "yet: data workers read file by file. Remove the weights, or --tf_data_service"
        )
    num_files = len(guard.paths)
    indices = list(range(num_files))
    listed, read = list_contents(guard, indices), file_reader(guard, indices)

    @tf.autograph.experimental.do_not_convert
    def read_split(split: tf.Tensor) -> tf.data.Dataset:
        epoch, place = split // num_files, split % num_files
        if shuffle:
            seed = tf.stack([tf.constant(start.seed, tf.int64), epoch])
            last = tf.constant(num_files - 1, tf.int64)
            place = tf.random.experimental.index_shuffle(place, seed, last)
        records = read(*(tf.gather(values, place) for values in listed))
        if sample_1_of_n > 1:
            records = records.shard(sample_1_of_n, 0)
        index = cursor.first_stream_index(0, epoch)
        return records.map(lambda entry: Record(entry.record_id, index, entry.serialized))

    last_epoch = cursor.LAST_EPOCH if num_epochs is None else num_epochs
    records = tf.data.Dataset.range(last_epoch * num_files).flat_map(read_split)
    if shuffle and config.shuffle_buffer_size > 1:
        records = records.shuffle(config.shuffle_buffer_size, start.seed)
    return records


def number_of(record: Record) -> tf.Tensor:
    """int64: a number of its own for each record and epoch, which its augmentation follows from."""
    return record.record_id * _EPOCH_FACTOR + record.stream_index


def distributed(dataset: Any, address: str) -> tf.data.Dataset:
    """The elements of a dataset as the data workers of a service make them.

    Args:
        dataset: Begins with `split_dataset`.
    """
    service = tf.data.experimental.service
    with warnings.catch_warnings():
        # Of the graph of an Estimator; no option that matters here is set before.
        warnings.filterwarnings("ignore", message="To make it possible to preserve tf.data options")
        return dataset.apply(
            service.distribute(
                processing_mode=service.ShardingPolicy.DYNAMIC, service=f"grpc://{address}"
            )
        )
