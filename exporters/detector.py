"""A loaded model that detects objects, whatever its format."""

from __future__ import annotations

import abc
import os
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np
from PIL import Image

from estimator_det.compat import tf
from estimator_det.config.printing import plain
from inputs.label_map import read_label_map
from model_fn.checkpoints.errors import RunError
from model_fn.evaluation import threshold_files

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


class ClassThresholds(NamedTuple):
    """The lowest score of a detection that is kept, by class."""

    default: float  # for classes that `per_class` lacks
    per_class: Mapping[int, float]

    def of(self, class_ids: np.ndarray) -> np.ndarray:
        """float32 [n], for class ids [n]."""
        return np.array([self.per_class.get(int(k), self.default) for k in class_ids], np.float32)


class ImageDetections(NamedTuple):
    """The detections of one image by falling score, without padding."""

    boxes: np.ndarray  # float32 [n, 4], ymin, xmin, ymax, xmax as fractions of the image
    scores: np.ndarray  # float32 [n]
    class_ids: np.ndarray  # int64 [n], ids of the label map, from 1
    masks: Optional[np.ndarray] = None  # float32 [n, h, w], each fills its box; if the model has it


class ModelDetector(abc.ABC):
    """A loaded model.

    Attributes:
        path: The file or folder of the model.
        class_names: Id -> name of its label map; empty without one.
        batch_size: The only number of images that `run` takes; None for any.
        image_size: The only height and width that `run` takes; None for any.
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
        self._thresholds_file = thresholds_file

    @abc.abstractmethod
    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        """Runs the model on images of one size, uint8 [B, h, w, 3] RGB.

        Returns:
            The arrays of the model under the names of `Detections.to_dict`, at least
            REQUIRED_OUTPUTS; float32, class ids from 1, boxes as fractions of the image.
        """

    def detect(self, pixels: np.ndarray) -> ImageDetections:
        """Detects on one image, uint8 [h, w, 3] RGB, of any size."""
        return self.detect_batch(self.fitted(pixels)[None])[0]

    def fitted(self, pixels: np.ndarray) -> np.ndarray:
        """An image, uint8 [h, w, 3], resized if the model takes one height or width only."""
        height, width = (wanted or size for wanted, size in zip(self.image_size, pixels.shape[:2]))
        if (height, width) == pixels.shape[:2]:
            return pixels
        return np.asarray(Image.fromarray(pixels).resize((width, height)))

    def detect_batch(self, images: np.ndarray) -> List[ImageDetections]:
        """Detects on images of one size, uint8 [B, h, w, 3] RGB."""
        outputs = self.run(images)
        counts = outputs[NUM].astype(np.int64)
        return [
            ImageDetections(
                boxes=outputs[BOXES][i, :count],
                scores=outputs[SCORES][i, :count],
                class_ids=outputs[CLASSES][i, :count].astype(np.int64),
                masks=outputs[MASKS][i, :count] if MASKS in outputs else None,
            )
            for i, count in enumerate(counts)
        ]

    def name(self, class_id: int) -> str:
        """The name of a class in the label map; its id as text if it has none."""
        return self.class_names.get(int(class_id), str(int(class_id)))

    def best_thresholds(self) -> ClassThresholds:
        """The thresholds of the best F1; classes without one get that of all classes together."""
        path = self._thresholds_file
        if not tf.io.gfile.exists(path):
            raise RunError(
                f"{plain(self.path)} has no thresholds: there is no "
                f"{plain(path.removeprefix(f'{self.path}/'))}; evaluate the checkpoint "
                "(estimator-det evaluate --checkpoint_dir RUN), then export it again, or give "
                "--threshold a number"
            )
        table = threshold_files.read(path).table
        if table.all_classes.threshold is None:
            raise RunError(
                f"{plain(path)}: no threshold is best, since the evaluation had no correct "
                "detection; train longer, or give --threshold a number"
            )
        return ClassThresholds(table.all_classes.threshold, table.per_class())


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
