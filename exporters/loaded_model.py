"""A loaded model of any format, which runs on batches of images."""

from __future__ import annotations

import abc
import contextlib
import functools
import os
from types import MappingProxyType
from typing import (
    Any,
    ContextManager,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np
from PIL import Image

from estimator_det import files
from estimator_det.compat import tf
from estimator_det.config import pipeline
from estimator_det.errors import RunError
from inputs.datasets.writer import encode_image
from inputs.label_map import read_label_map
from inputs.serving import COLOR_CHANNELS
from model_fn.drawing.boxes import Edges, keypoint_edges
from model_fn.evaluation import score_thresholds

NUM, BOXES, SCORES, CLASSES, MASKS = (
    "num_detections",
    "detection_boxes",
    "detection_scores",
    "detection_classes",
    "detection_masks",
)
KEYPOINTS, KEYPOINT_SCORES = "detection_keypoints", "detection_keypoint_scores"
REQUIRED_OUTPUTS = (NUM, BOXES, SCORES, CLASSES)
SAVED_MODEL_FOLDER = "saved_model"  # in an export
LABEL_MAP_FILE = "label_map.pbtxt"  # beside formats that cannot contain one
THRESHOLDS_FILE = "thresholds.json"
OUTPUT_PREFIXES = ("detection_", NUM, "raw_detection_")  # names of operations in served models


class Skeleton(NamedTuple):
    """Keypoints that a model finds."""

    # By id of the class and index; empty without a label map.
    names: Mapping[int, Mapping[int, str]] = MappingProxyType({})
    edges: Edges = ()

    def name(self, class_id: int, i: int) -> str:
        """The name of a keypoint of a class; its index as text if it has none."""
        return self.names.get(class_id, {}).get(i, str(i))

    def names_of(self, class_id: int, count: int) -> List[str]:
        """Names of the keypoints of a class, by index; `count` if the label map lists none."""
        length = 1 + max(self.names.get(class_id, ()), default=count - 1)
        return [self.name(class_id, i) for i in range(min(length, count))]


NO_SKELETON = Skeleton()


class LoadedModel(abc.ABC):
    """A loaded model.

    Attributes:
        path: The file or folder of the model.
        class_names: Id -> name, by default from the label map of its export; empty without one.
        batch_size: The only number of images that `run` takes; None for any.
        image_size: The only height and width that `run` takes; None for any.
        turn: Held during `run`: the lock of a model that runs in one thread at a time.
        thresholds_file: Path of the thresholds of its evaluation, which may not exist.
    """

    def __init__(
        self,
        path: str,
        class_names: Optional[Mapping[int, str]] = None,
        thresholds_file: Optional[str] = None,
    ) -> None:
        self.path = path
        if class_names is None:
            class_names = read_class_names(label_map_of(parent_folder(path)))
        self.class_names = dict(class_names)
        self.batch_size: Optional[int] = None
        self.image_size: Tuple[Optional[int], Optional[int]] = (None, None)
        self.turn: ContextManager[Any] = contextlib.nullcontext()
        self.thresholds_file = (
            thresholds_beside(path) if thresholds_file is None else thresholds_file
        )

    @functools.cached_property
    def skeleton(self) -> Skeleton:
        """Keypoints of the label map of the export, and the edges of its `pipeline.config`."""
        folder = parent_folder(self.path)
        label_map, config = label_map_of(folder), os.path.join(folder, pipeline.PIPELINE_FILE)
        classes = {} if label_map is None else read_label_map(label_map).keypoints
        edges: Edges = ()
        if tf.io.gfile.exists(config):
            edges = keypoint_edges(pipeline.read_pipeline(config).eval_config)
        names = {each: {i: name for name, i in ids.items()} for each, ids in classes.items()}
        return Skeleton(names, edges)

    def refuse_unless(
        self, takes_images: bool, inputs: Iterable[str], outputs: Iterable[str]
    ) -> None:
        """Raises RunError for a model that is not a detector, with the names of its tensors."""
        names = sorted(outputs)
        if not takes_images or not set(REQUIRED_OUTPUTS) <= set(names):
            raise RunError(
                f"{self.path} is not an exported detector: it has the inputs {sorted(inputs)} and "
                f"the outputs {names}, and a detector takes images and has at least the outputs "
                f"{sorted(REQUIRED_OUTPUTS)}. Give the model of an export"
            )

    def refuse_channels(self, channels: Optional[int], remedy: str) -> None:
        """Raises RunError, which ends in the remedy, unless a model takes color images."""
        if channels not in (None, COLOR_CHANNELS):
            raise RunError(
                f"{self.path} takes images of {channels} channels, and detect reads files of red, "
                f"green and blue only; {remedy}"
            )

    def take_input(self, shape: Any, remedy: str) -> None:
        """Reads batch and image size from the shape of a model's only input.

        Raises RunError, which ends in the remedy, if images of files do not fit.
        """
        if shape.rank and shape[0] not in (None, 1):
            raise RunError(
                f"{self.path} takes batches of {shape[0]} images only, and detect runs one image "
                "at a time; export it again with batch size -1 or 1"
            )
        if shape.rank == 4:
            self.refuse_channels(shape[3], remedy)
            self.image_size = (shape[1], shape[2])
        # A scalar input is one serialized example, as of the Estimator's exports.
        self.batch_size = 1 if shape.rank == 0 or (shape.rank and shape[0] == 1) else None

    @abc.abstractmethod
    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        """Runs the model on images of one size, uint8 [B, h, w, 3] RGB.

        Returns:
            The arrays of the model under the names of `Detections.to_dict`, at least
            REQUIRED_OUTPUTS; float32, class ids from 1, boxes as fractions of the image.

        Raises:
            tf.errors.OpError: if the model cannot use images of this size; others may work.
        """

    def name(self, class_id: int) -> str:
        """The name of a class in the label map; its id as text if it has none."""
        return self.class_names.get(int(class_id), str(int(class_id)))


def resized(pixels: np.ndarray, size: Sequence[Optional[int]]) -> np.ndarray:
    """An image, uint8 [h, w, 3], with another height and width where these are not None."""
    height, width = (wanted or actual for wanted, actual in zip(size, pixels.shape))
    if (height, width) == pixels.shape[:2]:
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((width, height)))


def parent_folder(path: str) -> str:
    """The folder that contains a file or folder."""
    return os.path.dirname(path.rstrip("/") if files.is_remote(path) else os.path.abspath(path))


def label_map_of(folder: str) -> Optional[str]:
    """Path of the label map of an export, which may be in its SavedModel only."""
    label_map = os.path.join(folder, LABEL_MAP_FILE)
    if tf.io.gfile.exists(label_map):
        return label_map
    return asset_label_map(os.path.join(folder, SAVED_MODEL_FOLDER))


def asset_label_map(saved_model_dir: str) -> Optional[str]:
    """Path of the label map among the assets of a SavedModel."""
    assets = os.path.join(saved_model_dir, "assets")
    names = tf.io.gfile.listdir(assets) if tf.io.gfile.isdir(assets) else []
    return min(
        (os.path.join(assets, each) for each in names if each.endswith(".pbtxt")), default=None
    )


def thresholds_beside(path: str) -> str:
    """Path of the thresholds of the export that a file or folder belongs to."""
    folder = parent_folder(path)
    inside = os.path.join(folder, SAVED_MODEL_FOLDER, score_thresholds.IN_EXPORTS)
    beside = os.path.join(folder, THRESHOLDS_FILE)
    return inside if tf.io.gfile.exists(inside) and not tf.io.gfile.exists(beside) else beside


def read_class_names(label_map: Optional[str]) -> Dict[int, str]:
    """Id -> name of a label map; empty without one."""
    return {} if label_map is None else dict(read_label_map(label_map).names)


def image_feed(placeholder: tf.Tensor, images: np.ndarray) -> np.ndarray:
    """The value of a model's input for images, uint8 [B, h, w, 3]."""
    if placeholder.dtype in (tf.uint8, tf.float32):
        return images.astype(placeholder.dtype.as_numpy_dtype, copy=False)
    if placeholder.shape.rank == 0:  # one serialized example
        return np.array(_as_example(images[0]), object)
    # Files and examples are both strings, so that the name decides.
    if placeholder.name.startswith("encoded_image_string_tensor"):
        return np.array([encode_image(each, "png") for each in images], object)
    return np.array([_as_example(each) for each in images], object)


def _as_example(pixels: np.ndarray) -> bytes:
    encoded = tf.train.Feature(bytes_list=tf.train.BytesList(value=[encode_image(pixels, "png")]))
    features = tf.train.Features(feature={"image/encoded": encoded})
    return tf.train.Example(features=features).SerializeToString()
