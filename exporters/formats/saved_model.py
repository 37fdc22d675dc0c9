"""SavedModels of TensorFlow."""

from __future__ import annotations

import os

from exporters.formats.base import FORMATS, ExportFormat, Plan
from exporters.saved_model import SAVED_MODEL_FOLDER, RestoredNetwork, write_saved_model
from exporters.saved_model_detector import SavedModelDetector, find_saved_model

_GRAPH_FILE = "saved_model.pb"


@FORMATS.register("saved_model")
class SavedModel(ExportFormat):
    """The format that TensorFlow Serving loads."""

    name = "saved_model"
    file = SAVED_MODEL_FOLDER

    def write(self, network: RestoredNetwork, plan: Plan, path: str) -> bool:
        del plan
        write_saved_model(network, path)
        return True

    def recognizes(self, path: str) -> bool:
        try:
            find_saved_model(_folder(path))
        except FileNotFoundError:
            return False
        return True

    def load(self, path: str, *, keeps_raw: bool = False) -> SavedModelDetector:
        del keeps_raw
        return SavedModelDetector(_folder(path))


def _folder(path: str) -> str:
    return os.path.dirname(path) or "." if os.path.basename(path) == _GRAPH_FILE else path
