from __future__ import annotations

import json
import pathlib
import threading

import pytest

from inputs.bad_records import kinds
from inputs.bad_records.kinds import (
    CLIP,
    FAIL,
    KEEP,
    KINDS,
    SKIP,
    FaultLog,
    RecordFault,
    TooManySkippedError,
)

NAN = RecordFault("box_nan", "2 boxes with NaN", "mend", CLIP, 2)
CUT = RecordFault("truncated_image", "it is truncated", "write it anew", SKIP)


def test_a_record_counts_once(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model" / "bad.jsonl"
    log = FaultLog(str(path))
    for _ in range(3):  # epochs
        log.tell(NAN, "a.record", 7, "cat.jpg")
        log.tell(CUT, "a.record", 8, "dog.jpg")
    log.tell(NAN, "b.record", 7, "owl.jpg")
    assert log.counts() == {"truncated_image": 1, "box_nan": 4, "skipped_records": 1}
    assert [(entry.file, entry.record) for entry in log.records] == [
        ("a.record", 7),
        ("a.record", 8),
        ("b.record", 7),
    ]
    assert (log.num_skipped, log.occurrences) == (1, 7)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [entry._asdict() for entry in log.records]
    assert "4 boxes in 2 records, left out" in log.summary()
    assert str(path) in log.summary()
    assert FaultLog().summary() == ""


def test_lines_of_a_run_before_are_not_repeated(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "bad.jsonl"
    FaultLog(str(path)).tell(NAN, "a.record", 7)
    with path.open("a") as file:
        file.write('{"kind": "box_')  # cut short by a crash
    again = FaultLog(str(path))
    again.tell(NAN, "a.record", 7)
    assert again.counts() == {"box_nan": 2}
    assert len(path.read_text().splitlines()) == 2


def test_failing_and_the_budget() -> None:
    log = FaultLog()
    with pytest.raises(ValueError, match=r"^f, record 3 \(source_id x\): bad\. Remedy: good$"):
        log.tell(RecordFault("unparsable", "bad.", "good", FAIL), "f", 3, "x")
    assert log.stopped.startswith("f, record 3")
    log = FaultLog()
    for record in (1, 1, 2):
        log.tell(CUT, "f", record, max_skipped=2)
    with pytest.raises(TooManySkippedError, match=r"3 records.*max_skipped: 2.*f, record 3"):
        log.tell(CUT, "f", 3, max_skipped=2)


def test_threads(tmp_path: pathlib.Path) -> None:
    log = FaultLog(str(tmp_path / "bad.jsonl"))

    def tell() -> None:
        for record in range(200):
            log.tell(NAN, "f", record)

    threads = [threading.Thread(target=tell) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.counts() == {"box_nan": 400}
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 200


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "MAX_KEPT", 5)
    log = FaultLog()
    for record in range(9):
        log.tell(NAN, "f", record)
    assert len(log.records) == 5
    assert log.counts() == {"box_nan": 18}


def test_policies() -> None:
    reference = kinds.resolve("reference", {})
    assert {reference[kind] for kind in ("box_nan", "unknown_text", "too_many_boxes")} == {CLIP}
    assert reference["box_outside"] == reference["label_contradiction"] == KEEP
    assert reference["damaged_record"] == reference["box_inverted"] == FAIL
    assert set(kinds.resolve("fail", {}).values()) == {FAIL}
    skip = kinds.resolve("skip", {})
    assert skip["box_outside"] == skip["truncated_image"] == skip["label_contradiction"] == SKIP
    assert skip["unknown_text"] == skip["too_many_boxes"] == CLIP
    clip = kinds.resolve("clip", {"box_nan": "fail"})
    assert clip["box_outside"] == clip["unknown_id"] == CLIP
    assert clip["size_mismatch"] == KEEP
    assert clip["huge_image"] == SKIP
    assert clip["box_nan"] == FAIL
    with pytest.raises(ValueError, match="did you mean 'box_nan'"):
        kinds.resolve("clip", {"box_nans": "fail"})


def test_table_is_complete() -> None:
    assert set(kinds.COUNTED) <= set(KINDS)
    for kind, row in KINDS.items():
        assert row.reference in kinds.ACTIONS
        assert row.what
        assert row.remedy
        assert (row.reference != CLIP) or row.mend, kind
