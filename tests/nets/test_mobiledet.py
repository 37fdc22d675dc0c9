import numpy as np
import pytest

from estimator_det.compat import tf
from estimator_det.nets import mobiledet


def test_initializers():
    tf.random.set_seed(3)
    whole = np.std(mobiledet.he_normal([3, 3, 64, 64]))
    assert whole == pytest.approx(np.sqrt(2 / (9 * 64)), rel=0.02)
    depthwise = np.std(mobiledet.he_depthwise(5)([5, 5, 512, 1]))
    assert depthwise == pytest.approx(np.sqrt(2 / 25), rel=0.02)
