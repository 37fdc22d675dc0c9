from __future__ import annotations

import json
import pathlib
from typing import Any, Iterator

import pytest

from estimator_det.errors import RunError, UsageError
from estimator_det.programs import cli
from exporters import formats
from exporters.benchmark import compare, measure, report
from exporters.formats.base import FORMATS
from inputs import machine
from inputs.datasets import shapes, writer

OPTIONS = {"batch_sizes": (1, 2), "seconds": 0.001, "num_records": 2}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("data"))
    return shapes.make_dataset(folder, seed=1, size="tiny").eval_pattern


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures here, in a few runs."""

    def run(function: Any, modules: Any, tasks: Any, **_: Any) -> Iterator[Any]:
        yield from (compare.measure(task) for task in tasks)

    monkeypatch.setattr(machine, "run_in_processes", run)
    monkeypatch.setattr(measure, "MIN_RUNS", 2)
    monkeypatch.setattr(measure, "WARM_UP_RUNS", 1)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("in_this_process", "small_network")
def test_an_export(exported, records, tmp_path):
    options = compare.BenchmarkOptions([records], **OPTIONS)
    document = compare.benchmark(str(exported), options)
    checkpoint, saved_model, frozen_graph = models = document["models"]
    names = [measure.CHECKPOINT, "saved_model", "frozen_graph"]
    assert [model["format"] for model in models] == names
    for model in models:
        assert [each["batch_size"] for each in model["timings"]] == [1, 2]
        assert all(0 < each["median_ms"] <= each["p95_ms"] for each in model["timings"])
        assert model["bytes"] > 10_000
    assert checkpoint["difference_from_checkpoint"] is None
    assert max(saved_model["difference_from_checkpoint"].values()) < 1e-4
    assert frozen_graph["metrics"] == pytest.approx(checkpoint["metrics"], abs=1e-5)
    assert len(report.write(document, str(tmp_path / "report"))) == 3


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """An export without a checkpoint, of which nothing is read."""
    found = tmp_path / "exported"
    (found / "saved_model" / "assets").mkdir(parents=True)
    writer.write_label_map({1: "circle"}, str(found / "saved_model" / "assets" / "map.pbtxt"))
    models = [
        formats.FoundModel(FORMATS.get(name)(), str(found / name))
        for name in ("saved_model", "frozen_graph")
    ]
    monkeypatch.setattr(formats, "exported_models", lambda _: models)
    return found


@pytest.mark.usefixtures("in_this_process")
def test_models_that_are_damaged(folder, records, capsys, monkeypatch):
    def measured(task: measure.MeasureTask) -> Any:
        assert len(task.images) > 0 and not task.expected and task.batch_sizes == (1, 2)
        if task.name == "saved_model":
            raise RunError(f"{task.path} is damaged")
        timing = measure.Timing(1, 10, 2.0, 3.0, 500.0)
        return {
            "format": task.name, "bytes": 7, "load_seconds": 0.5, "memory_before_bytes": 1,
            "memory_peak_bytes": 2, "timings": [timing._asdict()], "metrics": {},
            "difference_from_checkpoint": None,
        }, ()  # fmt: skip

    monkeypatch.setattr(compare, "measure", measured)
    monkeypatch.chdir(folder.parent)
    arguments = ["benchmark", folder.name, "--data", records, "--batch_sizes", "1,2"]
    assert cli.main(arguments) == 1
    said = capsys.readouterr()
    assert "no difference from the checkpoint is measured" in said.err
    assert f"saved_model: {folder}/saved_model is damaged" in said.out
    document = json.loads((folder / "benchmark" / "benchmark.json").read_text())
    damaged, sound = document["models"]
    assert damaged["error"] and sound["timings"][0]["images_per_second"] == 500


def test_a_process_that_dies(folder, records, monkeypatch):
    def die(*_: Any, **__: Any) -> Iterator[Any]:
        raise machine.ProcessDiedError([])
        yield

    monkeypatch.setattr(machine, "run_in_processes", die)
    document = compare.benchmark(str(folder), compare.BenchmarkOptions([records]))
    errors = {model["error"] for model in document["models"]}
    assert errors == {"its process died, perhaps because memory ran out"}


def test_what_cannot_be_measured(folder, records):
    with pytest.raises(UsageError, match="batch sizes"):
        compare.BenchmarkOptions([records], batch_sizes=(0,))
    with pytest.raises(UsageError, match="seconds is 0"):
        compare.BenchmarkOptions([records], seconds=0)
    with pytest.raises(UsageError, match="the number of images is 0"):
        compare.BenchmarkOptions([records], num_records=0)
    with pytest.raises(FileNotFoundError, match="no such records"):
        compare.benchmark(str(folder), compare.BenchmarkOptions([f"{folder}/no*"]))
    map_path = str(folder.parent / "map.pbtxt")
    for classes, words in (
        ({1: "cat"}, "Without a common name"),
        ({7: "circle"}, "'circle' has id 7, and id 1 in "),
    ):
        writer.write_label_map(classes, map_path)
        with pytest.raises(UsageError, match=words):  # before anything is measured
            compare.benchmark(str(folder), compare.BenchmarkOptions([records], map_path))
    next((folder / "saved_model" / "assets").glob("*")).unlink()
    with pytest.raises(UsageError, match="contains no label map"):
        compare.benchmark(str(folder), compare.BenchmarkOptions([records]))
