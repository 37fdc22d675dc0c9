from __future__ import annotations

from typing import Dict

import numpy as np
import pytest

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets import nasnet
from estimator_det.nets.normalization import BATCH_NORMS
from tests.graphs import shapes
from tests.nets.variables import crc32, variable_lines

TINY = nasnet.NasNet(nasnet.PNASNET_CELL, num_cells=3, depth=8, stem_depth=6, keep_paths=0.6)
SIMPLE_CELL = nasnet.Cell(
    (
        (nasnet.CellStep("separable", 3, 1), nasnet.CellStep("avg_pool", 3, 0)),
        (nasnet.CellStep("max_pool", 3, 2), nasnet.CellStep("identity", 1, 0)),
    ),
    outputs=(2, 3),
)
SIMPLE = TINY._replace(cell=SIMPLE_CELL)
HALVED = SIMPLE._replace(num_cells=6, halving_cell=SIMPLE_CELL._replace(outputs=(3,)))


def build(images: tf.Tensor, network: nasnet.NasNet = TINY, **options):
    with nasnet.arg_scope(), slim.arg_scope(list(BATCH_NORMS), is_training=False):
        return nasnet.searched_network(images, network, **options)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_large_pnasnet_has_the_published_size():
    """86,057,668 parameters with a classifier of 1,000 classes, which is not built here."""
    bare = {"weights_initializer": tf1.zeros_initializer(), "weights_regularizer": None}
    with tf.Graph().as_default() as graph:
        with nasnet.arg_scope(), slim.arg_scope([slim.conv2d, slim.separable_conv2d], **bare):
            images = tf.zeros([1, 331, 331, 3])
            end_points = nasnet.searched_network(images, nasnet.PNASNET_LARGE)
        parameters = sum(v.shape.num_elements() for v in tf1.trainable_variables())
        lines = variable_lines(graph)
    assert parameters == 86057668 - 4321 * 1000
    assert (len(lines), crc32(lines)) == (1177, 1002280089)
    expected = {"Stem": [42, 42, 540], "Cell_3": [42, 42, 1080], "Cell_7": [21, 21, 2160]}
    assert {name: end_points[name].shape.as_list()[1:] for name in expected} == expected


@pytest.fixture(scope="module")
def halved() -> Dict[str, tf.Tensor]:
    """Activations of a network with a cell for halving, in a graph of their own."""
    with tf.Graph().as_default():
        return build(tf.random.stateless_normal([1, 65, 97, 3], [1, 2]), HALVED)


def test_two_parts_make_the_whole(halved):
    with halved["Stem"].graph.as_default(), tf1.Session() as session:
        with (
            tf1.variable_scope(tf1.get_variable_scope(), reuse=True),
            nasnet.arg_scope(),
            slim.arg_scope(list(BATCH_NORMS), is_training=False),
        ):
            previous, last = halved["Cell_2"], halved["Cell_3"]
            rest = nasnet.rest_of_network(previous, last, HALVED, after="Cell_3")
        session.run(tf1.global_variables_initializer())
        found, expected = session.run([rest, tf.nn.relu(halved["Cell_5"])])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(found).max() > 0


def test_cells_and_their_variables():
    with tf.Graph().as_default():
        build(tf.zeros([1, 65, 97, 3]))
        # What comes before the first stem cell stays as it is, so its pooling needs a projection.
        first = shapes("cell_stem_0/comb_iter_0/")
        assert first["cell_stem_0/comb_iter_0/right/1x1/weights"] == [1, 1, 6, 2]
        assert first["cell_stem_0/comb_iter_0/right/bn_1/moving_mean"] == [2]
        assert not shapes("cell_stem_0/prev")
        # The second looks back at twice its resolution, ...
        assert shapes("cell_stem_1/path1_conv") == {"cell_stem_1/path1_conv/weights": [1, 1, 6, 2]}
        assert "cell_stem_1/final_path_bn/beta" in shapes()
        # ... cell 1 at its own.
        assert shapes("cell_1/prev_1x1") == {"cell_1/prev_1x1/weights": [1, 1, 20, 16]}
        assert "cell_1/prev_bn/beta" in shapes()
        # The identity becomes a projection where the cell halves the resolution.
        assert shapes("cell_0/comb_iter_4/right") == {}
        assert "cell_1/comb_iter_4/right/1x1/weights" in shapes()
        assert not shapes("biases")
        kernels = [name for name in shapes() if name.endswith("weights")]
        assert len(tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)) == len(kernels)


def test_halving_keeps_even_and_odd_pixels():
    image = np.arange(15.0, dtype=np.float32).reshape(1, 3, 5, 1)
    with tf.Graph().as_default(), tf1.Session() as session:
        ones = {"weights_initializer": tf1.ones_initializer(), "activation_fn": None}
        norms = {"is_training": False, "epsilon": 0.0}
        with slim.arg_scope([slim.conv2d], **ones), slim.arg_scope(list(BATCH_NORMS), **norms):
            halved = nasnet._halve(tf.constant(image), 2)
        session.run(tf1.global_variables_initializer())
        even, odd = np.moveaxis(session.run(halved)[0], -1, 0)
    np.testing.assert_array_equal(even, [[0, 2, 4], [10, 12, 14]])
    np.testing.assert_array_equal(odd, [[6, 8, 0], [0, 0, 0]])


def test_paths_drop_more_as_training_goes_on():
    with tf.Graph().as_default(), tf1.Session() as session:
        progress = tf1.placeholder(tf.float32, [])
        kept = [nasnet._kept_paths(TINY, number, progress) for number in (0, 4)]
        # Of five cells, the last drops 0.4 at the end of training, the first a fifth of it.
        np.testing.assert_allclose(session.run(kept, {progress: 0.0}), [1.0, 1.0])
        np.testing.assert_allclose(session.run(kept, {progress: 0.5}), [0.96, 0.8], rtol=1e-6)
        np.testing.assert_allclose(session.run(kept, {progress: 1.0}), [0.92, 0.6], rtol=1e-6)


def test_a_dropped_path_is_zero_and_the_others_make_up_for_it():
    tf.random.set_seed(3)
    dropped = nasnet._drop_paths(tf.ones([1000, 1, 2, 1]), tf.constant(0.8)).numpy()[:, 0, :, 0]
    np.testing.assert_array_equal(dropped[:, 0], dropped[:, 1])
    assert set(np.unique(dropped)) == {np.float32(0.0), np.float32(1.25)}
    assert dropped.mean() == pytest.approx(1.0, abs=0.1)
