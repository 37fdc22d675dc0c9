"""Export formats and their registry: one file and one entry each."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import tf
from estimator_det.config import files
from estimator_det.config.registry import Registry
from estimator_det.detectors.base import Detector, make_detector
from exporters.loaded_model import SAVED_MODEL_FOLDER, LoadedModel, asset_class_names
from exporters.network import RestoredNetwork, Variant
from inputs.label_map import read_label_map
from model_fn.checkpoints.errors import RunError
from model_fn.evaluation import threshold_files

LABEL_MAP_FILE = "label_map.pbtxt"  # beside formats that cannot contain one
THRESHOLDS_FILE = "thresholds.json"
IMAGE_INPUT_TYPES = ("image_tensor", "float_image_tensor")
QUANTIZATIONS = ("int8", "float16", "dynamic")


class Tolerance(NamedTuple):
    """The largest differences from the checkpoint that a written model may have."""

    scores: float
    boxes: float  # fractions of the image
    # Compares the quantile `check.USUAL`, because quantization moves a few scores far.
    uses_quantile: bool = False


EXACT = Tolerance(1e-3, 1e-3)


@dataclass(frozen=True)
class TfliteOptions:
    """Options of the TFLite format, those of the reference's `export_tflite_ssd_graph`."""

    max_detections: int = 10
    max_classes_per_detection: int = 1
    detections_per_class: int = 100
    use_regular_nms: bool = False
    add_postprocessing_op: bool = True


@dataclass(frozen=True)
class FormatOptions:
    """How formats are written."""

    # One of QUANTIZATIONS; None for float, or for the ranges of training.
    quantize: Optional[str] = None
    # Image files for the check of each format and the ranges of int8; without, images of the
    # records of the configuration.
    sample_images: Sequence[str] = ()
    # The interpreter that converters run in; see `converters.converter_interpreter`.
    converter_python: Optional[str] = None
    tflite: TfliteOptions = field(default_factory=TfliteOptions)


class Plan(NamedTuple):
    """Facts about an export before it starts."""

    config: Any  # `TrainEvalPipelineConfig`
    options: FormatOptions
    input_types: Tuple[str, ...]
    input_shape: Optional[Sequence[Optional[int]]] = None  # batch, height, width, channels


class ExportFormat:
    """Base class of export formats; each is a subclass in a file of its own.

    Attributes:
        name: In `--format`.
        file: File or folder of the model inside the folder of an export.
        converter: Modules that `write` needs in the environment of converters.
        runtime: Modules that `load` needs in this one.
        extra: Of the package, `pip install 'estimator-det[EXTRA]'`, with these modules.
        variant: Adds tensors to the network's graph that `write` needs.
    """

    name: str
    file: str
    converter: Tuple[str, ...] = ()
    runtime: Tuple[str, ...] = ()
    extra = ""
    variant: Optional[Variant] = None

    def check(self, plan: Plan) -> None:
        """Raises ConfigError for what cannot be written, before anything slow."""

    def write(self, network: RestoredNetwork, plan: Plan, path: str) -> bool:
        """Writes the model to a path; False if a warning has said why it cannot be written."""
        raise NotImplementedError

    def recognizes(self, path: str) -> bool:
        """True if a file or folder has this format, by its content."""
        raise NotImplementedError

    def load(self, path: str, *, keeps_raw: bool = False) -> LoadedModel:
        """Reads a model that `recognizes` accepts; RunError if it is damaged or not a detector.

        With `keeps_raw` its `run` also returns raw predictions, which may take more memory.
        """
        raise NotImplementedError

    def tolerance(self, plan: Plan) -> Tolerance:
        """The largest differences from the checkpoint."""
        del plan
        return EXACT

    def detects(self, plan: Plan) -> bool:
        """True if a plan's model is a detector that can be run and compared."""
        del plan
        return True


FORMATS: Registry[Callable[[], ExportFormat]] = Registry("export format")


def inference_detector(config: Any, model: Optional[Any] = None) -> Detector:
    """The detector of a `TrainEvalPipelineConfig`, or of a variant of its `DetectionModel`."""
    return make_detector(config.model if model is None else model, False, config.graph_rewriter)


def check_runtime(chosen: ExportFormat) -> None:
    """Refuses a format whose models cannot run here."""
    missing = missing_runtime(chosen)
    if missing:
        raise RunError(missing)


def missing_runtime(chosen: ExportFormat) -> str:
    """Packages to install for the models of a format; empty if nothing is missing."""
    specs = {name: importlib.util.find_spec(name) for name in chosen.runtime}
    # A folder of this name in the current one, as of an export, has no origin.
    missing = [name for name, spec in specs.items() if spec is None or spec.origin is None]
    if not missing:
        return ""
    return (
        f"{chosen.name} models need {', '.join(missing)}, which is not installed; "
        f"run pip install 'estimator-det[{chosen.extra}]'"
    )


def num_bytes(path: str) -> int:
    """Size of a file, or of all files in a folder and below."""
    if not tf.io.gfile.isdir(path):
        return int(tf.io.gfile.stat(path).length)
    paths = [
        os.path.join(folder, name) for folder, _, names in tf.io.gfile.walk(path) for name in names
    ]
    # TensorFlow's file system in memory also lists parts of the names of other folders.
    existing = [each for each in paths if tf.io.gfile.exists(each)]
    return sum(int(tf.io.gfile.stat(each).length) for each in existing)


def parent_folder(path: str) -> str:
    """The folder that contains a file or folder."""
    return os.path.dirname(path.rstrip("/") if files.is_remote(path) else os.path.abspath(path))


def class_names_beside(path: str) -> Dict[int, str]:
    """Class names of the label map in the export that a file or folder belongs to."""
    folder = parent_folder(path)
    label_map = os.path.join(folder, LABEL_MAP_FILE)
    if tf.io.gfile.exists(label_map):
        return dict(read_label_map(label_map).names)
    return asset_class_names(os.path.join(folder, SAVED_MODEL_FOLDER))


def thresholds_beside(path: str) -> str:
    """Path of the thresholds of the export that a file or folder belongs to."""
    folder = parent_folder(path)
    inside = os.path.join(folder, SAVED_MODEL_FOLDER, threshold_files.IN_EXPORTS)
    beside = os.path.join(folder, THRESHOLDS_FILE)
    return inside if tf.io.gfile.exists(inside) and not tf.io.gfile.exists(beside) else beside


def is_quantized(config: Any) -> bool:
    """True if a `TrainEvalPipelineConfig` simulates quantization."""
    return bool(config.graph_rewriter.HasField("quantization"))
