"""Records through a `tf.data` service of one dispatcher and two data workers in this process."""

from __future__ import annotations

import collections
import pathlib
from typing import Any, Iterator, List, Tuple

import pytest

import inputs
from estimator_det.compat import tf
from estimator_det.errors import ConfigError
from inputs import schema
from inputs.records import splits
from inputs.records.cursor import CursorState
from inputs.records.stream import Order, list_files, split_record_id
from tests.inputs.examples import pipeline_of
from tests.inputs.reading import no_rest, run_in_graph
from tests.inputs.test_pipeline import preprocess_of

NUM_FILES, EACH = 5, 8


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of the dispatcher."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    address = dispatcher.target.partition("://")[2]
    workers = [service.WorkerServer(service.WorkerConfig(address)) for _ in range(2)]
    yield address
    del workers, dispatcher


def _config(tmp_path: pathlib.Path, text: str = "") -> Any:
    files = [[f"{file}.{number}" for number in range(EACH)] for file in range(NUM_FILES)]
    return pipeline_of(tmp_path, files, text)


def test_each_record_enters_the_model_once_an_epoch(tmp_path, address):
    config = _config(tmp_path, "num_epochs: 2")
    input_fn = inputs.create_train_input_fn(config, preprocess_of(config), 5, data_service=address)
    names, seeds = [], set()
    for features, _ in run_in_graph(input_fn):
        names += [name.decode() for name in features[schema.SOURCE_ID]]
        seeds |= {tuple(seed) for seed in features[schema.AUGMENTATION_SEED]}
    everything = {f"{file}.{number}": 2 for file in range(NUM_FILES) for number in range(EACH)}
    assert collections.Counter(names) == everything
    assert names != sorted(names)
    assert len(seeds) == len(names)  # Each has an augmentation of its own in each epoch.


def test_fields_of_the_reader_apply_without_a_service(tmp_path):
    """The splits alone: a sample of each file, and records in a buffer."""
    reader = _config(tmp_path, "shuffle_buffer_size: 1").train_input_reader
    files = list_files(reader)

    def numbers(shuffle: bool) -> List[Tuple[int, int]]:
        reader.shuffle = shuffle
        order = Order(3, num_epochs=1, sample_1_of_n=3)
        dataset = splits.split_dataset(reader, files, no_rest, order, CursorState(3))
        records = [record for record, _ in dataset.as_numpy_iterator()]
        return [split_record_id(int(record.record_id)) for record in records]

    sample = [(file, number) for file in range(NUM_FILES) for number in (0, 3, 6)]
    assert numbers(shuffle=False) == sample
    shuffled = numbers(shuffle=True)
    assert sorted(shuffled) == sample != shuffled
    # Without a buffer, the records of a file stay in order.
    assert [number for _, number in shuffled] == [0, 3, 6] * NUM_FILES
    reader.shuffle_buffer_size = 4
    assert [number for _, number in numbers(shuffle=True)] != [0, 3, 6] * NUM_FILES


def test_weights_are_refused(tmp_path):
    config = _config(tmp_path, "sample_from_datasets_weights: 1")
    input_fn = inputs.create_train_input_fn(config, preprocess_of(config), data_service="h:1")
    with pytest.raises(ConfigError, match="sample_from_datasets_weights: does not work with a tf"):
        input_fn()
