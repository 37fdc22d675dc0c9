"""JSON lines that `estimator-det detect` writes: detections become labels for further training.

Boxes have their scores as `image/object/class/confidence`. Corrected by people, or filtered by
`min_score`, detections are a start for labels of new images. Paths of images are those that
`detect` was given, or relative to the folder of images.
"""

from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Optional

from estimator_det.config.printing import plain, quoted
from estimator_det.config.text import ConfigError
from inputs.datasets import paths
from inputs.datasets.converters.base import CONVERTERS, takes
from inputs.datasets.converters.lookup import PathFinder
from inputs.datasets.source import (
    AnnotatedImage,
    AnnotatedObject,
    Source,
    SourceError,
    SourceFault,
    SourceOptions,
    broken,
    collect_faults,
    fault_image,
    number,
    whole_number,
)

SIDES = ("ymin", "xmin", "ymax", "xmax")
MAX_LINE = 64 * 2**20  # characters


@CONVERTERS.register("detection_jsonl")
@takes("images", "annotations", optional=("min_score",), masks=True)
def read_detection_jsonl(options: SourceOptions) -> Source:
    """Reads one file; detections of a lower score than `min_score` are left out."""
    path = paths.require_file(options.annotations, "--annotations")
    least = 0.0 if options.min_score is None else options.min_score
    if not 0 <= least <= 1:
        raise ConfigError(None, f"--min_score is {least}; allowed: 0 to 1")
    names: Dict[int, str] = {}  # complete when all images are read
    finder = PathFinder(paths.real_folder(options.images, "--images"))
    images = _images(path, least, names)
    return Source(
        (annotated._replace(image=finder.find(annotated.image)) for annotated in images), names
    )


def _images(path: str, least: float, names: Dict[int, str]) -> Iterator[AnnotatedImage]:
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        line = 0
        while text := file.readline(MAX_LINE + 1):
            line += 1
            if len(text) > MAX_LINE:
                raise broken(path, line, f"more than {MAX_LINE:,} characters")
            try:
                if text.strip():
                    yield _image(_document(text, path, line), path, line, least, names)
            except SourceError as error:
                yield fault_image(error)


def _document(text: str, path: str, line: int) -> Dict[str, Any]:
    try:
        document = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise broken(path, line, f"not valid JSON: {error}") from None
    name = document.get("file") if isinstance(document, dict) else None
    if not isinstance(name, str) or not name:
        raise SourceError("missing_key", path, line, "there is no file")
    if "error" in document:
        message = f"detection failed for {quoted(name)}: {plain(document['error'])}"
        raise SourceError("undecodable_image", path, line, message)
    if not isinstance(document.get("detections"), list):
        raise SourceError("missing_key", path, line, "there is no list of detections")
    return document


def _image(
    document: Dict[str, Any], path: str, line: int, least: float, names: Dict[int, str]
) -> AnnotatedImage:
    objects: List[AnnotatedObject] = []
    faults: List[SourceFault] = []
    for detection in document["detections"]:
        with collect_faults(faults):
            annotated = _object(detection, path, line, names)
            if annotated.score is None or annotated.score >= least:
                objects.append(annotated)
    height, width = (_side(document, side, path, line) for side in ("height", "width"))
    return AnnotatedImage(
        document["file"], path, line, height=height, width=width, normalized=True,
        objects=objects, faults=faults,
    )  # fmt: skip


def _side(document: Dict[str, Any], side: str, path: str, line: int) -> Optional[int]:
    value = document.get(side)
    return None if value is None else whole_number(value, path, line, side)


def _object(detection: Any, path: str, line: int, names: Dict[int, str]) -> AnnotatedObject:
    if not isinstance(detection, dict) or not isinstance(detection.get("box"), dict):
        raise SourceError("missing_key", path, line, "a detection has no box")
    name = detection.get("name")
    if not isinstance(name, str):
        raise SourceError("missing_key", path, line, "a detection has no name of its class")
    score = number(detection.get("score", 1.0), path, line, "score")
    if not 0 <= score <= 1:
        raise broken(path, line, f"score is {score}; allowed: 0 to 1")
    mask = detection.get("segmentation")
    if mask is not None and not isinstance(mask, dict):
        raise SourceError("broken_mask", path, line, f"segmentation is {plain(mask)}")
    identifier = whole_number(detection.get("class_id"), path, line, "class_id")
    if names.setdefault(identifier, name) != name:
        message = f"class id {identifier} is {quoted(names[identifier])} and {quoted(name)}"
        raise SourceError("label_contradiction", path, line, message)
    return AnnotatedObject(
        name,
        [number(detection["box"].get(side), path, line, side) for side in SIDES],
        line,
        identifier,
        score=score,
        run_lengths=mask,
    )
