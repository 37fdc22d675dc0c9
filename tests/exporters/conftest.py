"""A small detector with random weights, saved as training would save it."""

from __future__ import annotations

import pathlib
from typing import Any, NamedTuple

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline
from estimator_det.detectors.base import make_detector
from estimator_det.programs import demo
from exporters import export_saved_model, network
from inputs.datasets import writer

PREDICTOR = "model.ssd.box_predictor.convolutional_box_predictor"
NAMES = {1: "circle", 2: "square", 3: "triangle", 4: "star"}


class Trained(NamedTuple):
    config: Any
    checkpoint: str
    label_map: str


def small_config(label_map: str = "") -> Any:
    config = pipeline.read_pipeline(str(demo.CONFIG_FILE))
    return pipeline.apply_overrides(
        config,
        [
            "model.ssd.feature_extractor.num_layers=2",
            "model.ssd.anchor_generator.ssd_anchor_generator.num_layers=2",
            "model.ssd.anchor_generator.ssd_anchor_generator.scales=[0.3, 0.5]",
            # Scores so far apart that rounding does not change their order.
            f"{PREDICTOR}.conv_hyperparams.initializer.random_normal_initializer.stddev=0.1",
            "model.ssd.image_resizer.fixed_shape_resizer.height=64",
            "model.ssd.image_resizer.fixed_shape_resizer.width=96",
            f"train_input_reader.label_map_path={label_map}",
            f"eval_input_reader[0].label_map_path={label_map}",
        ],
    )


def save_checkpoint(
    config: Any, prefix: str, moving_averages: bool = False, channels: int = 3
) -> str:
    """Random weights; with averages, these are right and the weights themselves are NaN."""
    with tf.Graph().as_default():
        tf1.set_random_seed(7)
        detector = make_detector(config.model, is_training=False)
        images = tf.zeros([1, 64, 96, channels])
        with tf1.variable_scope(tf1.get_variable_scope(), use_resource=True):
            shapes = tf.constant([[64, 96, channels]])
            detector.postprocess(detector.predict(images, shapes), shapes)
        saved = {variable.op.name: variable for variable in tf1.global_variables()}
        copies, spoils = [], []
        if moving_averages:
            for variable in tf1.trainable_variables():
                name = f"{variable.op.name}/ExponentialMovingAverage"
                average = tf1.get_variable(name, variable.shape, use_resource=True)
                saved[name] = average
                copies.append(average.assign(variable))
                spoils.append((variable, np.full(variable.shape, np.nan)))
        step = tf1.train.get_or_create_global_step()
        saved[step.op.name] = step
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(copies)
            for variable, value in spoils:
                variable.load(value, session)
            return tf1.train.Saver(saved).save(session, prefix, global_step=20)


@pytest.fixture(scope="module")
def trained(small_network: None, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("model")
    label_map = str(folder / "shapes_label_map.pbtxt")
    writer.write_label_map(NAMES, label_map)
    config = small_config(label_map)
    return Trained(config, save_checkpoint(config, str(folder / "model.ckpt")), label_map)


@pytest.fixture(scope="module")
def exported(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An export with `image_tensor` alone."""
    folder = tmp_path_factory.mktemp("one") / "exported"
    export_saved_model(trained.config, trained.checkpoint, str(folder))
    return folder


@pytest.fixture(scope="module")
def exported_all(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An export with every input type."""
    folder = tmp_path_factory.mktemp("all") / "exported"
    export_saved_model(trained.config, trained.checkpoint, str(folder), input_types=["all"])
    return folder


@pytest.fixture(scope="module")
def exported_trainable(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An export with variables, every input type, and batches of three images at most."""
    folder = tmp_path_factory.mktemp("trainable") / "exported"
    options = network.ExportOptions(input_types=["all"], trainable=True, max_batch=3)
    export_saved_model(trained.config, trained.checkpoint, str(folder), options)
    return folder


@pytest.fixture(scope="session")
def pictures() -> np.ndarray:
    """uint8 [2, 50, 70, 3]."""
    return np.random.default_rng(0).integers(0, 256, (2, 50, 70, 3), dtype=np.uint8)


def _direct(trained: Trained, images: np.ndarray) -> Any:
    """Detections of the checkpoint without the exporter between."""
    with tf.Graph().as_default():
        detector = make_detector(trained.config.model, is_training=False)
        inputs, shapes = detector.preprocess(tf.constant(images, tf.float32))
        detections = detector.postprocess(detector.predict(inputs, shapes), shapes)
        with tf1.Session() as session:
            tf1.train.Saver(tf1.global_variables()).restore(session, trained.checkpoint)
            return session.run(detections.to_dict())


@pytest.fixture(scope="module")
def expected(trained: Trained, pictures: np.ndarray) -> Any:
    """What the checkpoint detects in the pictures, with the class ids of an export."""
    direct = _direct(trained, pictures)
    return {**direct, "detection_classes": direct["detection_classes"] + 1}
