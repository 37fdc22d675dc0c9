"""What goes into and comes out of an exported detector: names, types and shapes clients rely on."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.registry import nearest
from estimator_det.detectors.base import Detections

INPUT_TYPES = (
    "image_tensor",
    "encoded_image_string_tensor",
    "tf_example",
    "float_image_tensor",
)
STRING_INPUT_TYPES = ("encoded_image_string_tensor", "tf_example")
ALL_INPUT_TYPES = "all"
SERVING_DEFAULT = "serving_default"
CLASS_OFFSET = 1  # detectors count foreground classes from 0, label maps from 1


def resolve_input_types(names: Sequence[str]) -> Tuple[str, ...]:
    """Expands "all" and checks names; the first one becomes `serving_default`.

    Raises:
        ValueError: for an unknown or repeated name, or none.
    """
    chosen = INPUT_TYPES if list(names) == [ALL_INPUT_TYPES] else tuple(names)
    for name in chosen:
        if name not in INPUT_TYPES:
            known = [*INPUT_TYPES, ALL_INPUT_TYPES]
            hint = nearest(name, known)
            raise ValueError(f"input type {name!r} is not known{hint} Known: {known}")
    if not chosen or len(set(chosen)) != len(chosen):
        raise ValueError(f"input types must be given, each once; found {list(names)}")
    return chosen


def parse_input_shape(text: str) -> Optional[List[Optional[int]]]:
    """`"1,300,300,3"` -> [1, 300, 300, 3]; -1 and None stand for any size, "" for no shape.

    Raises:
        ValueError: if it is not four sizes: batch, height, width, channels.
    """
    if not text.strip():
        return None
    sizes: List[Optional[int]] = []
    for part in text.split(","):
        word = part.strip()
        if word in ("-1", "None"):
            sizes.append(None)
        elif word.isdigit() and int(word) > 0:
            sizes.append(int(word))
        else:
            raise ValueError(f"input shape {text!r}: {word!r} is not a size above 0, -1 or None")
    if len(sizes) != 4:
        raise ValueError(
            f"input shape {text!r} has {len(sizes)} sizes; give four: batch,height,width,channels"
        )
    return sizes


def named_outputs(detections: Detections, scope: str = "") -> Dict[str, tf.Tensor]:
    """float32 outputs by name, class ids from 1; each tensor bears its key as name.

    Args:
        detections: Of `Detector.postprocess`.
        scope: Name scope in front of the tensors' names, for the further signatures of a graph
            that already has outputs of these names.

    Raises:
        ValueError: if a name is taken: clients would then read another tensor.
    """
    tensors = dict(detections.as_dict())
    tensors["detection_classes"] = tensors["detection_classes"] + CLASS_OFFSET
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


def predict_signature(
    inputs: Dict[str, tf.Tensor], outputs: Dict[str, tf.Tensor]
) -> tf1.saved_model.SignatureDef:
    """A predict signature of placeholders and outputs by key."""
    return tf1.saved_model.build_signature_def(
        inputs={key: tf1.saved_model.build_tensor_info(value) for key, value in inputs.items()},
        outputs={key: tf1.saved_model.build_tensor_info(value) for key, value in outputs.items()},
        method_name=tf1.saved_model.signature_constants.PREDICT_METHOD_NAME,
    )
