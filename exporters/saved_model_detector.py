"""Loads a SavedModel as a detector, and runs a detector of any format on image files.

It needs the SavedModel only: no configuration, no checkpoint, no network access.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, Iterator, NamedTuple, Optional, Set, Tuple, Union

import numpy as np
from PIL import Image

from estimator_det.boxes.mask_regions import paste_mask, run_lengths
from estimator_det.compat import failures, tf
from estimator_det.config import json_lines
from estimator_det.images.orientation import UPRIGHT
from exporters.detector import (
    REQUIRED_OUTPUTS,
    SAVED_MODEL_FOLDER,
    ClassThresholds,
    ImageDetections,
    ModelDetector,
    asset_class_names,
    image_feed,
)
from exporters.image_files import ImageFile, read_image
from inputs import schema
from inputs.serving import COLOR_CHANNELS
from model_fn.checkpoints.errors import RunError
from model_fn.drawing.boxes import DrawOptions, draw_boxes
from model_fn.evaluation import threshold_files
from model_fn.serving.graph import SERVING_DEFAULT

DRAWING_SUFFIX = "_detections.png"
DETECTIONS_FILE = "detections.jsonl"
DEFAULT_MIN_SCORE = 0.5
SAME_OBJECT_IOU = 0.7  # detections of two classes that overlap this much are of one object


class FileResult(NamedTuple):
    """The result for one image file."""

    path: str
    detections: Optional[ImageDetections]  # None if the image cannot be used
    drawing: Optional[str]  # path of the PNG file; None if the image cannot be used
    error: Optional[str]
    reduced_by: int = 1  # factor in `image_files.ImageFile`


class SavedModelDetector(ModelDetector):
    """A loaded SavedModel.

    Args:
        model_dir: Folder of an export, its `saved_model` folder, or a folder of timestamped
            exports as an Estimator writes them (the newest is loaded).
        signature: Which of the model's signatures to run.
    """

    def __init__(self, model_dir: str, signature: str = SERVING_DEFAULT) -> None:
        folder = find_saved_model(model_dir)
        thresholds = os.path.join(folder, threshold_files.IN_EXPORTS)
        super().__init__(folder, asset_class_names(folder), thresholds)
        # The module owns the variables; a signature does not keep them alive.
        self._module = _load(folder)
        known = dict(self._module.signatures)
        if signature not in known:
            raise RunError(f"{folder} has no signature {signature!r}; it has {sorted(known)}")
        self._signature = known[signature]
        self._input_key, spec = self._find_input()
        placeholder = self._signature.inputs[0].name
        self._feed = image_feed(placeholder, spec.dtype, spec.shape.rank)
        if spec.shape.rank == 4:
            self.image_size = (spec.shape[1], spec.shape[2])
        if spec.shape.rank == 0 or spec.shape[0] == 1:  # the Estimator's exports take one example
            self.batch_size = 1

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        outputs = self._signature(**{self._input_key: tf.constant(self._feed(images))})
        return {key: value.numpy() for key, value in outputs.items()}

    def _find_input(self) -> Tuple[str, Any]:
        """The signature's input key and `TensorSpec`."""
        specs = self._signature.structured_input_signature[1]
        missing = set(REQUIRED_OUTPUTS) - set(self._signature.structured_outputs)
        if schema.CONTEXT_FEATURES in specs:
            raise RunError(
                f"{self.path} takes context features with every image, and detect has "
                "images only; call the SavedModel's signature directly"
            )
        if len(specs) != 1 or missing:
            raise RunError(
                f"{self.path} is not an exported detector: it has the inputs "
                f"{sorted(specs)} and the outputs {sorted(self._signature.structured_outputs)}"
            )
        ((key, spec),) = specs.items()
        if spec.shape.rank and spec.shape[0] not in (None, 1):
            raise RunError(
                f"{self.path} takes batches of {spec.shape[0]} images only, and detect "
                "runs one image at a time; export it again with batch size -1 or 1"
            )
        if spec.shape.rank == 4 and spec.shape[3] not in (None, COLOR_CHANNELS):
            raise RunError(
                f"{self.path} takes images of {spec.shape[3]} channels, and detect "
                "reads files of red, green and blue only; call the SavedModel's signature directly"
            )
        return key, spec


def find_saved_model(model_dir: str) -> str:
    """The folder with `saved_model.pb`; see `model_dir` of `SavedModelDetector`.

    Raises:
        FileNotFoundError: if there is none.
    """
    candidates = [model_dir, os.path.join(model_dir, SAVED_MODEL_FOLDER)]
    if tf.io.gfile.isdir(model_dir):
        dated = [name.rstrip("/") for name in tf.io.gfile.listdir(model_dir)]
        newest = sorted((name for name in dated if name.isdigit()), key=int, reverse=True)
        candidates += [os.path.join(model_dir, name) for name in newest[:1]]
    for folder in candidates:
        if tf.io.gfile.exists(os.path.join(folder, "saved_model.pb")):
            return folder
    raise FileNotFoundError(
        f"no SavedModel in {model_dir}: there is no saved_model.pb in {', '.join(candidates)}"
    )


def detect_files(
    detector: ModelDetector,
    paths: Iterable[str],
    output_dir: str,
    min_score: Union[float, ClassThresholds] = DEFAULT_MIN_SCORE,
) -> Iterator[FileResult]:
    """Runs the detector on image files; writes a drawing and a JSON line for each.

    For a file that cannot be used, the line contains `error` instead of detections. The drawing
    shows one detection, the best, of those that overlap by SAME_OBJECT_IOU or more.

    Args:
        detector: A loaded model.
        paths: Image files; see `image_files.list_images`.
        output_dir: For `<name>_detections.png` of every image, and `detections.jsonl`.
        min_score: Detections below this score, or below that of their class, are neither drawn nor
            written.
    """
    os.makedirs(output_dir, exist_ok=True)
    used_names: Set[str] = set()
    with open(os.path.join(output_dir, DETECTIONS_FILE), "w", encoding="utf-8") as lines:
        for path in paths:
            try:
                image = read_image(path)
                detections = _above(detector.detect(image.pixels), min_score)
            except (OSError, tf.errors.OpError) as error:
                reason = str(error)
                if isinstance(error, tf.errors.OpError):
                    reason = f"{path}: the model fails: {failures.reason(error)}"
                result = FileResult(path, None, None, reason)
                lines.write(json_lines.dumps({"file": path, "error": result.error}) + "\n")
                yield result
                continue
            drawing = os.path.join(output_dir, _drawing_name(path, used_names))
            _draw(detector, image.pixels, detections, drawing)
            lines.write(json_lines.dumps(_as_line(detector, path, image, detections)) + "\n")
            yield FileResult(path, detections, drawing, None, image.reduced_by)


def _load(saved_model_dir: str) -> Any:
    """The SavedModel in a folder; RunError if its files are damaged or incomplete."""
    try:
        return tf.saved_model.load(saved_model_dir)
    except (tf.errors.OpError, OSError) as error:
        raise RunError(
            f"{saved_model_dir} cannot be loaded: {failures.reason(error)}. Its files are damaged "
            "or incomplete; copy the folder again, or export the checkpoint again"
        ) from error


def _above(
    detections: ImageDetections, min_score: Union[float, ClassThresholds]
) -> ImageDetections:
    if isinstance(min_score, ClassThresholds):
        keep = detections.scores >= min_score.of(detections.class_ids)
    else:
        keep = detections.scores >= min_score
    present = {name: x for name, x in detections._asdict().items() if x is not None}
    return ImageDetections(**{name: values[keep] for name, values in present.items()})


def _drawing_name(path: str, used_names: Set[str]) -> str:
    """File name of a drawing; underscores distinguish images of one name from several folders."""
    stem = os.path.splitext(os.path.basename(path))[0]
    while stem + DRAWING_SUFFIX in used_names:
        stem += "_"
    used_names.add(stem + DRAWING_SUFFIX)
    return stem + DRAWING_SUFFIX


def _draw(
    detector: ModelDetector, pixels: np.ndarray, detections: ImageDetections, path: str
) -> None:
    masks, (height, width) = detections.masks, pixels.shape[:2]
    picture = draw_boxes(
        pixels,
        detections.boxes,
        [detector.name(class_id) for class_id in detections.class_ids],
        detections.scores,
        colors=[int(class_id) for class_id in detections.class_ids],
        mask_of=None
        if masks is None
        else lambda i: paste_mask(masks[i], detections.boxes[i], (height, width)),
        options=DrawOptions(
            min_score=0.0, max_boxes=len(detections.boxes), same_object_iou=SAME_OBJECT_IOU
        ),
    )
    Image.fromarray(picture).save(path)


def _segmentation(detections: ImageDetections, i: int, size: Tuple[int, int]) -> Dict[str, Any]:
    """Entry `segmentation` of detection i, in COCO's format; none if the model has no masks."""
    if detections.masks is None:
        return {}
    encoded = run_lengths(paste_mask(detections.masks[i], detections.boxes[i], size), size)
    return {"segmentation": {**encoded, "counts": encoded["counts"].decode("ascii")}}


def _as_line(
    detector: ModelDetector, path: str, image: ImageFile, detections: ImageDetections
) -> Dict[str, Any]:
    height, width = image.height, image.width
    scale = np.array([height, width, height, width], np.float32)
    sides = ("ymin", "xmin", "ymax", "xmax")
    return {
        "file": path,
        "height": height,
        "width": width,
        **({"reduced_by": image.reduced_by} if image.reduced_by > 1 else {}),
        **({"exif_orientation": image.orientation} if image.orientation != UPRIGHT else {}),
        "detections": [
            {
                "class_id": int(class_id),
                "name": detector.name(class_id),
                "score": round(float(score), 6),
                "box": dict(zip(sides, (round(float(side), 6) for side in box))),
                "box_pixels": dict(zip(sides, (round(float(side), 2) for side in box * scale))),
                **_segmentation(detections, i, (height, width)),
            }
            for i, (box, score, class_id) in enumerate(
                zip(detections.boxes, detections.scores, detections.class_ids)
            )
        ],
    }
