"""The programs on real, tiny runs: train, go on, evaluate, export, detect."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
from typing import List

import pytest

from estimator_det.compat import tf
from estimator_det.config import pipeline, rules
from estimator_det.errors import Problem
from estimator_det.programs import cli, console, demo, model_main
from estimator_det.protos import model_pb2
from exporters.benchmark.report import MAP_50
from exporters.detect_files import DETECTIONS_FILE
from inputs import label_map
from inputs.datasets import shapes
from model_fn.evaluation.history import EVALUATIONS_FILE
from model_fn.evaluation.score_thresholds import IN_EXPORTS
from tests.model_fn import fake
from tests.model_fn.checks import small

# tests/model_fn/test_published_configs.py takes real networks the same way.
# Charts are drawn in `model_dir`.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_network", "no_charts")]

SMALL = [
    *small.SMALL,
    "eval_config.eval_interval_secs=1",
    "eval_input_reader[0].sample_1_of_n_examples=4",
]
# For runs in which the data are not the point.
PLAIN = "train_config.data_augmentation_options=[]"


@pytest.fixture(scope="module")
def config_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run")
    files = shapes.make_dataset(str(folder / "data"), seed=0, size="tiny")
    config = demo.demo_config(files, 2, SMALL)
    path = folder / "small.config"
    path.write_text(pipeline.format_pipeline(config))
    return str(path)


@pytest.fixture(scope="module")
def checked() -> List[str]:
    """Models that the training of `model_dir` checks, and label maps that it reads."""
    return []


@pytest.fixture(scope="module")
def model_dir(small_network: None, config_path: str, checked: List[str]) -> pathlib.Path:
    """Two steps of `estimator-det train`."""
    folder = pathlib.Path(config_path).parent / "model"
    arguments = ["train", "--pipeline_config_path", config_path, "--model_dir", str(folder)]

    def note(at: str) -> List[Problem]:
        checked.append(at)
        return []

    with pytest.MonkeyPatch.context() as patch:
        model = "", model_pb2.DetectionModel.DESCRIPTOR.full_name
        patch.setitem(rules._RULES, model, [*rules._RULES[model], lambda _, at: note(at)])
        parse = label_map.parse_label_map
        patch.setattr(label_map, "parse_label_map", lambda *a: note("label map") or parse(*a))
        assert cli.main([*arguments, "--set", "eval_config.num_visualizations=2", "--seed=1"]) == 0
    return folder


def test_a_run_checks_its_configuration_once_and_reads_its_label_map_once(model_dir, checked):
    assert checked == ["model", "label map"]


def test_train_saves_the_configuration_as_run(model_dir):
    saved = pipeline.read_pipeline(str(model_dir / "pipeline.config"))
    assert saved.eval_config.num_visualizations == 2
    assert tf.train.latest_checkpoint(str(model_dir)).endswith("model.ckpt-2")


def test_a_run_resumes_without_a_configuration(model_dir, tmp_path, capsys):
    assert cli.main(["train", "--model_dir", str(model_dir), "--num_train_steps=2"]) == 0
    assert cli.main(["train", "--model_dir", str(tmp_path)]) == console.EXIT_USAGE
    assert "no configuration is given" in capsys.readouterr().err


def test_evaluate_export_detect(model_dir, config_path, tmp_path, capsys):
    capsys.readouterr()
    assert cli.main(["evaluate", os.path.relpath(model_dir)]) == 0
    assert "DetectionBoxes_Precision/mAP@.50IOU" in capsys.readouterr().out
    assert cli.main(["export", str(model_dir), "--output_dir", str(tmp_path / "exported")]) == 0
    image = tmp_path / "shape.png"
    shapes.Image.fromarray(shapes.make_image((5, 0)).pixels).save(image)
    found = tmp_path / "found"
    options = ["--output_dir", str(found), "--min_score=0"]
    run = [str(model_dir), *options, str(image), "--tiles=100"]
    for arguments in ([str(image), "--model", str(tmp_path / "exported"), *options], run):
        assert cli.main(["detect", *arguments]) == 0
        (line,) = (found / DETECTIONS_FILE).read_text().splitlines()
        detections = json.loads(line)["detections"]
        assert detections and {entry["name"] for entry in detections} <= set(shapes.CLASS_NAMES)
        assert (found / "shape_detections.jpg").exists()


def test_a_step_that_is_not_finite(config_path, tmp_path, capsys):
    folder = tmp_path / "model"
    rate = "train_config.optimizer.momentum_optimizer.learning_rate.constant_learning_rate"
    arguments = ["train", "--pipeline_config_path", config_path, "--model_dir", str(folder)]
    arguments += ["--num_train_steps=50", "--set", "train_config.optimizer=null"]
    arguments += ["--set", "train_config.gradient_clipping_by_norm=0", "--set", PLAIN]
    assert cli.main([*arguments, "--set", f"{rate}.learning_rate=1e6"]) == console.EXIT_NOT_FINITE
    assert "learning rate 1e+06 is too high" in capsys.readouterr().err
    (bad_step,) = (folder / "faults").glob("bad_step-*")
    report = json.loads((bad_step / "report.json").read_text())
    for record in report["batch"]:
        assert record["source_id"].endswith(".jpg") and record["record"] >= 0
        assert pathlib.Path(record["file"]).exists()
    assert cli.main(["replay", os.path.relpath(bad_step)]) == console.EXIT_FAILED
    assert f"not finite at step {report['step']}" in capsys.readouterr().out


@pytest.fixture(scope="module")
def resumed(model_dir, config_path, tmp_path_factory):
    """Folder of a run of `estimator-det train` of two steps that `model_main` resumed for one.

    tests/programs/test_remote_files.py has a run that `model_main` began.
    """
    folder = tmp_path_factory.mktemp("resumed") / "model"
    shutil.copytree(model_dir, folder)
    command = ["model_main", f"--pipeline_config_path={config_path}", f"--model_dir={folder}"]
    with pytest.MonkeyPatch.context() as patch:
        fake.without_charts(patch)
        assert model_main.main([*command, "--num_train_steps=3", "--train_batch_size=1"]) == 0
    return folder


def test_model_main_resumes_and_evaluates(resumed):
    assert tf.train.latest_checkpoint(str(resumed)).endswith("model.ckpt-3")
    *_, line = (resumed / EVALUATIONS_FILE).read_text().splitlines()
    assert "DetectionBoxes_Precision/mAP@.50IOU" in json.loads(line)["metrics"]


def test_model_main_only_evaluates(resumed, config_path, capsys):
    line = ["model_main", f"--pipeline_config_path={config_path}", f"--model_dir={resumed}"]
    line += ["--run_once", "--eval_training_data", "--sample_1_of_n_eval_on_train_examples=16"]
    assert model_main.main([*line, f"--checkpoint_dir={resumed}"]) == 0
    assert "mAP@.50IOU" in capsys.readouterr().out


SMALL_CENTER_NET = [
    "train_config.batch_size=2",
    "model.center_net.image_resizer.fixed_shape_resizer.height=64",
    "model.center_net.image_resizer.fixed_shape_resizer.width=64",
    "eval_config.num_visualizations=1",
    "eval_input_reader[0].sample_1_of_n_examples=8",
]


@pytest.mark.parametrize(
    ("model", "settings", "metric"),
    [
        pytest.param("ssd", [*SMALL, PLAIN], MAP_50, marks=pytest.mark.exhaustive),
        (
            "centernet_keypoints",
            [*SMALL_CENTER_NET, PLAIN],
            "Keypoints_Precision/mAP@.50IOU ByCategory/figure",
        ),
    ],
)
def test_demo(model, settings, metric, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = pathlib.Path("demo")
    (folder / "model").mkdir(parents=True)
    for left in (".estimator-det-demo", "model/of_an_earlier_demo"):
        (folder / left).touch()
    arguments = ["demo", "--output_dir", str(folder), "--size=tiny", "--num_train_steps=2"]
    arguments += ["--model", model]
    for text in settings:
        arguments += ["--set", text]
    assert cli.main(arguments) == 0
    summary = json.loads((folder / "summary.json").read_text())
    *_, evaluation = (folder / "model" / EVALUATIONS_FILE).read_text().splitlines()
    assert summary["metrics"][metric] == json.loads(evaluation)["metrics"][metric]
    assert [*summary["seconds"]] == ["data", "training and evaluation", "export", "detection"]
    for path in (summary["picture"], f"{summary['saved_model']}/saved_model.pb"):
        assert pathlib.Path(path).exists()
    # `detect --threshold auto` reads them.
    thresholds = json.loads((folder / "exported/saved_model" / IN_EXPORTS).read_text())
    assert thresholds["all_classes"]["num_boxes"] > 0
    output = capsys.readouterr().out
    assert "[4/4] detection" in output
    assert f"{MAP_50} {summary['metrics'][MAP_50]:.4f}" in " ".join(output.split())
    assert demo.PICTURE_FILE in output
    assert "contains an earlier demo and is replaced" in output
    assert not (folder / "model" / "of_an_earlier_demo").exists()
