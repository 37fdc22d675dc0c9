"""Pictures of training batches for TensorBoard, as the network sees them."""

from __future__ import annotations

import io
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
from PIL import Image

from estimator_det.compat import tf, tf1
from estimator_det.detectors.base import Groundtruth
from inputs import schema
from inputs.label_map import read_label_map
from model_fn.drawing import batch_grid
from model_fn.drawing.boxes import DrawOptions, draw_boxes

TAG = "Training_Inputs"
MAX_PICTURES = 3


def summary(
    features: Dict[str, tf.Tensor],
    groundtruth: Groundtruth,
    preprocess: Callable[[tf.Tensor], Any],
    reader: Any,
) -> tf.Tensor:
    """The first images of the batch with their groundtruth, as a serialized Summary.

    Augmented, resized and padded; only pixel values are converted back to colours. They are drawn
    in the steps that write summaries alone, with the names in the label map of the `reader`.
    """
    path = reader.label_map_path
    names = read_label_map(path).names if path else {}
    painter = _ImageGrid(preprocess, names)
    fields = [features[schema.IMAGE], groundtruth.boxes, groundtruth.classes, groundtruth.valid]
    pictures = tf.numpy_function(
        painter.paint, [field[:MAX_PICTURES] for field in fields], tf.string, name=TAG
    )
    return tf.ensure_shape(pictures, [])


class _ImageGrid:
    def __init__(self, preprocess: Callable[[tf.Tensor], Any], names: Dict[int, str]) -> None:
        self._preprocess = preprocess
        self._names = names
        self._to_pixels: Dict[int, Any] = {}  # by number of channels

    def paint(
        self, images: np.ndarray, boxes: np.ndarray, classes: np.ndarray, valid: np.ndarray
    ) -> bytes:
        """A serialized Summary with a picture of each image."""
        summary = tf1.Summary()
        for i, pixels in enumerate(self._pixels(images)):
            ids, labels = self._labels(classes[i][valid[i]])
            picture = draw_boxes(
                pixels,
                boxes[i][valid[i]],
                labels,
                colors=ids,
                options=DrawOptions(max_boxes=len(ids)),
            )
            buffer = io.BytesIO()
            # Quick rather than small: the step waits for it.
            Image.fromarray(picture).save(buffer, format="PNG", compress_level=1)
            image = tf1.Summary.Image(
                height=picture.shape[0],
                width=picture.shape[1],
                colorspace=3,
                encoded_image_string=buffer.getvalue(),
            )
            summary.value.add(tag=f"{TAG}/{i}", image=image)
        return summary.SerializeToString()

    def _pixels(self, images: np.ndarray) -> List[np.ndarray]:
        channels = images.shape[3]
        if channels not in self._to_pixels:
            # Here, not while the graph is built: it runs the preprocessing.
            self._to_pixels[channels], _ = batch_grid.fit_pixels(self._preprocess, channels)
        # Values that are not finite cannot be shown; the report of a bad step names them.
        finite = np.nan_to_num(images.astype(np.float32), posinf=0.0, neginf=0.0)
        return [self._to_pixels[channels](image) for image in finite]

    def _labels(self, classes: np.ndarray) -> Tuple[List[int], List[str]]:
        """[n, K] -> an id and a text for each box; several classes stand side by side."""
        all_ids = [[int(k) + 1 for k in np.flatnonzero(row)] for row in classes]
        texts = ["+".join(self._names.get(k, str(k)) for k in ids) for ids in all_ids]
        return [ids[0] if ids else 0 for ids in all_ids], texts
