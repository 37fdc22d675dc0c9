"""Requests and answers of TensorFlow Serving's REST interface, and refusals of bad requests."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np

from estimator_det.console.printing import plain
from exporters.server.batching import Outputs
from inputs.serving import COLOR_CHANNELS, FILES
from model_fn.serving.graph import PREDICT, SERVING_DEFAULT

# The names of inputs that an export may have, too. Each takes files and pixels here.
SIGNATURES = (SERVING_DEFAULT, PREDICT, FILES, "image_tensor")
MOST_INSTANCES = 64  # images of one request
_DTYPES = {"f": "DT_FLOAT", "i": "DT_INT32", "u": "DT_UINT8", "S": "DT_STRING", "O": "DT_STRING"}

Image = Union[bytes, np.ndarray]  # an encoded file, or uint8 [h, w, 3]


class Refused(Exception):
    """A request that is answered with an error.

    Attributes:
        status: The status of the HTTP answer.
        kind: Label of the error in the metrics.
        text: Says what is wrong; it contains nothing of this machine.
        retry_after: Seconds after which the client may try again; None if that does not help.
    """

    def __init__(self, status: int, kind: str, text: str, retry_after: Optional[int] = None):
        super().__init__(text)
        self.status, self.kind, self.text, self.retry_after = status, kind, text, retry_after


def bad_request(text: str) -> Refused:
    """The refusal of a request that the client must change."""
    return Refused(400, "bad_request", text)


class PredictRequest(NamedTuple):
    """The body of a request for predictions."""

    images: List[Image]
    is_by_column: bool  # by "inputs", whose answer has "outputs"; else by "instances"


def parse_predict(body: bytes) -> PredictRequest:
    """Reads `{"instances": [{"b64": …}]}` or `{"inputs": …}`; an image may be pixels, too.

    Raises:
        Refused: if the body is anything else.
    """
    document = _json(body)
    if not isinstance(document, dict) or len({"instances", "inputs"} & set(document)) != 1:
        raise bad_request('the body must be a JSON object with either "instances" or "inputs"')
    signature = document.get("signature_name") or SERVING_DEFAULT
    if signature not in SIGNATURES:
        raise bad_request(
            f"the model has no signature {_shown(signature)}; it has {', '.join(SIGNATURES)}"
        )
    is_by_column = "inputs" in document
    values = _without_key(document["inputs" if is_by_column else "instances"])
    if isinstance(values, dict):  # a column of a single image
        values = [values]
    if not isinstance(values, list) or not values:
        raise bad_request("there is no image: give a list of at least one")
    if len(values) > MOST_INSTANCES:
        raise bad_request(f"there are {len(values):,} images; one request has {MOST_INSTANCES}")
    images = [_image(value, f"image {i}") for i, value in enumerate(map(_without_key, values))]
    return PredictRequest(images, is_by_column)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except RecursionError:
        raise bad_request("the JSON is nested too deeply") from None
    except ValueError as error:  # UnicodeDecodeError, too
        raise bad_request(f"the body is not JSON: {plain(str(error))}") from None


def _without_key(value: Any) -> Any:
    """The value of the only input, which may be given by its name, of whatever text."""
    if isinstance(value, dict) and "b64" not in value and len(value) == 1:
        return next(iter(value.values()))
    return value


def _image(value: Any, name: str) -> Image:
    if isinstance(value, dict) and isinstance(value.get("b64"), str):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise bad_request(f"{name} is not base64: {error}") from None
    if not isinstance(value, list):
        raise bad_request(f'{name} is {_shown(value)}; give {{"b64": "…"}} or a list of pixels')
    try:
        pixels = np.asarray(value)
    except ValueError:  # rows of several lengths
        pixels = np.zeros(0)
    if pixels.ndim != 3 or pixels.shape[2] != COLOR_CHANNELS or pixels.dtype.kind not in "iuf":
        raise bad_request(f"{name} is no list of numbers [height, width, {COLOR_CHANNELS}]")
    if 0 in pixels.shape or not ((pixels >= 0) & (pixels <= 255)).all():
        raise bad_request(f"{name} has no pixels, or pixels that are not from 0 to 255")
    return pixels.astype(np.uint8)


def _shown(value: Any) -> str:
    return plain(repr(value), 60)


def predictions(rows: Sequence[Outputs], request: PredictRequest) -> str:
    """The answer to a request for predictions."""
    if request.is_by_column:
        columns = {key: [_plain(row[key]) for row in rows] for key in rows[0]}
        return json.dumps({"outputs": columns})
    return json.dumps({"predictions": [{k: _plain(v) for k, v in row.items()} for row in rows]})


def _plain(value: Any) -> Any:
    array = np.asarray(value)
    if array.dtype.kind in "SO":  # TensorFlow Serving writes text so
        array = np.vectorize(lambda each: bytes(each).decode("utf-8", "replace"), otypes=[object])(
            array
        )
    return array.tolist()


def metadata(name: str, version: int, outputs: Mapping[str, np.ndarray]) -> Dict[str, Any]:
    """The model's signatures. Its input is the bytes of image files, which may be pixels, too."""
    signature = {
        "inputs": {"inputs": _tensor("DT_STRING", [-1], "inputs")},
        "outputs": {
            key: _tensor(_DTYPES.get(np.asarray(value).dtype.kind, "DT_INVALID"), shape, key)
            for key, value in outputs.items()
            for shape in [[-1, *np.shape(value)]]
        },
        "method_name": "tensorflow/serving/predict",
    }
    return {
        "model_spec": {"name": name, "signature_name": "", "version": str(version)},
        "metadata": {"signature_def": {"signature_def": dict.fromkeys(SIGNATURES, signature)}},
    }


def _tensor(dtype: str, shape: Sequence[int], name: str) -> Dict[str, Any]:
    dim = [{"size": str(size), "name": ""} for size in shape]
    return {"dtype": dtype, "tensor_shape": {"dim": dim, "unknown_rank": False}, "name": name}


def status(states: Mapping[int, Any]) -> Dict[str, Any]:
    """The states of the versions that a server has loaded or has tried to load."""
    return {
        "model_version_status": [
            {
                "version": str(number),
                "state": state,
                "status": {"error_code": "UNKNOWN" if fault else "OK", "error_message": fault},
            }
            for number, (state, fault) in sorted(states.items(), reverse=True)
        ]
    }
