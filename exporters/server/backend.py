"""A model behind another server of TensorFlow Serving's REST interface."""

from __future__ import annotations

import base64
from typing import Any, Dict, Mapping

import numpy as np
import requests

from estimator_det.console.printing import plain
from estimator_det.errors import RunError
from exporters.loaded_model import (
    KEYPOINT_SCORES,
    KEYPOINTS,
    MASKS,
    NO_SKELETON,
    REQUIRED_OUTPUTS,
    LoadedModel,
)
from inputs.datasets.writer import encode_image
from model_fn.serving.graph import SERVING_DEFAULT

_SECONDS = 60  # that a request may take
_STRING = "DT_STRING"


class BackendError(RunError):
    """The other server does not answer, or answers with an error."""


class RemoteModel(LoadedModel):
    """A detector behind `http://host:8501/v1/models/NAME`: TensorFlow Serving, KServe and others.

    Args:
        url: Address of the model, without the last slash or with it.
        class_names: Id -> name; the interface has no label map.

    Raises:
        BackendError: if the server does not answer, or the model is not a detector.
    """

    def __init__(self, url: str, class_names: Mapping[int, str]) -> None:
        super().__init__(url.rstrip("/"), class_names, thresholds_file="")
        self.skeleton = NO_SKELETON
        self._session = requests.Session()
        answer = self._request("GET", f"{self.path}/metadata")
        try:
            signature = answer["metadata"]["signature_def"]["signature_def"][SERVING_DEFAULT]
            inputs, outputs = signature["inputs"], signature["outputs"]
            dtypes = [each["dtype"] for each in inputs.values()]
        except (KeyError, TypeError, AttributeError) as error:
            raise BackendError(
                f"{plain(self.path)}/metadata has no signature {SERVING_DEFAULT}"
            ) from error
        self.refuse_unless(len(dtypes) == 1, inputs, outputs)
        self._takes_files = dtypes == [_STRING]

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        instances = [self._instance(each) for each in images]
        answer = self._request("POST", f"{self.path}:predict", json={"instances": instances})
        rows = answer.get("predictions") if isinstance(answer, dict) else None
        if not isinstance(rows, list) or len(rows) != len(images):
            raise BackendError("the answer of the model contains no predictions")
        try:
            return {
                key: np.asarray([row[key] for row in rows], np.float32)
                for key in (*REQUIRED_OUTPUTS, MASKS, KEYPOINTS, KEYPOINT_SCORES)
                if key in REQUIRED_OUTPUTS or key in rows[0]
            }
        except (KeyError, TypeError, ValueError) as error:
            raise BackendError(
                "the server of the model has not answered with detections"
            ) from error

    def _instance(self, pixels: np.ndarray) -> Any:
        if self._takes_files:
            return {"b64": base64.b64encode(encode_image(pixels, "png")).decode("ascii")}
        return pixels.tolist()

    def _request(self, method: str, url: str, **body: Any) -> Any:
        try:
            response = self._session.request(method, url, timeout=_SECONDS, **body)
            answer = response.json()
        except (requests.RequestException, ValueError) as error:
            raise BackendError(
                f"the server of the model does not answer: {plain(str(error))}"
            ) from error
        if not response.ok:
            text = answer.get("error", "") if isinstance(answer, dict) else ""
            raise BackendError(
                f"the server of the model answers {response.status_code}: {plain(str(text))}"
            )
        return answer
