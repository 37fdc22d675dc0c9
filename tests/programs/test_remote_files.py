"""A whole run on a file system that is not the local one, as buckets are: nothing may use `open`.

TensorFlow's memory file system lives in the process and needs no network.
"""

from __future__ import annotations

import pathlib

import pytest

from estimator_det.compat import tf
from estimator_det.programs import cli, model_main
from tests import small_extractor
from tests.programs.forking import small_config

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_charts")]


def _upload(folder: pathlib.Path, remote: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with tf.io.gfile.GFile(f"{remote}/{path.relative_to(folder)}", "wb") as target:
                target.write(path.read_bytes())


def test_train_evaluate_and_export(tmp_path, capsys, monkeypatch):
    small_extractor.use(monkeypatch)
    remote = f"ram://{tmp_path.name}"
    config = pathlib.Path(small_config(tmp_path, 2))
    config.write_text(config.read_text().replace(str(tmp_path), remote))
    _upload(tmp_path, remote)
    train = [f"--pipeline_config_path={remote}/small.config", f"--model_dir={remote}/model"]
    assert model_main.main(["model_main", *train, "--mode=train"]) == 0, capsys.readouterr().err
    assert tf.train.latest_checkpoint(f"{remote}/model").endswith("model.ckpt-2")
    # Resumed, evaluated and exported, by the configuration of the run.
    assert cli.main(["train", train[1], "--num_train_steps=3"]) == 0
    assert tf.train.latest_checkpoint(f"{remote}/model").endswith("model.ckpt-3")
    assert tf.io.gfile.exists(f"{remote}/model/evaluations.jsonl")
    export = ["export", f"--pipeline_config_path={remote}/small.config"]
    export += [f"--trained_checkpoint_prefix={remote}/model"]
    assert cli.main([*export, f"--output_directory={remote}/exported"]) == 0
    assert tf.io.gfile.exists(f"{remote}/exported/saved_model/saved_model.pb")
    assert tf.io.gfile.exists(f"{remote}/model/pipeline.config")
    assert not list(tmp_path.glob("ram:*"))
