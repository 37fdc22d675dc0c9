"""Formats of exported models: each writes one, recognizes it by its content, and loads it.

`exported_models` lists the models in an export, and `load_model` loads a model of any format.
"""

from __future__ import annotations

import itertools
import os
from typing import List, NamedTuple, Sequence

from estimator_det.compat import tf
from estimator_det.config.pipeline import PIPELINE_FILE
from estimator_det.console.printing import holding, plain
from estimator_det.errors import RunError, UsageError
from estimator_det.files import folders_with
from exporters.formats import (  # noqa: F401  (imports fill the registry)
    frozen_graph,
    onnx,
    openvino,
    saved_model,
    tf2_checkpoint,
    tfjs,
    tflite,
)
from exporters.formats.base import FORMATS, ExportFormat, missing_runtime
from exporters.formats.exchange import current
from exporters.loaded_model import LoadedModel, parent_folder

__all__ = ["FORMATS", "FoundModel", "exported_models", "load_model", "places", "resolve_formats"]


class FoundModel(NamedTuple):
    """A model in an export."""

    format: ExportFormat
    path: str  # file or folder

    @property
    def folder(self) -> str:
        """The folder of the export."""
        folder = parent_folder(self.path)
        is_inside = not (os.path.splitext(self.format.file)[1] or tf.io.gfile.isdir(self.path))
        return parent_folder(folder) if is_inside else folder

    def load(self) -> LoadedModel:
        """The model, ready to run; RunError if its runtime is not installed."""
        if missing := missing_runtime(self.format):
            raise RunError(missing)
        return self.format.load(self.path)


def resolve_formats(names: Sequence[str]) -> List[ExportFormat]:
    """The formats of `--format`."""
    chosen = [FORMATS.get(name)() for name in names]
    if not chosen or len({each.name for each in chosen}) != len(chosen):
        raise UsageError(f"formats {list(names)}: give at least one, and each only once")
    return chosen


def exported_models(path: str) -> List[FoundModel]:
    """The models in the folder of an export, or the single model at the path.

    The SavedModel is the first, the others are in the order of their formats' names. Each is
    recognized by its content, not by its name.
    """
    path = current(path)
    if not tf.io.gfile.exists(path):
        is_checkpoint = tf.io.gfile.exists(f"{path}.index")
        hint = "; it is a checkpoint, and a model is made of it by estimator-det export"
        raise FileNotFoundError(f"no such model: {plain(path)}{hint if is_checkpoint else ''}")
    # The SavedModel first: it contains its label map and thresholds. A checkpoint does not run.
    names = sorted({*FORMATS} - {tf2_checkpoint.NAME}, key=lambda n: (n != "saved_model", n))
    models = [
        FoundModel(each, place)
        for each in (FORMATS.get(name)() for name in names)
        for place in itertools.islice(filter(each.recognizes, places(each, path)), 1)
    ]
    if not models:
        if tf.io.gfile.exists(os.path.join(path, "checkpoint")):
            raise FileNotFoundError(
                f"no model in {plain(path)}, but a checkpoint: if it is the folder of a run, write "
                f"a model with estimator-det export {plain(path)} --output_dir exported"
            )
        inside = holding(folders_with(path, PIPELINE_FILE))
        raise FileNotFoundError(
            f"no model in {plain(path)}: it is of none of the formats {', '.join(names)}; give "
            f"the folder of an export, or its model{inside and f'; {inside}'}"
        )
    return models


def load_model(path: str) -> LoadedModel:
    """The first of `exported_models`, loaded."""
    return exported_models(path)[0].load()


def places(chosen: ExportFormat, path: str) -> List[str]:
    """Possible places of a model of the format: its usual name in a folder, then any other."""
    if not tf.io.gfile.isdir(path):
        return [path]
    suffix = os.path.splitext(chosen.file)[1]
    names = [name.rstrip("/") for name in tf.io.gfile.listdir(path)]
    names = [name for name in names if name == chosen.file or (suffix and name.endswith(suffix))]
    names.sort(key=lambda name: (name != chosen.file, name))
    return [*(os.path.join(path, name) for name in names), path]
