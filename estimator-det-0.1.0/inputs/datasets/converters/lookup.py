"""Images that belong to annotation files by name: `a/0001.txt` to `a/0001.jpg`."""

from __future__ import annotations

import os

from estimator_det.config.printing import quoted
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
