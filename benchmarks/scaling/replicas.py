"""A process that takes training steps: `python -m benchmarks.scaling.replicas REPLICAS BATCH`.

It reads numbers of steps, one a line, and answers with their times as JSON; the first answer is of
steps to warm up.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
import time
from typing import Any, Callable, Dict

from estimator_det.compat import tf
from estimator_det.config import pipeline
from inputs import schema
from model_fn.training.loop_step import NO_STOP, LoopStep

CONFIG = pathlib.Path(__file__).parents[2] / "estimator_det/configs/ssd_mobilenet_v1_shapes.config"
SIZE = 128
WARM_UP = 5


def main(num_replicas: int, batch_size: int) -> None:
    """Takes steps until its standard input ends."""
    step = make_step(num_replicas, batch_size)
    _answer(step, WARM_UP)
    for line in sys.stdin:
        _answer(step, int(line))


def _answer(step: Callable[[], float], number: int) -> None:
    before = _times()
    for _ in range(number):
        step()
    print(json.dumps({key: value - before[key] for key, value in _times().items()}), flush=True)


def _times() -> Dict[str, float]:
    """Clocks: of the wall, of the processor, and of threads that run or wait for a core."""
    ready = 0
    for file in pathlib.Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # of a thread that ended
            ran, waited, _ = map(int, file.read_text(encoding="ascii").split())
            ready += ran + waited
    clocks = {"seconds": time.perf_counter(), "cpu_seconds": time.process_time()}
    return {**clocks, "ready_seconds": ready / 1e9}


def make_step(num_replicas: int, batch_size: int) -> Callable[[], float]:
    """A training step on images in memory, which returns its loss; sets up TensorFlow's threads.

    Args:
        num_replicas: On as many logical CPUs.
        batch_size: Images of a replica.
    """
    # Operations of a replica use one thread each; replicas run beside each other.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(num_replicas)
    (cpu,) = tf.config.list_physical_devices("CPU")
    made = [tf.config.LogicalDeviceConfiguration()] * num_replicas
    tf.config.set_logical_device_configuration(cpu, made)
    config = pipeline.read_pipeline(str(CONFIG))
    devices = [device.name for device in tf.config.list_logical_devices("CPU")]
    strategy = tf.distribute.MirroredStrategy(
        devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    batch = _batch(batch_size, config.model.ssd.num_classes)
    dataset = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_tensors(batch).repeat()
    )
    iterator = iter(dataset)
    loop_step = LoopStep(strategy, config)
    loop_step.build(dataset.element_spec)
    call = loop_step.function(iterator._type_spec, loops=False)

    def step() -> float:
        outcome = call(iterator, tf.constant(1), tf.constant(NO_STOP))
        return float(outcome.scalars["Loss/total_loss"])

    return step


def _batch(batch_size: int, num_classes: int) -> Any:
    features = {
        schema.IMAGE: tf.random.stateless_uniform([batch_size, SIZE, SIZE, 3], [1, 2], -1.0, 1.0),
        schema.TRUE_IMAGE_SHAPE: tf.constant([[SIZE, SIZE, 3]] * batch_size),
    }
    labels = {
        schema.NUM_BOXES: tf.ones([batch_size], tf.int32),
        schema.BOXES: tf.constant([[[0.2, 0.2, 0.7, 0.7]]] * batch_size),
        schema.CLASSES: tf.one_hot([[0]] * batch_size, num_classes),
        schema.WEIGHTS: tf.ones([batch_size, 1]),
    }
    return features, labels


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
