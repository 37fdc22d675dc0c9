"""Formats of model files that TensorFlow reads without a public interface."""

from __future__ import annotations

from typing import Any


def saved_model_message() -> Any:
    """Creates an empty `SavedModel` message, the content of `saved_model.pb`."""
    from tensorflow.core.protobuf import saved_model_pb2

    return saved_model_pb2.SavedModel()


def tflite_schema() -> Any:
    """Imports the tables of TFLite's flatbuffers and the codes of its operations."""
    from tensorflow.lite.python import schema_py_generated

    return schema_py_generated
