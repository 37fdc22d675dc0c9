"""Preprocessing of decoded pixels for a network, independent of detectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.images.resize import Resizer


@dataclass(frozen=True)
class Preprocessor:
    """Normalizes pixels, resizes, then pads with zeros; or resizes, pads and normalizes last.

    Published checkpoints expect the order of their kind of model. If pixels are normalized first,
    padding is 0 to the network; if they are normalized last, it is black.
    """

    resizer: Resizer  # resizes images to the network's size
    # Float32 pixels in 0..255 -> the pixel scale of the network, same shape.
    normalize: Callable[[tf.Tensor], tf.Tensor]
    normalizes_last: bool = False  # True if padding is normalized, too

    def __call__(self, images: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        """Preprocesses float32 [B, h, w, C], pixels in 0..255, for the network: [B, H, W, C].

        Also returns int32 [B, 3], height, width and channels of the real image inside it.
        """
        if images.dtype != tf.float32:
            raise ValueError(f"pixels must be float32 in 0..255; given: {images.dtype.name}")
        with tf1.name_scope("Preprocessor"):
            if self.normalizes_last:
                padded, true_shapes = self.resizer.resize(images)
                return self.normalize(padded), true_shapes
            return self.resizer.resize(images, pixel_map=self.normalize)
