from __future__ import annotations

import json
import pathlib
from typing import Any, Dict

import pytest
from PIL import Image

from exporters.benchmark import report


def _model(name: str, factor: float, **changes: Any) -> Dict[str, Any]:
    return {
        "format": name,
        "path": f"exported/{name}",
        "bytes": int(4e6),
        "load_seconds": 1.25,
        "memory_before_bytes": int(3e8),
        "memory_peak_bytes": int(5e8),
        "timings": [
            {
                "batch_size": size,
                "runs": 40,
                "median_ms": 20 * size * factor,
                "p95_ms": 25 * size * factor,
                "images_per_second": 50 / factor,
            }
            for size in (1, 8)
        ],
        "metrics": {report.MAP: 0.5, report.MAP_50: 0.75, "nan": float("nan")},
        "difference_from_checkpoint": None,
        **changes,
    }


FAILED = {"format": "onnx", "path": "model.onnx", "error": "onnx models need onnxruntime"}


def _document(*models: Dict[str, Any]) -> Dict[str, Any]:
    return {
        "path": "exported",
        "tensorflow": "2.15.1",
        "machine": {"processors": 2, "kind": "x86_64"},
        "image": {"height": 480, "width": 640},
        "models": list(models),
    }


@pytest.fixture
def document() -> Dict[str, Any]:
    difference = {"scores": 2e-6, "boxes": 3e-7, "usual_scores": 2e-7, "usual_boxes": 3e-8}
    saved_model = _model("saved_model", 1, difference_from_checkpoint=difference)
    return _document(_model("checkpoint", 2), saved_model, FAILED)


def test_table(document):
    lines = report.text_lines(document)
    assert lines[0] == "exported: images of 640x480, TensorFlow 2.15.1, 2 processors"
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


def test_files(document, tmp_path):
    text, json_file, picture = report.write(document, str(tmp_path / "new"))
    assert pathlib.Path(text).read_text().splitlines() == report.text_lines(document)
    assert Image.open(picture).width > 800
    written = json.loads(pathlib.Path(json_file).read_text())
    for model in document["models"][:2]:
        model["metrics"]["nan"] = None
    assert written == document
    assert len(report.write(_document(FAILED), str(tmp_path / "failed"))) == 2
