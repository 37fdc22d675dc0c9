"""Export formats and their registry: one file and one entry each."""

from __future__ import annotations

import importlib.util
import os
import re
from typing import NamedTuple, Optional, Sequence, Tuple, Type

from estimator_det.compat import tf
from estimator_det.config.registry import Registry
from estimator_det.errors import UsageError
from estimator_det.images.resize import resize_method
from estimator_det.protos import image_resizer_pb2, pipeline_pb2
from exporters.loaded_model import LoadedModel
from exporters.network import ExportOptions, RestoredNetwork, Variant
from exporters.reading.published import Published

START_BYTES = 16  # bytes of a file that tell its format


class Tolerance(NamedTuple):
    """The largest differences from the checkpoint that a written model may have."""

    scores: float
    boxes: float  # fractions of the image
    # Compares the quantile `check.USUAL`, because quantization moves a few scores far.
    uses_quantile: bool = False


EXACT = Tolerance(1e-3, 1e-3)


class ExportFormat:
    """Base class of export formats; each is a subclass in a file of its own.

    Attributes:
        name: In `--format`; also the extra of the package with the modules below.
        file: File or folder of the model inside the folder of an export.
        converter: Modules that `write` needs in the environment of converters.
        runtime: Modules that `load` needs in this one.
        resize_methods: Names of `ResizeType` that a written model has.
        variant: Adds tensors to the network's graph that `write` needs.
        start: How files of the format begin, of START_BYTES; None if `recognizes` looks further.
    """

    name: str
    file: str
    converter: Tuple[str, ...] = ()
    runtime: Tuple[str, ...] = ()
    resize_methods: Sequence[str] = image_resizer_pb2.ResizeType.keys()
    variant: Optional[Variant] = None
    start: Optional[re.Pattern[bytes]] = None

    def check(self, config: pipeline_pb2.TrainEvalPipelineConfig, options: ExportOptions) -> None:
        """Raises UsageError for what cannot be written, before anything slow."""
        path, method = resize_method(config)
        if method not in self.resize_methods:
            raise UsageError(
                f"--format {self.name}: {path}: is {method}, and {self.name} models resize images "
                f"by {' or '.join(self.resize_methods)}; export saved_model or frozen_graph, or "
                f"--set {path}=BILINEAR, which changes what is detected"
            )

    def write(self, network: RestoredNetwork, path: str) -> bool:
        """Writes the model to a path; False if a warning has said why it cannot be written."""
        raise NotImplementedError

    def recognizes(self, path: str) -> bool:
        """True if a file or folder has this format, by its content."""
        if self.start is None:
            raise NotImplementedError
        return self.start.match(first_bytes(path)) is not None

    def load(self, path: str) -> LoadedModel:
        """Reads a model that `recognizes` accepts; RunError if it is damaged or not a detector."""
        raise NotImplementedError

    def load_with_raw(self, path: str) -> LoadedModel:
        """Like `load`, and `run` also returns raw predictions, which may take more memory."""
        return self.load(path)

    def read(self, path: str) -> Published:
        """Reads weights and layers for an import, and runs nothing of the file.

        `import` refuses formats that do not override it.
        """
        raise NotImplementedError

    def tolerance(
        self, config: pipeline_pb2.TrainEvalPipelineConfig, options: ExportOptions
    ) -> Tolerance:
        """The largest differences from the checkpoint."""
        return EXACT

    def limits(self, config: pipeline_pb2.TrainEvalPipelineConfig, options: ExportOptions) -> str:
        """Limits of a written model that its user must know; empty without any."""
        return ""

    def detects(self, options: ExportOptions) -> bool:
        """True if the model is a detector that can be run and compared."""
        return True


FORMATS: Registry[Type[ExportFormat]] = Registry("export format")


def missing_runtime(chosen: ExportFormat) -> str:
    """Packages to install for the models of a format; empty if nothing is missing."""
    specs = {name: importlib.util.find_spec(name) for name in chosen.runtime}
    # A folder of this name in the current one, as of an export, has no origin.
    missing = [name for name, spec in specs.items() if spec is None or spec.origin is None]
    if not missing:
        return ""
    return (
        f"{chosen.name} models need {', '.join(missing)}, which is not installed; "
        f"run pip install 'estimator-det[{chosen.name}]'"
    )


def first_bytes(path: str) -> bytes:
    """START_BYTES of a file, or all of a shorter one; none of a folder."""
    if tf.io.gfile.isdir(path):
        return b""
    with tf.io.gfile.GFile(path, "rb") as file:
        return bytes(file.read(START_BYTES))


def num_bytes(path: str) -> int:
    """Size of a file, or of all files in a folder and below."""
    if not tf.io.gfile.isdir(path):
        return int(tf.io.gfile.stat(path).length)
    paths = [
        os.path.join(folder, name) for folder, _, names in tf.io.gfile.walk(path) for name in names
    ]
    return sum(int(tf.io.gfile.stat(each).length) for each in paths)


def is_quantized(config: pipeline_pb2.TrainEvalPipelineConfig) -> bool:
    """True if a `TrainEvalPipelineConfig` simulates quantization."""
    return bool(config.graph_rewriter.HasField("quantization"))
