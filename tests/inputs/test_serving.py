from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np
import pytest
from google.protobuf import text_format

import inputs
from estimator_det.compat import tf, tf1
from estimator_det.images.resize import make_resizer
from estimator_det.protos import image_resizer_pb2
from inputs import serving
from tests.inputs.examples import encoded, example, picture, pipeline

pytestmark = pytest.mark.optimized
FIXED = "fixed_shape_resizer { height: 6 width: 10 }"
IDENTITY = "identity_resizer {}"
IMAGES = [picture(8, 12), picture(9, 5, seed=1)]


def preprocess_of(text: str) -> Any:
    config = text_format.Parse(text, image_resizer_pb2.ImageResizer())
    resizer = make_resizer(config)
    return lambda images: resizer.resize(images, lambda x: x + 1)


def run(
    input_type: str, resizer: str, fed: Any, **arguments: Any
) -> Tuple[np.ndarray, np.ndarray, List[Any]]:
    with tf.Graph().as_default(), tf1.Session() as session:
        receiver = serving.make_receiver(input_type, preprocess_of(resizer), **arguments)
        assert receiver.placeholders["inputs"].name == f"{input_type}:0"
        static = receiver.inputs.shape.as_list()
        result = session.run((receiver.inputs, receiver.true_shapes), {f"{input_type}:0": fed})
    return (*result, static)


def test_input_shape():
    fed, _, static = run("image_tensor", IDENTITY, IMAGES[:1], input_shape=[1, 8, -1, 3])
    assert static[0] == 1
    np.testing.assert_array_equal(fed[0], IMAGES[0] + 1.0)
    preprocess = preprocess_of(FIXED)
    with pytest.raises(ValueError, match="batch, height, width, 3"):
        serving.make_receiver("image_tensor", preprocess, [1, 8, 8])
    with pytest.raises(ValueError, match="cannot be set for tf_example"):
        serving.make_receiver("tf_example", preprocess, [1, 8, 8, 3])
    with pytest.raises(ValueError, match="did you mean 'image_tensor'"):
        serving.make_receiver("image_tensr", preprocess)


def fed_strings(input_type: str) -> List[bytes]:
    files = [encoded(IMAGES[0], "PNG"), encoded(IMAGES[1], "BMP")]
    return [
        example({"image/encoded": file}) if input_type == "tf_example" else file for file in files
    ]


@pytest.mark.parametrize("input_type", ["encoded_image_string_tensor", "tf_example"])
def test_files_of_different_sizes(input_type):
    fed, true_shapes, static = run(input_type, FIXED, fed_strings(input_type))
    for image, result in zip(IMAGES, fed):
        expected = tf1.image.resize(image.astype(np.float32), [6, 10]).numpy() + 1
        np.testing.assert_allclose(result, expected, rtol=1e-6)
    assert true_shapes.tolist() == [[6, 10, 3]] * 2
    assert static == [None, 6, 10, 3]
    fed, true_shapes, static = run(input_type, IDENTITY, fed_strings(input_type))
    assert fed.shape == (2, 9, 12, 3)
    assert true_shapes.tolist() == [[8, 12, 3], [9, 5, 3]]
    assert static == [None, None, None, 3]
    for image, result in zip(IMAGES, fed):
        height, width, _ = image.shape
        np.testing.assert_array_equal(result[:height, :width], image + 1.0)
        assert result.sum() == (image + 1.0).sum()  # zeros around it


def test_predict_input_fn():
    extra = picture(seed=2)[..., 0]
    record = example({"image/additional_channels/encoded": [encoded(extra)]})
    config = pipeline()
    config.eval_input_reader[0].num_additional_channels = 1
    preprocess = make_resizer(config.model.ssd.image_resizer).resize
    with tf.Graph().as_default(), tf1.Session() as session:
        receiver = inputs.create_predict_input_fn(config, preprocess)()
        ((key, placeholder),) = receiver.receiver_tensors.items()
        assert (key, placeholder.shape.as_list()) == ("serialized_example", [])
        assert receiver.features["image"].shape.as_list() == [1, 6, 10, 4]
        features = session.run(receiver.features, {placeholder: record})
    assert features["true_image_shape"][0, :2].tolist() == [6, 10]
    channels = np.concatenate([picture(), extra[..., np.newaxis]], axis=2)
    expected = tf1.image.resize(channels[np.newaxis].astype(np.float32), [6, 10])
    np.testing.assert_allclose(features["image"], expected, rtol=1e-6)


def test_predict_input_fn_with_context():
    config = pipeline()
    preprocess = make_resizer(config.model.ssd.image_resizer).resize
    context = config.model.faster_rcnn.context_config
    context.max_num_context_features, context.context_feature_length = 3, 2
    given = {"image/context_features": [1.0, 2.0], "image/context_feature_length": 2}
    with tf.Graph().as_default(), tf1.Session() as session:
        receiver = inputs.create_predict_input_fn(config, preprocess)()
        assert receiver.features["context_features"].shape.as_list() == [1, 3, 2]
        assert receiver.features["valid_context_size"].shape.as_list() == [1]
        placeholder = receiver.receiver_tensors["serialized_example"]
        found = [session.run(receiver.features, {placeholder: example(one)}) for one in (given, {})]
    assert found[0]["context_features"].tolist() == [[[1, 2], [0, 0], [0, 0]]]
    assert not found[1]["context_features"].any()
    assert [one["valid_context_size"].tolist() for one in found] == [[1], [0]]
