"""Parts of the measurement that differ with the kind of model; times are not checked."""

from __future__ import annotations

import argparse
import os
import pathlib
import time
from typing import Any, Dict

import numpy as np
import pytest
from google.protobuf import text_format

from benchmarks.speed import __main__ as program
from benchmarks.speed import components, parts
from estimator_det.compat import tf, tf1
from estimator_det.programs import starter_plan
from estimator_det.protos import pipeline_pb2
from model_fn.evaluation import history
from model_fn.runs import runner
from tests import small_extractor
from tests.detectors.two_stage import configs

IMAGES = np.random.default_rng(0).normal(size=[2, 64, 64, 3]).astype(np.float32)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    small_extractor.use(monkeypatch)
    monkeypatch.setattr(parts, "WARM_UP", 0)
    monkeypatch.setattr(parts, "INPUT_ROUNDS", 1)
    monkeypatch.setattr(components, "AUGMENTED_IMAGES", 1)
    monkeypatch.setattr(components, "CONVERTED_IMAGES", 3)
    monkeypatch.setattr(components, "CONVERTED_SIDE", 40)
    for module in (parts, components):
        monkeypatch.setattr(module, "REPEATS", 1)


def arguments(folder: pathlib.Path, overrides: str) -> argparse.Namespace:
    config = pipeline_pb2.TrainEvalPipelineConfig(model=configs.small_config(overrides))
    config.train_input_reader.SetInParent()
    config.eval_input_reader.add()
    path = folder / "small.config"
    path.write_text(text_format.MessageToString(config))
    return argparse.Namespace(
        config=str(path), batch_size=2, label_map="", record="none", overrides=[], started=0.0
    )


def test_datasets_take_turns_in_one_session():
    with tf.Graph().as_default():
        batches = {name: tf.data.Dataset.range(2).repeat().batch(2) for name in ("input", "decode")}
        figures = parts._input_figures(batches, batch_size=2)
    names = ["images_per_second", "processor_ms"]
    assert sorted(figures) == [f"{part}_{name}" for part in ("decode", "input") for name in names]
    assert min(figures.values()) >= 0


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        (configs.MASKS, ["FirstStage", "SecondStage", "SecondStageBoxPredictor/Conv_1/"]),
        pytest.param("number_of_stages: 1", ["FirstStage"], marks=pytest.mark.exhaustive),
    ],
    ids=["masks", "proposals"],
)
def test_floor_has_the_heads_of_the_stages(overrides, names):
    config = pipeline_pb2.TrainEvalPipelineConfig(model=configs.small_config(overrides))
    with tf.Graph().as_default():
        parts._two_stage_outputs(config, tf.constant(IMAGES))
        found = " ".join(variable.op.name for variable in tf1.trainable_variables())
    assert all(name in found for name in names)
    assert ("SecondStage" in found) == ("SecondStage" in names)


def test_floor_needs_images_of_one_size(tmp_path):
    figures = parts.floor(arguments(tmp_path, configs.MASKS))
    assert 0 < figures["floor_seconds"] < figures["floor_first_step_seconds"]
    assert figures["floor_memory_gb"] > 0.1
    overrides = "image_resizer { keep_aspect_ratio_resizer {} }"
    with pytest.raises(ValueError, match=r"model\.faster_rcnn\.image_resizer\.fixed_shape"):
        parts.floor(arguments(tmp_path, overrides))


def test_post_processing_takes_nothing_else_of_the_network():
    """With what it takes fed, the images do not matter."""
    detector = configs.small_detector(is_training=False)
    with tf.Graph().as_default(), tf1.Session() as session:
        images = tf1.placeholder(tf.float32, IMAGES.shape)
        predictions = detector.predict(images)
        taken = parts._network_outputs(predictions)
        scores = detector.postprocess(predictions).scores
        session.run(tf1.global_variables_initializer())
        values = session.run(taken, {images: IMAGES})
        expected = session.run(scores, {images: IMAGES})
        fed = {**dict(zip(taken, values)), images: np.zeros_like(IMAGES)}
        np.testing.assert_array_equal(session.run(scores, fed), expected)


def test_ratios_to_lower_bounds(monkeypatch, capsys):
    figures = {
        "floor": {"floor_seconds": 0.5},
        "step": {"step_seconds": 0.6, "graph_ops": 900},
        "augmentations": {"augmentations_us": {"mixup": (300.0, 150.0)}},
    }
    monkeypatch.setattr(program, "_measure", lambda part, *_: figures[part])
    flags = ["--config=c", "--record=r", "--label_map=l"]
    assert program.main([*flags, *(f"--only={part}" for part in figures)]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == [
        "training step with input: 0.6 s; 1.20 × floor_seconds 0.5",
        "training graph: 900 operations",
        "mixup: 300 µs an image; 2.00 × its kernels",
    ]


@pytest.mark.parametrize("name", ["random_horizontal_flip", "mixup", components.NEEDS_MASKS])
def test_a_step_and_its_kernels_are_measured(name):
    _, kernels = components.augmentation(name, (60, 80))
    assert kernels > 0


def test_conversion_writes_all_images(tmp_path):
    figures = components.conversion(argparse.Namespace(scratch=tmp_path))
    assert figures["conversion_ms"] > 0
    (shard,) = (tmp_path / "converted").glob("train.record-*")
    assert sum(1 for _ in tf.data.TFRecordDataset(str(shard))) == 3


@pytest.mark.slow
@pytest.mark.exhaustive  # each program of replicas starts TensorFlow
def test_a_replica_on_a_core_of_its_own():
    assert components._images_per_second([sorted(os.sched_getaffinity(0))[:1]]) > 0


def test_the_model_of_a_ring():
    # 8 images in 80 ms alone; a hop takes 5 ms, all gradients 10 ms; four share two cores.
    one, two, four = 8 / 0.08, 16 / 0.095, 32 / (2 * (0.08 + 3 * 0.005 + 1.5 * 0.010))
    assert components.ring_model(one, two, four) == pytest.approx((0.005, 0.010))


def test_two_trees_are_measured_in_turns(monkeypatch, capsys, tmp_path):
    seconds, order = {"here": [0.5, 0.9, 0.6], "there": [0.5, 0.4, 9.0]}, []

    def measure(part: str, _: Any, place: program.Place, scratch: str) -> Dict[str, Any]:
        where = "there" if place[1] == str(tmp_path) else "here"
        order.append((where, scratch))
        return {"step_seconds": seconds[where].pop(0)}

    monkeypatch.setattr(program, "_measure", measure)
    flags = ["--config=c", "--record=r", "--label_map=l", "--only=step"]
    assert program.main([*flags, f"--against={tmp_path}"]) == 0
    expected = "training step with input: 0.6 s; 1.20 × the other's 0.5"
    assert capsys.readouterr().out.splitlines()[0] == expected
    assert [place for place, _ in order] == ["here", "there"] * 3
    assert len(set(order)) == 2  # each has a folder of its own


def test_the_time_until_an_accuracy(monkeypatch, tmp_path):
    config = pipeline_pb2.TrainEvalPipelineConfig()
    config.train_config.num_steps = 160
    plan = argparse.Namespace(config=config)
    monkeypatch.setattr(starter_plan, "make_plan", lambda *_, **__: plan)

    def train(_: Any, model_dir: str, *, evaluation: Any, **__: Any) -> None:
        now = time.time()
        for number, value in enumerate((0.4, 0.6, 0.55, 0.81, 0.79), 1):
            step, metrics = number * evaluation.every_steps, {parts.MAP_50: value}
            history.record(model_dir, history.Evaluation("0", step, metrics, time=now + step))

    monkeypatch.setattr(runner, "train_and_evaluate", train)
    (tmp_path / "accuracy").mkdir()
    options = argparse.Namespace(records="data", hours=0.1, scratch=tmp_path)
    figures = parts.accuracy(options)
    expected = {
        "final_accuracy": 0.79,
        "seconds_to_50": 20,
        "seconds_to_70": 40,
        "seconds_to_80": 40,
    }
    assert figures == pytest.approx(expected, abs=1)
