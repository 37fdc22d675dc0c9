"""KITTI object detection: a text file for each image, 15 or 16 words for each object.

The words: type, truncated, occluded, alpha, left, top, right, bottom in pixels, and the object in
space, which records have no key for; results also have a score (devkit_object/readme.txt). Rows of
type DontCare are left out: nothing was labelled in these regions.
"""

from __future__ import annotations

import os
from typing import List, Optional

from inputs.datasets import paths, source
from inputs.datasets.converters.base import CONVERTERS, takes


@CONVERTERS.register("kitti")
@takes("images", "annotations")
def read_kitti(options: source.SourceOptions) -> source.Source:
    """Reads all text files of the folder of annotations; `000007.txt` belongs to `000007.png`."""
    folder = paths.real_folder(options.annotations, "--annotations")
    images = paths.real_folder(options.images, "--images")

    def read_file(path: str) -> source.AnnotatedImage:
        text = paths.read_annotation(path, folder)
        image = paths.find_image(images, os.path.splitext(os.path.relpath(path, folder))[0], path)
        objects, faults = source.read_objects(
            lambda row: _object(row[1].split(), path, row[0]), enumerate(text.splitlines(), 1)
        )
        return source.AnnotatedImage(image, path, objects=objects, faults=faults)

    return source.Source(source.read_images(read_file, paths.annotation_files(folder, (".txt",))))


def _object(words: List[str], path: str, line: int) -> Optional[source.AnnotatedObject]:
    if not words or words[0] == "DontCare":
        return None
    if len(words) not in (15, 16):
        raise source.broken(path, line, f"{len(words)} words; an object has 15, or 16 with a score")
    source.number(words[1], path, line, "the truncation")  # or the second word of a class
    left, top, right, bottom = (
        source.number(word, path, line, side)
        for word, side in zip(words[4:8], ("left", "top", "right", "bottom"))
    )
    score = source.number(words[15], path, line, "the score") if len(words) == 16 else None
    return source.AnnotatedObject(words[0], [top, left, bottom, right], line, score=score)
