"""The guard of the input pipeline, where `test_fault_storm` does not test it."""

from __future__ import annotations

import contextlib
import pathlib
from typing import Any, List, Optional
from unittest import mock

import numpy as np
import pytest

import inputs
from estimator_det.compat import tf
from estimator_det.errors import UsageError
from inputs import guard, schema
from inputs.bad_records.log import FaultLog
from tests.inputs.examples import BOXES, encoded, example, picture, pipeline, sequence, write
from tests.inputs.faults import frames_of, gzipped
from tests.inputs.reading import entries_of, train_fn

pytestmark = pytest.mark.optimized

LABELS = {"image/object/class/label": [2, 1]}
BAD = {"image/encoded": b"rubbish", "image/source_id": "bad"}


ONCE = "num_epochs: 1"
SKIP = "bad_records { policy: SKIP }"


def reading(*paths: Any, reader: str = "", text: str = "") -> Any:
    config = pipeline(
        f"train_input_reader {{ shuffle: false num_readers: 1 {reader} }} train_config {{ {text} }}"
    )
    config.train_input_reader.tf_record_input_reader.input_path.extend(map(str, paths))
    return config


def dataset_of(
    config: Any, log: Optional[FaultLog], seed: int = 1, **options: Any
) -> tf.data.Dataset:
    return train_fn(config, seed, log, **options)()


def train(config: Any, log: FaultLog, batches: int = 100, seed: int = 1) -> List[Any]:
    return list(dataset_of(config, log, seed).take(batches).as_numpy_iterator())


def records_of(batches: List[Any]) -> List[List[int]]:
    return [record for features, _ in batches for record in features[schema.RECORD].tolist()]


@pytest.mark.parametrize(
    ("reader", "message", "num_skipped"),
    [
        ("bad_records { policy: SKIP max_skipped: 30 }", "31 records had to be skipped", 31),
        (SKIP, "all of them are skipped", 40),
    ],
)
def test_a_run_without_one_usable_record_ends(tmp_path, monkeypatch, reader, message, num_skipped):
    """No batch ever comes together."""
    monkeypatch.setattr(guard, "MAX_LOSSES", 3)
    log = FaultLog()
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        train(reading(write(tmp_path / "r", [example(BAD)] * 40), reader=reader), log)
    assert log.counts()["skipped_records"] == num_skipped


def test_a_record_that_waits_for_its_batch_is_no_fault(tmp_path):
    """Bad records that follow it are explained meanwhile; the batch does not miss them again."""
    records = [example({}), *[example(BAD)] * 60, example({})]
    config = reading(
        write(tmp_path / "a", records),
        write(tmp_path / "b", records[:-1]),
        reader="num_parallel_batches: 1 bad_records { policy: SKIP max_skipped: 1000 }",
        text="batch_size: 2",
    )
    log = FaultLog()
    assert records_of(train(config, log, 3)) == [[0, 0], [0, 61], [1, 0], [0, 0], [0, 61], [1, 0]]
    assert log.counts() == {"undecodable_image": 120, "skipped_records": 120}


def test_what_follows_damage_in_a_compressed_file_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(guard, "BLOCK", 2)
    frames = frames_of([example({})] * 6)
    frames[2] = frames[2][:50] + b"damage" + frames[2][56:]
    (tmp_path / "r.gz").write_bytes(gzipped(b"".join(frames)))
    config = reading(tmp_path / "r.gz", reader=f"num_epochs: 2 {SKIP}")
    log = FaultLog()
    assert records_of(train(config, log)) == [[0, 0], [0, 1], [0, 3], [0, 4], [0, 5]] * 2
    assert log.counts() == {"damaged_record": 1, "skipped_records": 1}


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-9],
        pytest.param(lambda data: data[:-8] + b"checksum", marks=pytest.mark.exhaustive),
        lambda data: b"rubbish",
    ],
)
def test_a_damaged_compressed_file_is_reported_once(tmp_path, monkeypatch, change):
    """Endless epochs of a file without any usable record end."""
    monkeypatch.setattr(guard, "MAX_LOSSES", 3)
    content = b"".join(frames_of([example({})] * 6))
    (tmp_path / "r.gz").write_bytes(change(gzipped(content)))
    log = FaultLog(str(tmp_path / "log"))
    with contextlib.suppress(tf.errors.InvalidArgumentError):
        assert train(reading(tmp_path / "r.gz", reader=SKIP), log, 9)
    assert [(entry["kind"], entry["record"]) for entry in entries_of(log)] == [("lost_records", -1)]


def test_a_whole_compressed_file_and_a_dropped_remainder_have_no_faults(tmp_path):
    path = write(tmp_path / "r.gz", [example({})] * 3, "GZIP")
    log = FaultLog()
    config = reading(path, reader="num_epochs: 3")
    batches = train(config, log, seed=9)
    assert records_of(batches) == [[0, 0], [0, 1], [0, 2]] * 2 + [[0, 0], [0, 1]]
    seeds = np.concatenate([features[schema.AUGMENTATION_SEED] for features, _ in batches])
    assert seeds.tolist() == [[9, position] for position in range(8)]
    assert log.counts() == {}


def test_patterns_without_files(tmp_path):
    path = write(tmp_path / "r", [example({})] * 2)
    log = FaultLog()
    config = reading(tmp_path / "none-*", path, reader=f"{ONCE} {SKIP}")
    assert records_of(train(config, log)) == [[0, 0], [0, 1]]
    assert log.counts() == {"no_file": 1}
    for refused in (
        reading(tmp_path / "none-*", path, reader=ONCE),
        reading(tmp_path / "none-*", reader=SKIP),
    ):
        with pytest.raises(FileNotFoundError, match=r"none-\*' matches no file"):
            train(refused, FaultLog())
    with pytest.raises(FileNotFoundError, match="all 1 files are empty"):
        train(reading(write(tmp_path / "empty", [])), FaultLog())


def test_a_deleted_file_is_reported(tmp_path):
    first = write(tmp_path / "a", [example({})] * 2)
    second = write(tmp_path / "b", [example({})] * 2)
    dataset = dataset_of(reading(first, second, reader=ONCE), FaultLog())
    pathlib.Path(second).unlink()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"b: .*No such file"):
        list(dataset)


def test_what_the_examiner_cannot_explain_comes_with_tensorflows_reason(tmp_path):
    path = write(tmp_path / "r", [example({"image/source_id": "odd"})] * 3)
    config = reading(path)

    def preprocess(images: Any) -> Any:
        check = tf.debugging.Assert(tf.shape(images)[1] > 100, ["too small for this test"])
        with tf.control_dependencies([check]):
            return tf.image.resize(images, [6, 10]), tf.constant([[6, 10, 3]])

    dataset = inputs.create_train_input_fn(config, preprocess, 1, FaultLog())()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"odd.*too small for this test"):
        next(dataset.as_numpy_iterator())


def test_sequences_are_watched(tmp_path):
    good = sequence({}, {"image/encoded": [encoded(picture())], "image/source_id": ["f"]})
    bad = sequence({}, {"image/encoded": [b"rubbish"], "image/source_id": ["g"]})
    path = write(tmp_path / "r", [good, bad, good])
    config = reading(path, reader=f"input_type: TF_SEQUENCE_EXAMPLE {ONCE} {SKIP}")
    log = FaultLog(str(tmp_path / "log"))
    assert records_of(train(config, log)) == [[0, 0], [0, 2]]
    (fault,) = entries_of(log)
    assert (fault["record"], fault["source_id"]) == (1, "g") and "frame" in fault["message"]


def test_each_pass_begins_at_the_first_record(tmp_path):
    records = [example({**BOXES, **LABELS, **BAD}), *[example({**BOXES, **LABELS})] * 4]
    config = reading(write(tmp_path / "r", records), reader=f"{ONCE} drop_remainder: false {SKIP}")
    log = FaultLog()
    dataset = dataset_of(config, log)
    with mock.patch.object(log, "report", wraps=log.report) as report:
        for num_passes in (1, 2):
            batches = list(dataset.as_numpy_iterator())
            assert records_of(batches) == [[0, 1], [0, 2], [0, 3], [0, 4]]
            assert report.call_count == num_passes


def test_endless_epochs_of_nothing_are_refused(tmp_path):
    config = reading(write(tmp_path / "r", [example({})]))
    context = tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=1)
    with pytest.raises(UsageError, match="1 records, too few for worker 2 of 2"):
        train_fn(config)(None, context)


def test_the_guard_of_another_machine_has_no_python_in_its_graph(tmp_path):
    config = reading(write(tmp_path / "r", [example({**BOXES, **LABELS})] * 4))
    operations = {}
    for runs_elsewhere in (False, True):
        with tf.Graph().as_default() as graph:
            dataset_of(config, None, runs_elsewhere=runs_elsewhere)
            functions = graph.as_graph_def().library.function
            operations[runs_elsewhere] = {node.op for one in functions for node in one.node_def}
    python = {"PyFunc", "EagerPyFunc", "PyFuncStateless"}
    assert python & operations[False] and not python & operations[True]


def test_the_guard_of_another_machine_ends_the_run_at_any_fault(tmp_path):
    good = example({**BOXES, **LABELS})
    path = write(tmp_path / "r", [good, good, b"no record at all"])
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(dataset_of(reading(path), None, runs_elsewhere=True).take(4))
    whole = pathlib.Path(write(path, [good] * 4))
    whole.write_bytes(whole.read_bytes()[:-3])
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"record 3.*damaged_record: the frame"
    ):
        list(dataset_of(reading(path), None, runs_elsewhere=True).take(4))
    packed = write(tmp_path / "in.record.gz", [good])
    with pytest.raises(UsageError, match=r"in\.record\.gz.*Decompress"):
        dataset_of(reading(packed), None, runs_elsewhere=True)
