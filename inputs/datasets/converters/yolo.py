"""YOLO: a text file for each image, a line for each object; an image without a file has none.

A line is `class x y width height` (the box's centre and size), `class x y x y x y …` (a polygon of
three points or more), or with `kpt_shape` in the file of classes `class x y width height` and the
keypoints. All coordinates are fractions of the image; classes count from 0, in a label map from 1
(docs.ultralytics.com/datasets).
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

import yaml

from estimator_det import files
from estimator_det.console.printing import plain, quoted
from estimator_det.errors import UsageError
from inputs.datasets import paths, source
from inputs.datasets.converters.base import CONVERTERS, takes

VISIBLE = 2.0
MAX_BYTES = 1_000_000  # bytes of the file of classes; YAML takes some seconds for as much
_OR_A_TEXT_FILE = "Or give a text file with a name in each line"


class _Classes(NamedTuple):
    names: Dict[int, str]  # from 0
    keypoint_shape: Optional[List[int]] = None  # keypoints, and numbers of each: 2 or 3


@CONVERTERS.register("yolo")
@takes("images", "annotations", "classes", masks=True)
def read_yolo(options: source.SourceOptions) -> source.Source:
    """Reads the text files of all images below a folder; `classes` is data.yaml or a list."""
    classes = read_classes(paths.require_file(options.classes, "--classes"))
    images = paths.real_folder(options.images, "--images")
    labels = paths.real_folder(options.annotations, "--annotations")
    names = {position + 1: name for position, name in classes.names.items()}
    return source.Source(_images(images, labels, classes, options.classes), names)


def read_classes(path: str) -> _Classes:
    """The names in a `data.yaml`, or in a text file with a name in each line."""
    text = files.read_text(path, MAX_BYTES)
    if not path.endswith((".yaml", ".yml")):
        lines = enumerate(line.strip() for line in text.splitlines())
        classes = _Classes({number: name for number, name in lines if name})
    else:
        document = _parse_yaml(text, path)
        classes = _Classes(_names(document, path), _keypoint_shape(document, path))
    if not classes.names:
        raise UsageError(f"{path}: there are no names of classes")
    return classes


def _parse_yaml(text: str, path: str) -> Dict[str, Any]:
    try:
        # Safe, too, and keeps each value as text: a class may have the name `no` or `1e3`.
        document = yaml.load(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or error
        raise UsageError(
            f"{path}{where}: not valid YAML: {plain(problem)}. {_OR_A_TEXT_FILE}"
        ) from None
    if not isinstance(document, dict) or "names" not in document:
        raise UsageError(f"{path}: there is no line 'names:'. {_OR_A_TEXT_FILE}")
    return document


def _names(document: Dict[str, Any], path: str) -> Dict[int, str]:
    """`names: [a, b]`, `names:` with lines `- a`, or with lines `0: a`."""
    names = document["names"] or {}
    if isinstance(names, list):
        names = {str(index): name for index, name in enumerate(names)}
    entries = names.items() if isinstance(names, dict) else [(names, "")]
    for key, name in entries:
        if not (isinstance(name, str) and name and re.fullmatch("[0-9]{1,6}", key)):
            raise UsageError(
                f"{path}: {quoted(key)} is no class of 'names:'; allowed: [a, b], lines '- a', or "
                f"lines '0: a'. {_OR_A_TEXT_FILE}"
            )
    return {int(key): name for key, name in entries}


def _keypoint_shape(document: Dict[str, Any], path: str) -> Optional[List[int]]:
    shape = document.get("kpt_shape")
    if shape is None:
        return None
    words = shape if isinstance(shape, list) else [shape]
    text = ", ".join(word if isinstance(word, str) else "…" for word in words)
    if not isinstance(shape, list) or not re.fullmatch("[0-9]{1,4}, [23]", text):
        raise UsageError(f"{path}: kpt_shape is {plain(text)}; allowed: [N, 2] and [N, 3]")
    return [int(word) for word in words]


def _images(
    images: str, labels: str, classes: _Classes, classes_file: str
) -> Iterator[source.AnnotatedImage]:
    def read_file(path: str) -> source.AnnotatedImage:
        name = os.path.relpath(path, images)
        stem = os.path.join(labels, os.path.splitext(name)[0])
        label = stem + (".TXT" if os.path.lexists(stem + ".TXT") else ".txt")
        text = paths.read_annotation(label, labels) if os.path.lexists(label) else ""
        objects, faults = source.read_objects(
            lambda row: _object(row[1].split(), label, row[0], classes),
            enumerate(text.splitlines(), 1),
        )
        return source.AnnotatedImage(name, label, normalized=True, objects=objects, faults=faults)

    yield from source.read_images(read_file, paths.annotation_files(images, paths.SUFFIXES))
    for label in paths.annotation_files(labels, (".txt",)):
        if os.path.realpath(label) == os.path.realpath(classes_file):
            continue  # LabelImg writes the names of classes beside the labels.
        try:
            paths.find_image(images, os.path.splitext(os.path.relpath(label, labels))[0], label)
        except source.SourceError as error:
            yield source.fault_image(error)


def _object(
    words: Sequence[str], file: str, line: int, classes: _Classes
) -> Optional[source.AnnotatedObject]:
    if not words:
        return None
    class_number = source.whole_number(words[0], file, line, "the class")
    values = [source.number(word, file, line, "a coordinate") for word in words[1:]]
    name = classes.names.get(class_number, "")
    unknown = 0 if name else class_number
    shape = classes.keypoint_shape
    if shape is not None:
        expected = 4 + shape[0] * shape[1]
        if len(values) != expected:
            raise source.broken(
                file, line, f"{len(words)} words; with kpt_shape it has {expected + 1}"
            )
        points = _keypoints(values[4:], shape[1])
        return source.AnnotatedObject(name, _box(values), line, unknown, keypoints=points)
    if len(words) == 5:
        return source.AnnotatedObject(name, _box(values), line, unknown)
    if len(values) >= 6 and len(values) % 2 == 0:
        return source.AnnotatedObject(name, None, line, unknown, polygons=[values])
    raise source.broken(file, line, f"{len(words)} words; a box has 5, a polygon 7, 9, …")


def _box(values: Sequence[float]) -> List[float]:
    x, y, width, height = values[:4]
    return [y - height / 2, x - width / 2, y + height / 2, x + width / 2]


def _keypoints(values: Sequence[float], each: int) -> List[float]:
    """x, y, visibility, …; without visibilities, a point at 0, 0 is absent."""
    if each == 3:
        return list(values)
    points: List[float] = []
    for x, y in zip(values[0::2], values[1::2]):
        points += [x, y, VISIBLE if x or y else 0.0]
    return points
