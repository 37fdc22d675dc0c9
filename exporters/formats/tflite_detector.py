"""Runs TFLite models of SSDs: resizes and normalizes images, and names the outputs."""

from __future__ import annotations

from typing import Dict

import numpy as np

from estimator_det.boxes.coders import CenterSizeCoder
from estimator_det.compat import tf, tf1
from estimator_det.config import files
from exporters.formats.check import RAW_BOXES, RAW_SCORES
from exporters.formats.tflite_metadata import Normalization, pack, read_normalization
from exporters.formats.tflite_reader import (
    DAMAGE,
    POSTPROCESS,
    attached_labels,
    corners,
    find_postprocess,
    postprocess_options,
    unpack,
)
from exporters.importing.published import damaged
from exporters.loaded_model import BOXES, CLASSES, NUM, SCORES, LoadedModel
from inputs.serving import COLOR_CHANNELS
from model_fn.checkpoints.errors import RunError
from model_fn.serving.graph import CLASS_OFFSET

# Normalization of SSD MobileNets, which published files without metadata mostly are.
_USUAL = Normalization((127.5,) * COLOR_CHANNELS, (127.5,) * COLOR_CHANNELS)


class TfliteDetector(LoadedModel):
    """A TFLite model that ends in POSTPROCESS, of this trainer or another.

    Images are resized with TensorFlow 1's bilinear rule. Normalization and class names are those of
    the metadata; without, pixels become -1 to 1.

    Args:
        keeps_raw: `run` also returns raw predictions, at the cost of memory.
    """

    def __init__(self, path: str, keeps_raw: bool = False) -> None:
        content = files.read_bytes(path)
        try:
            model = unpack(content)
            postprocess = find_postprocess(model)
            names, normalization = attached_labels(content), read_normalization(model)
            # TFLite follows the offsets in a file without a check; those packed here are right.
            interpreter = tf.lite.Interpreter(
                model_content=pack(model), experimental_preserve_all_tensors=keeps_raw
            )
            interpreter.allocate_tensors()
        except (*DAMAGE, RuntimeError) as error:
            raise damaged(
                f"{path} is damaged, cut off, or has operations that TFLite here does not: "
                f"{str(error).splitlines()[0]}"
            ) from error
        if postprocess is None:
            raise RunError(
                f"{path} is not an exported detector: it has no operation {POSTPROCESS}; export it "
                "with --add_postprocessing_op true"
            )
        inputs = interpreter.get_input_details()
        if len(inputs) != 1 or len(inputs[0]["shape"]) != 4 or inputs[0]["shape"][0] != 1:
            shapes = [each["shape"].tolist() for each in inputs]
            raise RunError(
                f"{path} is not a detector of color images: its inputs have shapes {shapes}, and "
                "must be one image, [1, height, width, 3]"
            )
        super().__init__(path, names or None)
        self.batch_size = 1
        self._normalization = normalization or _USUAL
        self._interpreter, self._input = interpreter, inputs[0]
        self._postprocess, self._keeps_raw = postprocess, keeps_raw

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        self._interpreter.set_tensor(self._input["index"], self._as_input(images))
        try:
            self._interpreter.invoke()
        except RuntimeError as error:
            reason = str(error).split("\n")[0]
            raise damaged(f"{self.path} is damaged: it fails: {reason}") from error
        boxes, classes, scores, number = map(self._value, self._postprocess.outputs)
        # The operation fills its outputs up to the number only.
        valid = np.arange(scores.shape[1])[None] < number.reshape(-1, 1)
        outputs = {
            NUM: number.reshape(-1),
            BOXES: np.where(valid[..., None], boxes, 0),
            SCORES: np.where(valid, scores, 0),
            CLASSES: np.where(valid, classes + CLASS_OFFSET, 0),
        }
        return {**outputs, **self._raw()} if self._keeps_raw else outputs

    def _raw(self) -> Dict[str, np.ndarray]:
        encodings, scores, anchors = map(self._value, self._postprocess.inputs)
        options = postprocess_options(self._postprocess)
        scales = (float(options[name]) for name in ("y_scale", "x_scale", "h_scale", "w_scale"))
        boxes = CenterSizeCoder(*scales).decode(encodings, tf.constant(corners(anchors))).boxes
        return {RAW_SCORES: scores, RAW_BOXES: boxes.numpy()}

    def _value(self, index: int) -> np.ndarray:
        """A tensor as float32."""
        values = self._interpreter.get_tensor(index)
        if values.dtype == np.float32:
            return values
        scale, zero = self._interpreter._get_tensor_details(index, 0)["quantization"]
        return ((values.astype(np.float32) - zero) * scale).astype(np.float32)

    def _as_input(self, images: np.ndarray) -> np.ndarray:
        """[1, height, width, 3] of the model's type."""
        height, width = self._input["shape"][1:3]
        resized = tf1.image.resize(images.astype(np.float32), [height, width]).numpy()
        values = (resized - self._normalization.mean) / self._normalization.std
        dtype = self._input["dtype"]
        if dtype == np.float32:
            return values.astype(np.float32)
        scale, zero = self._input["quantization"]
        limits = np.iinfo(dtype)
        return np.clip(np.round(values / scale + zero), limits.min, limits.max).astype(dtype)
