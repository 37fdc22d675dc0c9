"""One part of one extractor in its own process, which runs steps on command.

It reads a line at a time from standard input and answers with a line of JSON: `train SIZE BATCH`
and `infer SIZE BATCH` open a graph, `step` runs it once, `count` returns multiply-adds at the usual
size.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Callable, Dict, Iterable, List, Tuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from benchmarks.extractors import graphs, usual
from estimator_det.compat import estimator, tf, tf1
from estimator_det.detectors import make_detector
from estimator_det.extractors.ssd.recipe import make_extractor
from inputs import schema

BOXES = 8  # an image has, of
SLOTS = 100

Build = Callable[[Any, Any], Any]  # pipeline configuration and images -> what to run


def _descent(loss: tf.Tensor) -> Any:
    """A step whose gradients are used: the graph optimizer leaves out what nothing reads."""
    step = tf1.train.GradientDescentOptimizer(1e-6).minimize(loss)
    return tf.group(step, *tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))


def _maps(config: Any, images: Any, is_training: bool) -> Any:
    extractor = make_extractor(config.model.ssd.feature_extractor, is_training)
    with tf1.variable_scope("FeatureExtractor"):
        return extractor.extract(extractor.normalize(images))


def _train_network(config: Any, images: Any) -> Any:
    maps = _maps(config, images, is_training=True)
    return _descent(tf.add_n([tf.reduce_mean(map_) for map_ in maps]))


def _predict(config: Any, images: Any, is_training: bool) -> Any:
    detector = make_detector(config.model, is_training)
    inputs, shapes = detector.preprocess(images)
    return detector, detector.predict(inputs, shapes), shapes


def _train_heads(config: Any, images: Any) -> Any:
    _, raw, _ = _predict(config, images, is_training=True)
    return _descent(tf.reduce_mean(raw.box_encodings) + tf.reduce_mean(raw.class_logits))


def _train_whole(config: Any, images: Any) -> Any:
    from model_fn.model_fn import create_model_fn

    random, batch = np.random.default_rng(0), images.shape[0]
    starts = random.uniform(0, 0.5, (batch, SLOTS, 2))
    boxes = np.concatenate([starts, starts + random.uniform(0.1, 0.5, starts.shape)], axis=2)
    is_real = np.arange(SLOTS) < BOXES
    classes = np.eye(usual.NUM_CLASSES)[random.integers(0, usual.NUM_CLASSES, (batch, SLOTS))]
    with tf.name_scope("Inputs"):
        detector = make_detector(config.model, True)
        inputs, shapes = detector.preprocess(images)
    labels = {
        schema.NUM_BOXES: np.full([batch], BOXES, np.int32),
        schema.BOXES: boxes * is_real[:, np.newaxis],
        schema.CLASSES: classes * is_real[:, np.newaxis],
        schema.WEIGHTS: np.tile(is_real, (batch, 1)),
    }
    features = {
        schema.IMAGE: inputs,
        schema.TRUE_IMAGE_SHAPE: shapes,
        schema.HASH: tf.zeros([batch], tf.int32),
    }
    tensors = {
        key: tf.constant(value, tf.int32 if key == schema.NUM_BOXES else tf.float32)
        for key, value in labels.items()
    }
    tf1.train.get_or_create_global_step()
    spec = create_model_fn(config)(features, tensors, estimator.ModeKeys.TRAIN, {})
    return spec.train_op


def _ops(tensors: Iterable[Any]) -> List[Any]:
    """What to run for tensors without copying them out; not grouped, which would leave them out."""
    return [tensor.op for tensor in tensors]


def _infer_network(config: Any, images: Any) -> Any:
    return _ops(_maps(config, images, is_training=False))


def _infer_heads(config: Any, images: Any) -> Any:
    _, raw, _ = _predict(config, images, is_training=False)
    return _ops([raw.box_encodings, raw.class_logits])


def _infer_whole(config: Any, images: Any) -> Any:
    detector, raw, shapes = _predict(config, images, is_training=False)
    return _ops(detector.postprocess(raw, shapes).as_dict().values())


PARTS: Dict[str, Tuple[Build, Build]] = {  # for training and for inference
    "network": (_train_network, _infer_network),
    "heads": (_train_heads, _infer_heads),  # with the network below
    "whole": (_train_whole, _infer_whole),
}


class Worker:
    """Runs the commands that `serve` reads."""

    def __init__(self, kind: str, part: str) -> None:
        self._kind, (self._train, self._infer) = kind, PARTS[part]
        self._session: Any = None
        self._fetched: Any = None

    def count(self) -> int:
        """Multiply-adds of one image at the usual size."""
        with tf.Graph().as_default():
            size = usual.usual(self._kind).size
            maps = graphs.extract(self._kind, size, 1, is_training=False)
            return graphs.multiply_adds(map_.op for map_ in maps)

    def train(self, size: int, batch: int) -> Dict[str, float]:
        """Opens a training graph and runs it once: seconds to build it, and its operations."""
        return self._open(self._train, size, batch)

    def infer(self, size: int, batch: int) -> Dict[str, float]:
        """Opens an inference graph and runs it once."""
        return self._open(self._infer, size, batch)

    def _open(self, build: Build, size: int, batch: int) -> Dict[str, float]:
        if self._session is not None:
            self._session.close()
        config = usual.pipeline_message(self._kind, size, batch)
        with tf.Graph().as_default() as graph:
            start = time.perf_counter()
            values = np.random.default_rng(0).uniform(0, 255, (batch, size, size, 3))
            self._fetched = build(config, tf.constant(values, tf.float32))
            seconds = time.perf_counter() - start
            operations = len(graph.get_operations())
            self._session = tf1.Session()
            self._session.run([tf1.global_variables_initializer(), tf1.tables_initializer()])
        self._session.run(self._fetched)
        return {"seconds": seconds, "operations": operations}

    def executed(self) -> List[str]:
        """Names of the graph's nodes that a step runs."""
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        metadata = tf1.RunMetadata()
        self._session.run(self._fetched, options=options, run_metadata=metadata)
        devices = metadata.step_stats.dev_stats
        return [node.node_name for device in devices for node in device.node_stats]

    def step(self) -> List[float]:
        """Seconds that one step takes: by the clock, and of all processors."""
        start, busy = time.perf_counter(), time.process_time()
        self._session.run(self._fetched)
        return [time.perf_counter() - start, time.process_time() - busy]


def serve(kind: str, part: str) -> None:
    """Answers until standard input ends."""
    worker = Worker(kind, part)
    for line in sys.stdin:
        command, *values = line.split()
        print(json.dumps(getattr(worker, command)(*map(int, values))), flush=True)
