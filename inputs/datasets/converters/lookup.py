"""Images that belong to annotations: by name, `a/0001.txt` to `a/0001.jpg`, or by path."""

from __future__ import annotations

import functools
import os

from estimator_det.config.printing import quoted
from inputs.datasets.paths import FOLDERS_KEPT
from inputs.datasets.source import SourceError

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")


class ImageFinder:
    """Finds the image of a path without suffix, in any case of letters of the suffix."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._ends = [end for suffix in SUFFIXES for end in (suffix, suffix.upper())]

    def find(self, stem: str, file: str) -> str:
        """The path of the image below the folder.

        Raises:
            SourceError: if there is none, naming the annotation `file`.
        """
        for end in self._ends:
            if os.path.lexists(os.path.join(self._folder, stem + end)):
                return stem + end
        message = f"no image {quoted(stem)} with one of the suffixes {', '.join(SUFFIXES)}"
        raise SourceError("no_image", file, 0, message)


class PathFinder:
    """Finds images by paths as a program wrote them: of the current folder, or absolute.

    `folder` is the real folder of the images.
    """

    def __init__(self, folder: str) -> None:
        self._prefix = os.path.join(folder, "")
        self._resolve = functools.lru_cache(FOLDERS_KEPT)(os.path.realpath)

    def find(self, path: str) -> str:
        """The path relative to the folder if it leads to a file in it, else the path as given."""
        parent, base = os.path.split(path)
        try:
            candidate = os.path.join(self._resolve(parent or "."), base)
            is_inside = candidate.startswith(self._prefix) and os.path.lexists(candidate)
        except ValueError:  # a null byte, or text that no file name can be
            return path
        return candidate[len(self._prefix) :] if is_inside else path
