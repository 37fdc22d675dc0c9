from __future__ import annotations

import json
import pathlib

import pytest
from PIL import Image

from exporters.benchmark import report
from exporters.benchmark.compare import Benchmark, Row
from exporters.benchmark.measure import CHECKPOINT, Measured, Timing
from exporters.formats.check import Difference


def _measured(factor: float, difference: bool = True) -> Measured:
    timings = tuple(
        Timing(size, 40, 20 * size * factor, 25 * size * factor, 50 / factor) for size in (1, 8)
    )
    metrics = {report.MAP: 0.5, report.MAP_50: 0.75, "nan": float("nan")}
    return Measured(
        int(4e6), 1.25, int(3e8), int(5e8), timings, metrics,
        Difference(2e-6, 3e-7, 100, 2e-7, 3e-8) if difference else None, (),
    )  # fmt: skip


@pytest.fixture
def found() -> Benchmark:
    rows = (
        Row(CHECKPOINT, "exported/model.ckpt", _measured(2, difference=False)),
        Row("saved_model", "exported/saved_model", _measured(1)),
        Row("onnx", "exported/model.onnx", None, "onnx models need onnxruntime"),
    )
    return Benchmark("exported", (480, 640), rows)


def test_table(found: Benchmark) -> None:
    lines = report.text_lines(found)
    assert "exported: images of 640x480" in lines[0]
    assert lines[1].split()[:4] == ["format", "batch", "median", "ms"]
    rows = [line.split() for line in lines[2:7]]
    assert rows[0] == [
        "checkpoint", "1", "40.0", "50.0", "25.0", "1.2", "4.0", "200", "500", "0.500", "0.750",
        "–", "–",
    ]  # fmt: skip
    assert rows[1] == ["checkpoint", "8", "320.0", "400.0", "25.0"]
    assert rows[2][-2:] == ["2.0e-06", "3.0e-07"]
    assert rows[4] == ["onnx", *["–"] * 12]
    assert lines[-1] == "onnx: onnx models need onnxruntime"


def test_json(found: Benchmark) -> None:
    document = json.loads(json.dumps(report.to_dictionary(found), allow_nan=False))
    checkpoint, saved_model, onnx = document["models"]
    assert document["image"] == {"height": 480, "width": 640}
    assert checkpoint["difference_from_checkpoint"] is None
    assert saved_model["difference_from_checkpoint"] == {
        "scores": 2e-6, "boxes": 3e-7, "usual_scores": 2e-7, "usual_boxes": 3e-8,
    }  # fmt: skip
    assert saved_model["timings"][1] == {
        "batch_size": 8, "runs": 40, "median_ms": 160, "p95_ms": 200, "images_per_second": 50,
    }  # fmt: skip
    assert saved_model["metrics"] == {report.MAP: 0.5, report.MAP_50: 0.75, "nan": None}
    assert onnx["error"] == "onnx models need onnxruntime"


def test_metrics_without_objects_are_absent(found: Benchmark) -> None:
    one = found.rows[0].measured
    assert one is not None
    row = Row("a", "b", one._replace(metrics={report.MAP: -1.0}, timings=()))
    line = report.text_lines(found._replace(rows=(row,)))[2]
    assert line.split() == ["a", *["–"] * 4, "1.2", "4.0", "200", "500", *["–"] * 4]


def test_files(found: Benchmark, tmp_path: pathlib.Path) -> None:
    text, document, picture = report.write(found, str(tmp_path / "new"))
    assert pathlib.Path(text).read_text().splitlines() == report.text_lines(found)
    assert json.loads(pathlib.Path(document).read_text()) == report.to_dictionary(found)
    assert Image.open(picture).width > 800
    failed = found._replace(rows=found.rows[2:])
    assert len(report.write(failed, str(tmp_path / "failed"))) == 2
