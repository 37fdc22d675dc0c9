"""Runs a detector of any format on image files; writes drawings and JSON lines."""

from __future__ import annotations

import functools
import os
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Set,
    Union,
)

import numpy as np
from PIL import Image

from estimator_det.compat import failures, tf
from estimator_det.files import json_lines
from estimator_det.images.orientation import UPRIGHT
from exporters.detector import ClassThresholds, Detections, Detector
from exporters.image_files import ImageFile, read_image

DRAWINGS = ("jpg", "png", "none")  # formats of a drawing
_JPEG_QUALITY = 90
_MAX_JPEG_SIDE = 65_500  # pixels; a limit of libjpeg
DETECTIONS_FILE = "detections.jsonl"
DEFAULT_MIN_SCORE = 0.5


class Filter(NamedTuple):
    """The detections that are drawn and written."""

    min_score: Union[float, ClassThresholds] = DEFAULT_MIN_SCORE
    classes: Optional[Collection[int]] = None  # ids; None for all

    def apply(self, detections: Detections) -> Detections:
        """The detections that pass."""
        detections = detections.above(self.min_score)
        if self.classes is None:
            return detections
        return detections.select(np.isin(detections.classes, list(self.classes)))


class FileResult(NamedTuple):
    """The result for one image file."""

    path: str
    detections: Optional[Detections]  # None if the image cannot be used
    drawing: Optional[str]  # path; None without one, or if the image cannot be used
    error: Optional[str]
    reduced_by: int = 1  # factor in `image_files.ImageFile`
    highest_score: float = 0.0  # among all detections of the wanted classes; 0 without any


def detect_files(
    detector: Detector,
    paths: Iterable[str],
    output_dir: str,
    passes: Filter,
    drawing: str = DRAWINGS[0],
) -> Iterator[FileResult]:
    """Runs the detector on image files; writes a drawing and a JSON line for each.

    For a file that cannot be used, the line contains `error` instead of detections.

    Args:
        paths: Image files; see `image_files.list_images`.
        output_dir: For `<name>_detections.jpg` of every image, and `detections.jsonl`.
        drawing: One of DRAWINGS.
    """
    os.makedirs(output_dir, exist_ok=True)
    used_names: Set[str] = set()
    with open(os.path.join(output_dir, DETECTIONS_FILE), "w", encoding="utf-8") as lines:
        for path in paths:
            line, image, detections, highest = detect_image(
                detector, path, functools.partial(read_image, path), passes
            )
            lines.write(json_line(line))
            if image is None or detections is None:
                yield FileResult(path, None, None, line["error"])
                continue
            picture_path = None
            if drawing != "none":
                suffix = "png" if max(image.pixels.shape) > _MAX_JPEG_SIDE else drawing
                picture_path = os.path.join(output_dir, _drawing_name(path, suffix, used_names))
                picture = Image.fromarray(detections.draw(image.pixels))
                picture.save(picture_path, quality=_JPEG_QUALITY)  # PNG has no quality
            yield FileResult(path, detections, picture_path, None, image.reduced_by, highest)


class ImageResult(NamedTuple):
    """The result for one image; it has no image and no detections if the image cannot be used."""

    line: Dict[str, Any]  # for JSON lines
    image: Optional[ImageFile] = None
    detections: Optional[Detections] = None
    highest_score: float = 0.0  # field of `FileResult`


def detect_image(
    detector: Detector, name: str, read: Callable[[], ImageFile], passes: Filter
) -> ImageResult:
    """Runs the detector on an image that `read` returns, or for which it raises OSError."""
    try:
        image = read()
        size = (image.height, image.width)
        (detections,) = detector.detect_batch(image.pixels[np.newaxis], size)
    except (OSError, tf.errors.OpError) as error:
        reason = str(error)
        if isinstance(error, tf.errors.OpError):
            reason = f"{name}: the model fails: {failures.reason(error)}"
        return ImageResult({"file": name, "error": reason})
    highest = float(passes._replace(min_score=0.0).apply(detections).scores.max(initial=0.0))
    detections = passes.apply(detections)
    return ImageResult(_image_line(name, image, detections), image, detections, highest)


def _drawing_name(path: str, suffix: str, used_names: Set[str]) -> str:
    """File name of a drawing; underscores distinguish images of one name from several folders."""
    stem = os.path.splitext(os.path.basename(path))[0]
    while (name := f"{stem}_detections.{suffix}") in used_names:
        stem += "_"
    used_names.add(name)
    return name


def _image_line(path: str, image: ImageFile, detections: Detections) -> Dict[str, Any]:
    return {
        "file": path,
        "height": image.height,
        "width": image.width,
        **({"reduced_by": image.reduced_by} if image.reduced_by > 1 else {}),
        **({"exif_orientation": image.orientation} if image.orientation != UPRIGHT else {}),
        "detections": json_entries(detections),
    }


def json_line(line: Dict[str, Any]) -> str:
    """A line of an image or frame, whole: the run lengths of a mask are a long string."""
    return json_lines.dumps(line, shortens=False) + "\n"


def json_entries(detections: Detections) -> List[Dict[str, Any]]:
    """The detections of a JSON line, with the masks and keypoints of models that have them."""
    sides = ("ymin", "xmin", "ymax", "xmax")
    # All at once: numbers one by one would take half of the time of an answer.
    scores = _rounded(detections.scores, 6)
    boxes = _rounded(detections.normalized_boxes, 6)
    boxes_in_pixels = _rounded(detections.boxes, 2)
    return [
        {
            "class_id": int(detections.classes[i]),
            "name": detections.names[i],
            "score": scores[i],
            "box": dict(zip(sides, boxes[i])),
            "box_pixels": dict(zip(sides, boxes_in_pixels[i])),
            **({} if detections.masks is None else {"segmentation": detections.segmentation(i)}),
            **({} if detections.keypoints is None else {"keypoints": _keypoints(detections, i)}),
        }
        for i in range(len(detections))
    ]


def _rounded(values: np.ndarray, decimals: int) -> List[Any]:
    return np.round(values.astype(np.float64), decimals).tolist()


def _keypoints(detections: Detections, i: int) -> List[Dict[str, Any]]:
    """The keypoints that the class of a detection has."""
    assert detections.keypoints is not None
    height, width = detections.image_size
    scores = detections.keypoint_scores
    class_id = int(detections.classes[i])
    entries: List[Dict[str, Any]] = []
    for number in np.flatnonzero(detections.is_keypoint()[i]).tolist():
        y, x = detections.keypoints[i, number].tolist()
        name = detections.skeleton.name(class_id, number)
        entry: Dict[str, Any] = {"name": name, "y": round(y, 6), "x": round(x, 6)}
        entry.update(y_pixels=round(y * height, 2), x_pixels=round(x * width, 2))
        if scores is not None:
            entry["score"] = round(float(scores[i, number]), 6)
        entries.append(entry)
    return entries
