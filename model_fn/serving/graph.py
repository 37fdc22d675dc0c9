"""The graph of a served detector, the same for `exporters` and for the exports of training."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.detectors.base import BatchDetections, Context, TrainableDetector

SERVING_DEFAULT = "serving_default"
PREDICT = "tensorflow/serving/predict"  # the other key of the same signature
CLASS_OFFSET = 1  # detectors count foreground classes from 0, label maps from 1


def serve(
    detector: TrainableDetector,
    inputs: tf.Tensor,
    true_shapes: tf.Tensor,
    *,
    context: Optional[Context] = None,
    scope: str = "",
    reuse: bool = False,
) -> Tuple[Any, Dict[str, tf.Tensor]]:
    """Builds the network in the current graph; returns its predictions and named detections.

    Args:
        inputs: float32 [B, H, W, C], preprocessed.
        true_shapes: int32 [B, 3], the real image inside the padded one.
        reuse: Share the variables of an earlier network in this graph.
    """
    with tf1.variable_scope(tf1.get_variable_scope(), reuse=reuse, use_resource=True):
        predictions = detector.predict(inputs, true_shapes, context=context)
    return predictions, named_outputs(detector.postprocess(predictions, true_shapes), scope)


def named_outputs(detections: BatchDetections, scope: str = "") -> Dict[str, tf.Tensor]:
    """float32 outputs by name, class ids from 1; the name of each tensor is its key.

    `scope` is for further signatures of a graph that already has outputs of these names.
    """
    tensors = detections._replace(classes=detections.classes + CLASS_OFFSET).to_dict()
    prefix = f"{scope}/" if scope else ""
    with tf1.name_scope(None):
        outputs = {
            key: tf.identity(tf.cast(tensor, tf.float32), name=prefix + key)
            for key, tensor in tensors.items()
        }
    for key, tensor in outputs.items():
        if tensor.op.name != prefix + key:
            raise ValueError(f"the graph has another tensor with the name of output {key!r}")
    return outputs
