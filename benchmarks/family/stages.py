"""What a user does with a configuration, one after the other, on a few real pictures."""

from __future__ import annotations

import os
import pathlib
from typing import Any, Callable, Dict, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from estimator_det.compat import estimator, tf, tf1
from estimator_det.config import pipeline

STEPS = 2
EVALUATED = 2  # images


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
    """The training graph."""
    from estimator_det.detectors.base import make_preprocessor
    from inputs import create_train_input_fn
    from model_fn.model_fn import create_model_fn

    with tf.Graph().as_default():
        tf1.train.create_global_step()
        batches = create_train_input_fn(run.config, make_preprocessor(run.config.model))()
        features, labels = tf1.data.make_initializable_iterator(batches).get_next()
        spec = create_model_fn(run.config)(features, labels, estimator.ModeKeys.TRAIN, {})
        assert spec.train_op is not None


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
