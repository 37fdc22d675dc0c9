import numpy as np
import pytest

from estimator_det.compat import slim, tf, tf1
from estimator_det.nets import mobiledet
from estimator_det.nets.mobiledet import MobileDetLayer as Layer
from estimator_det.nets.normalization import BATCH_NORMS


def test_initializers():
    tf.random.set_seed(3)
    whole = np.std(mobiledet.he_normal([3, 3, 64, 64]))
    assert whole == pytest.approx(np.sqrt(2 / (9 * 64)), rel=0.02)
    depthwise = np.std(mobiledet.he_depthwise(5)([5, 5, 512, 1]))
    assert depthwise == pytest.approx(np.sqrt(2 / 25), rel=0.02)


@pytest.mark.parametrize(
    ("layer", "widths"),
    [
        (Layer("IBN", 16, 5, expansion=3), [[1, 1, 16, 48], [5, 5, 48, 1], [1, 1, 48, 16]]),
        (Layer("FusedConv", 16, expansion=4), [[3, 3, 16, 64], [1, 1, 64, 16]]),
        (Layer("TuckerConv", 16, ranks=(0.5, 1.5)), [[1, 1, 16, 8], [3, 3, 8, 24], [1, 1, 24, 16]]),
        (Layer("IBNNoExpansion", 16), [[3, 3, 16, 1], [1, 1, 16, 16]]),
    ],
)
def test_a_layer_adds_its_input(layer, widths):
    pixels = np.random.default_rng(0).normal(size=(2, 4, 5, 16)).astype(np.float32)
    for skip in (True, False):
        network = mobiledet.MobileDet(16, ((layer._replace(skip=skip),),))
        with tf.Graph().as_default(), slim.arg_scope(list(BATCH_NORMS), is_training=False):
            with tf1.variable_scope("L"), mobiledet._arg_scope():
                row = network.stages[0][0]
                found = mobiledet._apply(tf.constant(pixels), row, 16, tf.nn.relu6, False)
            kernels = [v for v in tf1.trainable_variables() if v.op.name.endswith("weights")]
            assert [v.shape.as_list() for v in kernels] == widths
            with tf1.Session() as session:
                session.run(tf1.global_variables_initializer())
                session.run(kernels[-1].assign(tf.zeros_like(kernels[-1])))
                # A projection of zeros leaves the input, or nothing.
                np.testing.assert_allclose(session.run(found), pixels * skip, atol=1e-6)
