"""Records of drawn shapes, and short trainings of the demo's detector on them."""

from __future__ import annotations

import os
from typing import Dict, Iterable, Iterator, NamedTuple, Sequence

import numpy as np

from estimator_det.programs import demo
from estimator_det.protos import pipeline_pb2
from inputs.datasets import shapes, writer
from model_fn.runs import runner
from model_fn.runs.options import EvaluationOptions, TrainOptions

METRIC = "DetectionBoxes_Precision/mAP"


class Labelled(NamedTuple):
    """A drawn image with labels, which may be wrong."""

    file: str
    pixels: np.ndarray  # uint8 [h, w, 3]
    boxes: np.ndarray  # float32 [n, 4], normalized yxyx
    class_ids: Sequence[int]


def draw(prefix: str, count: int, seed: int) -> Iterator[Labelled]:
    """Images with right labels; equal seeds give equal images."""
    for number in range(count):
        image = shapes.make_image((seed, number))
        yield Labelled(f"{prefix}_{number:05d}.jpg", image.pixels, image.boxes, image.class_ids)


def write(path: str, images: Iterable[Labelled]) -> None:
    """Writes one file of records, and its label map beside it."""

    def examples() -> Iterator[writer.tf.train.Example]:
        for image in images:
            names = [shapes.CLASS_NAMES[class_id - 1] for class_id in image.class_ids]
            labels = writer.Annotations(image.boxes, image.class_ids, names)
            encoded = writer.encode_image(image.pixels)
            yield writer.make_example(encoded, labels, filename=image.file)

    writer.write_sharded(examples(), path, 1)
    label_map = os.path.join(os.path.dirname(path), shapes.LABEL_MAP_FILE)
    writer.write_label_map(dict(enumerate(shapes.CLASS_NAMES, start=1)), label_map)


def config(folder: str, train: str, steps: int) -> pipeline_pb2.TrainEvalPipelineConfig:
    """The demo's configuration for `train` and eval.record in a folder."""
    label_map = os.path.join(folder, shapes.LABEL_MAP_FILE)
    train, evaluation = (f"{os.path.join(folder, name)}-*" for name in (train, "eval.record"))
    return demo.demo_config(shapes.DatasetFiles(train, evaluation, label_map, 0, 0), steps)


def fit(settings: pipeline_pb2.TrainEvalPipelineConfig, run: str, seed: int) -> Dict[str, float]:
    """Trains; returns the metrics of the last checkpoint."""
    options = TrainOptions(seed=seed, evaluation=EvaluationOptions(export_final=False))
    return runner.run(settings, run, options)
