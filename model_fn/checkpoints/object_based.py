"""Object-based checkpoints, which the TF2 line of the Object Detection API writes.

Names in them are keys such as `model/…/kernel/.ATTRIBUTES/VARIABLE_VALUE`. A key is one of the ways
to a variable through Python objects; the graph of objects, which the checkpoint contains, has all
ways. So the path that `object_paths` of a detector returns finds a variable, whatever its key is.
"""

from __future__ import annotations

from typing import Any, Dict, Iterable, Optional, Sequence

from google.protobuf.message import DecodeError

from estimator_det.compat import tf, tf1
from estimator_det.compat.private import object_graph_message
from estimator_det.errors import UsageError
from estimator_det.nets.object_paths import KERAS
from estimator_det.protos import model_pb2
from model_fn.checkpoints.variables import OBJECT_GRAPH, VALUE_SUFFIX, inference_variables

MODEL_OF_SAVED_MODEL = "_model"
_TYPES = {
    "model": "detection",
    MODEL_OF_SAVED_MODEL: "detection",
    "feature_extractor": "classification",
}
"""Types of checkpoints by the root object of a network."""


def unescaped(segment: str) -> str:
    """Name of an object from its segment of a path."""
    return segment.replace(".S", "/").replace("..", ".")


class ObjectGraph:
    """The graph of objects of a checkpoint."""

    def __init__(self, checkpoint: str) -> None:
        reader = tf1.train.NewCheckpointReader(checkpoint)
        self._stored = reader.get_variable_to_shape_map()
        # Tools that rewrite checkpoints may leave a graph that says less than the keys.
        try:
            self._nodes = object_graph_message(reader.get_tensor(OBJECT_GRAPH)).nodes
        except DecodeError:
            self._nodes = []

    @property
    def roots(self) -> Sequence[str]:
        """Names of the objects that were saved."""
        return [child.local_name for child in self._nodes[0].children] if self._nodes else []

    @property
    def checkpoint_type(self) -> Optional[str]:
        """The `fine_tune_checkpoint_type` that fits; None if no object is a network."""
        kinds = (kind for root, kind in _TYPES.items() if root in self.roots)
        return next(kinds, None)

    def key(self, path: str) -> Optional[str]:
        """The key of the variable at a path; None if the checkpoint does not contain it."""
        if MODEL_OF_SAVED_MODEL in self.roots:
            path = f"_{path}"
        node = self._nodes[0] if self._nodes else None
        for segment in path.split("/"):
            name = unescaped(segment)
            children = {} if node is None else {c.local_name: c.node_id for c in node.children}
            place = children.get(name, -1)
            node = self._nodes[place] if 0 <= place < len(self._nodes) else None
        keys = [] if node is None else [each.checkpoint_key for each in node.attributes]
        keys = [key for key in (*keys, path + VALUE_SUFFIX) if key in self._stored]
        return keys[0] if keys else None


def stored_variables(
    checkpoint: Optional[str],
    detector: Any,
    use_moving_averages: bool,
    model: model_pb2.DetectionModel,
) -> Dict[str, tf.Variable]:
    """The variables of the current graph for inference, by their names in the checkpoint.

    Without an object-based checkpoint, `inference_variables` gives the names. An
    object-based checkpoint has its averages in the place of the variables.

    Raises:
        UsageError: if the checkpoint is not of the line of the detector's network.
    """
    variables = inference_variables(use_moving_averages)
    if checkpoint is None:
        return variables
    step = tf1.GraphKeys.GLOBAL_STEP
    others = {name: each for name, each in variables.items() if name == step}
    keyed = keyed_variables(
        checkpoint, detector, [v for name, v in variables.items() if name != step], model
    )
    return variables if keyed is None else {**keyed, **others}


def keyed_variables(
    checkpoint: str,
    detector: Any,
    variables: Iterable[tf.Variable],
    model: Optional[model_pb2.DetectionModel],
    checkpoint_type: str = "full",
) -> Optional[Dict[str, tf.Variable]]:
    """Variables by their keys in an object-based checkpoint; None if it is not object-based.

    A variable that the checkpoint does not contain has its path instead. A variable without a path,
    such as a range of simulated quantization, has its name.

    Raises:
        UsageError: if the checkpoint is not of the line of the detector's network.
    """
    if not check_line(checkpoint, detector, model):
        return None
    graph = ObjectGraph(checkpoint)
    _check_root(graph, checkpoint, checkpoint_type)
    named = {variable.op.name: variable for variable in variables}
    paths = detector.object_paths([*named], checkpoint_type)
    places = {name: paths.get(name, name) for name in named}
    return {graph.key(place) or place: named[name] for name, place in places.items()}


def check_line(checkpoint: str, detector: Any, model: Optional[model_pb2.DetectionModel]) -> bool:
    """True if a checkpoint is object-based; UsageError if its network is of the other line.

    A checkpoint with names whose network is of the TF2 line was trained here.
    """
    stored = tf1.train.NewCheckpointReader(checkpoint).get_variable_to_shape_map()
    is_object_based, network = OBJECT_GRAPH in stored, network_text(model)
    if is_object_based and not detector.is_tf2_line:
        raise UsageError(
            f"{checkpoint} is an object-based checkpoint of the TF2 line, {network} is a "
            "network of the TF1 line; use the type of the checkpoint's own pipeline.config, which "
            f"ends with {KERAS}, or a checkpoint of the TF1 line"
        )
    is_ours = any(f"{KERAS}/" in name for name in stored)
    if detector.is_tf2_line and not (is_object_based or is_ours):
        raise UsageError(
            f"{checkpoint} is a checkpoint of the TF1 line, {network} is a network of the TF2 "
            f"line; use the type without {KERAS}, or an object-based checkpoint of the TF2 line, "
            "such as ckpt-0"
        )
    return is_object_based


def _check_root(graph: ObjectGraph, checkpoint: str, checkpoint_type: str) -> None:
    """Raises UsageError if a checkpoint is of a classifier instead of a detector, or reverse."""
    kind = graph.checkpoint_type
    if kind is not None and (kind == "classification") != (checkpoint_type == "classification"):
        networks = (
            ("classifier", "detector") if kind == "classification" else ("detector", "classifier")
        )
        raise UsageError(
            "{} is a checkpoint of a {}, not of a {}; use ".format(checkpoint, *networks)
            + f"--set train_config.fine_tune_checkpoint_type={kind}"
        )


def network_text(model: Optional[model_pb2.DetectionModel]) -> str:
    """The field that chooses the network of a `DetectionModel`, with its value."""
    kind = model.WhichOneof("model") if model is not None else None
    if kind is None:
        return "the configured feature extractor"
    return f"model.{kind}.feature_extractor.type {getattr(model, kind).feature_extractor.type!r}"
