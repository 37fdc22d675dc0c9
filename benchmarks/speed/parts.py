"""Measurements of whole runs. Each takes the command line and returns figures by name."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import resource
import shutil
import statistics
import time
import timeit
from typing import Any, Callable, Dict, Iterator, List, Tuple

from estimator_det.protos import pipeline_pb2

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from benchmarks.speed import accuracy, components, growth
from estimator_det.compat import estimator, tf, tf1
from estimator_det.config import pipeline
from inputs import machine
from inputs.pipeline import decoded_at_once
from inputs.records import stream

WARM_UP = 4
REPEATS = 16
SERVED_BATCHES = (1, 8)
GROWN_BATCHES, STEPS_OF_A_SIZE = (1, 8, 16, 32), 6
EVALUATED_IMAGES = 10
INPUT_RECORDS = 1000
INPUT_ROUNDS, INPUT_BATCHES = 15, 25
MEMORY_STEPS = 30

Figures = Dict[str, Any]


def _config(arguments: argparse.Namespace) -> Any:
    config = pipeline.read_pipeline(arguments.config)
    config = pipeline.override(
        config,
        batch_size=arguments.batch_size,
        label_map_path=arguments.label_map,
        train_input_path=arguments.record,
        eval_input_path=arguments.record,
    )
    config.train_config.fine_tune_checkpoint = ""
    return pipeline.apply_overrides(config, arguments.overrides)


def _seconds(run: Callable[[], Any]) -> float:
    """Median time of a call, after some that do not count."""
    return statistics.median(timeit.repeat(run, number=1, repeat=WARM_UP + REPEATS)[WARM_UP:])


@contextlib.contextmanager
def _session() -> Iterator[Any]:
    with tf1.Session() as session:
        session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        yield session


def _image_size(config: pipeline_pb2.TrainEvalPipelineConfig) -> List[int]:
    from estimator_det.images.resize import make_resizer

    model = getattr(config.model, config.model.WhichOneof("model"))
    height, width = make_resizer(model.image_resizer).spatial_shape
    if height is None or width is None:
        raise ValueError(
            "image_resizer: the measurement needs an input of one size; --set "
            f"model.{config.model.WhichOneof('model')}.image_resizer.fixed_shape_resizer.height=… "
            "and …width=…"
        )
    return [height, width]


def floor(arguments: argparse.Namespace) -> Figures:
    """Forward and backward of the bare network on one batch in memory, and its first step.

    The network of single-shot MobileNets v1 is MobileNet v1, batch norm in training mode. Other
    models have their own, with its heads, and in two stages with the crops of a training step.
    """
    from estimator_det.nets import mobilenet

    config = _config(arguments)
    images = np.random.rand(arguments.batch_size, *_image_size(config), 3).astype(np.float32)
    with tf.Graph().as_default():
        if config.model.HasField("faster_rcnn"):
            outputs = _two_stage_outputs(config, tf.constant(images))
        elif "mobilenet_v1" not in config.model.ssd.feature_extractor.type:
            outputs = _network_outputs(_detector(config, True).predict(tf.constant(images)))
        else:
            with mobilenet.v1_arg_scope():
                depth = mobilenet.scaled_depth(1.0, 8)
                *_, last = mobilenet.mobilenet_v1(tf.constant(images), depth).values()
            outputs = [last]
        loss = tf.add_n([tf.reduce_mean(output) for output in outputs])
        # Gradients must be used: the graph optimizer leaves out what nothing reads.
        descent = tf1.train.GradientDescentOptimizer(1e-6).minimize(loss)
        step = tf.group(descent, *tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))
        with _session() as session:
            session.run(step)
            first = time.time() - arguments.started
            seconds = _seconds(lambda: session.run(step))
    return {
        "floor_seconds": seconds,
        "floor_first_step_seconds": first,
        "floor_memory_gb": _peak_memory(),
    }


def _two_stage_outputs(
    config: pipeline_pb2.TrainEvalPipelineConfig, images: tf.Tensor
) -> List[tf.Tensor]:
    from estimator_det.detectors.base import boxes_to_pixels
    from estimator_det.detectors.two_stage.proposals import Regions
    from estimator_det.nets.context_attention import AttentionContext

    detector, model = _detector(config, True), config.model.faster_rcnn
    maps = detector.extractor.proposal_features(detector.preprocess.normalize(images))
    _, proposed = detector.rpn.head.predict(maps, detector.rpn.anchor_generator.num_per_location)
    if detector.second is None:
        return list(proposed)
    count = (
        model.first_stage_max_proposals
        if model.HasField("hard_example_miner")
        else model.second_stage_batch_size
    )
    corners = np.random.default_rng(0).uniform(0.0, 0.5, (images.shape[0], count, 2))
    fractions = tf.constant(np.concatenate([corners, corners + 0.4], axis=2), tf.float32)
    boxes = boxes_to_pixels(fractions, images)
    regions = Regions(boxes, tf.fill([images.shape[0]], count))
    context = AttentionContext(regions.valid)
    region_outputs = detector.second.stage.predict(maps, boxes, images, context)
    outputs = [*proposed, region_outputs.box_encodings, region_outputs.class_logits]
    if detector.second.masks:
        outputs.append(detector.second.masks.predict(region_outputs.features, regions).logits)
    return outputs


def _detector(config: pipeline_pb2.TrainEvalPipelineConfig, is_training: bool) -> Any:
    from estimator_det.detectors import make_detector

    return make_detector(config.model, is_training=is_training)


def _train_batches(config: pipeline_pb2.TrainEvalPipelineConfig) -> Any:
    from inputs import create_train_input_fn

    return create_train_input_fn(config, _detector(config, True).preprocess, seed=0)()


def _next_batch(config: pipeline_pb2.TrainEvalPipelineConfig) -> Any:
    """The first batch of training as tensors of the open graph."""
    iterator = tf1.data.make_initializable_iterator(_train_batches(config))
    tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def _held_batch(arguments: argparse.Namespace) -> Tuple[Any, Any]:
    """The configuration, and its first batch in memory."""
    config = _config(arguments)
    with tf.Graph().as_default():
        tensors = _next_batch(config)
        with _session() as session:
            return config, session.run(tensors)


def step(arguments: argparse.Namespace) -> Figures:
    """Training step with its input pipeline, and on one batch held in memory."""
    config, batch = _held_batch(arguments)
    figures: Figures = {}
    for name, held in (("step_seconds", None), ("step_cached_seconds", batch)):
        with _training(config, held) as run:
            figures[name] = _seconds(run)
            figures["graph_ops"] = len(tf1.get_default_graph().get_operations())
    return figures


def input_pipeline(arguments: argparse.Namespace) -> Figures:
    """Training input alone, against reading, decoding and resizing with the same parallelism.

    Both read the same file of many records: beginning a pass over the data takes as long as reading
    a record, which counts only if a pass has a few of them.
    """
    arguments.record = _first_examples(arguments, INPUT_RECORDS)
    config = _config(arguments)
    with tf.Graph().as_default():
        datasets = {"decode": _decoded_batches(config), "input": _train_batches(config)}
        return _input_figures(datasets, arguments.batch_size)


def _decoded_batches(config: pipeline_pb2.TrainEvalPipelineConfig) -> tf.data.Dataset:
    """Batches of resized images, decoded, batched and prefetched as the input pipeline does."""
    reader, size = config.train_input_reader, _image_size(config)
    batch_size = config.train_config.batch_size

    def decode_and_resize(serialized: tf.Tensor) -> tf.Tensor:
        keys = {"image/encoded": tf.io.FixedLenFeature([], tf.string)}
        encoded = tf.io.parse_single_example(serialized, keys)["image/encoded"]
        image = tf.io.decode_jpeg(encoded, channels=3)
        return tf1.image.resize(image, size)

    dataset = tf.data.TFRecordDataset(
        list(reader.tf_record_input_reader.input_path), buffer_size=stream.LOCAL_BUFFER
    )
    dataset = dataset.repeat().map(
        decode_and_resize,
        num_parallel_calls=decoded_at_once(reader, batch_size, machine.available_cpus()),
        deterministic=True,
    )
    dataset = dataset.batch(batch_size, drop_remainder=True)
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(reader.num_prefetch_batches).with_options(options)


def _input_figures(datasets: Dict[str, tf.data.Dataset], batch_size: int) -> Figures:
    """Images per second, and processor time of an image in ms, of each dataset.

    They take turns in one session, which reads them as a training does, so that all see the same
    machine. Other programs change the processor time less than the images per second.
    """
    iterators = {
        name: tf1.data.make_initializable_iterator(data) for name, data in datasets.items()
    }
    # An operation has no result that Python receives.
    reads = {name: tf.nest.flatten(each.get_next())[0].op for name, each in iterators.items()}
    rounds: Dict[str, List[Any]] = {name: [] for name in datasets}
    num_images = INPUT_BATCHES * batch_size
    with _session() as session:
        session.run([iterator.initializer for iterator in iterators.values()])
        calls = {name: session.make_callable(read) for name, read in reads.items()}
        for _ in range(1 + INPUT_ROUNDS):
            for name, call in calls.items():
                for _ in range(WARM_UP):  # uses what is prefetched; the other dataset comes to rest
                    call()
                start, processor = time.perf_counter(), time.process_time()
                for _ in range(INPUT_BATCHES):
                    call()
                seconds = (time.perf_counter() - start, time.process_time() - processor)
                rounds[name].append((num_images / seconds[0], 1000 * seconds[1] / num_images))
    figures: Figures = {}
    for name, measured in rounds.items():
        speeds, times = zip(*measured[1:])  # without the first round, in which caches fill
        figures[f"{name}_images_per_second"] = statistics.median(speeds)
        figures[f"{name}_processor_ms"] = statistics.median(times)
    return figures


@contextlib.contextmanager
def _training(
    config: pipeline_pb2.TrainEvalPipelineConfig, batch: Any = None
) -> Iterator[Callable[[], Any]]:
    """A function that runs a training step, with its input or on a batch held in memory."""
    from model_fn.model_fn import create_model_fn

    with tf.Graph().as_default():
        tensors = tf.nest.map_structure(tf.constant, batch) if batch else _next_batch(config)
        features, labels = tensors
        tf1.train.get_or_create_global_step()
        spec = create_model_fn(config)(features, labels, estimator.ModeKeys.TRAIN, {})
        with _session() as session:
            yield functools.partial(session.run, spec.train_op)


class _FirstStep(tf1.train.SessionRunHook):
    """Records when the first step ends."""

    def __init__(self, started: float) -> None:
        self.started, self.seconds = started, 0.0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.seconds = self.seconds or time.time() - self.started


def start(arguments: argparse.Namespace) -> Figures:
    """Time from the start of the process to the end of the first step."""
    first = _FirstStep(arguments.started)
    _train(arguments, 1, first)
    return {"first_step_seconds": first.seconds}


def memory(arguments: argparse.Namespace) -> Figures:
    """Peak memory of training."""
    _train(arguments, MEMORY_STEPS)
    return {"peak_memory_gb": _peak_memory()}


def _train(arguments: argparse.Namespace, num_steps: int, *hooks: tf1.train.SessionRunHook) -> None:
    from model_fn.runs import runner

    model_dir = arguments.scratch / "model"
    shutil.rmtree(model_dir, ignore_errors=True)  # An earlier turn has trained it.
    runner.train(
        _config(arguments),
        str(model_dir),
        num_train_steps=num_steps,
        hooks=list(hooks),
        progress=False,
        seed=0,
    )


def _checkpoint(arguments: argparse.Namespace) -> str:
    """The checkpoint of the part `start`; if there is none, trains one step."""
    folder = str(arguments.scratch / "model")
    if tf.train.latest_checkpoint(folder) is None:
        _train(arguments, 1)
    return str(tf.train.latest_checkpoint(folder))


def _peak_memory() -> float:
    """Most memory that this process held, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def evaluation(arguments: argparse.Namespace) -> Figures:
    """Evaluation of ten images from start to end, and its speed once the graph is warm."""
    from model_fn.runs import evaluator

    checkpoint, seconds = _checkpoint(arguments), []
    # A short evaluation does not prepare its graph for speed; its first also imports what draws.
    for count in (EVALUATED_IMAGES, 20 * EVALUATED_IMAGES, 40 * EVALUATED_IMAGES):
        config = pipeline.override(
            _config(arguments), eval_input_path=_first_examples(arguments, count)
        )
        start = time.perf_counter()
        evaluator.evaluate(config, os.path.dirname(checkpoint))
        seconds.append(time.perf_counter() - start)
    short, long, longer = seconds
    return {
        "evaluate_seconds": short,
        "evaluate_images_per_second": 20 * EVALUATED_IMAGES / max(longer - long, 1e-3),
    }


def _first_examples(arguments: argparse.Namespace, count: int) -> str:
    """A record of `count` examples, which repeats the given one if that has fewer."""
    path = str(arguments.scratch / f"first_{count}.record")
    with tf.io.TFRecordWriter(path) as writer:
        for example in tf.data.TFRecordDataset(arguments.record).repeat().take(count):
            writer.write(example.numpy())
    return path


def serving(arguments: argparse.Namespace) -> Figures:
    """A SavedModel as served, its network and its post-processing, and the growth of memory."""
    from exporters import export_saved_model

    config = _config(arguments)
    checkpoint = _checkpoint(arguments)
    exported = arguments.scratch / "exported"
    export_saved_model(config, checkpoint, str(exported))
    serve = tf.saved_model.load(str(exported / "saved_model")).signatures["serving_default"]
    figures: Figures = {}
    for batch in SERVED_BATCHES:
        images = np.random.randint(0, 256, (batch, *_image_size(config), 3)).astype(np.uint8)
        tensor = tf.constant(images)
        figures[f"latency_{batch}_ms"] = 1000 * _seconds(functools.partial(serve, tensor))
        figures.update(_serving_steps(config, checkpoint, images.astype(np.float32)))
    figures["served_images_per_second"] = 1000 / figures["latency_1_ms"]
    figures["serving_growth"] = components.memory_growth(serve)
    return figures


def _serving_steps(
    config: pipeline_pb2.TrainEvalPipelineConfig, checkpoint: str, images: np.ndarray
) -> Figures:
    """Times of the network and of post-processing, each by itself."""
    batch = len(images)
    with tf.Graph().as_default() as graph:
        detector = _detector(config, False)
        inputs, shapes = detector.preprocess(tf.constant(images))
        predictions = detector.predict(inputs, shapes)
        before = len(graph.get_operations())
        detections = list(detector.postprocess(predictions, shapes).to_dict().values())
        num_ops = len(graph.get_operations()) - before
        with tf1.Session() as session:
            tf1.train.Saver().restore(session, checkpoint)
            raw = _network_outputs(predictions)
            predict = functools.partial(session.run, [output.op for output in raw])
            feeds = dict(zip(raw, session.run(raw)))
            finish = functools.partial(session.run, [output.op for output in detections], feeds)
            return {
                "postprocess_ops": num_ops,
                f"predict_{batch}_ms": 1000 * _seconds(predict),
                f"postprocess_{batch}_ms": 1000 * _seconds(finish),
            }


def grow(arguments: argparse.Namespace) -> Figures:
    """Processor time as data sets grow, and of a training step as its batch does."""
    figures = growth.growth(arguments)
    row = []
    for arguments.batch_size in GROWN_BATCHES:
        with _training(*_held_batch(arguments)) as run:
            times = [growth.processor_ms(run) for _ in range(STEPS_OF_A_SIZE)]
        row.append((arguments.batch_size, statistics.median(times[1:])))  # the first is slow
    figures["growth_ms"]["training step, images of a batch"] = row
    return figures


def _network_outputs(predictions: Any) -> List[tf.Tensor]:
    """Outputs of the network that post-processing needs."""
    if hasattr(predictions, "maps"):
        return list(tf.nest.flatten(predictions.maps))
    if not hasattr(predictions, "second_stage"):
        return [predictions.box_encodings, predictions.class_logits]
    regions, output = predictions.region_outputs
    return [regions.boxes, regions.num, output.box_encodings, output.class_logits]


PARTS: Dict[str, Callable[[argparse.Namespace], Figures]] = {
    "floor": floor,
    "step": step,
    "start": start,
    "memory": memory,
    "input": input_pipeline,
    "augmentations": components.augmentations,
    "evaluation": evaluation,
    "serving": serving,
    "conversion": components.conversion,
    "growth": grow,
    "scaling": components.scaling,
    "accuracy": accuracy.accuracy,
}
