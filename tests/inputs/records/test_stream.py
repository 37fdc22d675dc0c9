from __future__ import annotations

import os
import pathlib
from typing import Any, List

import pytest

from estimator_det.errors import UsageError
from inputs.records import stream as records
from inputs.records.cursor import CursorState
from tests.inputs.examples import reader, write
from tests.inputs.reading import no_rest


def stream(options: Any, *, shuffle: bool, seed: int = 1, **order: Any) -> Any:
    """The dataset of an input reader."""
    options.shuffle = shuffle
    files = records.list_files(options)
    return records.record_dataset(
        options, files, no_rest, records.Order(seed, **order), CursorState(seed)
    )


def names(dataset: Any) -> List[str]:
    return [record.serialized.decode() for record, _ in dataset.as_numpy_iterator()]


def shards(folder: pathlib.Path, files: int = 3, each: int = 4, end: str = "") -> List[str]:
    all_names = []
    for index in range(files):
        content = [f"{index}.{position}" for position in range(each)]
        compression = records.compression_of(end)
        write(folder / f"r-{index}{end}", [name.encode() for name in content], compression)
        all_names += content
    return all_names


def config(folder: pathlib.Path, text: str = "", pattern: str = "r-*") -> Any:
    return reader(f'tf_record_input_reader {{ input_path: "{folder / pattern}" }} {text}')


@pytest.mark.parametrize("end", ["", ".gz", ".zz"])
def test_one_reader_keeps_the_order_of_files(tmp_path, end):
    expected = shards(tmp_path, end=end)
    options = config(tmp_path, "num_readers: 1")
    assert names(stream(options, shuffle=False, num_epochs=1)) == expected


def test_only_regular_files_are_read(tmp_path):
    shards(tmp_path, files=1)
    os.mkfifo(tmp_path / "r-pipe")
    with pytest.raises(FileNotFoundError, match=r"write \[\[\] for a \[ in a name"):
        records.find_files(str(tmp_path / "none[1]-*"))
    with pytest.raises(UsageError, match=r"r-pipe, which is a named pipe; record files must be"):
        records.list_files(config(tmp_path))
    for path, kind in (("/dev/zero", "a device"), (tmp_path, "a folder")):
        with pytest.raises(UsageError, match=f"{path}, which is {kind}"):
            records.find_files(str(path))


def test_readers_take_turns_in_blocks(tmp_path):
    shards(tmp_path, files=2, each=4)
    options = config(tmp_path, "num_readers: 2 read_block_length: 2")
    order = names(stream(options, shuffle=False, num_epochs=1))
    assert order == ["0.0", "0.1", "1.0", "1.1", "0.2", "0.3", "1.2", "1.3"]


def test_every_epoch_is_one_pass_in_another_order_and_every_seed_has_its_own(tmp_path):
    expected = shards(tmp_path)
    dataset = stream(config(tmp_path), shuffle=True, seed=3, num_epochs=2)
    order = names(dataset)
    first, second = order[:12], order[12:]
    assert sorted(first) == sorted(second) == sorted(expected)
    assert first != second
    assert first != expected
    assert names(dataset) == order
    assert names(stream(config(tmp_path), shuffle=True, seed=4, num_epochs=2)) != order


@pytest.mark.parametrize("field", ["shuffle_buffer_size", "filenames_shuffle_buffer_size"])
def test_records_and_files_move_as_far_forward_as_their_buffer(tmp_path, field):
    """One of a buffer of three is at most two places early."""
    of_files = field.startswith("filenames")
    expected = shards(tmp_path, files=9 if of_files else 1, each=1 if of_files else 9)
    other = "shuffle_buffer_size" if of_files else "filenames_shuffle_buffer_size"
    options = config(tmp_path, f"num_readers: 1 {field}: 3 {other}: 1")
    orders = [names(stream(options, shuffle=True, num_epochs=1, seed=seed)) for seed in (1, 2)]
    for order in orders:
        early = [expected.index(name) - place for place, name in enumerate(order)]
        assert max(early) <= 2 and sorted(order) == expected
    assert expected not in orders
    options = config(tmp_path, f"num_readers: 1 {field}: 1 {other}: 1")
    assert names(stream(options, shuffle=True, num_epochs=1)) == expected


@pytest.mark.parametrize(
    ("shard", "sample_1_of_n", "expected"),
    [((3, 0), 1, "03"), ((3, 2), 1, "25"), ((1, 0), 4, "04"), ((3, 1), 2, "1")],
)
def test_files_of_a_shared_stream_keep_their_order(tmp_path, shard, sample_1_of_n, expected):
    """Workers draw different seeds: were files shuffled, they would read some records twice."""
    every = shards(tmp_path, files=2, each=3)  # fewer files than workers
    options = config(tmp_path, "num_readers: 1 shuffle_buffer_size: 1")
    order = {"shard": shard, "sample_1_of_n": sample_1_of_n, "num_epochs": 1}
    for seed in range(2):
        read = names(stream(options, shuffle=True, seed=seed, **order))
        assert "".join(str(every.index(name)) for name in read) == expected


def test_weights_choose_the_stream(tmp_path):
    shards(tmp_path, files=2, each=4)
    options = reader(
        f'tf_record_input_reader {{ input_path: ["{tmp_path}/r-0", "{tmp_path}/r-1"] }}'
        "sample_from_datasets_weights: [3, 1]"
    )
    dataset = stream(options, shuffle=False, seed=5).take(400)
    share = sum(name.startswith("0") for name in names(dataset)) / 400
    assert 0.67 < share < 0.83
