"""The layers and variables of the model that a configuration describes, and its calibration.

Calibration recomputes from images the statistics of batch norm that folding has removed. Outputs
stay as they are: gamma and beta change with the statistics.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.detectors.base import TrainableDetector, make_detector
from estimator_det.protos import pipeline_pb2
from exporters.image_files import read_image
from exporters.reading import graphs
from exporters.reading.published import Norm, Structure
from inputs import serving


class OwnModel(NamedTuple):
    """A model built for inference; the arrays in `structure` have shapes, but no values."""

    graph: tf.Graph
    images: tf.Tensor  # placeholder, uint8 [B, h, w, C]
    shapes: Dict[str, Tuple[int, ...]]  # shapes of variables by name
    structure: Structure
    anchors: Optional[np.ndarray]  # float32 [A, 4]; None if they depend on the image
    detector: TrainableDetector
    object_paths: Dict[str, str]  # paths of variables by name; empty for the TF1 line
    places: List[int]  # height times width of each feature map; empty if it depends on the image

    def load(self, session: tf1.Session, values: Mapping[str, np.ndarray]) -> None:
        """Sets all variables in a session of the graph."""
        variables = self.graph.get_collection(tf1.GraphKeys.GLOBAL_VARIABLES)
        setters = {each.op.name: each.initializer for each in variables}
        fed = {setters[name].inputs[1]: value for name, value in values.items()}
        session.run([setters[name] for name in values], fed)


def build_own_model(config: pipeline_pb2.TrainEvalPipelineConfig) -> OwnModel:
    """Builds the model of a `TrainEvalPipelineConfig`."""
    detector = make_detector(config.model, is_training=False)
    channels = serving.additional_channels(config)
    with tf.Graph().as_default() as graph:
        receiver = serving.make_receiver("image_tensor", detector.preprocess, None, channels)
        with tf1.variable_scope(tf1.get_variable_scope(), use_resource=True):
            predictions = detector.predict(receiver.inputs, receiver.true_shapes)
            # Heads of masks run on detections.
            detector.postprocess(predictions, receiver.true_shapes)
        shapes = {each.op.name: tuple(each.shape.as_list()) for each in tf1.global_variables()}
    blanks = {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}
    structure = graphs.read_structure(graphs.from_graph_def(graph.as_graph_def(), blanks))
    images = next(iter(receiver.placeholders.values()))
    anchors, places = _anchors(predictions, graph)
    paths = detector.object_paths([*shapes])
    return OwnModel(graph, images, shapes, structure, anchors, detector, paths, places)


def _anchors(predictions: Any, graph: tf.Graph) -> Tuple[Optional[np.ndarray], List[int]]:
    """Anchors and places of a single-stage detector with inputs of one size."""
    if not hasattr(predictions, "class_logits"):
        return None, []
    sizes = [each.shape.as_list()[1:3] for each in predictions.feature_maps]
    if any(side is None for size in sizes for side in size):
        return None, []
    anchors = predictions.anchors
    with graph.as_default(), tf1.Session() as session:
        values = session.run(anchors)
    return np.asarray(values, np.float32), [height * width for height, width in sizes]


def calibrate(
    model: OwnModel,
    values: Dict[str, np.ndarray],
    folded: Sequence[Norm],
    image_paths: Sequence[str],
) -> Dict[str, np.ndarray]:
    """New values of the variables of folded batch norm.

    A layer without gamma keeps its variance, because only gamma could undo a change of it.
    """
    with model.graph.as_default():
        inputs = [model.graph.get_operation_by_name(each.name).inputs[0] for each in folded]
        moments = [tf1.nn.moments(each, list(range(each.shape.rank - 1))) for each in inputs]
        with tf1.Session() as session:
            model.load(session, values)
            pixels = (read_image(path).pixels for path in image_paths)
            rows = [session.run(moments, {model.images: each[np.newaxis]}) for each in pixels]
    new: Dict[str, np.ndarray] = {}
    for layer, moments_of_images in zip(folded, zip(*rows)):
        means, variances = (np.stack(each).astype(np.float64) for each in zip(*moments_of_images))
        variance = variances.mean(0) + means.var(0)  # within the images, and between them
        new.update(_renormalized(layer, values, means.mean(0), variance))
    return new


def _renormalized(
    layer: Norm, values: Dict[str, np.ndarray], mean: np.ndarray, variance: np.ndarray
) -> Dict[str, np.ndarray]:
    """The variables of a layer for new statistics, with unchanged outputs."""
    old_scale = 1 / np.sqrt(values[layer.variance.name].astype(np.float64) + layer.epsilon)
    new = {}
    if layer.gamma is not None:
        old_scale = old_scale * values[layer.gamma.name]
        new[layer.gamma.name] = old_scale * np.sqrt(variance + layer.epsilon)
        new[layer.variance.name] = variance
    if layer.beta is not None:
        old_mean = values[layer.mean.name]
        new[layer.beta.name] = values[layer.beta.name] + old_scale * (mean - old_mean)
        new[layer.mean.name] = mean
    return {name: value.astype(np.float32) for name, value in new.items()}
