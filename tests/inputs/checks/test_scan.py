from __future__ import annotations

import multiprocessing
import os
from typing import Any

import numpy as np
import pytest

from estimator_det.errors import RunError
from inputs.bad_records.policy import make_policy
from inputs.checks import scan, statistics
from inputs.checks.scan import Scan
from model_fn.checks.data_check import check_data
from tests.inputs import examples
from tests.inputs.examples import BOXES, encoded, example, orientation, picture
from tests.inputs.faults import frames_of

LABELS = {"image/object/class/label": [1, 2]}


def record(number: int, **changes) -> bytes:
    features = {"image/source_id": f"id{number}", **BOXES, **LABELS, **changes}
    return example(features)


def run(*paths, policy: str = "REFERENCE", jobs: int = 1, max_records=None, advance=None) -> Scan:
    patterns = " ".join(f'input_path: "{path}"' for path in paths)
    reader = examples.reader(
        f"tf_record_input_reader {{ {patterns} }} bad_records {{ policy: {policy} }}"
    )
    plan = scan.plan("train_input_reader", make_policy(reader, 4, 3), max_records)
    (result,) = scan.run([plan], jobs=jobs, **({} if advance is None else {"advance": advance}))
    return result


@pytest.fixture
def two_files(tmp_path) -> str:
    """Twenty records; the third of the first file is damaged, the fifth has no picture."""
    for number, name in enumerate("ab"):
        frames = frames_of([record(100 * (number + 1) + i) for i in range(10)])
        if name == "a":
            frames[2] = frames[2][:30] + b"!" + frames[2][31:]
        (tmp_path / f"{name}.record").write_bytes(b"".join(frames))
    bad = [record(300), record(301, **{"image/encoded": b"nonsense"})]
    examples.write(tmp_path / "c.record", bad)
    return str(tmp_path / "?.record")


def test_everything_is_found_at_its_place(two_files):
    done = []
    result = run(two_files, advance=done.append)
    assert [os.path.basename(path) for path in result.files] == ["a.record", "b.record", "c.record"]
    assert result.num_records == sum(done) == 22
    assert [(os.path.basename(e.file), e.record, e.source_id, e.kind) for e in result.entries] == [
        ("a.record", 2, "", "damaged_record"),
        ("c.record", 1, "id301", "undecodable_image"),
    ]
    columns = result.columns
    assert columns.source_ids == [
        *(f"id{100 + i}" for i in range(10) if i != 2),
        *(f"id{200 + i}" for i in range(10)),
        "id300",
    ]
    np.testing.assert_array_equal(columns.sizes, [[8, 12]] * 20)
    np.testing.assert_allclose(columns.boxes[:2], np.transpose(list(BOXES.values())))
    np.testing.assert_array_equal(columns.class_ids, [1, 2] * 20)
    assert result.num_skipped == 0
    assert run(two_files, policy="SKIP").num_skipped == 2


def test_images_that_training_decodes_as_they_are_get_a_report(tmp_path):
    """A JPEG that lacks data, a rotated photo, and a copy: all are used."""
    jpeg = encoded(picture(60, 60), "JPEG")
    photo = encoded(picture(20, 30), "JPEG", exif=orientation(6))
    images = [jpeg, jpeg[:900] + b"\xff\xd9" + jpeg[902:], photo, jpeg]
    records = [record(i, **{"image/encoded": image}) for i, image in enumerate(images)]
    path = examples.write(tmp_path / "a.record", records)
    for policy in ("REFERENCE", "FAIL", "SKIP"):
        result = run(path, policy=policy)
        assert [(e.kind, e.action, e.source_id) for e in result.entries] == [
            ("corrupt_image", "keep", "id1"), ("exif_rotation", "keep", "id2"),
        ]  # fmt: skip
    assert "its compressed data end too early" in result.entries[0].message
    assert result.entries[1].message == "the EXIF orientation of image/encoded is 6"
    assert "--exif apply" in result.entries[1].remedy
    np.testing.assert_array_equal(result.columns.sizes[1:3], [[60, 60], [20, 30]])
    assert statistics.copies(result.columns) == [(3, 0)]


def check_processes(path: str) -> None:
    """Compares what processes find with what is found here."""
    there, here = run(path, jobs=2), run(path)
    assert there.entries == here.entries and there.num_records == here.num_records
    for name, a, b in zip(here.columns._fields, here.columns, there.columns):
        np.testing.assert_array_equal(a, b, err_msg=name)


IN_FORKS = """
import multiprocessing
from inputs.checks import scan
from tests.inputs.checks.test_scan import check_processes

fork = multiprocessing.get_context("fork")  # of a process in which TensorFlow has not run
multiprocessing.get_context = lambda kind: fork
scan.FEW_BYTES, scan.RECORDS_PER_TASK = 0, 3
check_processes({path!r})
"""


def test_forked_processes_find_the_same_in_the_same_order(two_files, forker):
    checked = forker.program(IN_FORKS.format(path=two_files))
    assert checked.wait() == 0, checked.output()


def test_compressed_files_are_read_from_the_beginning(tmp_path):
    path = examples.write(tmp_path / "a.record.gz", [record(i) for i in range(5)], "GZIP")
    reader = examples.reader(f'tf_record_input_reader {{ input_path: "{path}" }}')
    assert scan.plan("r", make_policy(reader)).num_records is None
    result = run(path)
    assert (result.num_records, result.columns.num_images, result.entries) == (5, 5, [])
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) - 20)
    (lost,) = run(path).entries
    assert (lost.kind, lost.record) == ("lost_records", -1)


def test_a_limit_counts_for_each_file(two_files):
    result = run(two_files, max_records=3)
    assert result.num_records == 8
    assert [e.kind for e in result.entries] == ["damaged_record", "undecodable_image"]
    assert run(two_files, max_records=1).entries == []


def test_paths_and_files_without_records(tmp_path):
    empty = examples.write(tmp_path / "empty.record", [])
    packed = examples.write(tmp_path / "empty.record.gz", [], "GZIP")
    good = examples.write(tmp_path / "good.record", [record(1)])
    os.mkfifo(tmp_path / "pipe")
    result = run(tmp_path / "none-*", tmp_path / "pipe", empty, packed, good, "/dev/zero")
    assert [(e.kind, e.file, e.record) for e in result.entries] == [
        ("no_file", str(tmp_path / "none-*"), -1),
        ("lost_records", str(tmp_path / "pipe"), -1),
        ("empty_file", empty, -1),
        ("lost_records", "/dev/zero", -1),
        ("empty_file", packed, -1),
    ]
    assert result.entries[3].message.endswith("it is a device, not a regular file")
    assert result.columns.num_images == result.num_records == 1


def _die(policies: Any, task: scan.ScanTask) -> None:
    os._exit(1)


def test_a_process_that_dies_ends_the_check_with_a_remedy(two_files, monkeypatch):
    # A fork ends before it can need what no fork may use: TensorFlow.
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda kind: fork)
    monkeypatch.setattr(scan, "_examine", _die)
    monkeypatch.setattr(scan, "FEW_BYTES", 0)
    config = examples.pipeline(
        f'train_input_reader {{ tf_record_input_reader {{ input_path: "{two_files}" }} }}'
    )
    with pytest.raises(RunError, match=r"process died.*a\.record from record 0 on.*--jobs 1"):
        check_data(config, "a.config", readers="train", jobs=2)
