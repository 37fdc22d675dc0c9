from __future__ import annotations

import json
import pathlib

import pytest

from inputs.records.sharding import Split
from model_fn.runs.cluster import Cluster, Task
from model_fn.runs.data_cursor import SPLIT_FILE, report_split

JOBS = {"chief": ["h:1"], "worker": ["h:2", "h:3"], "ps": ["h:4"]}


def test_the_chief_writes_how_records_are_divided(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    split = Split(3, [["a", "b", "c"]])
    for kind in ("worker", "chief"):
        report_split(str(tmp_path), Cluster(JOBS, Task(kind, 0)), split)
        assert (tmp_path / SPLIT_FILE).exists() == (kind == "chief")
    assert "worker 0 is worker 2 of 3 reads 1 of 3 files" in caplog.text
    written = json.loads((tmp_path / SPLIT_FILE).read_text())
    assert written["workers"] == ["chief 0", "worker 0", "worker 1"]
    assert written["streams"][0]["files_of_workers"] == [["a"], ["b"], ["c"]]
