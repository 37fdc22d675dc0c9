from __future__ import annotations

import json
from typing import Any, Tuple

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import tf, tf1
from estimator_det.images import resize
from estimator_det.protos import image_resizer_pb2, pipeline_pb2
from tests.conftest import golden_component
from tests.faults import faults

CASES = [
    "fixed_300x300", "fixed_240x320_area", "fixed_240x320_nearest", "fixed_240x320_bicubic",
    "fixed_gray", "kar_600_1024", "kar_256_320", "kar_256_320_pad", "kar_320_320_pad_mean",
    "identity", "conditional_greater",
]  # fmt: skip


def make(text: str) -> resize.Resizer:
    return resize.make_resizer(text_format.Parse(text, image_resizer_pb2.ImageResizer()))


def run(resizer: resize.Resizer, images: np.ndarray, static: bool) -> Tuple[np.ndarray, np.ndarray]:
    shape = images.shape if static else [None, None, None, images.shape[-1]]
    function = tf.function(resizer.resize, input_signature=[tf.TensorSpec(shape, images.dtype)])
    resized, true_shapes = function(images)
    static_shape = function.get_concrete_function().output_shapes[0].as_list()
    assert tuple(static_shape[1:3]) == (resized.shape[1:3] if static else resizer.spatial_shape)
    return resized.numpy(), true_shapes.numpy()


def assert_golden(case: str, which: str, golden: Any, resized: Any, true_shapes: Any) -> None:
    settings, arrays = golden
    expected = settings[case][which]
    assert list(resized.shape[1:]) == expected["out_shape"]
    np.testing.assert_array_equal(true_shapes, [expected["true_image_shape"]] * len(resized))
    loose = "area" in case or "bicubic" in case
    tolerance = {"rtol": 1e-5, "atol": 1e-3 if loose else 1e-4}
    prefix = f"{case}__{which}__"
    rows, columns = arrays[prefix + "yi"], arrays[prefix + "xi"]
    for image in resized:
        np.testing.assert_allclose(image[rows][:, columns], arrays[prefix + "grid"], **tolerance)
        np.testing.assert_allclose(image.astype(np.float64).sum(), expected["sum"], rtol=1e-6)


@pytest.mark.parametrize(("dtype", "static"), [("uint8", True), ("float32", False)])
@pytest.mark.parametrize("case", CASES)
def test_small_image_against_golden(case, dtype, static):
    settings, arrays = golden_component("image_resizers")
    images = np.stack([arrays["small_input"]] * 2).astype(dtype)
    found = run(make(settings[case]["text"]), images, static)
    assert_golden(case, "small", (settings, arrays), *found)


@pytest.mark.parametrize("case", [case for case in CASES if case != "fixed_gray"])
def test_masks_against_golden(case):
    settings, arrays = golden_component("image_resizers")
    resizer = make(settings[case]["text"])
    masks = resizer.resize_masks(tf.cast(arrays["small_masks"], tf.float32)).numpy()
    assert list(masks.shape) == settings[case]["small_masks"]["shape"]
    np.testing.assert_array_equal(masks.sum(2), arrays[f"{case}__small__mask_rowsum"])
    np.testing.assert_array_equal(masks.sum(1), arrays[f"{case}__small__mask_colsum"])


@pytest.mark.parametrize("case", [case for case in CASES if case != "identity"])
def test_photograph_of_real_data_against_golden(case, real_data):
    folder = real_data / "golden" / "components"
    settings = json.loads((folder / "image_resizers.json").read_text())["settings"]
    with np.load(folder / "image_resizers.npz") as stored:
        arrays = {key: stored[key] for key in stored.files if "image1" in key}
    photograph = (real_data / "data" / "image1.jpg").read_bytes()
    image = tf.io.decode_jpeg(photograph)
    if float(tf.reduce_sum(tf.cast(image, tf.float64))) != settings["input"]["sum"]:
        image = tf.io.decode_jpeg(photograph, dct_method="INTEGER_ACCURATE")
    images = image.numpy()[np.newaxis]
    assert images.astype(np.float64).sum() == settings["input"]["sum"]
    found = run(make(settings[case]["text"]), images, False)
    assert_golden(case, "image1", (settings, arrays), *found)


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("text", "before", "after"),
    [
        ("condition: GREATER size_threshold: 500", (636, 1024), (310, 500)),  # 310.55 is cut
        ("condition: GREATER size_threshold: 500", (400, 500), (400, 500)),
        ("condition: SMALLER size_threshold: 100", (50, 75), (100, 150)),
        ("condition: SMALLER size_threshold: 40", (50, 75), (50, 75)),
    ],
)
def test_conditional_sizes(text, before, after, static):
    resizer = make(f"conditional_shape_resizer {{ {text} }}")
    resized, true_shapes = run(resizer, np.zeros((1, *before, 3), np.uint8), static)
    assert resized.shape == (1, *after, 3)
    assert true_shapes.tolist() == [[*after, 3]]


GRAY = [
    "fixed_shape_resizer { height: 4 width: 8 convert_to_grayscale: %s }",
    "keep_aspect_ratio_resizer { min_dimension: 4 max_dimension: 8 convert_to_grayscale: %s }",
    "conditional_shape_resizer { size_threshold: 8 convert_to_grayscale: %s }",
    "pad_to_multiple_resizer { multiple: 4 convert_to_grayscale: %s }",
]


@pytest.mark.parametrize("text", GRAY, ids=lambda text: text.split()[0])
def test_every_resizer_that_can_converts_to_gray(text):
    images = np.tile(np.uint8([200, 100, 50]), (1, 4, 8, 1))
    for wanted in ("true", "false"):
        resized, true_shapes = run(make(text % wanted), images, False)
        channels = 1 if wanted == "true" else 3
        assert resized.shape == (1, 4, 8, channels)
        assert true_shapes.tolist() == [[4, 8, channels]]
    gray, _ = run(make(text % "true"), images, False)
    np.testing.assert_allclose(gray, 0.2989 * 200 + 0.5870 * 100 + 0.1140 * 50, rtol=1e-5)


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_pad_to_multiple(static):
    images = np.full((2, 5, 8, 3), 7, np.uint8)
    resized, true_shapes = run(make("pad_to_multiple_resizer { multiple: 4 }"), images, static)
    assert resized.shape == (2, 8, 8, 3)
    assert true_shapes.tolist() == [[5, 8, 3]] * 2
    assert resized[:, :5].min() == 7
    assert resized[:, 5:].max() == 0


def test_no_masks():
    resizer = make("fixed_shape_resizer { height: 4 width: 5 }")
    function = tf.function(
        resizer.resize_masks, input_signature=[tf.TensorSpec([None, None, None], tf.float32)]
    )
    assert function(np.zeros((0, 9, 9), np.float32)).shape == (0, 4, 5)


@pytest.mark.parametrize("size", [(480, 640), (741, 7), (1, 1080)])
def test_nearest_pixels_are_those_of_the_operation(size):
    """But without the operation, whose pixels in ONNX and OpenVINO differ."""
    images = np.arange(size[0] * size[1], dtype=np.float32).reshape(1, *size, 1)
    text = "fixed_shape_resizer { height: 128 width: 300 resize_method: NEAREST_NEIGHBOR }"
    function = tf.function(lambda x: make(text).resize(x)[0]).get_concrete_function(images)
    assert "ResizeNearestNeighbor" not in {each.type for each in function.graph.get_operations()}
    wanted = tf1.image.resize_nearest_neighbor(images, [128, 300])
    np.testing.assert_array_equal(function(tf.constant(images)), wanted)


@pytest.mark.parametrize("gray", ["true", "false"])
@pytest.mark.parametrize("method", ["BILINEAR", "NEAREST_NEIGHBOR", "BICUBIC", "AREA"])
def test_pixel_map_is_applied_before_padding(method, gray):
    text = (
        "keep_aspect_ratio_resizer {{ min_dimension: 16 max_dimension: 24 pad_to_max_dimension: "
        f"{{pad}} resize_method: {method} convert_to_grayscale: {gray} }}}}"
    )
    images = np.random.default_rng(3).integers(0, 256, (1, 20, 40, 3)).astype(np.float32)

    def pixel_map(x: Any) -> Any:
        return x * (2 / 255) - 1

    resized, true_shapes = make(text.format(pad="true")).resize(images, pixel_map)
    expected, _ = make(text.format(pad="false")).resize(pixel_map(images))
    assert true_shapes.numpy()[0, :2].tolist() == [12, 24]
    np.testing.assert_allclose(resized[:, :12], expected, atol=2e-6)
    assert not resized[:, 12:].numpy().any()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keep_aspect_ratio_resizer { min_dimension: 9 max_dimension: 3 }", "above max_dimension"),
        ("conditional_shape_resizer { condition: INVALID }", "GREATER or SMALLER"),
    ],
)
def test_senseless_options(text, message):
    assert message in faults(image_resizer_pb2.ImageResizer(), text)


def test_pad_values_must_fit_the_channels():
    resizer = (
        "keep_aspect_ratio_resizer { pad_to_max_dimension: true per_channel_pad_value: [1, 2, 3] }"
    )
    text = f"model {{ ssd {{ image_resizer {{ {resizer} }} }} }}"
    reader = "train_input_reader { num_additional_channels: 1 }"
    gray = text.replace("per_", "convert_to_grayscale: true per_")  # after they are padded
    for found, channels in ((False, text), (False, gray), (True, text + reader)):
        problems = faults(pipeline_pb2.TrainEvalPipelineConfig(), channels, at="")
        assert ("has 3 values, and images have" in problems) == found
