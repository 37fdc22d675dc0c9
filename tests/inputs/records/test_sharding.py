from __future__ import annotations

import collections
from typing import Any, List, Tuple

import pytest

import inputs
from inputs import schema
from inputs.records import sharding
from tests.inputs.examples import pipeline_of
from tests.inputs.test_pipeline import preprocess_of


def _entering_model(config: Any, worker: Tuple[int, int], on_split: Any) -> List[str]:
    """The source ids of all batches of one worker, as they enter the model."""
    input_fn = inputs.create_train_input_fn(
        config, preprocess_of(config), 5, shard=worker, on_split=on_split
    )
    batches = input_fn().as_numpy_iterator()
    return [name.decode() for features, _ in batches for name in features[schema.SOURCE_ID]]


@pytest.mark.parametrize(
    ("num_files", "by"), [(7, "files"), (1, "records")], ids=["files", "records"]
)
@pytest.mark.parametrize(
    ("num_records", "num_workers"), [(90, 2), pytest.param(1000, 3, marks=pytest.mark.exhaustive)]
)
def test_every_record_enters_the_model_once_an_epoch(
    tmp_path, num_records, num_workers, num_files, by
):
    # Files of different lengths.
    ends = [round(num_records * (index / num_files) ** 1.5) for index in range(num_files + 1)]
    files = [[f"{k:04d}" for k in range(begin, end)] for begin, end in zip(ends, ends[1:])]
    config = pipeline_of(tmp_path, files, "num_readers: 2 num_epochs: 1")
    config.train_config.batch_size = 32
    splits: List[sharding.WorkerParts] = []
    workers = [(num_workers, index) for index in range(num_workers)]
    seen = [_entering_model(config, worker, splits.append) for worker in workers]
    counts = collections.Counter(name for part in seen for name in part)
    assert counts == {f"{number:04d}": 1 for number in range(num_records)}
    assert all(part != sorted(part) for part in seen)  # shuffled
    assert [split.to_json()["streams"][0]["divided_by"] for split in splits] == [by] * num_workers


def test_the_split_in_words_and_as_json():
    split = sharding.WorkerParts(3, [["a", "b", "c", "d"], ["e"]])
    assert split.describe(1) == (
        "worker 2 of 3 reads 1 of 4 files (not all workers read the same number of files, so "
        "their epochs differ in length); worker 2 of 3 reads one record in 3 of "
        "each of the 1 files, which are fewer than the workers"
    )
    assert split.to_json() == {
        "num_workers": 3,
        "streams": [
            {"divided_by": "files", "files_of_workers": [["a", "d"], ["b"], ["c"]]},
            {"divided_by": "records", "files": ["e"]},
        ],
    }
