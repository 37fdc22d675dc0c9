"""An interrupted run reads the same records as an uninterrupted one."""

from __future__ import annotations

import json
import pathlib
from typing import Any, List, Optional, Tuple

import numpy as np
import pytest

from inputs import schema
from inputs.bad_records.log import FaultLog
from inputs.records import cursor, stream
from inputs.records.cursor import CursorState, DataCursor, StreamOffset, order_fingerprint
from tests.inputs.examples import BOXES, encoded, example, picture, pipeline, write
from tests.inputs.reading import no_rest, run_in_graph, train_fn

LABELS = {"image/object/class/label": [2, 1]}
AUGMENTED = "train_config { data_augmentation_options { random_horizontal_flip {} } }"
BAD = b"rubbish"


def files(folder: pathlib.Path, *sizes: int, bad: Tuple[int, ...] = ()) -> List[str]:
    paths, count = [], 0
    for index, size in enumerate(sizes):
        records = []
        for _ in range(size):
            image = BAD if count in bad else encoded(picture(seed=count))
            record = {**BOXES, **LABELS, "image/encoded": image, "image/source_id": f"{count}"}
            records.append(example(record))
            count += 1
        paths.append(str(write(folder / f"r-{index}", records)))
    return paths


def reading(paths: List[str], text: str = "") -> Any:
    config = pipeline("train_input_reader { num_readers: 2 read_block_length: 2 } " + AUGMENTED)
    config.MergeFromString(pipeline(text).SerializeToString() if text else b"")
    config.train_input_reader.tf_record_input_reader.input_path.extend(paths)
    config.train_input_reader.shuffle_buffer_size = 5
    return config


def read(
    config: Any,
    cursor: DataCursor,
    batches: int,
    seed: Optional[int] = None,
    first_step: int = 0,
    states: Optional[List[DataCursor]] = None,
) -> List[Tuple[Any, Any]]:
    """The next batches of training; the cursor advances past each.

    `states` gets what a run that was killed after each batch would resume from.
    """
    input_fn = train_fn(config, seed, FaultLog(), cursor=cursor, first_step=first_step)
    found = run_in_graph(input_fn, batches)
    for features, _ in found:
        cursor.advance(features[schema.STREAM_INDEX], features[schema.AUGMENTATION_SEED])
        if states is not None:
            states.append(resume(cursor))
    return found


def resume(cursor: DataCursor) -> DataCursor:
    """The cursor of a new process that resumes from the saved state."""
    return DataCursor(CursorState.from_json(json.loads(json.dumps(cursor.state.to_json()))))


@pytest.mark.parametrize(
    "text",
    [
        "",
        pytest.param("shuffle: false", marks=pytest.mark.exhaustive),
        "sample_from_datasets_weights: [1, 3]",
        pytest.param("sample_1_of_n_examples: 2", marks=pytest.mark.exhaustive),
    ],
)
def test_each_order_of_records_is_resumed(tmp_path, text):
    """Without decoding, which does not change the order."""
    reader = reading(files(tmp_path, 7, 6), f"train_input_reader {{ {text} }}").train_input_reader
    found = stream.list_files(reader)

    def names(cursor: DataCursor, count: int) -> List[int]:
        order = stream.Order(5, sample_1_of_n=reader.sample_1_of_n_examples)
        begin = cursor.begin(5, "order")
        records = stream.record_dataset(reader, found, no_rest, order, begin)
        read = list(records.take(count).as_numpy_iterator())
        first = cursor.state.count if cursor.state is not None else 0
        seeds = np.array([[5, first + index] for index in range(count)])
        cursor.advance(np.array([index for _, index in read]), seeds)
        return [int(record.record_id) for record, _ in read]

    expected = names(DataCursor(), 30)
    assert len(set(expected)) == (7 if reader.sample_1_of_n_examples == 2 else 13)
    cursor, resumed = DataCursor(), []
    for count in (8, 22):
        resumed += names(cursor, count)
        cursor = resume(cursor)
    assert resumed == expected


def test_each_record_comes_once_an_epoch_in_spite_of_interruptions(tmp_path):
    config = reading(files(tmp_path, 7, 6), "train_input_reader { num_epochs: 2 }")
    config.train_input_reader.drop_remainder = False
    cursor, names = DataCursor(), []
    for count in (4, 9):
        found = read(config, cursor, count)
        names += [tuple(record) for batch, _ in found for record in batch[schema.RECORD].tolist()]
        cursor = resume(cursor)
    every = [(0, number) for number in range(7)] + [(1, number) for number in range(6)]
    assert sorted(names[:13]) == sorted(names[13:]) == every
    assert names[:13] != names[13:]


def test_another_order_starts_again(tmp_path):
    paths = files(tmp_path, 3, 2)

    def begin(cursor: DataCursor, seed: Optional[int] = 4, **fields: Any) -> DataCursor:
        reader = reading(paths).train_input_reader
        for name, value in fields.items():
            setattr(reader, name, value)
        found = stream.list_files(reader)
        order = order_fingerprint(reader, found, stream.Order(seed))
        cursor.begin(seed, order)
        return cursor

    first = begin(DataCursor())
    first.advance(np.array([0, 1]), np.array([[4, 0], [4, 1]]))
    same = begin(resume(first))
    assert not same.is_rejected
    assert same.state == first.state
    for changed in ({"seed": 5}, {"seed": None}, {"shuffle_buffer_size": 6}):
        assert begin(resume(first), **changed).is_rejected
    files(tmp_path, 4, 2)
    again = begin(resume(first))
    assert again.is_rejected
    assert again.state.count == 0


def test_data_that_start_at_a_later_step_get_another_order():
    assert DataCursor().begin(3, "").seed == 3
    later = DataCursor(first_step=6).begin(3, "").seed
    assert later == DataCursor(first_step=6).begin(3, "").seed
    assert later not in (3, DataCursor(first_step=7).begin(3, "").seed)
    # A state saved after that start is resumed.
    saved = CursorState(later, 8, {}, "order")
    assert DataCursor(saved, first_step=9).begin(3, "order") == saved


def test_data_that_begin_again_begin_where_they_are():
    saved = CursorState(5, 8, {0: StreamOffset(0, 8)}, "order")
    data = cursor.DataCursor(saved)
    assert data.begin(5, "order") == saved
    indices = np.int64([8, 9])
    data.advance(indices, np.stack([np.full(2, 5), indices], 1))
    again = data.begin(5, "order")
    assert again.count == 10 and again.streams == {0: StreamOffset(0, 10)}
    assert data.begin(5, "another order").count == 0 and data.is_rejected
