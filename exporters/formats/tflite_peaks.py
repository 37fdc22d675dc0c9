"""TFLite models of CenterNets, which find the peaks of heatmaps by operations of TFLite."""

from __future__ import annotations

from typing import Any, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.errors import UsageError
from estimator_det.protos import center_net_pb2
from exporters.loaded_model import BOXES, CLASSES, KEYPOINT_SCORES, KEYPOINTS, NUM, SCORES
from exporters.network import ExportOptions, RestoredNetwork, TfliteOptions
from inputs.serving import COLOR_CHANNELS
from model_fn.serving.graph import CLASS_OFFSET

# Outputs in the order of TFLite_Detection_PostProcess; models with keypoints have two more.
DETECTIONS = (BOXES, CLASSES, SCORES, NUM)
_KEYPOINTS = (KEYPOINTS, KEYPOINT_SCORES)
_NETWORK = "network"  # scope


def check_peaks(config: center_net_pb2.CenterNet, options: ExportOptions) -> None:
    """Refuses what a CenterNet in TFLite cannot be."""
    if config.HasField("post_processing"):
        raise UsageError(
            "--format tflite: model.center_net.post_processing: is set, and TFLite has no such "
            "suppression or calibration; export another format, or "
            "--set model.center_net.post_processing=null"
        )
    if options.tflite != TfliteOptions():
        raise UsageError(
            "--format tflite: the options of TFLite_Detection_PostProcess, such as "
            "--max_detections, are for ssd, and model is center_net; leave them out, or set "
            "model.center_net.object_center_params.max_box_predictions"
        )
    if options.quantize == "int8":
        raise UsageError(
            "--quantize int8: 256 values are too few for the peaks and keypoints of center_net; "
            "give --quantize float16 or dynamic"
        )


def peaks_graph(
    network: RestoredNetwork, image_shape: Tuple[int, ...], image_name: str
) -> Tuple[Any, Tuple[str, ...]]:
    """`GraphDef` from pixels 0..255 to detections, with classes from 0; and names of outputs.

    Normalization is in the graph, since it may change the order of channels.
    """
    receiver, outputs = network.first.receiver, network.first.outputs
    names = (*DETECTIONS, *(name for name in _KEYPOINTS if name in outputs))
    with tf.Graph().as_default() as graph:
        images = tf1.placeholder(tf.float32, image_shape, name=image_name)
        true_shapes = tf.constant([[*image_shape[1:3], COLOR_CHANNELS]])
        tensors = tf1.import_graph_def(
            network.folded_graph_of([outputs[name].op.name for name in names]),
            {
                receiver.inputs.name: network.detector.preprocess.normalize(images),
                receiver.true_shapes.name: true_shapes,
            },
            [outputs[name].name for name in names],
            name=_NETWORK,
        )
        for name, tensor in zip(names, tensors):
            tf.identity(tensor - CLASS_OFFSET if name == CLASSES else tensor, name)
    return tf1.graph_util.extract_sub_graph(graph.as_graph_def(), list(names)), names
