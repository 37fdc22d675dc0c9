from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline
from estimator_det.errors import NotFiniteLossError, RunError
from estimator_det.programs import console
from estimator_det.programs.verbs import replay as verb
from estimator_det.protos import pipeline_pb2
from inputs import schema
from inputs.bad_records.log import FaultLog
from model_fn.debugging import bad_step, replay
from model_fn.runs import progress
from model_fn.runs.backends import estimator
from model_fn.training import optimizers
from model_fn.training.train_op import MOVING_AVERAGES
from tests.arrays import assert_same
from tests.checkpoints import stored
from tests.detectors import configs
from tests.model_fn import fake

pytestmark = pytest.mark.usefixtures("small_network")

RATE = "train_config.optimizer.momentum_optimizer.learning_rate.constant_learning_rate"
IMAGE = f"features/{schema.IMAGE}"


@pytest.fixture
def fake_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that need no real losses: built in a third of the time."""
    fake.install(monkeypatch)
    monkeypatch.setattr(fake, "NUM_CLASSES", 2)  # as in the batch


def _config(folder: pathlib.Path, *assignments: str) -> Any:
    for name in ("a.record", "b.record"):
        (folder / name).write_bytes(b"not read")
    config = text_format.Parse(
        f"""
        model {{ {configs.SMALL_SSD} }}
        train_config {{
          batch_size: 2
          optimizer {{
            momentum_optimizer {{
              learning_rate {{ constant_learning_rate {{ learning_rate: 0.001 }} }}
            }}
          }}
        }}
        train_input_reader {{
          tf_record_input_reader {{ input_path: "{folder}/*.record" }}
        }}
        """,
        pipeline_pb2.TrainEvalPipelineConfig(),
    )
    return pipeline.apply_overrides(config, assignments)


def _batch() -> Tuple[Dict[str, Any], Dict[str, Any]]:
    features = {
        schema.IMAGE: np.random.default_rng(0).uniform(-1, 1, (2, 64, 64, 3)).astype(np.float32),
        schema.TRUE_IMAGE_SHAPE: np.array([[64, 64, 3]] * 2, np.int32),
        schema.SOURCE_ID: np.array([b"first", "zwölf".encode()]),
        schema.RECORD: np.array([[0, 3], [1, 7]], np.int64),
        schema.PARTNER_RECORDS: np.array([[[-1, -1]] * 2, [[0, 4], [1, 0]]], np.int64),
    }
    labels = configs.labels_of(configs.groundtruth(padding=1))
    return features, {name: value.numpy() for name, value in labels.items()}


class _Snapshots(tf1.train.SessionRunHook):
    """All variables after every step."""

    def __init__(self) -> None:
        self.taken: List[Dict[str, np.ndarray]] = []
        self.message = ""  # of the error that ended training

    def begin(self) -> None:
        self._variables = {v.op.name: v.read_value() for v in tf1.global_variables()}

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.taken.append(run_context.session.run(self._variables))


def _train(config: Any, model_dir: pathlib.Path, batches: List[Any], steps: int) -> _Snapshots:
    def input_fn() -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensors(batches[0])
        for batch in batches[1:]:
            dataset = dataset.concatenate(tf.data.Dataset.from_tensors(batch))
        return dataset.concatenate(tf.data.Dataset.from_tensors(batches[-1]).repeat())

    snapshots = _Snapshots()
    context = fake.run_context(
        model_dir, config, num_train_steps=steps, seed=1, progress=False, hooks=[snapshots]
    )
    backend = estimator.EstimatorBackend(context)
    with pytest.raises(NotFiniteLossError) as raised:
        backend.train(
            input_fn, lambda training: progress.training_hooks(context, training, FaultLog())
        )
    snapshots.message = str(raised.value)
    return snapshots


def _check_untouched(snapshots: _Snapshots, folder: pathlib.Path) -> None:
    """The step changed nothing, and the folder has it all, unseen by those who resume."""
    before, after = snapshots.taken[-2:]
    for values in (after, stored(folder / "model.ckpt")):
        assert_same(values, before, rtol=0, atol=0)
    assert any("moving_mean" in name for name in before)
    assert not tf1.train.latest_checkpoint(str(folder))
    assert not (folder.parent / "checkpoint").exists()


def _replay(folder: pathlib.Path, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    return verb.run(parser.parse_args([str(folder), *arguments]))


@pytest.mark.usefixtures("fake_detector")
def test_a_poisoned_image(tmp_path):
    model_dir = tmp_path / "model"
    poisoned = _batch()
    poisoned[0][schema.IMAGE][1, 5, 6] = np.nan
    snapshots = _train(_config(tmp_path), model_dir, [_batch(), _batch(), poisoned], 9)
    folder = model_dir / "faults" / "bad_step-3"
    _check_untouched(snapshots, folder)
    assert snapshots.taken[-1]["global_step"] == 2

    report = json.loads((folder / "report.json").read_text())
    assert report["not_finite"][-1] in ("gradient_norm", "Loss/total_loss")
    assert "Loss/classification_loss" in report["not_finite"]
    first = report["first_non_finite"]
    assert (first["tensor"], first["num_nan"]) == (f"batch/{IMAGE}:0", 3)
    assert report["bad_inputs"] == [{"key": IMAGE, "image": 1, "num_values": 3}]
    assert report["values"]["Loss/total_loss"] == "nan"
    assert report["values"]["learning_rate"] == pytest.approx(0.001)
    files = [f"{tmp_path}/a.record", f"{tmp_path}/b.record"]
    partners = [{"file": files[0], "record": 4}, {"file": files[1], "record": 0}]
    assert report["batch"] == [
        {"image": 0, "source_id": "first", "file": files[0], "record": 3, "partners": []},
        {"image": 1, "source_id": "zwölf", "file": files[1], "record": 7, "partners": partners},
    ]
    text = (folder / "report.txt").read_text()
    assert f"image 1: {tmp_path}/b.record, record 7, source_id 'zwölf', mixed with " in text
    assert f"mixed with {files[0]}, record 4; {files[1]}, record 0\n" in text
    message = snapshots.message
    assert f"estimator-det replay {folder}" in message and "b.record, record 7" in message
    np.testing.assert_array_equal(replay.load_batch(str(folder))[IMAGE], poisoned[0][schema.IMAGE])
    last = json.loads((model_dir / "progress.jsonl").read_text().splitlines()[-1])
    assert (last["step"], last["folder"]) == (3, str(folder))


@pytest.mark.usefixtures("fake_detector")
def test_a_learning_rate_that_is_nan(tmp_path, monkeypatch, capsys):
    def make_learning_rate(config: Any, global_step: tf.Tensor) -> tf.Tensor:
        return tf.where(global_step < 1, 0.001, np.nan)

    monkeypatch.setattr(optimizers, "make_learning_rate", make_learning_rate)
    model_dir = tmp_path / "model"
    snapshots = _train(_config(tmp_path), model_dir, [_batch()], 9)
    folder = model_dir / "faults" / "bad_step-2"
    _check_untouched(snapshots, folder)
    report = json.loads((folder / "report.json").read_text())
    assert "learning_rate" in report["not_finite"] and report["bad_variables"] == []
    assert report["values"]["learning_rate"] == "nan" and report["bad_gradients"] == []
    assert report["causes"] == ["the learning rate is not finite: examine the schedule"]
    assert "The step was not applied" in snapshots.message
    assert set(replay.load_batch(str(folder))) >= {IMAGE, f"labels/{schema.BOXES}"}
    monkeypatch.setattr(console._Output, "is_json", True)
    assert _replay(folder) == 1
    result = json.loads(capsys.readouterr().out)
    assert not result["is_finite"] and result["steps"][0]["values"]["learning_rate"] == "nan"


@pytest.mark.usefixtures("fake_detector")
def test_statistics_of_batch_norm_that_overflow(tmp_path):
    """Their inverse is 0, so that loss and gradients are finite, but not what would be saved."""
    model_dir = tmp_path / "model"
    huge = _batch()
    huge[0][schema.IMAGE] *= 1e25
    snapshots = _train(_config(tmp_path), model_dir, [_batch(), huge], 9)
    folder = model_dir / "faults" / "bad_step-2"
    _check_untouched(snapshots, folder)
    report = json.loads((folder / "report.json").read_text())
    assert report["not_finite"] == [MOVING_AVERAGES]
    assert "variance overflows" in report["causes"][0]
    assert report["first_non_finite"]["num_inf"] > 0


def test_a_batch_that_was_not_kept(tmp_path):
    bad_step._save_batch(str(tmp_path / replay.BATCH_FILE), {})
    with pytest.raises(RunError, match=r"batch\.npz is empty: this step cannot be repeated"):
        replay.replay(_config(tmp_path), str(tmp_path))


def _tall_box(tmp_path: pathlib.Path) -> Tuple[pathlib.Path, str]:
    """The folder of a step with a box so tall that the square of its target overflows.

    And what helps: a linear loss is finite.
    """
    loss = "model.ssd.loss.localization_loss"
    features, labels = _batch()
    labels[schema.BOXES][0, 0] = [0, 0, 1e20, 1]
    model_dir = tmp_path / "model"
    _train(_config(tmp_path, f"{loss}={{weighted_l2 {{}}}}"), model_dir, [(features, labels)], 9)
    return model_dir / "faults" / "bad_step-1", f"{loss}={{weighted_smooth_l1 {{}}}}"


@pytest.mark.slow
def test_a_remedy_is_tried(tmp_path, capsys):
    folder, remedy = _tall_box(tmp_path)
    report = json.loads((folder / "report.json").read_text())
    assert report["not_finite"][0] == "Loss/localization_loss"
    first = report["first_non_finite"]
    assert first["tensor"].startswith("Loss/") and first["num_inf"] > 0
    assert report["causes"][0].startswith("the loss: it is computed from finite predictions")
    assert _replay(folder) == 1
    told = capsys.readouterr().out
    assert "not finite at step 1: Loss/localization_loss" in told
    assert "first tensor that is not finite: Loss/" in told
    # Slots of another optimizer are not in the checkpoint.
    adam = "adam_optimizer { learning_rate { constant_learning_rate { learning_rate: 1e-3 } } }"
    other = f"train_config.optimizer={{ {adam} use_moving_average: false }}"
    assert _replay(folder, "--set", remedy, "--set", other, "--steps", "3") == 0
    told = capsys.readouterr().out
    assert "step 1\n" in told and "step 3\n" in told and "all finite in 3 step(s)" in told
    assert "variables start from their initializers" in told


def test_replay_of_another_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no batch\.npz; give the folder bad_step-"):
        replay.replay(_config(tmp_path), str(tmp_path))
