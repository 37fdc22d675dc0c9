from __future__ import annotations

import dataclasses
import json
import threading

import pytest

from inputs.bad_records.kinds import CLIP, FAIL, SKIP, RecordFault
from inputs.bad_records.log import FaultLog, RecordFaultError

NAN = RecordFault("box_nan", CLIP, count=2, message="2 boxes with NaN", remedy="correct")
CUT = RecordFault("truncated_image", SKIP, message="it is truncated", remedy="write it again")


def test_a_record_counts_once(tmp_path):
    path = tmp_path / "model" / "bad.jsonl"
    log = FaultLog(str(path))
    for _ in range(3):  # epochs
        log.report(NAN.at("a.record", 7, "cat.jpg"))
        log.report(CUT.at("a.record", 8, "dog.jpg"))
    log.report(NAN.at("b.record", 7, "owl.jpg"))
    assert log.counts() == {"truncated_image": 1, "box_nan": 4, "skipped_records": 1}
    entries = [
        NAN.at("a.record", 7, "cat.jpg"),
        CUT.at("a.record", 8, "dog.jpg"),
        NAN.at("b.record", 7, "owl.jpg"),
    ]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines == [dataclasses.asdict(entry) for entry in entries]
    assert "4 boxes in 2 records, dropped" in log.summary()
    assert str(path) in log.summary()
    assert FaultLog().summary() == ""


def test_lines_of_a_run_before_are_not_repeated(tmp_path):
    path = tmp_path / "bad.jsonl"
    FaultLog(str(path)).report(NAN.at("a.record", 7))
    with path.open("a") as file:
        file.write('{"kind": "box_')  # cut short by a crash
    again = FaultLog(str(path))
    again.report(NAN.at("a.record", 7))
    assert again.counts() == {"box_nan": 2}
    assert len(path.read_text().splitlines()) == 2


def test_failing_and_the_budget():
    log = FaultLog()
    with pytest.raises(
        RecordFaultError, match=r"^f, record 3 \(source_id x\): bad\. Remedy: good$"
    ):
        log.report(RecordFault("unparsable", FAIL, "f", 3, "x", message="bad.", remedy="good"))
    assert log.stop_reason.startswith("f, record 3")
    log = FaultLog()
    for record in (1, 1, 2):
        log.report(CUT.at("f", record), max_skipped=2)
    with pytest.raises(RecordFaultError, match=r"3 records.*max_skipped: 2.*f, record 3"):
        log.report(CUT.at("f", 3), max_skipped=2)


def test_threads(tmp_path):
    log = FaultLog(str(tmp_path / "bad.jsonl"))

    def report() -> None:
        for record in range(200):
            log.report(NAN.at("f", record))

    threads = [threading.Thread(target=report) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log.counts() == {"box_nan": 400}
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 200
