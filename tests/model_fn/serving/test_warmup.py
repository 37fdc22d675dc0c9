"""Warm-up requests as TensorFlow Serving reads them."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from estimator_det.compat import tf, tf1
from estimator_det.protos import prediction_log_pb2
from model_fn.serving import warmup
from tests.model_fn.serving.requests import read_requests


def _definition(**inputs: Any) -> Any:
    """A signature with inputs (name of the placeholder, type, shape)."""
    with tf.Graph().as_default():
        return tf1.saved_model.build_signature_def(
            {
                key: tf1.saved_model.build_tensor_info(tf1.placeholder(dtype, shape, name=name))
                for key, (name, dtype, shape) in inputs.items()
            }
        )


IMAGES = ("image_tensor", tf.uint8, [None, None, None, 3])


@pytest.mark.parametrize(
    ("inputs", "shapes"),
    [
        ({"inputs": IMAGES}, [{"inputs": (1, 480, 640, 3)}, {"inputs": (2, 480, 640, 3)}]),
        ({"inputs": ("image_tensor", tf.float32, [3, 20, None, 5])}, [{"inputs": (3, 20, 640, 5)}]),
        ({"serialized_example": ("tf_example", tf.string, [])}, [{"serialized_example": ()}]),
        (
            {"inputs": IMAGES, "context_features": ("c", tf.float32, [1, None, 7])},
            [{"inputs": (1, 480, 640, 3), "context_features": (1, 1, 7)}],
        ),
    ],
)
def test_shapes(tmp_path, inputs, shapes):
    definition = _definition(**inputs)
    path = warmup.write_requests(str(tmp_path), {"serving_default": definition}, 2)
    assert path == str(tmp_path / "assets.extra" / "tf_serving_warmup_requests")
    found = [{key: x.shape for key, x in fed.items()} for _, fed in read_requests(path)]
    assert found == shapes
    assert pathlib.Path(path).stat().st_size < 20_000


def test_equal_signatures_have_one_request(tmp_path):
    one, other = (_definition(inputs=(name, tf.uint8, [None] * 4)) for name in "ab")
    definitions = {"serving_default": one, "predict": one, "other": other, "copy": one}
    requests = read_requests(warmup.write_requests(str(tmp_path), definitions))
    assert [key for key, _ in requests] == ["serving_default", "other"]


@pytest.mark.parametrize("count", [0, 2])
def test_examples_have_the_additional_channels(tmp_path, count):
    definition = _definition(serialized_example=("tf_example", tf.string, [None]))
    path = warmup.write_requests(
        str(tmp_path), {"serving_default": definition}, num_additional_channels=count
    )
    ((_, fed),) = read_requests(path)
    example = tf.train.Example.FromString(fed["serialized_example"].item())
    channels = example.features.feature["image/additional_channels/encoded"].bytes_list.value
    assert len(channels) == count


def test_numbers_of_fields_are_those_of_tensorflow_serving():
    """The path to a signature's name and to the inputs, see tensorflow_serving/apis."""
    log = prediction_log_pb2.ServingPredictionLog()
    request = log.predict_log.request
    request.model_spec.signature_name = "s"
    request.inputs["k"] = b"v"
    spec, entry = b"\x1a\x01s", b"\x0a\x01k\x12\x01v"  # field 3; fields 1 and 2
    content = b"\x0a\x03" + spec + b"\x12\x06" + entry  # fields 1 and 2 of the request
    content = b"\x0a\x0d" + content  # field 1 of PredictLog
    assert log.SerializeToString() == b"\x32\x0f" + content  # field 6 of PredictionLog
