"""Makes photo.jpg, and records its pixels as TensorFlow 2.15.1 decodes and resizes them.

`python tests/golden/photo/record.py` writes both files again. The picture has what photographs
have: gradients, an edge, texture and colour; its JPEG has subsampled chroma, as most have.
"""

from __future__ import annotations

import pathlib

import numpy as np
import tensorflow as tf
from PIL import Image

FOLDER = pathlib.Path(__file__).parent
HEIGHT, WIDTH = 72, 98  # no multiples of the JPEG blocks
SIZE = (30, 45)


def make_picture() -> np.ndarray:
    """uint8 [72, 98, 3]: sky over ground, a round thing with light and shade, and noise."""
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float64)
    sky = np.stack([120 + 0.5 * y, 160 + 0.4 * y, 235 - 0.3 * x], axis=-1)
    texture = 20 * np.sin(x / 2.3) * np.cos(y / 1.7)
    ground = np.stack([110 + texture, 90 + 0.7 * texture, 40 + 0.2 * x], axis=-1)
    picture = np.where((y > 40 + 5 * np.sin(x / 15))[..., np.newaxis], ground, sky)
    distance = np.hypot(y - 36, x - 55)
    light = np.clip(1.2 - np.hypot(y - 28, x - 48) / 30, 0.1, 1)[..., np.newaxis]
    picture = np.where((distance < 19)[..., np.newaxis], light * [250, 70, 40], picture)
    noise = np.random.default_rng(0).normal(0, 4, picture.shape)
    return np.clip(np.round(picture + noise), 0, 255).astype(np.uint8)


if __name__ == "__main__":
    path = FOLDER / "photo.jpg"
    Image.fromarray(make_picture()).save(path, quality=85, subsampling="4:2:0")
    accurate, fast = (
        tf.io.decode_jpeg(path.read_bytes(), dct_method=f"INTEGER_{method}").numpy()
        for method in ("ACCURATE", "FAST")
    )
    resized = tf.compat.v1.image.resize_bilinear(accurate[np.newaxis].astype(np.float32), SIZE)
    np.savez_compressed(
        FOLDER / "photo.npz", accurate=accurate, fast=fast, resized=resized[0].numpy()
    )
