"""oneDNN, which computes the convolutions of TensorFlow on CPUs."""

from __future__ import annotations

import os

import numpy as np
import tensorflow as tf

_SWITCH = "TF_SET_ONEDNN_FPMATH_MODE"
_UNROUNDED = 1 + 2**-10  # 1 in bfloat16


def round_convolutions() -> bool:
    """Lets convolutions and their gradients round float32 to bfloat16, in all of the process.

    Returns False where they do not: oneDNN reads its switch at its first convolution, and may be
    off, or the processor is without bfloat16.
    """
    before = os.environ.get(_SWITCH)
    os.environ[_SWITCH] = "BF16"
    if _is_rounding():
        return True
    if before is None:
        del os.environ[_SWITCH]
    else:
        os.environ[_SWITCH] = before
    return False


def _is_rounding() -> bool:
    """True if a small convolution returns what its operands are in bfloat16."""
    # A session of its own: devices of the eager context could not be set up any more.
    with tf.Graph().as_default():
        # A constant would be computed otherwise, and an image of the kernel's size as a product.
        image = tf.compat.v1.placeholder(tf.float32, [1, 8, 8, 16])
        result = tf.nn.conv2d(image, np.ones([3, 3, 16, 16], np.float32), 1, "VALID")
        with tf.compat.v1.Session() as session:
            result = session.run(result, {image: np.full(image.shape, _UNROUNDED)})
    return bool(result.max() == 3 * 3 * 16)
