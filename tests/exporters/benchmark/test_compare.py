from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any, Iterator

import pytest

from estimator_det import cli
from estimator_det.config.text import ConfigError
from exporters import formats
from exporters.benchmark import compare, measure, report
from inputs import machine
from inputs.datasets import shapes
from model_fn.checkpoints.errors import RunError

OPTIONS = {"batch_sizes": (1, 2), "seconds": 0.001, "num_records": 2}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("data"))
    return shapes.make_dataset(folder, seed=1, size="tiny").eval_pattern


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures here, in a few runs."""

    def run(function: Any, tasks: Any, **_: Any) -> Iterator[Any]:
        yield from map(function, tasks)

    monkeypatch.setattr(machine, "in_processes", run)
    monkeypatch.setattr(measure, "MIN_RUNS", 2)
    monkeypatch.setattr(measure, "WARM_UP_RUNS", 1)


@pytest.mark.usefixtures("in_this_process", "small_network")
def test_an_export(
    exported: pathlib.Path,
    records: str,
    tmp_path: pathlib.Path,
) -> None:
    options = compare.BenchmarkOptions([records], **OPTIONS)
    found = compare.benchmark(str(exported), options)
    checkpoint, saved_model, frozen_graph = (row.measured for row in found.rows)
    assert [row.name for row in found.rows] == [measure.CHECKPOINT, "saved_model", "frozen_graph"]
    for one in (checkpoint, saved_model, frozen_graph):
        assert one is not None
        assert [each.batch_size for each in one.timings] == [1, 2]
        assert all(0 < each.median_ms <= each.p95_ms for each in one.timings)
        assert one.num_bytes > 10_000
        assert 0 <= one.metrics[report.MAP] <= one.metrics[report.MAP_50] <= 1
    assert checkpoint.difference is None
    assert max(saved_model.difference[:2]) < 1e-4 and saved_model.difference.rows > 100
    assert frozen_graph.metrics == pytest.approx(checkpoint.metrics, abs=1e-5)
    assert len(report.write(found, str(tmp_path / "report"))) == 3


@pytest.mark.usefixtures("in_this_process", "small_network")
def test_one_model_that_is_damaged(
    exported: pathlib.Path,
    records: str,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "exported"
    shutil.copytree(exported, folder)
    (folder / "pipeline.config").unlink()

    def refuse(task: measure.Task) -> None:
        raise RunError(f"{task.path} is damaged")

    monkeypatch.setattr(compare, "measure", refuse)
    arguments = ["benchmark", str(folder), "--data", records, "--batch_sizes", "1,2"]
    assert cli.main(arguments) == 1
    said = capsys.readouterr()
    assert "no difference from the checkpoint is measured" in said.err
    assert f"saved_model: {folder}/saved_model is damaged" in said.out
    document = json.loads((folder / "benchmark" / "benchmark.json").read_text())
    names = [each.format.name for each in formats.exported_models(str(folder))]
    assert [each["format"] for each in document["models"]] == names


def test_what_cannot_be_measured(
    exported: pathlib.Path,
    records: str,
    tmp_path: pathlib.Path,
) -> None:
    with pytest.raises(ConfigError, match="batch sizes"):
        compare.BenchmarkOptions([records], batch_sizes=(0,))
    with pytest.raises(ConfigError, match="seconds is 0"):
        compare.BenchmarkOptions([records], seconds=0)
    with pytest.raises(ConfigError, match="the number of images is 0"):
        compare.BenchmarkOptions([records], num_records=0)
    options = compare.BenchmarkOptions([records])
    with pytest.raises(FileNotFoundError, match="no such model"):
        compare.benchmark(str(tmp_path / "nowhere"), options)
    with pytest.raises(FileNotFoundError, match="no such records"):
        compare.benchmark(str(exported), compare.BenchmarkOptions([str(tmp_path / "no*")]))
    graph = tmp_path / "frozen_inference_graph.pb"
    shutil.copy(exported / graph.name, graph)
    with pytest.raises(ConfigError, match="contains no label map"):
        compare.benchmark(str(graph), options)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("small_network")
def test_each_model_has_its_own_process(
    exported: pathlib.Path,
    records: str,
    tmp_path: pathlib.Path,
) -> None:
    """The small network is of this process: the checkpoint has another one in theirs."""
    options = compare.BenchmarkOptions([records], **OPTIONS)
    found = compare.benchmark(str(exported), options)
    checkpoint, *others = found.rows
    assert checkpoint.measured is None and checkpoint.error
    before = measure.memory_now()
    for row in others:
        assert row.measured is not None
        assert row.measured.memory_before < row.measured.memory_peak
        assert row.measured.memory_before != before
