"""Records in splits that the workers of a `tf.data` service share among them.

A split is one file in one epoch. The service gives each split to one of its data workers. So each
record is read once an epoch by any number of workers, as long as no worker fails.
"""

from __future__ import annotations

import warnings
from typing import Any

from estimator_det.compat import tf
from estimator_det.errors import ConfigError
from estimator_det.protos import input_reader_pb2
from inputs.records import cursor
from inputs.records.cursor import CursorState
from inputs.records.stream import Files, Order, ReadRest, StreamRecord, file_reader

_EPOCH_FACTOR = 1_000_003  # a prime, so that numbers of different epochs differ


def split_dataset(
    config: input_reader_pb2.InputReader,
    files: Files,
    read_rest: ReadRest,
    order: Order,
    start: CursorState,
) -> tf.data.Dataset:
    """Each `StreamRecord` of a reader's files with its stream index, for `ShardingPolicy.DYNAMIC`.

    Shuffling permutes the files of each epoch, and the records in a buffer of each data worker.
    `read_rest` works without Python; of `start` the seed is used.
    """
    if config.sample_from_datasets_weights:
        raise ConfigError.at(
            "train_input_reader.sample_from_datasets_weights",
            "does not work with a tf.data service yet: data workers read file by file",
            "Remove the weights, or --tf_data_service",
        )
    num_files = len(files.paths)
    read = file_reader(files, read_rest, list(range(num_files)))

    @tf.autograph.experimental.do_not_convert
    def read_split(split: tf.Tensor) -> tf.data.Dataset:
        epoch, place = split // num_files, split % num_files
        if config.shuffle:
            seed = tf.stack([tf.constant(start.seed, tf.int64), epoch])
            last = tf.constant(num_files - 1, tf.int64)
            place = tf.random.experimental.index_shuffle(place, seed, last)
        records = read(place)
        if order.sample_1_of_n > 1:
            records = records.shard(order.sample_1_of_n, 0)
        index = cursor.first_stream_index(0, epoch)
        return records.map(lambda record: (record, index))

    last_epoch = cursor.LAST_EPOCH if order.num_epochs is None else order.num_epochs
    records = tf.data.Dataset.range(last_epoch * num_files).flat_map(read_split)
    if config.shuffle and config.shuffle_buffer_size > 1:
        records = records.shuffle(config.shuffle_buffer_size, start.seed)
    return records


def number_of(record: StreamRecord, stream_index: tf.Tensor) -> tf.Tensor:
    """int64, different for each record and epoch; its augmentation follows from it."""
    return record.record_id * _EPOCH_FACTOR + stream_index


def distributed(dataset: Any, address: str) -> tf.data.Dataset:
    """The elements of a dataset that begins with `split_dataset`, from the service's workers."""
    service = tf.data.experimental.service
    with warnings.catch_warnings():
        # In the graph of an Estimator; no option that matters here is set before.
        warnings.filterwarnings("ignore", message="To make it possible to preserve tf.data options")
        return dataset.apply(
            service.distribute(
                processing_mode=service.ShardingPolicy.DYNAMIC, service=f"grpc://{address}"
            )
        )
