"""Measurements of single components: augmentations, conversion of data sets, two replicas."""

from __future__ import annotations

import argparse
import collections
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import timeit
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np
from google.protobuf import text_format

from estimator_det.compat import quick_callable, tf, tf1
from estimator_det.config import pipeline
from estimator_det.programs.cloud.replicas import free_addresses
from estimator_det.protos import preprocessor_pb2
from inputs import machine

REQUESTS = 200  # served with images of mixed sizes, to see if memory grows
REPEATS = 5  # the fastest counts, because other programs only add time
AUGMENTED_IMAGES = 8
AUGMENTED_SIZE = (480, 640)  # height and width
NUM_BOXES = 8
CONVERTED_IMAGES = 500
CONVERTED_SIDE = 480
REPLICA_CONFIG = (
    pathlib.Path(__file__).parents[2] / "estimator_det/configs/ssd_mobilenet_v1_shapes.config"
)
REPLICA_SIDE, REPLICA_BATCH, REPLICA_STEPS = 128, 8, 40

# Augmentation steps that need more than an empty message.
SETTINGS = {
    "drop_label_probabilistically": "label: 2 drop_probability: 0.5",
    "normalize_image": "original_maxval: 255",
    "random_absolute_pad_image": "max_height_padding: 100 max_width_padding: 100",
    "random_patch_gaussian": "max_patch_size: 100",
    "random_resize_method": "target_height: 300 target_width: 300",
    "remap_labels": "original_labels: [1, 3] new_label: 2",
    "resize_image": "new_height: 300 new_width: 300",
    "subtract_channel_mean": "means: [123, 117, 104]",
}
NEEDS_MASKS = "copy_paste"
NEEDS_SCORES = "convert_class_logits_to_softmax"


def augmentations(arguments: argparse.Namespace) -> Dict[str, Any]:
    """Processor time of each registered step in µs an image, and of the kernels in its graph."""
    from inputs.augment import AUGMENTATIONS

    del arguments
    if hasattr(os, "sched_setaffinity"):
        # On two cores a kernel shares its work with the thread that starts it, so that its time by
        # the clock is half of what it costs.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return {"augmentations_us": {name: augmentation(name) for name in sorted(AUGMENTATIONS)}}


def augmentation(name: str, size: Tuple[int, int] = AUGMENTED_SIZE) -> Tuple[float, float]:
    """Processor time of a step and of its kernels, in µs an image of `size`, height and width."""
    from inputs.augment import make_steps
    from inputs.sample import PER_BOX_FIELDS, Sample

    message = preprocessor_pb2.PreprocessingStep()
    text_format.Parse(f"{name} {{ {SETTINGS.get(name, '')} }}", message)
    (step,) = make_steps([message])
    values = _sample_values(*size, masks=name == NEEDS_MASKS, scores=name == NEEDS_SCORES)
    with tf.Graph().as_default():
        seed = tf1.placeholder(tf.int64, [2])
        inputs = {}
        variables = []
        for field, value in values.items():
            # The shape that the decoder gives: another one for each image.
            free_axes = {"image": 2, "masks": 3}.get(field, int(field in PER_BOX_FIELDS))
            shape = [None] * free_axes + list(value.shape[free_axes:])
            # Feeding a sample would take longer than many steps.
            variables.append(tf.Variable(value, dtype=value.dtype, shape=shape))
            inputs[field] = variables[-1].read_value()
        samples = [Sample(**inputs)] * step.num_records
        result = step.function(samples if len(samples) > 1 else samples[0], seed, step.config)
        changed = [field for field in values if getattr(result, field) is not inputs[field]]
        outputs = [getattr(result, field) for field in changed]
        unchanged = [inputs[field] for field in changed]
        options = tf1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        options.experimental.disable_thread_spinning = True  # waiting would count as work
        with tf1.Session(config=options) as session:
            session.run([variable.initializer for variable in variables])
            seconds = kernels = 0.0
            for number in range(AUGMENTED_IMAGES):
                feeds = {seed: np.array([number, 7])}
                # Returning the sample is not part of the step.
                seconds += _fastest(functools.partial(session.run, outputs, feeds))
                seconds -= _fastest(functools.partial(session.run, unchanged, feeds))
                kernels += _kernel_seconds(session, outputs, feeds)
    return 1e6 * max(seconds, 0.0) / AUGMENTED_IMAGES, 1e6 * kernels / AUGMENTED_IMAGES


def _sample_values(height: int, width: int, *, masks: bool, scores: bool) -> Dict[str, np.ndarray]:
    """Fields of a sample: smooth colours, random boxes of a fifth to half of its sides."""
    random = np.random.default_rng(4)
    rows, columns = np.mgrid[:height, :width]
    low = random.uniform(0, 0.5, (NUM_BOXES, 2))
    boxes = np.concatenate([low, low + random.uniform(0.2, 0.5, (NUM_BOXES, 2))], axis=1)
    inside = np.zeros([NUM_BOXES, height, width], np.float32)
    for mask, (ymin, xmin, ymax, xmax) in zip(inside, boxes * ([height, width] * 2)):
        mask[int(ymin) : int(ymax), int(xmin) : int(xmax)] = 1
    values = {
        "image": (np.stack([rows + columns, 2 * rows, 3 * columns], axis=2) % 256).astype(np.uint8),
        "boxes": boxes.astype(np.float32),
        "classes": 1 + np.arange(NUM_BOXES, dtype=np.int64) % 3,
        "weights": np.ones([NUM_BOXES], np.float32),
        "area": inside.sum((1, 2)),
        "is_crowd": np.zeros([NUM_BOXES], bool),
    }
    if masks:
        values["masks"] = inside
    if scores:
        values["multiclass_scores"] = np.ones([NUM_BOXES, 4], np.float32)
    return values


def _fastest(run: Callable[[], Any]) -> float:
    """Least processor time of a call in seconds; the first call does not count."""
    return min(timeit.repeat(run, timer=time.process_time, number=1, repeat=1 + REPEATS)[1:])


def _kernel_seconds(session: Any, outputs: Any, feeds: Any) -> float:
    """Sum of the least times of all kernels that ran; each run of one in a loop counts by itself.

    Tracing adds up to a µs to each kernel, so that steps of few operations seem to be all kernels.
    """
    options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
    fastest: Dict[Tuple[str, int], float] = {}
    for _ in range(REPEATS):
        metadata = tf1.RunMetadata()
        session.run(outputs, feeds, options=options, run_metadata=metadata)
        runs: Dict[str, int] = collections.Counter()
        nodes = [node for device in metadata.step_stats.dev_stats for node in device.node_stats]
        for node in sorted(nodes, key=lambda node: node.all_start_micros):
            key = (node.node_name, runs[node.node_name])
            seconds = 1e-9 * (node.op_end_rel_nanos - node.op_start_rel_nanos)
            fastest[key] = min(seconds, fastest.get(key, seconds))
            runs[node.node_name] += 1
    return sum(fastest.values())


def conversion(arguments: argparse.Namespace) -> Dict[str, Any]:
    """`convert --from coco`, with its check of each image, against a loop of decoding and writing.

    Both run in this process; processor time in ms an image.
    """
    from inputs.conversion import engine
    from inputs.conversion.images import ImageOptions
    from inputs.datasets.source import SourceOptions

    images, annotations = write_coco(arguments.scratch / "coco", CONVERTED_IMAGES, CONVERTED_SIDE)
    copy = str(arguments.scratch / "copy.record")
    with tf.Graph().as_default() as graph:
        placeholder = tf1.placeholder(tf.string, [])
        size = tf.size(tf.io.decode_jpeg(placeholder, channels=3))
        decode = quick_callable(tf1.Session(graph=graph), size, placeholder)

    def loop() -> None:
        with tf.io.TFRecordWriter(copy) as writer:
            for path in sorted(images.iterdir()):
                encoded = path.read_bytes()
                decode(encoded)
                writer.write(encoded)

    options = engine.ConvertOptions(
        "coco",
        SourceOptions(str(images), str(annotations)),
        str(arguments.scratch / "converted"),
        image=ImageOptions(verify="decode"),
        overwrite=True,
    )
    seconds = _fastest(lambda: engine.convert(options, jobs=1))
    return {
        "conversion_ms": 1000 * seconds / CONVERTED_IMAGES,
        "conversion_loop_ms": 1000 * _fastest(loop) / CONVERTED_IMAGES,
    }


def write_coco(folder: pathlib.Path, count: int, side: int) -> Tuple[pathlib.Path, pathlib.Path]:
    """Writes images that all differ, with a box each; returns their folder and the annotations."""
    from inputs.datasets import shapes, writer

    options = shapes.ShapeOptions(min_side=side, max_side=side)
    encoded = writer.encode_image(shapes.make_image((0, 0), options).pixels)
    images = folder / "images"
    images.mkdir(parents=True)
    rows: Dict[str, List[Dict[str, Any]]] = {
        "categories": [{"id": 1, "name": "shape"}], "images": [], "annotations": [],
    }  # fmt: skip
    sides = {"height": side, "width": side}
    for number in range(count):
        name = f"{number:06d}.jpg"
        # Decoders ignore bytes after the end of an image, but no two files are duplicates.
        (images / name).write_bytes(encoded + number.to_bytes(4, "little"))
        rows["images"].append({"id": number, "file_name": name, **sides})
        box = {"bbox": [1.0, 2.0, 20.0, 30.0], "area": 600.0, "iscrowd": 0}
        rows["annotations"].append({"id": number, "image_id": number, "category_id": 1, **box})
    annotations = folder / "instances.json"
    annotations.write_text(json.dumps(rows))
    return images, annotations


def scaling(arguments: argparse.Namespace) -> Dict[str, Any]:
    """Speed of replicas in one process and of 1, 2 and 4 workers, and a model of their exchange.

    Two programs of one replica each show the most that the cores allow: they wait for nothing, and
    share only the memory and, on some machines, parts of a core.
    """
    del arguments
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise RuntimeError("the part 'scaling' needs two cores; leave it out with --only")
    first, second = [cores[:1]], [cores[1:]]
    kinds: Dict[str, Callable[[], float]] = {
        "one": lambda: _images_per_second(first),
        "two": lambda: _images_per_second([cores]),
        "apart": lambda: _images_per_second(first + second),
        "workers_two": lambda: _images_per_second(first + second, is_cluster=True),
        "workers_four": lambda: _images_per_second(2 * (first + second), is_cluster=True),
    }
    # The kinds take turns, so that all see the same machine.
    rounds = [{kind: measure() for kind, measure in kinds.items()} for _ in "123"]
    speeds = {kind: statistics.median(row[kind] for row in rounds) for kind in kinds}
    figures = {f"replicas_{kind}_images_per_second": speed for kind, speed in speeds.items()}
    for kind in ("two", "apart"):
        ratio = statistics.median(row[kind] / (2 * row["one"]) for row in rounds)
        figures[f"efficiency_{kind}"] = ratio
    hop, transfer = ring_model(speeds["one"], speeds["workers_two"], speeds["workers_four"])
    figures.update(ring_hop_ms=1000 * hop, ring_transfer_ms=1000 * transfer)
    return figures


def ring_model(speed_1: float, speed_2: float, speed_4: float) -> Tuple[float, float]:
    """Seconds of a hop and of the transfer in a ring, from the images/s of 1, 2 and 4 workers.

    A step of n workers with a core each takes the step of one, n - 1 hops, and 2 (n - 1) / n times
    the transfer of all gradients. Four workers share two cores: everything takes twice as long.
    """
    step = REPLICA_BATCH / speed_1
    exchange_of_two = 2 * REPLICA_BATCH / speed_2 - step
    exchange_of_four = 2 * REPLICA_BATCH / speed_4 - step
    hop = (exchange_of_four - 1.5 * exchange_of_two) / 1.5
    return hop, exchange_of_two - hop


def _images_per_second(groups: Sequence[Sequence[int]], *, is_cluster: bool = False) -> float:
    """Speed of programs that run at once, each with one replica on each core of its group.

    The programs of a cluster are workers that add up their gradients.
    """
    processes, addresses = [], free_addresses(len(groups))
    for index, cores in enumerate(groups):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.speed.components", str(len(cores))],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, **({"TF_CONFIG": json.dumps(task)} if is_cluster else {})},
                preexec_fn=functools.partial(os.sched_setaffinity, 0, cores),
            )
        )
    outputs = [process.communicate()[0] for process in processes]
    for process in processes:
        if process.returncode:
            raise RuntimeError(f"a program of replicas ended with code {process.returncode}")
    return sum(float(output.split()[-1]) for output in outputs)


def train_replicas(num_replicas: int) -> float:
    """Images per second of the TF2 loop's training step on images in memory."""
    from model_fn.training.loop_step import NO_STOP, LoopStep

    # Operations of a replica use one thread each; replicas run beside each other.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(num_replicas)
    (cpu,) = tf.config.list_physical_devices("CPU")
    logical_devices = [tf.config.LogicalDeviceConfiguration()] * num_replicas
    tf.config.set_logical_device_configuration(cpu, logical_devices)
    config = pipeline.read_pipeline(str(REPLICA_CONFIG))
    if "TF_CONFIG" in os.environ:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        strategy = tf.distribute.MirroredStrategy(
            [device.name for device in tf.config.list_logical_devices("CPU")],
            cross_device_ops=tf.distribute.ReductionToOneDevice(),
        )
    batch = _replica_batch(config.model.ssd.num_classes)
    dataset = strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_tensors(batch).repeat()
    )
    iterator = iter(dataset)
    loop_step = LoopStep(strategy, config)
    loop_step.build(dataset.element_spec)
    call = loop_step.function(iterator._type_spec, loops=False)
    times = []
    for _ in range(REPLICA_STEPS):
        start = time.perf_counter()
        float(call(iterator, tf.constant(1), tf.constant(NO_STOP)).scalars["Loss/total_loss"])
        times.append(time.perf_counter() - start)
    # The first half also traces the function and fills caches.
    seconds = statistics.median(times[REPLICA_STEPS // 2 :])
    return num_replicas * REPLICA_BATCH / seconds


def _replica_batch(num_classes: int) -> Tuple[Dict[str, tf.Tensor], Dict[str, tf.Tensor]]:
    from inputs import schema

    size, side = REPLICA_BATCH, REPLICA_SIDE
    features = {
        schema.IMAGE: tf.random.stateless_uniform([size, side, side, 3], [1, 2], -1.0, 1.0),
        schema.TRUE_IMAGE_SHAPE: tf.constant([[side, side, 3]] * size),
    }
    labels = {
        schema.NUM_BOXES: tf.ones([size], tf.int32),
        schema.BOXES: tf.constant([[[0.2, 0.2, 0.7, 0.7]]] * size),
        schema.CLASSES: tf.one_hot([[0]] * size, num_classes),
        schema.WEIGHTS: tf.ones([size, 1]),
    }
    return features, labels


if __name__ == "__main__":
    print(train_replicas(int(sys.argv[1])))


def memory_growth(serve: Callable[[tf.Tensor], Any]) -> float:
    """Growth of this process's memory over requests of mixed sizes, as a share.

    The first third does not count, because TensorFlow fills its caches in it.
    """
    random = np.random.default_rng(0)
    resident: List[Any] = []
    for _ in range(REQUESTS):
        height, width = random.integers(16, 641, 2)
        serve(tf.constant(random.integers(0, 256, (1, height, width, 3), np.uint8)))
        resident.append(machine.resident_memory())
    return resident[-1] / resident[REQUESTS // 3] - 1
