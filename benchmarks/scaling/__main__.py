"""Compares two replicas with one: `python -m benchmarks.scaling`.

One replica runs on one core with one thread, two replicas on two cores with one thread each; each
replica has the same number of images. The efficiency is the speed of two over twice the speed of
one. The runs take turns, each in a process of its own, and the median of each counts.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any, Dict, List

CONFIG = pathlib.Path(__file__).parents[2] / "estimator_det/configs/ssd_mobilenet_v1_shapes.config"
WARM_UP = 5  # steps before those that are timed


def main(arguments: List[str]) -> int:
    """Runs the comparison; returns an exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--steps", type=int, default=20, help="timed in each run (%(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="of each kind (%(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="images of a replica (%(default)s)")
    parser.add_argument("--replicas", type=int, help=argparse.SUPPRESS)  # in a process of its own
    options = parser.parse_args(arguments)
    if options.replicas:
        print(json.dumps(measure(options.replicas, options.batch, options.steps)))
        return 0
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("this needs two cores", file=sys.stderr)
        return 1
    speeds: Dict[int, List[float]] = {1: [], 2: []}
    for _ in range(options.runs):
        for replicas, found in speeds.items():
            found.append(_in_process(replicas, cores[:replicas], options))
            print(f"{replicas} replicas: {found[-1]:.2f} images/s", flush=True)
    one, two = (statistics.median(found) for found in speeds.values())
    print(f"median: 1 replica {one:.2f}, 2 replicas {two:.2f} images/s")
    print(f"efficiency: {two / (2 * one):.2f}")
    return 0


def _in_process(replicas: int, cores: List[int], options: Any) -> float:
    command = [sys.executable, "-m", "benchmarks.scaling", "--replicas", str(replicas)]
    command += ["--batch", str(options.batch), "--steps", str(options.steps)]
    result = subprocess.run(
        command,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    if result.returncode:
        raise RuntimeError(result.stderr[-2000:])
    return float(json.loads(result.stdout.splitlines()[-1]))


def measure(num_replicas: int, batch_size: int, num_steps: int) -> float:
    """Images per second in this process, which has as many cores as replicas."""
    from estimator_det.compat import tf
    from estimator_det.config import pipeline
    from inputs import schema
    from model_fn.training.loop_step import NO_STOP, LoopStep

    # Operations of a replica use one thread each; replicas run beside each other.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(num_replicas)
    (cpu,) = tf.config.list_physical_devices("CPU")
    made = [tf.config.LogicalDeviceConfiguration()] * num_replicas
    tf.config.set_logical_device_configuration(cpu, made)
    config = pipeline.read_pipeline(str(CONFIG))
    size, num_classes = 128, config.model.ssd.num_classes
    features = {
        schema.IMAGE: tf.random.stateless_uniform([batch_size, size, size, 3], [1, 2], -1.0, 1.0),
        schema.TRUE_IMAGE_SHAPE: tf.constant([[size, size, 3]] * batch_size),
    }
    labels = {
        schema.NUM_BOXES: tf.ones([batch_size], tf.int32),
        schema.BOXES: tf.constant([[[0.2, 0.2, 0.7, 0.7]]] * batch_size),
        schema.CLASSES: tf.one_hot([[0]] * batch_size, num_classes),
        schema.WEIGHTS: tf.ones([batch_size, 1]),
    }
    devices = [device.name for device in tf.config.list_logical_devices("CPU")]
    strategy = tf.distribute.MirroredStrategy(
        devices, cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    dataset = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_tensors((features, labels)).repeat()
    )
    iterator = iter(dataset)
    loop_step = LoopStep(strategy, config)
    loop_step.build(dataset.element_spec)
    call = loop_step.function(iterator._type_spec, loops=False)
    for _ in range(WARM_UP):
        call(iterator, tf.constant(1), tf.constant(NO_STOP))
    start = time.perf_counter()
    for _ in range(num_steps):
        float(call(iterator, tf.constant(1), tf.constant(NO_STOP)).scalars["Loss/total_loss"])
    return num_replicas * batch_size * num_steps / (time.perf_counter() - start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
