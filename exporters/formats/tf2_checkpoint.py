"""Object-based checkpoints, which the TF2 line of the Object Detection API restores.

The graph of objects is the tree of the paths of the variables, in which every segment of a path is
an object. This is all that TensorFlow needs to match the objects of a model.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.errors import UsageError
from estimator_det.nets.object_paths import KERAS
from estimator_det.protos import pipeline_pb2
from exporters.formats.base import FORMATS, ExportFormat
from exporters.network import ExportOptions, RestoredNetwork
from exporters.reading.published import Published, read_checkpoint
from model_fn.checkpoints.object_based import unescaped

NAME = "tf2_checkpoint"


@FORMATS.register(NAME)
class Tf2Checkpoint(ExportFormat):
    """The checkpoint `ckpt-0`, as exporter_main_v2.py of the Object Detection API writes it."""

    name = NAME
    file = NAME

    def check(self, config: pipeline_pb2.TrainEvalPipelineConfig, options: ExportOptions) -> None:
        kind = config.model.WhichOneof("model")
        name = getattr(config.model, kind).feature_extractor.type
        if kind != "center_net" and not name.endswith(KERAS):
            raise UsageError(
                f"--format {NAME}: model.{kind}.feature_extractor.type {name!r} is a network of "
                "the TF1 line, which has no such checkpoints; leave the format out; model.ckpt is "
                "a checkpoint of the TF1 line"
            )

    def write(self, network: RestoredNetwork, path: str) -> bool:
        """Writes every variable of the model; ranges of simulated quantization have no place."""
        with network.session.graph.as_default():
            variables = {each.op.name: each for each in tf1.global_variables()}
        paths = network.detector.object_paths([*variables])
        values = network.session.run({paths[name]: variables[name] for name in paths})
        write_checkpoint(path, values)
        return True

    def read(self, path: str) -> Published:
        return read_checkpoint(path)

    def detects(self, options: ExportOptions) -> bool:
        return False


def write_checkpoint(folder: str, values: Mapping[str, np.ndarray]) -> None:
    """Writes `ckpt-0` with these values by path."""
    checkpoint = tf.train.Checkpoint(**tree(values))
    tf.train.CheckpointManager(checkpoint, folder, max_to_keep=1).save(checkpoint_number=0)


def tree(values: Mapping[str, np.ndarray]) -> Dict[str, Any]:
    """Objects with variables of these values by path, by the name of each root."""
    objects: Dict[str, Any] = {"": tf.Module()}

    def at(path: str) -> Any:
        if path not in objects:
            parent, _, segment = path.rpartition("/")
            objects[path] = tf.Module()
            setattr(at(parent), unescaped(segment), objects[path])
        return objects[path]

    for path, value in values.items():
        parent, _, segment = path.rpartition("/")
        setattr(at(parent), unescaped(segment), tf.Variable(value, name=path))
    return {root: at(root) for root in {path.partition("/")[0]: None for path in values}}
