"""A whole run on a file system that is not the local one, as buckets are: nothing may use `open`.

TensorFlow's memory file system lives in the process and needs no network.
"""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from estimator_det.compat import tf
from estimator_det.config import pipeline
from estimator_det.programs import cli, demo, model_main
from inputs.datasets import shapes
from tests import small_extractor
from tests.programs.test_runs import PLAIN, SMALL

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_charts")]


def _upload(folder: pathlib.Path, remote: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with tf.io.gfile.GFile(f"{remote}/{path.relative_to(folder)}", "wb") as target:
                target.write(path.read_bytes())


def _moved(config: Any, folder: pathlib.Path, remote: str) -> Any:
    return pipeline.parse_pipeline(pipeline.format_pipeline(config).replace(str(folder), remote))


def test_train_evaluate_and_export(tmp_path, capsys, monkeypatch):
    small_extractor.use(monkeypatch)
    remote = f"ram://{tmp_path.name}"
    files = shapes.make_dataset(str(tmp_path / "data"), seed=0, size="tiny")
    _upload(tmp_path / "data", f"{remote}/data")
    config = _moved(demo.demo_config(files, 2, [*SMALL, PLAIN]), tmp_path, remote)
    assert str(tmp_path) not in pipeline.format_pipeline(config)
    with tf.io.gfile.GFile(f"{remote}/small.config", "w") as target:
        target.write(pipeline.format_pipeline(config))
    train = [f"--pipeline_config_path={remote}/small.config", f"--model_dir={remote}/model"]
    assert model_main.main(["model_main", *train, "--mode=train"]) == 0, capsys.readouterr().err
    assert tf.train.latest_checkpoint(f"{remote}/model").endswith("model.ckpt-2")
    assert cli.main(["train", *train, "--num_train_steps=3"]) == 0  # resumed
    assert tf.train.latest_checkpoint(f"{remote}/model").endswith("model.ckpt-3")
    assert cli.main(["evaluate", f"--model_dir={remote}/model"]) == 0
    export = ["export", f"--pipeline_config_path={remote}/small.config"]
    export += [f"--trained_checkpoint_prefix={remote}/model"]
    assert cli.main([*export, f"--output_directory={remote}/exported"]) == 0
    assert tf.io.gfile.exists(f"{remote}/exported/saved_model/saved_model.pb")
    assert tf.io.gfile.exists(f"{remote}/model/pipeline.config")
    assert not list(tmp_path.glob("ram:*"))
