"""The model that is served: its newest version, taken over while requests run.

Versions are folders whose names are numbers, as a training writes them to `export/best` and as
TensorFlow Serving expects them. Any other export is version 1, and stays.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import logging
import os
import threading
from typing import Callable, Dict, List, Tuple

import numpy as np

from estimator_det.compat import tf
from estimator_det.console.printing import plain
from estimator_det.errors import RunError
from exporters.detector import Detector
from exporters.server.batching import Batcher, Outputs

AVAILABLE, LOADING, END = "AVAILABLE", "LOADING", "END"  # states of TensorFlow Serving
EXPORTS = "export"  # folder of a run
_WARM_UP = (480, 640)  # height and width of the first image of a model that takes any size

_LOG = logging.getLogger(__name__)
_Contents = List[Tuple[str, int, int]]


@dataclasses.dataclass(frozen=True)
class Version:
    """A loaded version of the model."""

    number: int
    detector: Detector
    batcher: Batcher
    outputs: Outputs  # the outputs for an empty image


class ModelVersions:
    """Serves the newest version of a model.

    Args:
        path: An export, a folder of numbered versions, or the folder of a run.
        make_batcher: Makes what runs a detector.
        load: Makes the detector of a path.

    Raises:
        RunError: if there is no version, or the newest one does not load.
        FileNotFoundError: if there is no such path.
    """

    def __init__(
        self,
        path: str,
        make_batcher: Callable[[Detector], Batcher],
        load: Callable[[str], Detector],
    ) -> None:
        self._load, self._make_batcher = load, make_batcher
        self._folder = served_folder(path)
        self.states: Dict[int, Tuple[str, str]] = {}  # version -> state, and what is wrong
        self._failed: Dict[int, _Contents] = {}  # files of versions that did not load
        number, newest = newest_version(self._folder)
        self.current = self._loaded(number, newest)

    def submit(self, pixels: np.ndarray) -> Tuple[Version, concurrent.futures.Future[Outputs]]:
        """Runs the current version on an image, uint8 [h, w, 3], in a batch with others."""
        while True:
            version = self.current
            future = version.batcher.submit(version.detector.fit(pixels))
            if future is not None:  # else another version has just taken over
                return version, future

    def update(self) -> bool:
        """Loads a newer version beside the current one and takes it over; False without one.

        A version that does not load is reported, and the current one stays. It is tried again when
        its files change: it may have been copied while it was read.
        """
        newer = [
            (number, path)
            for number, path in _versions(self._folder)
            if number > self.current.number
            and (number not in self._failed or self._failed[number] != _contents(path))
        ]
        if not newer:
            return False
        number, path = newer[-1]
        contents = _contents(path)
        try:
            version = self._loaded(number, path)
        except Exception as error:  # whatever is wrong with the new files, the old model serves
            self._failed[number] = contents
            self.states[number] = (END, "it could not be loaded; the log of the server says why")
            _LOG.error(
                "version %d of the model could not be loaded, and version %d stays: %s",
                number,
                self.current.number,
                plain(str(error)),
            )
            return False
        old, self.current = self.current, version
        self.states[old.number] = (END, "")
        old.batcher.close()
        _LOG.info("version %d of the model has taken over from %d", number, old.number)
        return True

    def follow(self, seconds: float, stop: threading.Event) -> None:
        """Looks for a newer version after each pause, until the event is set."""
        while not stop.wait(seconds):
            try:
                self.update()
            except (OSError, tf.errors.OpError) as error:  # storage that is away for a while
                _LOG.warning("cannot look for a new version of the model: %s", plain(str(error)))

    def _loaded(self, number: int, path: str) -> Version:
        self.states[number] = (LOADING, "")
        detector = self._load(path)
        height, width = (
            fixed or usual for fixed, usual in zip(detector.model.image_size, _WARM_UP)
        )
        (outputs,) = detector.run(np.zeros([1, height, width, 3], np.uint8))
        self.states[number] = (AVAILABLE, "")
        return Version(number, detector, self._make_batcher(detector), outputs)


def served_folder(path: str) -> str:
    """The folder of the exports to serve: of a run, its best ones, or its only ones.

    Raises RunError for a run without exports.
    """
    exports = os.path.join(path, EXPORTS)
    is_run = tf.io.gfile.exists(os.path.join(path, "pipeline.config")) and _checkpoints(path)
    if not is_run:
        return path
    names = tf.io.gfile.listdir(exports) if tf.io.gfile.isdir(exports) else []
    folders = sorted((each.rstrip("/") for each in names), key=lambda name: name != "best")
    for folder in folders:
        if _versions(os.path.join(exports, folder)):
            return os.path.join(exports, folder)
    raise RunError(
        f"the run {plain(path)} has no export yet: train it with --best_metric, which exports the "
        f"best checkpoint, or run: estimator-det export {plain(path)} --output_dir exported"
    )


def newest_version(folder: str) -> Tuple[int, str]:
    """Number and folder of the newest version; a folder without numbers is version 1 itself."""
    return (_versions(folder) or [(1, folder)])[-1]


def _versions(folder: str) -> List[Tuple[int, str]]:
    """Numbers and folders, the newest last; a name may have leading zeros."""
    if not tf.io.gfile.isdir(folder):
        return []
    names = (name.rstrip("/") for name in tf.io.gfile.listdir(folder))
    return sorted(
        (int(name), os.path.join(folder, name))
        for name in names
        if name.isascii() and name.isdecimal()
    )


def _contents(folder: str) -> _Contents:
    """Paths, sizes and times of the files in a folder."""
    paths = [
        os.path.join(parent, name)
        for parent, _, names in tf.io.gfile.walk(folder)
        for name in names
    ]
    stats = [tf.io.gfile.stat(path) for path in paths]
    return [(path, each.length, each.mtime_nsec) for path, each in zip(paths, stats)]


def _checkpoints(path: str) -> bool:
    return bool(tf.io.gfile.glob(os.path.join(path, "model.ckpt-*.index")))
