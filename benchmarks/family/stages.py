"""What a user does with a configuration, one after the other, on a few real pictures."""

from __future__ import annotations

import os
import pathlib
from typing import Any, Callable, Dict, NamedTuple, Tuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from estimator_det.compat import estimator, tf, tf1
from estimator_det.config import pipeline

STEPS = 2
EVALUATED = 2  # images
SLOTS = 20  # for boxes of an image, in graphs that are built and not run


class Run(NamedTuple):
    """A configuration as it is run here, and where."""

    config: Any
    record: str
    folder: pathlib.Path

    @property
    def model_dir(self) -> str:
        return str(self.folder / "model")

    @property
    def exported(self) -> str:
        return str(self.folder / "exported")


def configured(config: Any, record: str, label_map: str, batch_size: int) -> Any:
    """`config` for the classes of `label_map`, to start from its initializers, in float."""
    from inputs.label_map import read_label_map

    config = pipeline.override(
        config,
        batch_size=batch_size,
        label_map_path=label_map,
        train_input_path=record,
        eval_input_path=record,
    )
    model = getattr(config.model, config.model.WhichOneof("model"))
    model.num_classes = read_label_map(label_map).max_id
    config.train_config.fine_tune_checkpoint = ""
    config.ClearField("graph_rewriter")
    return config


def build(run: Run) -> None:
    """The graphs of training, evaluation and prediction, for images of any size."""
    from model_fn.model_fn import create_model_fn

    modes = estimator.ModeKeys
    for mode in (modes.TRAIN, modes.EVAL, modes.PREDICT):
        with tf.Graph().as_default():
            tf1.train.create_global_step()
            features, labels = placeholders(run.config)
            given = None if mode == modes.PREDICT else labels
            spec = create_model_fn(run.config)(features, given, mode, {})
            complete = {
                modes.TRAIN: spec.train_op is not None,
                modes.EVAL: bool(spec.eval_metric_ops),
                modes.PREDICT: "detection_boxes" in (spec.predictions or {}),
            }
            if not complete[mode]:
                raise ValueError(f"the graph of {mode} is not complete")


def placeholders(config: Any) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Features and labels as a batch of the configuration's records has them."""
    from estimator_det.config.context import context_shape
    from estimator_det.images.resize import make_resizer
    from inputs import schema

    model = getattr(config.model, config.model.WhichOneof("model"))
    size = make_resizer(model.image_resizer).spatial_shape
    batch, boxes = config.train_config.batch_size, SLOTS
    features = {
        schema.IMAGE: tf1.placeholder(tf.float32, [batch, *size, 3]),
        schema.TRUE_IMAGE_SHAPE: tf1.placeholder(tf.int32, [batch, 3]),
        schema.ORIGINAL_IMAGE: tf1.placeholder(tf.uint8, [batch, *size, 3]),
        schema.ORIGINAL_SPATIAL_SHAPE: tf1.placeholder(tf.int32, [batch, 2]),
        schema.HASH: tf1.placeholder(tf.int32, [batch]),
    }
    labels = {
        schema.NUM_BOXES: tf1.placeholder(tf.int32, [batch]),
        schema.BOXES: tf1.placeholder(tf.float32, [batch, boxes, 4]),
        schema.CLASSES: tf1.placeholder(tf.float32, [batch, boxes, model.num_classes]),
        schema.CONFIDENCES: tf1.placeholder(tf.float32, [batch, boxes, model.num_classes]),
        schema.WEIGHTS: tf1.placeholder(tf.float32, [batch, boxes]),
    }
    if config.train_input_reader.load_instance_masks:
        labels[schema.MASKS] = tf1.placeholder(tf.float32, [batch, boxes, *size])
    context = context_shape(config.model)
    if context is not None:
        features[schema.CONTEXT_FEATURES] = tf1.placeholder(tf.float32, [batch, *context])
        features[schema.VALID_CONTEXT_SIZE] = tf1.placeholder(tf.int32, [batch])
    return features, labels


def train(run: Run) -> None:
    """Some steps, and a checkpoint."""
    from model_fn.runs import runner

    runner.train(run.config, run.model_dir, num_train_steps=STEPS, progress=False)
    latest = tf.train.latest_checkpoint(run.model_dir)
    if latest is None or not latest.endswith(f"-{STEPS}"):
        raise ValueError(f"no checkpoint of step {STEPS}; the latest is {latest}")


def evaluate(run: Run) -> None:
    """Metrics of the checkpoint over some images."""
    from model_fn.runs import evaluator

    count = sum(1 for _ in tf.data.TFRecordDataset(run.record))
    every = max(1, count // EVALUATED)
    for name, metrics in evaluator.evaluate(run.config, run.model_dir, sample_1_of_n=every).items():
        for key in ("Loss/total_loss", "DetectionBoxes_Precision/mAP"):
            if not np.isfinite(metrics[key]):
                raise ValueError(f"evaluation on {name!r}: {key} is {metrics[key]}")


def export(run: Run) -> None:
    """A SavedModel of the checkpoint."""
    from exporters import export_saved_model

    export_saved_model(run.config, run.model_dir, run.exported)


def detect(run: Run) -> None:
    """The SavedModel, loaded, on the first image of the record."""
    serve = tf.saved_model.load(str(pathlib.Path(run.exported) / "saved_model")).signatures[
        "serving_default"
    ]
    serialized = next(iter(tf.data.TFRecordDataset(run.record)))
    keys = {"image/encoded": tf.io.FixedLenFeature([], tf.string)}
    encoded = tf.io.parse_single_example(serialized, keys)["image/encoded"]
    found = serve(tf.io.decode_jpeg(encoded, channels=3)[tf.newaxis])
    boxes, scores = found["detection_boxes"].numpy(), found["detection_scores"].numpy()
    if boxes.shape != (1, scores.shape[1], 4) or not np.all((boxes >= 0) & (boxes <= 1)):
        raise ValueError(f"detection_boxes {boxes.shape} are not in 0..1: {boxes}")
    if not np.all(np.diff(scores) <= 0) or not np.all((scores >= 0) & (scores <= 1)):
        raise ValueError(f"detection_scores do not fall from 1 to 0: {scores}")


STAGES: Dict[str, Callable[[Run], None]] = {
    "build": build,
    "train": train,
    "evaluate": evaluate,
    "export": export,
    "detect": detect,
}
