"""The HTML page of a run: contents, escaping, size, and runs that lack something."""

from __future__ import annotations

import copy
import html.parser
import json
import pathlib
import re
import shlex
import shutil
from typing import Any, List, Tuple

import pytest

from estimator_det.config import pipeline
from estimator_det.programs import cli, report, report_pictures, report_run
from model_fn.drawing import charts
from model_fn.evaluation import history
from model_fn.evaluation.detections import scoring
from model_fn.runs import runner
from tests.model_fn import fake
from tests.model_fn.evaluation.detections.test_scoring import record, write_records, write_results
from tests.programs.forking import small_config

SCRIPT = "<script>alert('&\"')</script> and a name that is wider than any chart of the page"
NAMES = {1: SCRIPT, 2: "{{ 7 * 7 }}"}
STEPS = range(0, 2000, 100)  # of 20 evaluations
BOXES = [[10, 10, 60, 50], [30, 60, 90, 110]]


class Page(html.parser.HTMLParser):
    """Tags and visible text of a page; fails at an element that is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: List[Tuple[str, Any]] = []
        self.text = ""
        self._open: List[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "br", "path", "use"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attributes: Any) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "use"):
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def write_run(folder: pathlib.Path, name: str, gain: float = 1.0) -> pathlib.Path:
    """A run of 20 evaluations of six images, whose detections come from a file."""
    run = folder / name
    run.mkdir()
    records, results = [], []
    for number in range(6):
        image, labels = (f"{number}.png", BOXES, [1, 2], (100, 120)), list(NAMES.values())
        records.append(record(*image, source_id=str(number), class_names=labels))
        # The second object is missed, or taken for the first class.
        found = BOXES[: 1 + number % 2]
        results += [(str(number), 1, box, 0.9 - number / 10) for box in found]
    config = write_records(folder, records, NAMES)
    config.train_config.num_steps = 2000
    config.train_config.batch_size = 7 if gain == 1 else 8
    config.train_input_reader.CopyFrom(config.eval_input_reader[0])
    pipeline.save_pipeline(config, str(run))
    scoring.evaluate_detections(config, write_results(folder, results), str(run))
    (first,) = history.read(str(run), "0")
    for step in STEPS[1:]:
        metrics = {key: gain * value * step / 2000 for key, value in first.metrics.items()}
        history.record(str(run), history.Evaluation("0", step, metrics))
    for kind in ("details", "thresholds"):
        shutil.copy(run / "eval_0" / f"{kind}-0.json", run / "eval_0" / f"{kind}-{STEPS[-1]}.json")
    row = {"time": "2026-01-01T00:00:00", "learning_rate": 0.1, "images_per_second": 30.0}
    row.update({"memory_bytes": 2e9, "input_wait_share": 0.25})
    losses = ("total_loss", "RPNLoss/localization_loss", "BoxClassifierLoss/localization_loss")
    lines = [
        {**row, "step": step, **{f"Loss/{name}": 9 / (step + 1) for name in losses}}
        for step in range(0, 2000, 5)
    ]
    (run / "progress.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Tuple[pathlib.Path, pathlib.Path]:
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        fake.without_charts(patch)
        return write_run(folder, "first"), write_run(folder, "second", gain=0.5)


@pytest.fixture
def no_panels(no_charts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has no charts, whose drawing takes most of its time."""
    monkeypatch.setattr(charts, "svg", lambda _: "")


def page_of(*arguments: Any, output: pathlib.Path) -> Tuple[str, Page]:
    assert cli.main(["report", *map(str, arguments), "--output", str(output)]) == 0
    text = output.read_text()
    return text, Page(text)


def test_one_run(runs, tmp_path):
    benchmark = {
        "models": [
            {
                "format": "tflite", "bytes": 5e6, "memory_peak_bytes": 3e8, "metrics": {},
                "timings": [{"batch_size": 1, "median_ms": 12.34, "p95_ms": 20.0,
                             "images_per_second": 81.0}],
            },
            {"format": "onnx", "error": "onnxruntime is not installed"},
        ]
    }  # fmt: skip
    path = tmp_path / "benchmark.json"
    path.write_text(json.dumps(benchmark))
    arguments = ["report", str(runs[0]), "--benchmark", str(path)]
    assert cli.main(arguments) == 0  # the page is in the folder of the run
    text = (runs[0] / "report.html").read_text()
    page = Page(text)
    for heading in (
        "Training",
        "Classes",
        "Most confident mistakes",
        "Missed objects",
        "Check these labels",
        "Data",
    ):
        assert f"<h2>{heading}</h2>" in text
    assert "last evaluation, at step 1,900" in page.text
    assert f"estimator-det train {runs[0]}/pipeline.config" in page.text
    assert "--num_train_steps 2000" in page.text
    assert "memory of the process, at most2.00 GB" in page.text
    assert "tflite112.320.081.05.0300–" in page.text
    assert "onnxruntime is not installed" in page.text
    assert "batch_size: 7" in page.text  # the whole configuration
    assert "RPN/localization" in page.text and "BoxClassifier/local" in page.text
    pictures = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    # Three images with a wrong class, all six without the second object, whose label is suspected.
    assert len(pictures) == 2 * (3 + 6 + 6)
    captions = re.findall(r"<figcaption>.* · (.*)</figcaption>", text)
    names = [f"{number}.png" for number in (1, 3, 5, *range(6), *range(6))]
    assert captions == names
    assert "0.667extra label{{ 7 * 7 }}–0.png" in page.text
    assert all(each.startswith("data:image/jpeg;base64,") for each in pictures)
    assert len(text) < 5e6


@pytest.fixture(scope="module")
def comparison(runs: Any, tmp_path_factory: pytest.TempPathFactory) -> Tuple[str, Page]:
    return page_of(*runs, output=tmp_path_factory.mktemp("comparison") / "page.html")


def test_names_are_text_and_nothing_is_loaded(comparison):
    text, page = comparison
    assert SCRIPT in page.text  # visible as it is
    assert "{{ 7 * 7 }}" in page.text
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "iframe", "object", "embed", "link", "base", "form"}
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "href", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/"))
    assert not re.search(r"@import|url\((?!#)", text)
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text
    assert len(text) < 5e6


def test_two_runs_side_by_side(runs, comparison):
    _, page = comparison
    assert "train_config.batch_size78" in page.text
    first, second = (history.read(str(run), "0")[-1].metrics for run in runs)
    key = "DetectionBoxes_Precision/mAP"
    assert f"{key}{first[key]:.3f}{second[key]:.3f}" in page.text
    assert first[key] != second[key]
    assert "Loss: total" in page.text and "Evaluation: mAP@.50IOU" in page.text  # charts


def test_the_best_evaluation_is_shown(no_panels, runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs[0], run)
    (run / "best").mkdir()
    (run / "best" / "best.json").write_text(json.dumps({"metric": "x", "kept": [{"step": 0}]}))
    best = report_run.read_run(str(run))
    assert best.is_best and best.chosen and best.chosen.step == 0 and not best.damaged
    for content in ('{"kept": [{"st', "[]", '{"kept": []}', '{"kept": [{"value": 1}]}'):
        (run / "best" / "best.json").write_text(content)
        last = report_run.read_run(str(run))
        assert not last.is_best and last.chosen and last.chosen.step != 0
        assert f"{run / 'best' / 'best.json'} is damaged" in last.damaged
    assert (
        f'<p class="warn">{run / "best" / "best.json"} is damaged' in report.render([str(run)]).html
    )


def test_other_records_give_no_pictures(runs):
    run = report_run.read_run(str(runs[0]))
    text = json.dumps(run.details).replace("[10.0, 10.0, 60.0, 50.0]", "[1.0, 1.0, 9.0, 9.0]")
    examples = report_pictures.draw(run.config, "0", list(NAMES.values()), json.loads(text))
    assert len(examples["missed"]) == 6
    assert all(example["urls"] == [] for part in examples.values() for example in part)
    assert examples["missed"][0]["name"] == "image 0"


def test_pictures_have_skeletons(runs):
    run = report_run.read_run(str(runs[0]))
    points = {"keypoints": [[[20, 20], [50, 40]], [[None, None], [80, 90]]]}
    points |= {"detected_keypoints": [[[20, 20], [50, 40]]], "keypoint_scores": [[0.9, 0.9]]}
    kept = [each for each in run.details["missed"] if len(each["detections"]) == 1]

    def urls(*edges: Any, **keypoints: Any) -> Any:
        config = copy.deepcopy(run.config)
        for start, end in edges:
            config.eval_config.keypoint_edge.add(start=start, end=end)
        details = {"missed": [{**kept[0], **keypoints}]}
        pictures = report_pictures.draw(config, "0", list(NAMES.values()), details, ["missed"])
        return pictures["missed"][0]["urls"]

    plain, dots, lines = urls(), urls(**points), urls((0, 1), **points)
    assert all(len({*side}) == 3 for side in zip(plain, dots, lines))
    unlikely = {**points, "keypoint_scores": [[0.9, 0.1]]}
    assert urls((0, 1), **unlikely)[0] not in (plain[0], dots[0], lines[0])


def test_labels_to_check_as_json_with_those_of_the_training_data(no_panels, runs, tmp_path, capsys):
    run, results = shutil.copytree(runs[0], tmp_path / "run"), runs[0].parent / "found.json"
    config = pipeline.read_pipeline(str(run / "pipeline.config"))
    scoring.evaluate_detections(config, str(results), str(run), on_training_data=True)
    capsys.readouterr()
    text, _ = page_of(run, "--json", output=tmp_path / "page.html")
    faults = json.loads(capsys.readouterr().out)["label_faults"][str(run)]
    assert list(faults) == ["0", "training_data"] and faults["0"] == faults["training_data"]
    assert "reader “training_data”" in text
    extra = faults["0"][2]
    assert (extra["kind"], extra["name"], extra["detection"]) == ("extra label", "2.png", None)
    assert extra["label"] == {"number": 1, "class": NAMES[2], "box": BOXES[1]}
    (record_file,) = config.eval_input_reader[0].tf_record_input_reader.input_path
    assert extra["record"] == f"{record_file}, record 2"


def test_absent_records(no_panels, runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs[0], run)
    config = pipeline.read_pipeline(str(run / "pipeline.config"))
    for reader in (config.train_input_reader, config.eval_input_reader[0]):
        reader.tf_record_input_reader.input_path[:] = [str(tmp_path / "absent")]
    pipeline.save_pipeline(config, str(run))
    _, page = page_of(run, output=tmp_path / "page.html")
    assert page.text.count("The picture is not here") == 9  # suspected labels are in a table
    assert "The records cannot be read here" in page.text


def test_a_run_without_evaluation(no_panels, runs, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for name in ("pipeline.config", "progress.jsonl"):
        shutil.copy(runs[0] / name, run / name)
    _, page = page_of(run, output=tmp_path / "page.html")
    assert "No evaluation: no checkpoint in the folder" in page.text


def test_commands_quote_paths(runs):
    run = report_run.read_run(str(runs[0]))._replace(folder="my run")
    for is_best in (False, True):
        commands = dict(report._commands(run._replace(is_best=is_best)))
        for text in commands.values():
            words = shlex.split(text.replace("\\\n", " "))
            assert any(word.startswith("my run") for word in words), text
            assert "run" not in words and not [w for w in words if w.startswith("run/")], text


def test_refusals(runs, tmp_path, capsys):
    assert cli.main(["report", str(tmp_path)]) == 3
    assert "there is no training run in" in capsys.readouterr().err
    assert cli.main(["report", str(runs[0].parent)]) == 3
    assert f"it holds {runs[0].parent}" in capsys.readouterr().err
    assert cli.main(["report", __file__]) == 2
    assert cli.main(["report", str(runs[0]), "--output", str(tmp_path)]) == 2
    project = tmp_path / "project"
    project.mkdir()
    (project / "run").symlink_to(runs[0])
    assert cli.main(["report", str(project), "--benchmark", str(tmp_path / "absent.json")]) == 3
    assert "absent.json" in capsys.readouterr().err
    assert cli.main(["report", str(runs[0]), "--benchmark", str(runs[0] / "pipeline.config")]) == 2
    assert "is not a file of `estimator-det benchmark`" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert cli.main(["report", str(runs[0]), "--output", str(tmp_path / "file" / "page.html")]) == 4
    (tmp_path / "pipeline.config").touch()
    (tmp_path / ".estimator-det-export").touch()
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "is an export" in capsys.readouterr().err
    assert cli.main(["report", "a", "b", "c"]) == 2
    assert cli.main(["report", "a", "b", "--benchmark", "c"]) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("small_network", "no_charts")
def test_a_checkpoint_without_details_is_evaluated_once(tmp_path, monkeypatch):
    run = tmp_path / "run"
    runner.train(pipeline.read_pipeline(small_config(tmp_path, 2)), str(run))
    for _ in range(2):
        first = report_run.read_run(str(run))
        assert first.details and first.chosen and first.chosen.step == 2
        with monkeypatch.context() as patch:
            patch.delattr(report_run.evaluator, "evaluate")
            assert report_run.read_run(str(run)).details == first.details
        (run / "eval_0" / "details-2.json").unlink()
