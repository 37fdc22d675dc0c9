import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.nets import roi
from tests.conftest import golden_component

SETTINGS, ARRAYS = golden_component("crops")


@pytest.mark.parametrize("kind", ["native", "matmul"])
def test_crops_golden(kind):
    features, boxes = tf.constant(ARRAYS["crop_resize_in"]), tf.constant(ARRAYS["crop_boxes"])
    crops = roi.crop_regions(features, boxes, (4, 4), matmul=kind == "matmul")
    expected = ARRAYS[f"{kind}_crop_4x4"]
    np.testing.assert_allclose(
        crops, expected.reshape(-1, *expected.shape[2:]), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("matmul", [True, False])
@pytest.mark.parametrize("name", ["6x6_2x3_pool", "2x3_pool_same"])
def test_position_sensitive_golden(name, matmul):
    settings = SETTINGS[name]
    image, boxes = (tf.constant(ARRAYS[name][None]) for name in ("image", "boxes"))
    sizes = (tuple(settings[name]) for name in ("crop_size", "num_spatial_bins"))
    pooled = roi.pool_position_sensitive(image, boxes, *sizes, matmul=matmul)
    np.testing.assert_allclose(pooled[0], ARRAYS[name][:, 0, 0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("matmul", [True, False])
def test_each_image_is_pooled_by_itself(matmul):
    random = np.random.default_rng(0)
    maps = tf.constant(random.normal(size=[2, 6, 8, 2 * 3 * 5]), tf.float32)
    low, high = random.uniform(0, 0.5, [2, 4, 2]), random.uniform(0.5, 1, [2, 4, 2])
    boxes = tf.constant(np.concatenate([low, high], axis=2), tf.float32)

    def pool(images: slice) -> tf.Tensor:
        return roi.pool_position_sensitive(
            maps[images], boxes[images], (4, 6), (2, 3), matmul=matmul
        )

    alone = tf.concat([pool(slice(0, 1)), pool(slice(1, 2))], axis=0)
    np.testing.assert_allclose(pool(slice(None)), alone, rtol=1e-5, atol=1e-6)


def test_a_box_is_cropped_from_the_level_of_its_size():
    """A box of 224 x 224 pixels has the second coarsest level; half the side, the next finer."""
    sides = [0.0, 27.0, 56.0, 112.0, 223.0, 224.0, 448.0, 5000.0]
    boxes = tf.constant([[[0.0, 0.0, side, side] for side in sides]])
    levels = roi.levels_of_boxes(boxes, 5)
    assert levels.numpy().tolist() == [[0, 0, 1, 2, 2, 3, 4, 4]]


@pytest.mark.parametrize("matmul", [False, True])
def test_crops_of_levels_are_those_of_their_maps(matmul):
    random = np.random.default_rng(0)
    maps = [tf.constant(random.normal(size=(2, side, side + 2, 3)), tf.float32) for side in (8, 4)]
    corners = random.uniform(0.0, 0.5, (2, 3, 2))
    boxes = tf.constant(np.concatenate([corners, corners + 0.4], axis=2), tf.float32)
    levels = tf.constant([[0, 1, 1], [1, 0, 0]])
    crops = roi.crop_levels(maps, boxes, levels, (5, 5), matmul=matmul)
    for row, level in enumerate(levels.numpy().ravel()):
        expected = roi.crop_regions(maps[level], boxes, (5, 5), matmul=matmul)[row]
        np.testing.assert_allclose(crops[row], expected, atol=1e-5)
