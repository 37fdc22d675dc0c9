"""A training that is interrupted sees the records that it would have seen."""

from __future__ import annotations

import json
import pathlib
from typing import Any, List, Optional, Tuple

import numpy as np
import pytest

import inputs
from estimator_det.compat import tf, tf1
from estimator_det.images.resize import make_resizer
from inputs import schema
from inputs.bad_records.log import FaultLog
from inputs.records import cursor
from inputs.records.cursor import CursorState, DataCursor, StreamOffset
from tests.inputs.examples import BOXES, encoded, example, picture, pipeline, write

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
    config: Any, cursor: DataCursor, batches: int, seed: Optional[int] = None
) -> List[Tuple[Any, Any]]:
    """Batches as a training takes them, with the cursor told of each."""
    preprocess = make_resizer(config.model.ssd.image_resizer).resize
    found = []
    with tf.Graph().as_default(), tf1.Session() as session:
        input_fn = inputs.create_train_input_fn(config, preprocess, seed, FaultLog(), cursor=cursor)
        iterator = tf1.data.make_initializable_iterator(input_fn())
        following = iterator.get_next()
        session.run([tf1.tables_initializer(), iterator.initializer])
        for _ in range(batches):
            try:
                features, labels = session.run(following)
            except tf.errors.OutOfRangeError:
                break
            cursor.advance(features[schema.STREAM_INDEX], features[schema.AUGMENTATION_SEED])
            found.append((features, labels))
    return found


def again(cursor: DataCursor) -> DataCursor:
    """What a new process makes of what the old one has saved."""
    assert cursor.state is not None
    return DataCursor(CursorState.from_json(json.loads(json.dumps(cursor.state.to_json()))))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "train_input_reader { shuffle: false }",
        "train_input_reader { sample_from_datasets_weights: [1, 3] }",
        "train_input_reader { sample_1_of_n_examples: 2 }",
    ],
)
def test_goes_on_as_if_nothing_had_happened(tmp_path: pathlib.Path, text: str) -> None:
    config = reading(files(tmp_path, 7, 6), text)
    expected = read(config, DataCursor(), 16, seed=5)
    cursor, found = DataCursor(), []
    for count in (4, 7, 5):
        found += read(config, cursor, count, seed=5)
        cursor = again(cursor)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


def test_each_record_comes_once_an_epoch_over_interruptions(tmp_path: pathlib.Path) -> None:
    config = reading(files(tmp_path, 7, 6), "train_input_reader { num_epochs: 2 }")
    config.train_input_reader.drop_remainder = False
    cursor, names = DataCursor(), []
    for _ in range(5):
        found = read(config, cursor, 3)
        names += [tuple(place) for batch, _ in found for place in batch[schema.RECORD].tolist()]
        cursor = again(cursor)
    every = [(0, number) for number in range(7)] + [(1, number) for number in range(6)]
    assert sorted(names[:13]) == sorted(names[13:]) == every
    assert names[:13] != names[13:]


def test_records_that_are_skipped_count(tmp_path: pathlib.Path) -> None:
    config = reading(files(tmp_path, 7, 6, bad=(2, 3, 9)))
    config.train_input_reader.bad_records.policy = 2  # SKIP
    expected = read(config, DataCursor(), 15, seed=5)
    cursor, found = DataCursor(), []
    for count in (3, 12):
        found += read(config, cursor, count, seed=5)
        cursor = again(cursor)
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


def test_changes_are_noticed(tmp_path: pathlib.Path) -> None:
    paths = files(tmp_path, 7, 6)
    config = reading(paths)
    cursor = DataCursor()
    read(config, cursor, 3, seed=4)

    def resumed(seed: Optional[int] = 4, **fields: Any) -> DataCursor:
        changed = reading(paths)
        for name, value in fields.items():
            setattr(changed.train_input_reader, name, value)
        found = again(cursor)
        read(changed, found, 0, seed)
        return found

    assert not resumed().is_rejected
    assert resumed().state == cursor.state
    assert resumed(seed=5).is_rejected and resumed(seed=None).is_rejected
    assert resumed(shuffle_buffer_size=6).is_rejected
    config.train_config.batch_size = 1
    same = again(cursor)
    read(config, same, 0, seed=4)
    assert not same.is_rejected
    files(tmp_path, 8, 6)
    begun = resumed()
    assert begun.is_rejected
    assert begun.state is not None
    assert begun.state.count == 0


def test_data_that_begin_anew_later_do_so_in_another_order() -> None:
    assert DataCursor().begin(3, "").seed == 3
    later = DataCursor(first_step=6).begin(3, "").seed
    assert later == DataCursor(first_step=6).begin(3, "").seed
    assert later not in (3, DataCursor(first_step=7).begin(3, "").seed)
    # Where it went on from there, it goes on.
    saved = CursorState(later, 8, {}, "order")
    assert DataCursor(saved, first_step=9).begin(3, "order") == saved


def test_stream_indices_hold_stream_epoch_and_number() -> None:
    first = int(cursor.first_stream_index(3, tf.constant(100_000, tf.int64)))
    data_cursor = DataCursor()
    data_cursor.begin(1, "")
    data_cursor.note(np.array([5, first + 70_000]), np.array([[1, 8], [1, 9]]))
    assert data_cursor.state == CursorState(
        1, 10, {0: StreamOffset(0, 6), 3: StreamOffset(100_000, 70_001)}
    )
