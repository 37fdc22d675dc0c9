"""KITTI object detection: a text file for each image, 15 or 16 words for each object.

The words: type, truncated, occluded, alpha, left, top, right, bottom in pixels, and the object in
space, which records have no key for; results also have a score (devkit_object/readme.txt). Rows of
type DontCare are left out: they are regions in which nothing was labelled, not objects.
"""

from __future__ import annotations

import os
from typing import Iterator, List

from inputs.datasets import paths
from inputs.datasets.converters.base import CONVERTERS, takes
from inputs.datasets.converters.lookup import ImageFinder
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
)

DONT_CARE = "DontCare"
WORDS = (15, 16)


@CONVERTERS.register("kitti")
@takes("images", "annotations")
def read_kitti(options: SourceOptions) -> Source:
    """Reads all text files of the folder of annotations; `000007.txt` belongs to `000007.png`."""
    folder = paths.real_folder(options.annotations, "--annotations")
    finder = ImageFinder(paths.real_folder(options.images, "--images"))
    return Source(_images(folder, finder))


def _images(folder: str, finder: ImageFinder) -> Iterator[AnnotatedImage]:
    for path in paths.annotation_files(folder, (".txt",)):
        stem = os.path.splitext(os.path.relpath(path, folder))[0]
        try:
            yield _image(paths.read_annotation(path, folder), path, finder.find(stem, path))
        except SourceError as error:
            yield fault_image(error)


def _image(text: str, path: str, image: str) -> AnnotatedImage:
    objects: List[AnnotatedObject] = []
    faults: List[SourceFault] = []
    for line, row in enumerate(text.splitlines(), 1):
        words = row.split()
        if not words or words[0] == DONT_CARE:
            continue
        with collect_faults(faults):
            objects.append(_object(words, path, line))
    return AnnotatedImage(image, path, objects=objects, faults=faults)


def _object(words: list[str], path: str, line: int) -> AnnotatedObject:
    if len(words) not in WORDS:
        raise broken(path, line, f"{len(words)} words; an object has 15, or 16 with a score")
    left, top, right, bottom = (
        number(word, path, line, side)
        for word, side in zip(words[4:8], ("left", "top", "right", "bottom"))
    )
    score = number(words[15], path, line, "the score") if len(words) == 16 else None
    return AnnotatedObject(words[0], [top, left, bottom, right], line, score=score)
