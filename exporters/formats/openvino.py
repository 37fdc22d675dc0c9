"""OpenVINO models: `model.xml` and its weights."""

from __future__ import annotations

import os
import threading
from typing import Any, Dict, List, Tuple, Union

import numpy as np

from estimator_det import files
from estimator_det.compat import tf
from estimator_det.errors import RunError
from exporters.formats.base import FORMATS
from exporters.formats.converters import GraphFormat
from exporters.loaded_model import OUTPUT_PREFIXES, LoadedModel, parent_folder

MODEL_FILE = "model.xml"
_TYPES = {"u8": np.uint8, "f32": np.float32}


def _convert(graph: str, image: str, outputs: List[str], path: str) -> None:
    import os

    import openvino
    from openvino import opset11

    os.mkdir(path)
    model = openvino.convert_model(graph)
    for node in model.get_ops():
        attributes = node.get_attributes()
        if node.get_type_name() != "TopK" or not attributes["stable"]:
            continue
        # To keep the order of equal values, OpenVINO compares each value with all that it returns,
        # which takes half a second for the scores of 90 classes. So the largest values are found
        # first, and then sorted. Of several that equal the last one, others may be returned.
        axis, mode, index_type = (attributes[key] for key in ("axis", "mode", "index_element_type"))
        values, count = (each.get_source_output() for each in node.inputs())
        best = opset11.topk(values, count, axis, mode, "index", index_type)
        order = opset11.topk(best.output(0), count, axis, mode, "value", index_type, stable=True)
        indices = opset11.gather_elements(best.output(1), order.output(1), axis)
        for old, new in zip(node.outputs(), (order.output(0), indices.output(0))):
            new.set_names(old.get_names())
            old.replace(new)
    # Weights stay float32: half precision is a choice of the device.
    openvino.save_model(model, os.path.join(path, "model.xml"), compress_to_fp16=False)


@FORMATS.register("openvino")
class Openvino(GraphFormat):
    """The format of Intel's runtime."""

    name = "openvino"
    file = "openvino"
    converter = ("openvino",)
    runtime = ("openvino",)
    convert = staticmethod(_convert)

    def recognizes(self, path: str) -> bool:
        file_path = _model_file(path)
        if not tf.io.gfile.exists(file_path) or not file_path.endswith(".xml"):
            return False
        with tf.io.gfile.GFile(file_path, "rb") as file:
            return b"<net " in file.read(1024)

    def load(self, path: str) -> LoadedModel:
        return OpenvinoDetector(path)


class OpenvinoDetector(LoadedModel):
    """An OpenVINO model with the inputs and outputs of a served detector.

    Args:
        path: Its folder, or the `model.xml` in it.
    """

    def __init__(self, path: str) -> None:
        import openvino as runtime

        # The label map is beside the model's folder, not in it.
        super().__init__(path if tf.io.gfile.isdir(path) else parent_folder(path))
        core, file = runtime.Core(), _model_file(path)
        source: Tuple[Union[str, bytes], ...] = (file,)
        if files.is_remote(file):  # OpenVINO reads local files only
            weights = f"{os.path.splitext(file)[0]}.bin"
            source = (files.read_bytes(file), files.read_bytes(weights))
        try:
            model = core.read_model(*source)
            # By default OpenVINO computes in bfloat16 on CPUs that have it.
            compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        except RuntimeError as error:
            raise RunError(
                f"{path} cannot be loaded: {str(error).splitlines()[0]}. It is damaged, or needs a "
                "newer openvino; export it again"
            ) from error
        names: Dict[str, Any] = {
            name.split(":")[0]: output for output in compiled.outputs for name in output.get_names()
        }
        inputs = compiled.inputs
        is_image = len(inputs) == 1 and len(inputs[0].partial_shape) == 4
        is_typed = is_image and inputs[0].element_type.get_type_name() in _TYPES
        self.refuse_unless(is_typed, (each.any_name for each in inputs), names)
        # Names of operations inside the graph remain as further names of its outputs.
        self._outputs = {name: names[name] for name in names if name.startswith(OUTPUT_PREFIXES)}
        self.batch_size, height, width, _ = (
            None if each.is_dynamic else each.get_length() for each in inputs[0].partial_shape
        )
        self.image_size = (height, width)
        self._type = _TYPES[inputs[0].element_type.get_type_name()]
        self._compiled = compiled
        self.turn = threading.Lock()

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        try:
            outputs = self._compiled([images.astype(self._type)])
        except RuntimeError as error:
            reason = str(error).split("\n")[0]
            raise RunError(f"{self.path} fails: {reason}. Export it again") from error
        return {name: outputs[output] for name, output in self._outputs.items()}


def _model_file(path: str) -> str:
    return os.path.join(path, MODEL_FILE) if tf.io.gfile.isdir(path) else path
