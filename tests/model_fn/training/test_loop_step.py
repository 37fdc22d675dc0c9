"""Steps of a TF2 loop, on two replicas and in parts, equal steps of the model_fn."""

from __future__ import annotations

import json
import os
import pathlib
import socket
from typing import Any, Dict, List

import numpy as np
import pytest

from estimator_det.compat import tf
from inputs import schema
from model_fn.training.loop_step import NO_STOP, LoopStep
from tests import small_extractor
from tests.detectors import configs
from tests.model_fn import fake


def _config(**ssd: bool) -> Any:
    config = fake.pipeline_config(
        """train_config { gradient_clipping_by_norm: 5 optimizer { use_moving_average: true
           momentum_optimizer { momentum_optimizer_value: 0.9
             learning_rate { constant_learning_rate { learning_rate: 0.01 } } } } }"""
    )
    config.model.CopyFrom(configs.small_config())
    for field, value in ssd.items():
        setattr(config.model.ssd, field, value)
    return config


def _arrays(num_boxes: List[int]) -> Any:
    """Features and labels of images with so many boxes, at most two; to be called eagerly."""
    size, labels = len(num_boxes), configs.labels_of(configs.groundtruth(padding=1))
    pixels = np.random.default_rng(0).uniform(-1, 1, (size, 64, 64, 3)).astype(np.float32)
    features = {schema.IMAGE: pixels, schema.TRUE_IMAGE_SHAPE: np.int32([[64, 64, 3]] * size)}

    some = {name: np.resize(each.numpy(), (size, *each.shape[1:])) for name, each in labels.items()}
    return features, {**some, schema.NUM_BOXES: np.int32(num_boxes)}


def _mirrored() -> Any:
    devices = [device.name for device in tf.config.list_logical_devices("CPU")]
    assert len(devices) == 2
    return tf.distribute.MirroredStrategy(
        devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
    )


def _by_loop(
    strategy: Any, config: Any, arrays: Any, expected: Dict[str, Any], num_parts: int = 1
) -> Dict[str, Any]:
    """Differences of steps on replicas from the expected ones.

    Replicas of one machine get `arrays` in turn; a worker gets the array of its number.
    """

    def batches(context: Any) -> tf.data.Dataset:
        given = arrays
        if context.num_input_pipelines > 1:
            given = [arrays[context.input_pipeline_id]]
        found = tf.data.Dataset.from_tensors(given[0])
        for each in given[1:]:
            found = found.concatenate(tf.data.Dataset.from_tensors(each))
        return found.repeat()

    dataset = strategy.distribute_datasets_from_function(batches)
    iterator = iter(dataset)
    loop_step = LoopStep(strategy, config, num_parts=num_parts)
    loop_step.build(dataset.element_spec)
    call = loop_step.function(iterator._type_spec, loops=False)
    if os.environ.get("TF_CONFIG"):
        is_first = json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "chief"
        others = {name: np.zeros_like(value) for name, value in expected["start"].items()}
        loop_step.state.restore(expected["start"] if is_first else others)
        loop_step.state.agree()
    else:
        loop_step.state.restore(expected["start"])
    outcomes = [call(iterator, tf.constant(1), tf.constant(NO_STOP)) for _ in expected["losses"]]
    found, end = loop_step.state.values(), expected["end"]
    moved = [
        name
        for name in end
        if "moving_" in name and not np.array_equal(found[name], expected["start"][name])
    ]
    return {
        "names": sorted(set(found) ^ set(end)),
        "losses": [float(outcome.scalars["Loss/total_loss"]) for outcome in outcomes],
        "expected": expected["losses"],
        "step": int(found["global_step"]),
        "moved": [len(moved), sum("moving_" in name for name in end)],
        "difference": max(
            float(np.abs(found[name] - value).max()) / max(float(np.abs(value).max()), 1e-3)
            for name, value in end.items()
        ),
    }


def _shared(arrays: Any, number: int) -> Any:
    half = len(arrays[1][schema.NUM_BOXES]) // 2
    return tf.nest.map_structure(lambda each: each[number * half : (number + 1) * half], arrays)


def compare(case: str, num_steps: int) -> Dict[str, Any]:
    """Run in a process of its own: logical devices are made before TensorFlow starts."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    small_extractor.use(pytest.MonkeyPatch())
    # Workers must be the first to use TensorFlow.
    strategy = tf.distribute.MultiWorkerMirroredStrategy() if case == "workers" else _mirrored()
    if case == "images":  # each one a part
        config = _config(freeze_batchnorm=True)
        arrays = _arrays([2, 1, 2, 0, 1, 1, 2, 2])
        expected = fake.steps_of_model_fn(config, arrays, num_steps)
        one = tf.distribute.OneDeviceStrategy("/cpu:0")
        return _by_loop(one, config, [arrays], expected, 8)
    if case in ("replicas", "parts", "workers"):
        config = _config(freeze_batchnorm=True)
        # Replicas and parts match different numbers of anchors, the last part none.
        arrays = _arrays([2, 1, 2, 0])
        expected = fake.steps_of_model_fn(config, arrays, num_steps)
        shares = [_shared(arrays, 0), _shared(arrays, 1)]
        num_parts = 1 if case == "replicas" else 2
        return _by_loop(strategy, config, shares, expected, num_parts)
    config, arrays = _config(), _arrays([2, 2])
    expected = fake.steps_of_model_fn(config, arrays, num_steps)
    return _by_loop(strategy, config, [arrays, arrays], expected)


def _start(forker: Any, file: pathlib.Path, cases: Dict[str, int], **environment: str) -> Any:
    """Writes the differences of each case, by the number of steps."""
    return forker.program(f"""
import json, os, pathlib
from estimator_det.compat import tf
os.environ.update({environment})
(device,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 2)
from {__name__} import compare
found = {{case: compare(case, num_steps) for case, num_steps in {cases}.items()}}
pathlib.Path({str(file)!r}).write_text(json.dumps(found))
""")


def _result(run: Any, file: pathlib.Path) -> Dict[str, Any]:
    assert run.wait() == 0, run.output()
    found: Dict[str, Any] = json.loads(file.read_text())
    return found


def _assert_equal(found: Dict[str, Any], num_steps: int, tolerance: float) -> None:
    assert found["names"] == [] and found["step"] == num_steps
    np.testing.assert_allclose(found["losses"], found["expected"], rtol=tolerance)
    assert found["difference"] < tolerance


@pytest.mark.usefixtures("small_network")
def test_a_batch_without_boxes_is_trained_on():
    config, arrays = _config(freeze_batchnorm=True), _arrays([0, 0])
    expected = fake.steps_of_model_fn(config, arrays, 1)
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    _assert_equal(_by_loop(strategy, config, [arrays], expected, 2), 1, 1e-5)


def test_replicas_keep_their_own_statistics(forker, tmp_path):
    file = tmp_path / "found"
    found = _result(_start(forker, file, {"updates": 2}), file)["updates"]
    # Statistics of two images magnify the order of summation.
    _assert_equal(found, 2, 1e-3)
    moved, total = found["moved"]
    assert moved == total > 0


@pytest.mark.exhaustive
def test_twenty_steps(forker, tmp_path):
    file = tmp_path / "found"
    run = _start(forker, file, {"replicas": 20, "parts": 20, "images": 20})
    for found in _result(run, file).values():
        _assert_equal(found, 20, 1e-5)


@pytest.mark.exhaustive
def test_two_workers(forker, tmp_path):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    chief, worker = (f"127.0.0.1:{each.getsockname()[1]}" for each in sockets)
    for each in sockets:
        each.close()
    cluster = {"chief": [chief], "worker": [worker]}
    started = {}
    for job in cluster:
        task = json.dumps({"cluster": cluster, "task": {"type": job, "index": 0}})
        started[job] = _start(forker, tmp_path / job, {"workers": 20}, TF_CONFIG=task)
    for job, run in started.items():
        _assert_equal(_result(run, tmp_path / job)["workers"], 20, 1e-5)
