"""`TFLite_Detection_PostProcess`, the operation with which an SSD in TFLite ends."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, Mapping

import numpy as np

from estimator_det.compat import tf
from estimator_det.console.printing import counted
from estimator_det.errors import UsageError
from estimator_det.protos import ssd_pb2
from exporters.formats.tflite_reader import POSTPROCESS
from exporters.network import TfliteOptions

RAW_OUTPUTS = ("raw_outputs/box_encodings", "raw_outputs/class_predictions")
# Boxes, classes, scores, number.
OUTPUTS = (POSTPROCESS, *(f"{POSTPROCESS}:{i}" for i in (1, 2, 3)))
_ANCHORS = "anchors"


def check_postprocessing(ssd: ssd_pb2.Ssd, options: TfliteOptions) -> None:
    """Refuses what POSTPROCESS does not do."""
    where = "--format tflite: model.ssd"
    coder = ssd.box_coder.WhichOneof("box_coder_oneof")
    if coder != "faster_rcnn_box_coder":
        raise UsageError(
            f"{where}.box_coder: is {coder}; {POSTPROCESS} decodes faster_rcnn_box_coder only"
        )
    nms = ssd.post_processing.batch_non_max_suppression
    if nms.soft_nms_sigma and not nms.use_hard_nms:
        raise UsageError(
            f"{where}.post_processing.batch_non_max_suppression.soft_nms_sigma: is "
            f"{nms.soft_nms_sigma}, and {POSTPROCESS} suppresses without it; set use_hard_nms: true"
        )
    options = completed(options, ssd)
    for name in ("max_detections", "max_classes_per_detection", "detections_per_class"):
        if getattr(options, name) < 1:
            raise UsageError(f"--{name}: is {getattr(options, name)}; it must be 1 or more")
    if options.max_classes_per_detection > ssd.num_classes:
        raise UsageError(
            f"--max_classes_per_detection: is {options.max_classes_per_detection}, and the model "
            f"has {counted(ssd.num_classes, 'class', 'classes')}"
        )


def completed(options: TfliteOptions, ssd: ssd_pb2.Ssd) -> TfliteOptions:
    """The options with the numbers of an `Ssd` message where they have none."""
    nms = ssd.post_processing.batch_non_max_suppression
    total, per_class = options.max_detections, options.detections_per_class
    return dataclasses.replace(
        options,
        max_detections=nms.max_total_detections if total is None else total,
        detections_per_class=nms.max_detections_per_class if per_class is None else per_class,
    )


def postprocessing_options(ssd: ssd_pb2.Ssd, options: TfliteOptions) -> Dict[str, Any]:
    """The options of POSTPROCESS for an `Ssd` message, by the names of the API's.

    Those with an underscore are read by converters, not by the operation.
    """
    nms = ssd.post_processing.batch_non_max_suppression
    coder = ssd.box_coder.faster_rcnn_box_coder
    fields = dataclasses.asdict(completed(options, ssd))
    del fields["add_postprocessing_op"]
    return {
        **fields,
        "_output_quantized": True,
        "_support_output_type_float_in_quantized_op": True,
        "h_scale": float(coder.height_scale),
        "nms_iou_threshold": float(nms.iou_threshold),
        "nms_score_threshold": float(nms.score_threshold),
        "num_classes": ssd.num_classes,
        "w_scale": float(coder.width_scale),
        "x_scale": float(coder.x_scale),
        "y_scale": float(coder.y_scale),
    }


def add_postprocessing(graph_def: Any, anchors: np.ndarray, options: Mapping[str, Any]) -> None:
    """Appends POSTPROCESS after RAW_OUTPUTS; anchors [A, 4] are y, x, height and width."""
    constant = graph_def.node.add(name=_ANCHORS, op="Const")
    constant.attr["dtype"].type = tf.float32.as_datatype_enum
    constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(anchors))
    node = graph_def.node.add(name=POSTPROCESS, op=POSTPROCESS)
    node.input.extend([*RAW_OUTPUTS, _ANCHORS])
    node.attr["_output_types"].list.type.extend([tf.float32.as_datatype_enum] * len(OUTPUTS))
    for name, value in options.items():
        if isinstance(value, bool):
            node.attr[name].b = value
        elif isinstance(value, int):
            node.attr[name].i = value
        else:
            node.attr[name].f = value
