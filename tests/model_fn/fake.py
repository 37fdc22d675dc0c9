"""A detector of a few variables, for tests of what surrounds detectors."""

from __future__ import annotations

import io
import json
import os
import pathlib
import signal
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import pytest
from google.protobuf import text_format
from PIL import Image

from estimator_det.compat import estimator as tf_estimator
from estimator_det.compat import slim, tf, tf1
from estimator_det.detectors.base import BatchDetections, Groundtruth, Losses
from estimator_det.protos import pipeline_pb2
from inputs import schema
from inputs.records.cursor import DataCursor
from model_fn import model_fn
from model_fn.drawing import charts
from model_fn.runs import evaluator, exports, roles, runner
from model_fn.runs.backends import base
from model_fn.runs.backends.base import Training
from model_fn.runs.cluster import Cluster, read_cluster
from model_fn.runs.context import Hook, RunContext
from model_fn.runs.options import TrainOptions
from model_fn.training import replica, warm_start

SIZE = 8
NUM_CLASSES = 3


class FakePredictions(NamedTuple):
    scores: tf.Tensor  # [B, K]
    boxes: tf.Tensor  # [B, 1, 4]


class FakeDetector:
    """Fits the first groundtruth box of each image with a batch-normed linear map of its pixels."""

    num_classes = NUM_CLASSES

    is_class_agnostic = False

    is_tf2_line = False

    def __init__(self, config: Any, is_training: bool, graph_rewriter: Any = None) -> None:
        del graph_rewriter
        self.is_training = is_training
        self._inplace = config.ssd.inplace_batchnorm_update
        self._freeze = config.ssd.freeze_batchnorm

    def preprocess(self, images: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        shape = tf.shape(images)
        return images / 255.0, tf.tile(shape[tf.newaxis, 1:], [shape[0], 1])

    def predict(
        self, inputs: Any, true_shapes: Any, groundtruth: Any = None, context: Any = None
    ) -> FakePredictions:
        del true_shapes
        with tf1.variable_scope("FeatureExtractor"):
            features = slim.batch_norm(
                tf.reduce_mean(inputs, [1, 2]),
                decay=0.5,
                is_training=self.is_training and not self._freeze,
                updates_collections=None if self._inplace else tf1.GraphKeys.UPDATE_OPS,
                scope="BatchNorm",
            )
        with tf1.variable_scope("BoxPredictor"):
            settings = {"activation_fn": None, "weights_regularizer": slim.l2_regularizer(0.01)}
            flat = slim.fully_connected(features, 4 + NUM_CLASSES, scope="All", **settings)
        return FakePredictions(flat[:, 4:], tf.nn.sigmoid(flat[:, tf.newaxis, :4]))

    def loss(
        self, predictions: FakePredictions, groundtruth: Groundtruth, detections: Any = None
    ) -> Losses:
        del detections
        weights = groundtruth.weights[:, :1] * tf.cast(groundtruth.valid[:, :1], tf.float32)
        boxes = tf.reduce_mean(tf.abs(predictions.boxes - groundtruth.boxes[:, :1]), 2)
        classes = tf.nn.softmax_cross_entropy_with_logits(
            groundtruth.classes[:, 0], predictions.scores
        )
        terms = {
            "Loss/localization_loss": tf.reduce_mean(boxes * weights),
            "Loss/classification_loss": tf.reduce_mean(classes * weights[:, 0]),
        }
        images = tf.cast(tf.shape(weights)[0], tf.float32)
        counts = {"Counted/boxes": tf.reduce_sum(weights)}
        return Losses(terms, counts, dict.fromkeys(terms, images))

    def postprocess(self, predictions: FakePredictions, true_shapes: tf.Tensor) -> BatchDetections:
        del true_shapes
        scores = tf.nn.softmax(predictions.scores)
        return BatchDetections(
            boxes=predictions.boxes,
            scores=tf.reduce_max(scores, 1, keepdims=True),
            classes=tf.cast(tf.argmax(scores, 1), tf.float32)[:, tf.newaxis],
            num=tf.ones(tf.shape(scores)[:1]),
            raw_boxes=predictions.boxes,
            raw_scores=scores[:, tf.newaxis],
        )

    def updates(self) -> List[tf.Operation]:
        return list(tf1.get_collection(tf1.GraphKeys.UPDATE_OPS))

    def regularization_losses(self) -> List[tf.Tensor]:
        return list(tf1.losses.get_regularization_losses())

    def restore_map(self, checkpoint_type: str, load_all: bool = False) -> Dict[str, tf.Variable]:
        del load_all
        variables = {variable.op.name: variable for variable in tf1.global_variables()}
        if checkpoint_type == "detection":
            return variables
        scope = "FeatureExtractor/"
        inner = {name: each for name, each in variables.items() if name.startswith(scope)}
        if checkpoint_type == "classification":
            return {name.replace(scope, ""): each for name, each in inner.items()}
        return inner


def without_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces figures, which take most of the time of a small evaluation, by a pixel."""
    buffer = io.BytesIO()
    Image.new("RGBA", (1, 1)).save(buffer, "png")
    monkeypatch.setattr(charts, "figure", lambda *_, **__: buffer.getvalue())


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the fake detector, whose model has no parts, in place of all others; draws no charts."""
    without_charts(monkeypatch)
    for maker in (model_fn, warm_start, replica):
        monkeypatch.setattr(maker, "build_detector", FakeDetector)
    for entry in (model_fn, runner, evaluator):
        monkeypatch.setattr(entry, "require", lambda *_: None)
    for user in (base, exports, evaluator):
        monkeypatch.setattr(user, "build_preprocessor", lambda model: None)


class SaveAtTheEnd(Hook):
    """Saves the first and the last step."""

    def __init__(self, training: Training, model_dir: Any) -> None:
        self._training, self._model_dir = training, str(model_dir)

    def begin(self, context: RunContext, step: int) -> None:
        self.end(step)

    def end(self, step: int) -> None:
        prefix = os.path.join(self._model_dir, f"model.ckpt-{step}")
        self._training.save(prefix)
        tf1.train.update_checkpoint_state(self._model_dir, prefix)


def pipeline_config(text: str = "") -> pipeline_pb2.TrainEvalPipelineConfig:
    """A configuration that trains the fake detector, with `text` merged in."""
    config = text_format.Parse(
        """
        model { ssd { num_classes: 3 } }
        train_config {
          batch_size: 2 num_steps: 4
          optimizer {
            momentum_optimizer {
              learning_rate { constant_learning_rate { learning_rate: 0.5 } }
              momentum_optimizer_value: 0.0
            }
            use_moving_average: false
          }
        }
        train_input_reader {}
        eval_input_reader {}
        """,
        pipeline_pb2.TrainEvalPipelineConfig(),
    )
    return text_format.Merge(text, config)


def run_context(
    folder: Any, config: Any = None, cluster: Optional[Cluster] = None, **options: Any
) -> RunContext:
    """A run with fields of `TrainOptions`; by default in the cluster of TF_CONFIG."""
    if config is None:
        config = pipeline_config()
    return RunContext(config, str(folder), TrainOptions(**options), cluster or read_cluster())


def make_backend(context: RunContext) -> Any:
    """The backend of a process that trains."""
    return runner.BACKENDS[roles.find_role(context)](context)


def train(folder: Any, num_steps: Optional[int] = None, config: Any = None, **options: Any) -> None:
    """Trains silently; options are fields of `TrainOptions`."""
    _run(folder, num_steps, config, options, evaluates=False)


def train_and_evaluate(
    folder: Any, num_steps: Optional[int] = None, config: Any = None, **options: Any
) -> Dict[str, Any]:
    """Like `train`, with evaluations; returns the last metrics."""
    return _run(folder, num_steps, config, options, evaluates=True)


def _run(
    folder: Any, num_steps: Optional[int], config: Any, options: Any, *, evaluates: bool
) -> Dict[str, Any]:
    config = pipeline_config() if config is None else config
    settings = TrainOptions(**{"num_train_steps": num_steps, "progress": False, **options})
    return runner.run(config, str(folder), settings, evaluates=evaluates)


def steps_of_model_fn(config: Any, batch: Any, num_steps: int) -> Dict[str, Any]:
    """Losses of steps on a batch of arrays, and variables before the first and after the last."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        tensors = tf.nest.map_structure(tf.constant, batch)
        spec = model_fn.create_model_fn(config)(*tensors, tf_estimator.ModeKeys.TRAIN, {})
        session.run(tf1.global_variables_initializer())
        variables = {variable.op.name: variable for variable in tf1.global_variables()}
        start = session.run(variables)
        losses = [float(session.run(spec.train_op)) for _ in range(num_steps)]
        return {"start": start, "losses": losses, "end": session.run(variables)}


def arrays(batch_size: int = 2, seed: int = 0) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Features and labels of a batch, as arrays; the second of two boxes is padding."""
    rng = np.random.default_rng(seed)
    original = rng.integers(0, 256, (batch_size, SIZE, SIZE, 3)).astype(np.uint8)
    features = {
        schema.IMAGE: original.astype(np.float32) / 255,
        schema.HASH: np.arange(batch_size, dtype=np.int32),
        schema.TRUE_IMAGE_SHAPE: np.tile(np.int32([SIZE, SIZE, 3]), (batch_size, 1)),
        schema.ORIGINAL_IMAGE: original,
        schema.ORIGINAL_SPATIAL_SHAPE: np.full((batch_size, 2), 100, np.int32),
    }
    boxes = np.zeros((batch_size, 2, 4), np.float32)
    boxes[:, 0] = [0.25, 0.25, 0.75, 0.75]
    classes = np.zeros((batch_size, 2, NUM_CLASSES), np.float32)
    classes[np.arange(batch_size), 0, np.arange(batch_size) % NUM_CLASSES] = 1
    labels = {
        schema.NUM_BOXES: np.ones(batch_size, np.int32),
        schema.BOXES: boxes,
        schema.CLASSES: classes,
        schema.WEIGHTS: np.tile(np.float32([1, 0]), (batch_size, 1)),
    }
    return features, labels


def make_train_input_fn(
    *_: Any, cursor: Optional[DataCursor] = None, **__: Any
) -> Callable[[], tf.data.Dataset]:
    """Stands for `inputs.create_train_input_fn`; batch i holds records 2 i and 2 i + 1."""

    def input_fn(params: Any = None, input_context: Any = None) -> tf.data.Dataset:
        del params, input_context
        features, labels = tf.nest.map_structure(tf.constant, arrays())
        first = cursor.begin(0, "").count if cursor is not None else 0

        def batch(number: tf.Tensor) -> Any:
            stream_indices = number + tf.range(2, dtype=tf.int64)
            seeds = tf.stack([tf.zeros_like(stream_indices), stream_indices], 1)
            places = {schema.STREAM_INDEX: stream_indices, schema.AUGMENTATION_SEED: seeds}
            return {**features, **places}, labels

        return tf.data.Dataset.range(first, tf.int64.max, 2).map(batch)

    return input_fn


def train_input_fn() -> tf.data.Dataset:
    return make_train_input_fn()()


def eval_input_fn() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors(arrays()).repeat(3)


def make_receiver(*_: Any, **__: Any) -> Callable[[], Any]:
    """Stands for `inputs.create_predict_input_fn`."""

    def receive() -> Any:
        examples = tf1.placeholder(tf.string, [None], name="serialized_example")
        size = tf.shape(examples)[0]
        features = {
            schema.IMAGE: tf.zeros([size, SIZE, SIZE, 3]),
            schema.TRUE_IMAGE_SHAPE: tf.fill([size, 3], SIZE),
        }
        return tf_estimator.export.ServingInputReceiver(features, {"serialized_example": examples})

    return receive


class SignalAt(Hook):
    """Sends SIGTERM in a step."""

    def __init__(self, step: int) -> None:
        self._steps_left = step

    def before_step(self, step: int) -> None:
        self._steps_left -= 1
        if not self._steps_left:
            os.kill(os.getpid(), signal.SIGTERM)


def events(folder: pathlib.Path, pattern: str = "events.*") -> List[Any]:
    """Events in the files of a folder."""
    paths = sorted(folder.glob(pattern))
    return [event for path in paths for event in tf1.train.summary_iterator(str(path))]


def figures(folder: pathlib.Path, pattern: str = "events.*") -> Dict[str, List[Tuple[int, float]]]:
    """Steps and values by tag; pictures and texts have the value 0."""
    found: Dict[str, List[Tuple[int, float]]] = {}
    for event in events(folder, pattern):
        for value in event.summary.value:
            number = float(value.simple_value)
            if value.HasField("tensor") and value.tensor.dtype == tf.float32:
                number = float(tf.make_ndarray(value.tensor))
            found.setdefault(value.tag, []).append((event.step, number))
    return found


def steps_with(folder: pathlib.Path, tag: str) -> List[int]:
    """The steps for which the event files of a folder contain a tag."""
    return sorted(step for step, _ in figures(folder).get(tag, []))


def set_cluster(
    monkeypatch: pytest.MonkeyPatch, jobs: Dict[str, Any], kind: str, index: int = 0
) -> None:
    """Sets TF_CONFIG."""
    settings = {"cluster": jobs, "task": {"type": kind, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(settings))
