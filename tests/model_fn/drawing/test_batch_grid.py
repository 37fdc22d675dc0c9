import numpy as np
import pytest

from estimator_det.compat import tf
from inputs import schema
from model_fn.drawing import batch_grid
from model_fn.drawing.batch_grid import GridCell


def padded(function):
    """A preprocess function that pads to 40 x 40."""

    def preprocess(images):
        inputs = function(images)
        shape = [inputs.shape[1], inputs.shape[2], inputs.shape[3]]
        shapes = tf.constant([shape] * inputs.shape[0])
        amounts = [[0, 0], [0, 40 - shape[0]], [0, 40 - shape[1]], [0, 0]]
        return tf.pad(inputs, amounts), shapes

    return preprocess


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: x / 127.5 - 1,
        lambda x: x - tf.constant([123.68, 116.779, 103.939]),
        lambda x: (x / 255 - tf.constant([0.485, 0.456, 0.406])) / tf.constant([0.229, 0.224, 0.2]),
        lambda x: x[..., ::-1] - 100.0,  # blue, green, red
    ],
    ids=["nothing", "symmetric", "means", "means and deviations", "other order"],
)
@pytest.mark.parametrize("channels", [3, 5])
def test_normalization_is_undone(function, channels):
    image = np.random.default_rng(0).integers(0, 256, [1, 20, 30, channels]).astype(np.float32)

    def preprocess(x):  # Channels beyond colours are not shown.
        return tf.concat([function(x[..., :3]), x[..., 3:] / 2 + 1], axis=3)

    to_pixels, exact = batch_grid.fit_pixels(padded(preprocess), channels)
    assert exact
    pixels = to_pixels(preprocess(tf.constant(image)).numpy()[0])
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, image[0, ..., :3])


def test_grey_is_shown_as_grey():
    weights = tf.constant([0.3, 0.6, 0.1])

    def function(x):
        return tf.reduce_sum(x * weights, axis=3, keepdims=True) / 255

    to_pixels, exact = batch_grid.fit_pixels(padded(function))
    assert exact
    np.testing.assert_array_equal(to_pixels(np.full([2, 2, 1], 0.4, np.float32)), 102)


def test_what_is_not_affine_is_scaled_to_range():
    to_pixels, exact = batch_grid.fit_pixels(padded(lambda x: tf.sqrt(x)))
    assert not exact
    image = np.array([[[-3, 0, 7]]], np.float32)
    np.testing.assert_array_equal(to_pixels(image), [[[0, 76, 255]]])


def test_cells_take_the_valid_rows_and_name_all_classes():
    features = {
        schema.IMAGE: np.zeros([2, 8, 8, 3], np.float32),
        schema.TRUE_IMAGE_SHAPE: np.array([[8, 6, 3], [8, 8, 3]]),
        schema.FILENAME: np.array([b"caf\xc3\xa9", b""], object),
        schema.SOURCE_ID: np.array([b"139", b"\xff"], object),
    }
    classes = np.zeros([2, 3, 4])
    classes[0, 0, 1] = classes[0, 1, 0] = classes[0, 1, 3] = 1
    labels = {
        schema.NUM_BOXES: np.array([2, 1]),
        schema.BOXES: np.ones([2, 3, 4]),
        schema.CLASSES: classes,
        schema.WEIGHTS: np.array([[1, 0.5, 0], [0, 0, 0]]),
        schema.MASKS: np.arange(6.0).reshape(2, 3, 1, 1) * np.ones([1, 1, 8, 8]),
        schema.KEYPOINTS: np.full([2, 3, 5, 2], 0.5),
    }
    first, second = batch_grid.cells_of_batch(
        features, labels, lambda image: image.astype(np.uint8), {1: "cat", 2: "dog"}
    )
    assert (first.name, first.true_size, first.boxes.shape) == ("café", [8, 6], (2, 4))
    assert first.labels == ["dog", "cat+4 (weight 0.5)"]
    assert first.classes == [2, 1]
    assert (second.name, second.labels) == ("\ufffd", ["0 (weight 0)"])
    assert first.masks is not None and second.masks is not None
    assert first.masks[:, 0, 0].tolist() == [0, 1] and second.masks[:, 0, 0].tolist() == [3]
    assert first.keypoints is not None and first.keypoints.shape == (2, 5, 2)


def test_page_shows_pixels_boxes_and_the_border_of_the_real_image():
    pixels = np.full([50, 50, 3], 128, np.uint8)
    pixels[:, :25] = [200, 30, 30]
    mask = np.zeros([1, 50, 50])
    mask[:, 40:, 40:] = 1
    cell = GridCell(pixels, [50, 25], np.array([[0.2, 0.1, 0.8, 0.4]]), ["a"], [1], "name", mask)
    page = batch_grid.draw_grid([cell] * 3, title="title", columns=2, side=100)
    assert page.size == (2 * 110 + 10, 10 + 34 + 2 * (100 + 40 + 10))
    shown = np.asarray(page)[44:144, 10:110].astype(int)
    assert np.abs(shown[90, 25] - [200, 30, 30]).max() < 12  # inside the real image
    assert np.abs(shown[50, 80] - 128).max() < 12  # padding
    np.testing.assert_array_equal(shown[95, 49], batch_grid.BORDER_COLOR)
    assert np.ptp(shown[90, 90]) > 40  # the mask
    on_box = shown[50, 10]
    assert np.abs(on_box - [200, 30, 30]).max() > 60
