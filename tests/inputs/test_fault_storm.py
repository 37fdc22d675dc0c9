"""Damage of every kind in some records: each is reported, and no clean record is lost."""

from __future__ import annotations

import collections
import json
import pathlib
from typing import Any, Dict, List, NamedTuple, Set, Tuple

import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.protos import input_reader_pb2
from inputs.bad_records.kinds import KEEP, KINDS
from inputs.bad_records.log import LOG_FILE, FaultLog
from inputs.datasets import shapes, writer
from tests.inputs.examples import pipeline
from tests.inputs.faults import DAMAGES, MAX_BOXES, file_bytes
from tests.inputs.reading import entries_of, run_in_graph, train_fn

FileAndRecord = Tuple[int, int]

BadRecords = input_reader_pb2.BadRecords
UNREADABLE = {"damaged_record"}  # no source id can be read
LOST = {
    "damaged_record", "unparsable", "missing_key", "length_mismatch", "undecodable_image",
    "truncated_image", "huge_image",
}  # fmt: skip


NUM_FILES = 6
NAMES = (
    "no image", "one xmax too many", "text as image", "half a jpeg", "png bomb", "wrong height",
    "nan", "x inverted", "no height", "right of the image", "unknown name", "large id",
    "name and id differ", "too many boxes", "labels as floats", "rubbish", "changed data",
    "changed length",
)  # fmt: skip


class Storm(NamedTuple):
    """The files, and the damage of each damaged record."""

    config: Any
    paths: List[str]
    damaged: Dict[FileAndRecord, str]  # -> kind
    names: Dict[FileAndRecord, str]  # -> source id, of damaged ones as well


@pytest.fixture(scope="module", params=[1, pytest.param(3, marks=pytest.mark.exhaustive)])
def storm(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Storm:
    """Some records of each kind of damage, one file that is cut, and one without any bytes."""
    folder = tmp_path_factory.mktemp("storm")
    per_file = 2 + 16 * request.param
    places = [(file, record) for file in range(NUM_FILES) for record in range(per_file - 1)]
    order = np.random.default_rng(11).permutation(len(places)).tolist()
    damages = dict(zip((places[i] for i in order), NAMES * request.param))
    paths = [str(folder / f"storm-{file}.record") for file in range(NUM_FILES)]
    for file, path in enumerate(paths):
        content = file_bytes([damages.get((file, record), "") for record in range(per_file)])
        pathlib.Path(path).write_bytes(content[:-30] if file == 2 else content)
    (folder / "storm-9.record").write_bytes(b"")
    writer.write_label_map(dict(enumerate(shapes.CLASS_NAMES, 1)), str(folder / "map.pbtxt"))
    config = pipeline("train_config { batch_size: 7 }")
    for reader in (config.train_input_reader, config.eval_input_reader[0]):
        reader.label_map_path = str(folder / "map.pbtxt")
        reader.max_number_of_boxes = MAX_BOXES
        reader.num_epochs = 1
        reader.drop_remainder = False
        reader.include_source_id = True
        reader.tf_record_input_reader.input_path.append(str(folder / "storm-*.record"))
    damaged = {place: DAMAGES[name].fault for place, name in damages.items()}
    damaged[2, per_file - 1] = "damaged_record"
    every = [(file, record) for file in range(NUM_FILES) for record in range(per_file)]
    return Storm(config, paths, damaged, {key: f"shape_{key[1]}.jpg" for key in every})


def configured(storm: Storm, policy: int, **fields: Any) -> Any:
    config = type(storm.config)()
    config.CopyFrom(storm.config)
    for reader in (config.train_input_reader, config.eval_input_reader[0]):
        reader.bad_records.policy = policy
        for key, value in fields.items():
            setattr(reader.bad_records, key, value)
    return config


def used(input_fn: Any) -> List[Tuple[FileAndRecord, str]]:
    """File, number and source id of every record in the batches, as an Estimator reads them."""
    found: List[Tuple[FileAndRecord, str]] = []
    for features, _ in run_in_graph(input_fn):
        names = [name.decode() for name in features["source_id"]]
        found.extend(zip(map(tuple, features["record"].tolist()), names))
    return found


def usable(storm: Storm, lost: Set[str]) -> Set[FileAndRecord]:
    return set(storm.names) - {key for key, kind in storm.damaged.items() if kind in lost}


def check_report(storm: Storm, log: FaultLog, path: pathlib.Path) -> None:
    """Each damage is reported once, with file, number, source id and remedy; nothing else is."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    reported = collections.Counter((line["file"], line["record"], line["kind"]) for line in lines)
    expected = {(storm.paths[f], r, kind) for (f, r), kind in storm.damaged.items()}
    empty = [key for key in reported if key[2] == "empty_file"]
    assert [pathlib.Path(file).name for file, _, _ in empty] == ["storm-9.record"]
    assert set(reported) - set(empty) == expected
    assert set(reported.values()) == {1}
    for line in lines:
        assert line["remedy"]
        if line["record"] < 0 or line["kind"] in UNREADABLE:
            assert line["source_id"] == ""
        elif line["message"].startswith("it is not a"):
            assert line["kind"] == "unparsable"
        else:
            key = storm.paths.index(line["file"]), line["record"]
            assert line["source_id"] == storm.names[key]
    for kind in {line["kind"] for line in lines}:
        assert log.counts()[kind] >= sum(line["kind"] == kind for line in lines)
        assert kind in log.summary()


def test_skip_uses_all_clean_records_once(storm, tmp_path):
    log = FaultLog(str(tmp_path / LOG_FILE))
    found = used(train_fn(configured(storm, BadRecords.SKIP), 3, log))
    choices = {kind for kind, row in KINDS.items() if row.caused_by_config}
    lost = set(storm.damaged.values()) - choices
    assert sorted(key for key, _ in found) == sorted(usable(storm, lost))
    assert all(storm.names[key] == name for key, name in found)
    assert log.counts()["skipped_records"] == sum(kind in lost for kind in storm.damaged.values())
    assert len(set(storm.damaged.values())) >= 12
    check_report(storm, log, tmp_path / LOG_FILE)


@pytest.mark.optimized
def test_a_tf2_loop_loses_and_reports_the_same(storm, tmp_path):
    """TensorFlow optimizes the functions of datasets that are read eagerly, and no others."""
    log = FaultLog(str(tmp_path / LOG_FILE))
    dataset = train_fn(configured(storm, BadRecords.SKIP), 3, log)()
    found = [tuple(key) for features, _ in dataset for key in features["record"].numpy().tolist()]
    choices = {kind for kind, row in KINDS.items() if row.caused_by_config}
    assert sorted(found) == sorted(usable(storm, set(storm.damaged.values()) - choices))
    check_report(storm, log, tmp_path / LOG_FILE)


def test_clip_corrects_boxes_in_every_epoch(storm, tmp_path):
    log = FaultLog(str(tmp_path / LOG_FILE))
    config = configured(storm, BadRecords.CLIP)
    config.train_input_reader.num_epochs = 2
    found = used(train_fn(config, None, log))
    times = collections.Counter(key for key, _ in found)
    assert set(times) == usable(storm, LOST)
    assert set(times.values()) == {2}
    check_report(storm, log, tmp_path / LOG_FILE)


@pytest.mark.parametrize("policy", ["FAIL", "REFERENCE"])
def test_the_first_fault_stops_the_run(storm, policy, tmp_path):
    config = configured(storm, BadRecords.Policy.Value(policy))
    config.train_input_reader.shuffle = False
    config.train_input_reader.num_readers = 1
    if policy == "FAIL":  # else the empty file stops the run before any record is read
        config.train_input_reader.bad_records.exception.add(
            kind="empty_file", policy=BadRecords.CLIP
        )
    references = {kind: row.reference for kind, row in KINDS.items()}
    stops = sorted(
        key
        for key, kind in storm.damaged.items()
        if policy == "FAIL" or references[kind] not in (KEEP, "clip")
    )
    log = FaultLog(str(tmp_path / LOG_FILE))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        used(train_fn(config, 3, log))
    file, record = stops[0]
    assert f"{storm.paths[file]}, record {record}" in str(caught.value)
    assert "Remedy: " in str(caught.value)
    last = entries_of(log)[-1]
    assert (last["file"], last["record"], last["action"]) == (storm.paths[file], record, "fail")
    assert last["kind"] == storm.damaged[stops[0]]
