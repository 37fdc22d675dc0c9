from __future__ import annotations

import numpy as np
import pytest

from estimator_det.boxes.heatmaps import real_pixels
from estimator_det.compat import tf, tf1
from estimator_det.images.resize import pad_to_multiple
from exporters.formats.onnx import Onnx


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [(4, 3), (1, 2)])
def test_crops_are_aligned_regions(size, tmp_path):
    pytest.importorskip("tf2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    random = np.random.default_rng(0)
    images = random.normal(size=(2, 5, 7, 3)).astype(np.float32)
    low, high = np.sort(random.uniform(size=(2, 9, 2)), axis=0)
    boxes = np.concatenate([low, high], axis=1).astype(np.float32)
    boxes[:2] = [[0, 0, 1, 1], [0.5, 0.5, 0.5, 0.5]]
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        maps = tf1.placeholder(tf.float32, [None, None, None, 3], "maps")
        crops = tf.image.crop_and_resize(maps, boxes, [0, 1] * 4 + [0], size, name="crops")
        expected = session.run(crops, {maps: images})
        (tmp_path / "graph.pb").write_bytes(graph.as_graph_def().SerializeToString())
    Onnx.convert(str(tmp_path / "graph.pb"), "maps", ["crops"], str(tmp_path / "model.onnx"))
    given = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"maps:0": images})
    np.testing.assert_allclose(given[0], expected, atol=1e-5)


def test_sizes_are_rounded_up_to_multiples(tmp_path):
    pytest.importorskip("tf2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    images = np.ones([1, 5, 8, 3], np.float32)
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        maps = tf1.placeholder(tf.float32, [None, None, None, 3], "maps")
        tf.identity(pad_to_multiple(maps, 4), name="padded")
        tf.identity(real_pixels(tf.shape(maps)[tf.newaxis, 1:], (3, 3), 4), name="real")
        expected = session.run(["padded:0", "real:0"], {maps: images})
        (tmp_path / "graph.pb").write_bytes(graph.as_graph_def().SerializeToString())
    assert expected[0].shape == (1, 8, 8, 3) and expected[1].sum() == 4
    path = str(tmp_path / "model.onnx")
    Onnx.convert(str(tmp_path / "graph.pb"), "maps", ["padded", "real"], path)
    given = onnxruntime.InferenceSession(path).run(None, {"maps:0": images})
    for one, other in zip(given, expected):
        np.testing.assert_array_equal(one, other)
