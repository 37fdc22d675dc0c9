from __future__ import annotations

import numpy as np
import pytest

from estimator_det.compat import tf, tf1
from exporters.formats.onnx import Onnx


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [(4, 3), (1, 2)])
def test_crops_and_bicubic_images(size, tmp_path):
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
        resized = tf1.image.resize_bicubic(maps, [4 * size[0], 2 * size[1]], name="resized")
        expected = session.run([crops, resized], {maps: images})
        (tmp_path / "graph.pb").write_bytes(graph.as_graph_def().SerializeToString())
    path = str(tmp_path / "model.onnx")
    Onnx.convert(str(tmp_path / "graph.pb"), "maps", ["crops", "resized"], path)
    given = onnxruntime.InferenceSession(path).run(None, {"maps:0": images})
    np.testing.assert_allclose(given[0], expected[0], atol=1e-5)
    # TensorFlow rounds weights of pixels to a table of 1024 places.
    np.testing.assert_allclose(given[1], expected[1], atol=2e-3)
