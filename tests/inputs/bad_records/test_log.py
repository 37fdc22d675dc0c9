from __future__ import annotations

import dataclasses
import json

from inputs.bad_records.kinds import CLIP, FAIL, SKIP, RecordFault
from inputs.bad_records.log import FaultLog

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


def test_a_sentence_has_one_period():
    fault = RecordFault("unparsable", FAIL, "f", 3, "x", message="bad.", remedy="good")
    assert fault.sentence() == "f, record 3 (source_id x): bad. Remedy: good"
