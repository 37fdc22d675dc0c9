"""ONNX models, written by tf2onnx and run by onnxruntime."""

from __future__ import annotations

import tempfile
from typing import Any, Dict

import numpy as np

from estimator_det.compat import tf
from estimator_det.config import files
from exporters.detector import REQUIRED_OUTPUTS, ModelDetector
from exporters.formats.base import (
    FORMATS,
    ExportFormat,
    Plan,
    check_graph_format,
    class_names_beside,
    thresholds_beside,
    written_at,
)
from exporters.formats.converters import run_converter
from exporters.formats.graph_file import write_graph_file
from exporters.saved_model import RestoredNetwork
from model_fn.checkpoints.errors import RunError

MODEL_FILE = "model.onnx"
# Opset of ONNX 1.12, which runtimes since 2022 run; the first with all that detectors need.
OPSET = 17
_TYPES = {"tensor(uint8)": np.uint8, "tensor(float)": np.float32}
_FIELD_1 = 0x08  # the tag of a number in field 1 of a protobuf
_LEAST_IR_VERSION = 3  # first field of `ModelProto`; SavedModels, with the same first field, have 1


@FORMATS.register("onnx")
class Onnx(ExportFormat):
    """The exchange format of onnxruntime, TensorRT and others."""

    name = "onnx"
    file = MODEL_FILE
    converter = ("tf2onnx", "tensorflow")
    runtime = ("onnxruntime",)
    extra = "onnx"

    def check(self, plan: Plan) -> None:
        check_graph_format(self.name, plan)

    def write(self, network: RestoredNetwork, plan: Plan, path: str) -> bool:
        with tempfile.TemporaryDirectory() as folder, written_at(path) as output:
            graph = write_graph_file(network.checkpoint, plan, folder)
            arguments = ["-m", "tf2onnx.convert", "--graphdef", graph.path, "--output", output]
            arguments += ["--inputs", f"{graph.input}:0", "--opset", str(OPSET)]
            arguments += ["--outputs", ",".join(f"{name}:0" for name in graph.outputs)]
            run_converter(self, arguments, plan.options.converter_python, output)
        return True

    def recognizes(self, path: str) -> bool:
        if tf.io.gfile.isdir(path):
            return False
        with tf.io.gfile.GFile(path, "rb") as file:
            start = file.read(3)
        return len(start) == 3 and start[:1] == b"\x08" and bool(start[1] >= _LEAST_IR_VERSION)

    def load(self, path: str, *, keeps_raw: bool = False) -> ModelDetector:
        del keeps_raw
        return OnnxDetector(path)


class OnnxDetector(ModelDetector):
    """An ONNX model with the inputs and outputs of a served detector."""

    def __init__(self, path: str) -> None:
        import onnxruntime

        errors = onnxruntime.capi.onnxruntime_pybind11_state
        try:
            self._session: Any = onnxruntime.InferenceSession(
                files.read_bytes(path) if files.is_remote(path) else path,
                providers=["CPUExecutionProvider"],
            )
        except (errors.InvalidProtobuf, errors.InvalidGraph, errors.Fail, errors.NotImplemented,
                errors.InvalidArgument, errors.NoSuchFile) as error:  # fmt: skip
            raise RunError(
                f"{path} cannot be loaded: {str(error).splitlines()[0]}. It is damaged, or needs a "
                "newer onnxruntime; export it again"
            ) from error
        inputs = self._session.get_inputs()
        self._names = {node.name.split(":")[0]: node.name for node in self._session.get_outputs()}
        missing = sorted(set(REQUIRED_OUTPUTS) - set(self._names))
        is_image = len(inputs) == 1 and len(inputs[0].shape) == 4
        if not is_image or inputs[0].type not in _TYPES or missing:
            raise RunError(
                f"{path} is not an exported detector: it has the inputs "
                f"{[each.name for each in inputs]} and the outputs {sorted(self._names)}"
            )
        # Sizes that are not fixed have names.
        batch, *size = (each if isinstance(each, int) else None for each in inputs[0].shape)
        super().__init__(path, class_names_beside(path), thresholds_beside(path), batch)
        self.image_size = (size[0], size[1])
        self._input, self._type = inputs[0].name, _TYPES[inputs[0].type]

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        values = self._session.run(
            list(self._names.values()), {self._input: images.astype(self._type)}
        )
        return dict(zip(self._names, values))
