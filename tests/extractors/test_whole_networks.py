"""Networks in their full depth."""

from __future__ import annotations

import pathlib
from typing import List, Set

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline
from estimator_det.detectors import Groundtruth, make_detector
from tests.extractors.build import NORM, PENALIZED, TINY, build, make


@pytest.mark.parametrize(("layers", "units"), [(101, 23), (152, 36)])
@pytest.mark.slow
@pytest.mark.exhaustive
def test_deeper_resnets(layers: int, units: int) -> None:
    for kind, text in (("fpn", TINY), ("ppn", NORM)):
        names: Set[str] = set(build(f"ssd_resnet{layers}_v1_{kind}", text, (160, 192)).variables)
        scope = f"resnet_v1_{layers}/block3"
        assert f"{scope}/unit_{units}/bottleneck_v1/conv1/weights" in names
        assert f"{scope}/unit_{units + 1}/bottleneck_v1/conv1/weights" not in names


@pytest.mark.slow
@pytest.mark.exhaustive  # another MobileDet is compared with the reference
def test_mobiledet_gpu() -> None:
    built = build("ssd_mobiledet_gpu", PENALIZED, (320, 320))
    assert built.maps[:3] == [(20, 20, 128), (10, 10, 384), (5, 5, 512)]
    root = "MobileDetGPU"
    assert built.variables[f"{root}/TuckerConv/Conv_1/weights"] == [3, 3, 8, 8]
    assert built.variables[f"{root}/TuckerConv_3/Conv_2/weights"] == [1, 1, 8, 32]
    assert built.variables[f"{root}/FusedConv_16/Conv/weights"] == [3, 3, 128, 512]
    assert built.variables[f"{root}/IBN/Conv_1/weights"] == [1, 1, 1024, 384]
    assert f"{root}/FusedConv_17/Conv/weights" not in built.variables


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("letter", "depths", "kernels"),
    [
        # Kernels of fused, inverted and separable layers, of ten edges and of the stem.
        ("s", [120, 168, 136, 136, 64], 24 + 57 + 16 + 10 + 1),
        ("m", [120, 168, 136, 136, 64], 29 + 60 + 20 + 10 + 1),
        ("l", [120, 168, 112, 128, 64], 24 + 87 + 8 + 10 + 1),
    ],
)
def test_spaghettinets(letter: str, depths: List[int], kernels: int) -> None:
    text = f"spaghettinet_arch_name: 'spaghettinet_edgetpu_{letter}' {PENALIZED}"
    built = build("ssd_spaghettinet", text, (320, 320))
    assert built.penalties == kernels
    assert built.maps == [(s, s, d) for s, d in zip([20, 10, 5, 3, 3], depths)]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_pnasnet_trains() -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        tf1.train.create_global_step()
        maps = make("ssd_pnasnet", f"{PENALIZED} num_layers: 3").extract(
            tf.random.normal([2, 64, 64, 3])
        )
        shapes = [features.shape.as_list()[1:] for features in maps]
        assert shapes == [[4, 4, 2160], [2, 2, 4320], [1, 1, 512]]
        loss = tf.add_n([tf.reduce_mean(tf.square(features - 1.0)) for features in maps])
        variables = tf1.trainable_variables()
        gradients = tf1.gradients(loss, variables)
        assert None not in gradients
        step = tf1.train.GradientDescentOptimizer(0.01).apply_gradients(zip(gradients, variables))
        session.run(tf1.global_variables_initializer())
        assert np.isfinite(session.run([loss, step])[0])


@pytest.mark.slow
@pytest.mark.exhaustive
def test_keras_configuration_trains(shared: pathlib.Path) -> None:
    config = pipeline.read_pipeline(
        shared / "data" / "configs" / "ssd_mobilenet_v2_pets_keras.config"
    )
    config.model.ssd.feature_extractor.depth_multiplier = 0.25
    boxes = np.array([[[0.1, 0.1, 0.5, 0.5], [0.2, 0.3, 0.9, 0.8]]] * 2, np.float32)
    images = np.random.default_rng(0).uniform(0, 255, [2, 300, 300, 3]).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(0)
        groundtruth = Groundtruth(
            boxes=tf.constant(boxes),
            classes=tf.one_hot([[1, 2], [3, 4]], 37),
            weights=tf.ones([2, 2]),
            valid=tf.ones([2, 2], tf.bool),
        )
        detector = make_detector(config.model, is_training=True)
        inputs, true_shapes = detector.preprocess(tf.constant(images))
        predictions = detector.predict(inputs, true_shapes)
        total = tf.add_n(list(detector.loss(predictions, groundtruth).terms.values()))
        with tf1.control_dependencies(detector.updates()):
            step = tf1.train.MomentumOptimizer(0.01, 0.9).minimize(total)
        session.run(tf1.global_variables_initializer())
        losses = [session.run([total, step])[0] for _ in range(8)]
    assert losses[-1] < 0.8 * losses[0]
