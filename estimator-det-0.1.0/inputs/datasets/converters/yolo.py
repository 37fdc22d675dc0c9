"""YOLO: a text file for each image, a line for each object; an image without a file has none.

A line is `class x y width height` (the box's centre and size), `class x y x y x y …` (a polygon of
three points or more), or with `kpt_shape` in the file of classes `class x y width height` and the
keypoints. All coordinates are fractions of the image; classes count from 0, in a label map from 1
(docs.ultralytics.com/datasets).
"""

from __future__ import annotations

import os
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence

from estimator_det.config import files
from estimator_det.config.printing import quoted
from estimator_det.config.text import ConfigError
from inputs.datasets import paths
from inputs.datasets.converters.base import CONVERTERS, takes
from inputs.datasets.converters.lookup import SUFFIXES, ImageFinder
from inputs.datasets.source import (
    AnnotatedImage,
    AnnotatedObject,
    Source,
    SourceError,
    SourceOptions,
    broken,
    fault_image,
    number,
    whole_number,
)

BOX_WORDS = 5
VISIBLE = 2.0


class _Classes(NamedTuple):
    names: Dict[int, str]  # from 0
    keypoint_shape: Optional[List[int]] = None  # keypoints, and numbers of each: 2 or 3


@CONVERTERS.register("yolo")
@takes("images", "annotations", "classes", masks=True)
def read_yolo(options: SourceOptions) -> Source:
    """Reads the text files of all images below a folder; `classes` is data.yaml or a list."""
    classes = read_classes(paths.require_file(options.classes, "--classes"))
    images = paths.real_folder(options.images, "--images")
    labels = paths.real_folder(options.annotations, "--annotations")
    names = {number + 1: name for number, name in classes.names.items()}
    return Source(_images(images, labels, classes), names)


def read_classes(path: str) -> _Classes:
    """The names in a `data.yaml`, or in a file of a name in each line.

    Raises:
        ConfigError: if there are none.
    """
    text = files.read_text(path)
    if not path.endswith((".yaml", ".yml")):
        names = [line.strip() for line in text.splitlines() if line.strip()]
        found = _Classes(dict(enumerate(names)))
    else:
        found = _Classes(_names(text, path), _keypoint_shape(text, path))
    if not found.names:
        raise ConfigError(f"{path}: there are no names of classes")
    return found


def _names(text: str, path: str) -> Dict[int, str]:
    """`names: [a, b]`, `names:` with lines `- a`, or with lines `0: a`."""
    lines = [re.sub(r"(^|\s)#.*", "", line).rstrip() for line in text.splitlines()]
    starts = [i for i, line in enumerate(lines) if re.match(r"names\s*:", line)]
    if not starts:
        raise ConfigError(f"{path}: there is no line 'names:'")
    begin = starts[0]
    end = begin + 1  # of the member: the next line that begins with another key
    while end < len(lines) and not re.match(r"[^\s\-\]]", lines[end]):
        end += 1
    block = "\n".join([lines[begin].partition(":")[2], *lines[begin + 1 : end]]).strip()
    if block.startswith("["):
        items = [item for item in block.strip("[]").replace("\n", " ").split(",") if item.strip()]
        return {index: _unquoted(item) for index, item in enumerate(items)}
    names: Dict[int, str] = {}
    for index, line in enumerate(line for line in block.splitlines() if line.strip()):
        entry = re.fullmatch(r"\s*(?:-\s+|([0-9]{1,6})\s*:\s+)(.+)", line)
        if entry is None:
            raise ConfigError(
                f"{path}: {quoted(line.strip())} is no class of 'names:'; allowed: [a, b], lines "
                "'- a', or lines '0: a'. Or give a text file with a name in each line"
            )
        names[int(entry.group(1)) if entry.group(1) else index] = _unquoted(entry.group(2))
    return names


def _unquoted(text: str) -> str:
    text = text.strip()
    if text[:1] in ("'", '"') and text[-1:] == text[:1] and len(text) > 1:
        return text[1:-1]
    return text


def _keypoint_shape(text: str, path: str) -> Optional[List[int]]:
    match = re.search(r"^kpt_shape\s*:[ \t]*(.*?)[ \t]*(#.*)?$", text, re.MULTILINE)
    if match is None:
        return None
    digits = re.fullmatch(r"\[\s*([0-9]{1,4})\s*,\s*([23])\s*\]", match.group(1))
    if digits is None:
        raise ConfigError(f"{path}: kpt_shape is {match.group(1)}; allowed: [N, 2] and [N, 3]")
    return [int(digits.group(1)), int(digits.group(2))]


def _images(images: str, labels: str, classes: _Classes) -> Iterator[AnnotatedImage]:
    for path in paths.annotation_files(images, SUFFIXES):
        name = os.path.relpath(path, images)
        label = os.path.join(labels, os.path.splitext(name)[0] + ".txt")
        try:
            text = paths.read_annotation(label, labels) if os.path.lexists(label) else ""
            yield _image(name, text, label, classes)
        except SourceError as error:
            yield fault_image(error)
    finder = ImageFinder(images)
    for label in paths.annotation_files(labels, (".txt",)):
        try:
            finder.find(os.path.splitext(os.path.relpath(label, labels))[0], label)
        except SourceError as error:
            yield fault_image(error)


def _image(name: str, text: str, file: str, classes: _Classes) -> AnnotatedImage:
    objects, faults = [], []
    for line, row in enumerate(text.splitlines(), 1):
        words = row.split()
        try:
            if words:
                objects.append(_object(words, file, line, classes))
        except SourceError as error:
            faults.append(error.fault)
    return AnnotatedImage(name, file, normalized=True, objects=objects, faults=faults)


def _object(words: Sequence[str], file: str, line: int, classes: _Classes) -> AnnotatedObject:
    class_number = whole_number(words[0], file, line, "the class")
    values = [number(word, file, line, "a coordinate") for word in words[1:]]
    name = classes.names.get(class_number, "")
    unknown = 0 if name else class_number
    shape = classes.keypoint_shape
    if shape is not None:
        expected = 4 + shape[0] * shape[1]
        if len(values) != expected:
            raise broken(file, line, f"{len(words)} words; with kpt_shape it has {expected + 1}")
        points = _keypoints(values[4:], shape[1])
        return AnnotatedObject(name, _box(values), line, unknown, keypoints=points)
    if len(words) == BOX_WORDS:
        return AnnotatedObject(name, _box(values), line, unknown)
    if len(values) >= 6 and len(values) % 2 == 0:
        return AnnotatedObject(name, None, line, unknown, polygons=[values])
    raise broken(file, line, f"{len(words)} words; a box has 5, a polygon 7, 9, …")


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
