"""Pictures of training batches for TensorBoard, as the network sees them."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, Optional

import numpy as np

from estimator_det.compat import tf
from estimator_det.detectors.base import Groundtruth
from inputs import schema
from inputs.label_map import LabelMap
from model_fn.drawing import batch_grid
from model_fn.drawing.boxes import draw_boxes, jpeg, picture_summary

TAG = "Training_Inputs"
MAX_PICTURES = 3


def summary(
    features: Dict[str, tf.Tensor],
    groundtruth: Groundtruth,
    preprocess: Callable[[tf.Tensor], Any],
    label_map: Optional[LabelMap],
) -> tf.Tensor:
    """The first images of the batch with their groundtruth, as a serialized Summary.

    Augmented, resized and padded; only pixel values are converted back to colours. Pictures are
    drawn only in steps that write summaries, with the names in the label map.
    """
    names = label_map.names if label_map else {}

    # When a picture is drawn, not while the graph is built: it runs the preprocessing.
    @functools.cache
    def fitted(num_channels: int) -> batch_grid.ToPixels:
        return batch_grid.fit_pixels(preprocess, num_channels)[0]

    def paint(
        images: np.ndarray, boxes: np.ndarray, classes: np.ndarray, valid: np.ndarray
    ) -> bytes:
        jpegs = {}
        # Values that are not finite cannot be shown; the report of a bad step names them.
        finite = np.nan_to_num(images.astype(np.float32), posinf=0.0, neginf=0.0)
        for i, image in enumerate(finite):
            ids, labels = batch_grid.class_texts(classes[i][valid[i]], names)
            picture = draw_boxes(
                fitted(image.shape[2])(image),
                boxes[i][valid[i]],
                labels,
                colors=ids,
            )
            jpegs[f"{TAG}/{i}"] = jpeg(picture)
        return picture_summary(jpegs)

    fields = [features[schema.IMAGE], groundtruth.boxes, groundtruth.classes, groundtruth.valid]
    pictures = tf.numpy_function(
        paint, [field[:MAX_PICTURES] for field in fields], tf.string, name=TAG
    )
    return tf.ensure_shape(pictures, [])
