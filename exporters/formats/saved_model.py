"""SavedModels of TensorFlow."""

from __future__ import annotations

import os

from exporters.formats.base import FORMATS, ExportFormat
from exporters.saved_model import SAVED_MODEL_FOLDER
from exporters.saved_model_detector import SavedModelDetector, find_saved_model

_GRAPH_FILE = "saved_model.pb"


@FORMATS.register("saved_model")
def saved_model() -> ExportFormat:
    """The format that TensorFlow Serving loads."""
    return ExportFormat("saved_model", SAVED_MODEL_FOLDER, None, _load, _recognizes)


def _folder(path: str) -> str:
    return os.path.dirname(path) or "." if os.path.basename(path) == _GRAPH_FILE else path


def _recognizes(path: str) -> bool:
    try:
        find_saved_model(_folder(path))
    except FileNotFoundError:
        return False
    return True


def _load(path: str) -> SavedModelDetector:
    return SavedModelDetector(_folder(path))
