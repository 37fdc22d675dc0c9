"""A loaded model of any format, which runs on batches of images."""

from __future__ import annotations

import abc
import os
from typing import Any, Callable, Dict, Mapping, Optional, Tuple

import numpy as np
from PIL import Image

from estimator_det.compat import tf
from inputs.label_map import read_label_map
from inputs.serving import COLOR_CHANNELS
from model_fn.checkpoints.errors import RunError

NUM, BOXES, SCORES, CLASSES, MASKS = (
    "num_detections",
    "detection_boxes",
    "detection_scores",
    "detection_classes",
    "detection_masks",
)
REQUIRED_OUTPUTS = (NUM, BOXES, SCORES, CLASSES)
SAVED_MODEL_FOLDER = "saved_model"  # in an export
OUTPUT_PREFIXES = ("detection_", NUM, "raw_detection_")  # names of operations in served models


class LoadedModel(abc.ABC):
    """A loaded model.

    Attributes:
        path: The file or folder of the model.
        class_names: Id -> name of its label map; empty without one.
        batch_size: The only number of images that `run` takes; None for any.
        image_size: The only height and width that `run` takes; None for any.
        thresholds_file: Path of the thresholds of its evaluation, which may not exist.
    """

    def __init__(
        self,
        path: str,
        class_names: Mapping[int, str],
        thresholds_file: str,
        batch_size: Optional[int] = None,
    ) -> None:
        self.path = path
        self.class_names = dict(class_names)
        self.batch_size = batch_size
        self.image_size: Tuple[Optional[int], Optional[int]] = (None, None)
        self.thresholds_file = thresholds_file

    def take_input(self, shape: Any, remedy: str) -> None:
        """Reads batch and image size from the shape of a model's only input.

        Args:
            remedy: What to do with a model of other images; ends its error.

        Raises:
            RunError: if images of a file do not fit.
        """
        if shape.rank and shape[0] not in (None, 1):
            raise RunError(
                f"{self.path} takes batches of {shape[0]} images only, and detect runs one image "
                "at a time; export it again with batch size -1 or 1"
            )
        if shape.rank == 4 and shape[3] not in (None, COLOR_CHANNELS):
            raise RunError(
                f"{self.path} takes images of {shape[3]} channels, and detect reads files of red, "
                f"green and blue only; {remedy}"
            )
        if shape.rank == 4:
            self.image_size = (shape[1], shape[2])
        # A scalar input is one serialized example, as of the Estimator's exports.
        self.batch_size = 1 if shape.rank == 0 or (shape.rank and shape[0] == 1) else None

    @abc.abstractmethod
    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        """Runs the model on images of one size, uint8 [B, h, w, 3] RGB.

        Returns:
            The arrays of the model under the names of `Detections.to_dict`, at least
            REQUIRED_OUTPUTS; float32, class ids from 1, boxes as fractions of the image.
        """

    def fitted(self, pixels: np.ndarray) -> np.ndarray:
        """An image, uint8 [h, w, 3], resized if the model takes one height or width only."""
        height, width = (wanted or size for wanted, size in zip(self.image_size, pixels.shape[:2]))
        if (height, width) == pixels.shape[:2]:
            return pixels
        return np.asarray(Image.fromarray(pixels).resize((width, height)))

    def name(self, class_id: int) -> str:
        """The name of a class in the label map; its id as text if it has none."""
        return self.class_names.get(int(class_id), str(int(class_id)))


def asset_class_names(saved_model_dir: str) -> Dict[int, str]:
    """Class names of the label map among the assets of a SavedModel; empty without one."""
    assets = os.path.join(saved_model_dir, "assets")
    if not tf.io.gfile.isdir(assets):
        return {}
    maps = sorted(name for name in tf.io.gfile.listdir(assets) if name.endswith(".pbtxt"))
    return dict(read_label_map(os.path.join(assets, maps[0])).names) if maps else {}


def image_feed(name: str, dtype: Any, rank: Optional[int]) -> Callable[[np.ndarray], np.ndarray]:
    """A function from images, uint8 [B, h, w, 3], to the value of a model's input.

    Args:
        name: Of the placeholder: files and examples are both strings.
        rank: 0 for models that take one serialized example.
    """
    if dtype in (tf.uint8, tf.float32):
        return lambda images: images.astype(dtype.as_numpy_dtype)
    if rank == 0:
        return lambda images: np.array(_as_example(images[0]), object)
    encode = _as_png if name.startswith("encoded_image_string_tensor") else _as_example
    return lambda images: np.array([encode(pixels) for pixels in images], object)


def _as_png(pixels: np.ndarray) -> bytes:
    return bytes(tf.io.encode_png(pixels).numpy())


def _as_example(pixels: np.ndarray) -> bytes:
    encoded = tf.train.Feature(bytes_list=tf.train.BytesList(value=[_as_png(pixels)]))
    features = tf.train.Features(feature={"image/encoded": encoded})
    return tf.train.Example(features=features).SerializeToString()
