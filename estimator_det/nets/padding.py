"""Zero padding of feature maps and images, [B, h, w, C]."""

from __future__ import annotations

from estimator_det.compat import tf
from estimator_det.images.sizes import height_and_width


def pad_for_kernel(inputs: tf.Tensor, kernel_size: int) -> tf.Tensor:
    """Pads h and w so that a VALID convolution keeps the size at stride 1.

    At stride 2, "SAME" padding depends on the input size; this does not. Some accelerators need
    that, and so do checkpoints trained with explicit padding.

    The odd row and column, if any, are at the bottom and the right.
    """
    before = (kernel_size - 1) // 2
    after = kernel_size // 2
    return tf.pad(inputs, [[0, 0], [before, after], [before, after], [0, 0]])


def pad_to_multiple(images: tf.Tensor, multiple: int) -> tf.Tensor:
    """Pads [B, h, w, C] with zeros at the bottom and right to multiples of `multiple`."""
    if multiple == 1:
        return images
    height, width = height_and_width(images)
    return tf.pad(images, [[0, 0], [0, -height % multiple], [0, -width % multiple], [0, 0]])
