"""Warm-up requests: TensorFlow Serving runs them when it loads a model, before it serves.

Without them, the first requests wait for TensorFlow to optimize the graph and to choose kernels.
https://www.tensorflow.org/tfx/serving/saved_model_warmup describes the file.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

import numpy as np

from estimator_det.compat import tf
from estimator_det.protos import prediction_log_pb2
from inputs.datasets import writer

EXTRA_ASSETS = "assets.extra"  # folder of a SavedModel
WARMUP_FILE = os.path.join(EXTRA_ASSETS, "tf_serving_warmup_requests")
IMAGE_SIZE = (480, 640)  # size of the images if the model takes any size
GRAY = 128


def write_requests(
    folder: str,
    definitions: Dict[str, Any],
    max_batch: Optional[int] = None,
    num_additional_channels: int = 0,
) -> str:
    """Writes requests of gray images to a SavedModel's folder; returns the path of the file.

    There is a request for each signature and each of its batch sizes. Signatures that are equal
    have requests together.
    """
    path = os.path.join(folder, WARMUP_FILE)
    tf.io.gfile.makedirs(os.path.dirname(path))
    distinct: Dict[bytes, str] = {}
    for key, value in definitions.items():
        distinct.setdefault(value.SerializeToString(deterministic=True), key)
    with tf.io.TFRecordWriter(path) as records:
        for key in distinct.values():
            for batch in _batches(definitions[key], max_batch):
                log = prediction_log_pb2.ServingPredictionLog()
                request = log.predict_log.request
                request.model_spec.signature_name = key
                for name, info in definitions[key].inputs.items():
                    value = _input(info, batch, num_additional_channels)
                    request.inputs[name] = value.SerializeToString()
                records.write(log.SerializeToString())
    return path


def _batches(definition: Any, max_batch: Optional[int]) -> List[int]:
    """Batch sizes of a signature's requests: its own if an input has one, 1 for scalars.

    Other batch sizes are 1, 2, 4, … and `max_batch`; without `max_batch` only 1.
    """
    shapes = [info.tensor_shape.dim for info in definition.inputs.values()]
    fixed = [shape[0].size if shape else 1 for shape in shapes if not shape or shape[0].size >= 0]
    largest = max_batch or 1
    return fixed[:1] or [*(2**i for i in range(16) if 2**i < largest), largest]


def _input(info: Any, batch: int, num_additional_channels: int) -> Any:
    """`TensorProto` of one value: TensorFlow repeats it until it fills the shape."""
    sizes = [dim.size for dim in info.tensor_shape.dim]
    is_image = len(sizes) == 4
    unknown = [batch, *(IMAGE_SIZE if is_image else [1] * len(sizes)), *[1] * len(sizes)]
    shape = [size if size >= 0 else unknown[i] for i, size in enumerate(sizes)]
    dtype = tf.as_dtype(info.dtype)
    if dtype == tf.string:
        is_file = info.name.startswith("encoded_image_string_tensor")
        value: Any = _gray_file() if is_file else _gray_example(num_additional_channels)
    else:
        value = GRAY if is_image else 1
    return tf.make_tensor_proto(value, dtype, shape)


def _gray_file() -> bytes:
    return writer.encode_image(np.full((*IMAGE_SIZE, 3), GRAY, np.uint8))


def _gray_example(num_additional_channels: int) -> bytes:
    channel = writer.encode_image(np.full(IMAGE_SIZE, GRAY, np.uint8), "png")
    channels = {"image/additional_channels/encoded": [channel] * num_additional_channels}
    no_boxes = writer.Annotations(np.zeros([0, 4]), [])
    example = writer.make_example(_gray_file(), no_boxes, filename="warmup.jpg", other=channels)
    return bytes(example.SerializeToString())
