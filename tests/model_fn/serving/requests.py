"""Reads a file of warm-up requests."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import numpy as np

from estimator_det.compat import tf
from estimator_det.protos import prediction_log_pb2


def read_requests(path: str) -> List[Tuple[str, Dict[str, np.ndarray]]]:
    """Signature and inputs of each request."""
    requests = []
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        log = prediction_log_pb2.ServingPredictionLog.FromString(record)
        request = log.predict_log.request
        inputs = {key: _array(value) for key, value in request.inputs.items()}
        requests.append((request.model_spec.signature_name, inputs))
    return requests


def _array(serialized: bytes) -> Any:
    tensor = type(tf.make_tensor_proto(0)).FromString(serialized)
    return tf.make_ndarray(tensor)
