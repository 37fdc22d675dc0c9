"""JSON lines that `estimator-det detect` writes: detections become labels for further training.

Scores become `image/object/class/confidence`. `min_score`, or people who correct the boxes, turn
detections into first labels of new images. Paths of images are the paths that `detect` received, or
relative to the folder of images.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Tuple

from estimator_det.console.printing import plain, quoted
from estimator_det.errors import UsageError
from inputs.datasets import paths, source
from inputs.datasets.converters.base import CONVERTERS, takes

MAX_LINE = 64 * 2**20  # bytes


@CONVERTERS.register("detection_jsonl")
@takes("images", "annotations", optional=("min_score",), masks=True)
def read_detection_jsonl(options: source.SourceOptions) -> source.Source:
    """Reads one file; detections of a lower score than `min_score` are left out."""
    path = paths.require_file(options.annotations, "--annotations")
    least = 0.0 if options.min_score is None else options.min_score
    if not 0 <= least <= 1:
        raise UsageError(f"--min_score is {least}; allowed: 0 to 1")
    names: Dict[int, str] = {}  # complete when all images are read
    folder = paths.real_folder(options.images, "--images")

    def read_line(line: Tuple[int, str]) -> source.AnnotatedImage:
        image = _image(_document(line[1], path, line[0]), path, line[0], least, names)
        return image._replace(image=paths.path_in_folder(image.image, folder))

    lines = paths.read_lines(path, MAX_LINE, errors="replace")
    lines_with_text = (line for line in lines if line[1].strip())
    return source.Source(source.read_images(read_line, lines_with_text), names)


def _document(text: str, path: str, line: int) -> Dict[str, Any]:
    try:
        document = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise source.broken(path, line, f"not valid JSON: {error}") from None
    name = document.get("file") if isinstance(document, dict) else None
    if not isinstance(name, str) or not name:
        raise source.SourceError("missing_key", path, line, "there is no file")
    if "error" in document:
        message = f"detection failed for {quoted(name)}: {plain(document['error'])}"
        raise source.SourceError("undecodable_image", path, line, message)
    if not isinstance(document.get("detections"), list):
        raise source.SourceError("missing_key", path, line, "there is no list of detections")
    return document


def _image(
    document: Dict[str, Any], path: str, line: int, least: float, names: Dict[int, str]
) -> source.AnnotatedImage:
    objects, faults = source.read_objects(
        lambda detection: _object(detection, path, line, names), document["detections"]
    )
    objects = [each for each in objects if each.score is None or each.score >= least]
    height, width = (
        source.optional_whole_number(document.get(side), path, line, side)
        for side in ("height", "width")
    )
    return source.AnnotatedImage(
        document["file"], path, line, height=height, width=width, normalized=True,
        objects=objects, faults=faults,
    )  # fmt: skip


def _object(detection: Any, path: str, line: int, names: Dict[int, str]) -> source.AnnotatedObject:
    if not isinstance(detection, dict) or not isinstance(detection.get("box"), dict):
        raise source.SourceError("missing_key", path, line, "a detection has no box")
    name = detection.get("name")
    if not isinstance(name, str):
        raise source.SourceError("missing_key", path, line, "a detection has no name of its class")
    score = source.number(detection.get("score", 1.0), path, line, "score")
    if not 0 <= score <= 1:
        raise source.broken(path, line, f"score is {score}; allowed: 0 to 1")
    mask = detection.get("segmentation")
    if mask is not None and not isinstance(mask, dict):
        raise source.SourceError("broken_mask", path, line, f"segmentation is {plain(mask)}")
    identifier = source.whole_number(detection.get("class_id"), path, line, "class_id")
    if names.setdefault(identifier, name) != name:
        message = f"class id {identifier} is {quoted(names[identifier])} and {quoted(name)}"
        raise source.SourceError("label_contradiction", path, line, message)
    return source.AnnotatedObject(
        name,
        [source.number(detection["box"].get(side), path, line, side) for side in source.SIDES],
        line,
        identifier,
        score=score,
        run_lengths=mask,
    )
