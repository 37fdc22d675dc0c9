"""Sizes of images: numbers if they are static, else tensors."""

from __future__ import annotations

from typing import Tuple, Union

from estimator_det.compat import tf

Length = Union[int, tf.Tensor]  # pixels, a number or a scalar int32 tensor


def height_and_width(tensor: tf.Tensor) -> Tuple[Length, Length]:
    """Sizes of axes 1 and 2, as numbers if both are static."""
    height, width = tensor.shape[1], tensor.shape[2]
    if height is not None and width is not None:
        return height, width
    dynamic = tf.shape(tensor)
    return dynamic[1], dynamic[2]
