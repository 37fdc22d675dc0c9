"""Reads a file of warm-up requests, with the message types of TensorFlow Serving.

They are declared here by field number, so that a mistake in the product's .proto is found.
"""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from estimator_det.compat import tf

_FIELD = descriptor_pb2.FieldDescriptorProto
PACKAGE = "tensorflow.serving"
# Message: its fields by name, with number and type; see tensorflow_serving/apis.
MESSAGES: Dict[str, Dict[str, Tuple[int, str]]] = {
    "ModelSpec": {"name": (1, ""), "signature_name": (3, "")},
    "InputsEntry": {"key": (1, ""), "value": (2, "tensorflow.TensorProto")},
    "PredictRequest": {"model_spec": (1, "ModelSpec"), "inputs": (2, "InputsEntry")},
    "PredictLog": {"request": (1, "PredictRequest")},
    "PredictionLog": {"predict_log": (6, "PredictLog")},
}


def read_requests(path: str) -> List[Tuple[str, Dict[str, np.ndarray]]]:
    """Signature and inputs of each request."""
    log_type = _prediction_log()
    requests = []
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        request = log_type.FromString(record).predict_log.request
        inputs = {entry.key: tf.make_ndarray(entry.value) for entry in request.inputs}
        requests.append((request.model_spec.signature_name, inputs))
    return requests


def _prediction_log() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="serving.proto", package=PACKAGE)
    file.syntax = "proto3"
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            added = message.field.add(name=field, number=number, label=_FIELD.LABEL_OPTIONAL)
            added.type = _FIELD.TYPE_MESSAGE if kind else _FIELD.TYPE_STRING
            if kind:
                added.type_name = f".{kind}" if "." in kind else f".{PACKAGE}.{kind}"
            if kind == "InputsEntry":  # a map is a list of such entries on the wire
                added.label = _FIELD.LABEL_REPEATED
    tensors = tf.make_tensor_proto(0).DESCRIPTOR.file
    file.dependency.append(tensors.name)
    pool = descriptor_pool.DescriptorPool()
    _add_file(pool, tensors)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.PredictionLog"))


def _add_file(pool: descriptor_pool.DescriptorPool, file: Any) -> None:
    for needed in file.dependencies:
        _add_file(pool, needed)
    pool.AddSerializedFile(file.serialized_pb)
