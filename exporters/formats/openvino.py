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
from exporters.loaded_model import NUM, OUTPUT_PREFIXES, LoadedModel, parent_folder

MODEL_FILE = "model.xml"
_TYPES = {"u8": np.uint8, "f32": np.float32}


def _top_k(values: Any, count: Any, axis: int, mode: str, index_type: str) -> Tuple[Any, Any]:
    """The best values, sorted, and their indices; those that are equal keep their order.

    To keep it, OpenVINO's own operation compares each value with all that it returns, which takes
    half a second for the scores of 90 classes. Of several that equal the last one, others may be
    returned.
    """
    import numpy as np
    from openvino import opset11

    best = opset11.topk(values, count, axis, mode, "index", index_type)
    first_sort = opset11.topk(best.output(0), count, axis, mode, "value", "i32")
    ordered = first_sort.output(0)
    # Each value's predecessor; the first is its own.
    parts = [opset11.slice(ordered, [0], [end], [1], [axis]) for end in (1, -1)]
    is_new = opset11.convert(opset11.not_equal(ordered, opset11.concat(parts, axis)), "i32")
    # Equal values have one number. With their places below it, no two keys are equal.
    numbers = opset11.cum_sum(is_new, np.int32(axis))
    keys = opset11.add(
        opset11.multiply(numbers, opset11.convert(count, "i32")), first_sort.output(1)
    )
    second_sort = opset11.topk(keys, count, axis, "min", "value", "i32")
    places = opset11.gather_elements(first_sort.output(1), second_sort.output(1), axis)
    return ordered, opset11.gather_elements(best.output(1), places, axis).output(0)


def _is_of_images(interpolation: Any) -> bool:
    """Whether it resizes images [B, h, w, C] of a few channels, by their height and width."""
    axes = interpolation.inputs()[-1].get_source_output().get_node()
    channels = interpolation.input(0).get_partial_shape()[-1]
    is_of_sides = axes.get_type_name() == "Constant" and axes.get_data().tolist() == [1, 2]
    return is_of_sides and channels.is_static and channels.get_length() <= 4


def _resize_channels(interpolation: Any) -> None:
    """Interpolates each channel of images [B, h, w, C] by itself.

    OpenVINO would copy all pixels twice, as floats, in order to interpolate. Transposed before they
    are normalized, they are bytes, and each channel is a picture of rank 3, which it does not copy.
    Together this is a third of the time of a small model with large photos.
    """
    import numpy as np
    from openvino import opset11

    forward, pixels = [0, 3, 1, 2], interpolation.input(0)
    while True:
        source = pixels.get_source_output()
        constants: List[Any] = []
        others: List[Any] = []
        for each in source.get_node().inputs():
            kind = each.get_source_output().get_node().get_type_name()
            (constants if kind == "Constant" else others).append(each)
        is_of_pixels = source.get_node().get_type_name() in ("Convert", "Multiply", "Add")
        is_alone = len(others) == 1 and len(source.get_target_inputs()) == 1
        ranks = {len(each.get_partial_shape()) for each in constants}
        if not (is_of_pixels and is_alone and ranks <= {4}):
            break
        for each in constants:
            moved = opset11.transpose(each.get_source_output(), forward)
            each.replace_source_output(moved.output(0))
        pixels = others[0]
    num_channels = source.get_partial_shape()[3].get_length()
    planes = opset11.transpose(source, forward)
    pixels.replace_source_output(planes.output(0))

    def with_sides(shape: List[int], image: Any, sized: Any, axes: List[int]) -> Any:
        sides = opset11.gather(opset11.shape_of(sized), np.array(axes), np.array(0))
        return opset11.reshape(image, opset11.concat([np.array(shape), sides], 0), False)

    image, *sizes, _ = (each.get_source_output() for each in interpolation.inputs())
    options = {**interpolation.get_attributes(), "pads_begin": [0] * 3, "pads_end": [0] * 3}
    # The shape of `image` itself is not transposed before the whole model is validated.
    channels = with_sides([-1], image, planes, [2, 3])
    resized = opset11.interpolate(channels, *sizes, axes=np.array([1, 2]), **options)
    images = with_sides([-1, num_channels], resized, resized, [1, 2])
    interpolation.output(0).replace(opset11.transpose(images, [0, 2, 3, 1]).output(0))


def _gather_without_batch(model: Any) -> None:
    """Gathers from a batch of one image as if it were none.

    With a batch of a fixed size of one, OpenVINO 2026.4 reads past the values, and crashes.
    """
    from openvino import opset11

    for node in model.get_ops():
        if node.get_type_name() == "Loop":
            _gather_without_batch(node.get_function())
        if node.get_type_name() != "Gather" or node.get_attributes().get("batch_dims") != 1:
            continue
        values, rows, axis = (each.get_source_output() for each in node.inputs())
        if values.get_partial_shape()[0] == 1:
            gathered = opset11.gather(values, opset11.squeeze(rows, [0]), axis)
            node.output(0).replace(gathered.output(0))


def _convert(graph: str, image: str, outputs: List[str], path: str) -> None:
    import os

    import openvino

    os.mkdir(path)
    model = openvino.convert_model(graph)
    for node in model.get_ops():
        attributes = node.get_attributes()
        if node.get_type_name() == "Interpolate" and _is_of_images(node):
            _resize_channels(node)
        if node.get_type_name() != "TopK" or not attributes["stable"]:
            continue
        values, count = (each.get_source_output() for each in node.inputs())
        axis, mode, index_type = (attributes[key] for key in ("axis", "mode", "index_element_type"))
        sorted_outputs = _top_k(values, count, axis, mode, index_type)
        for old, new in zip(node.outputs(), sorted_outputs):
            new.set_names(old.get_names())
            old.replace(new)
    _gather_without_batch(model)
    model.validate_nodes_and_infer_types()
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
    helpers = (_top_k, _is_of_images, _resize_channels, _gather_without_batch)

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
                f"{path} cannot be loaded: {_reason(error)}. It is damaged, or needs a newer "
                "openvino; export it again"
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
        self.batch_size, height, width, channels = (
            None if each.is_dynamic else each.get_length() for each in inputs[0].partial_shape
        )
        self.refuse_channels(channels, "run it with openvino directly")
        self.image_size = (height, width)
        self._type = _TYPES[inputs[0].element_type.get_type_name()]
        self._compiled = compiled
        self.turn = threading.Lock()

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        try:
            outputs = self._compiled([images.astype(self._type)])
        except RuntimeError as error:
            raise tf.errors.InvalidArgumentError(None, None, _reason(error)) from error
        values = {name: outputs[output] for name, output in self._outputs.items()}
        # OpenVINO has no error for images without pixels, which have no anchors.
        if not all(each.size for name, each in values.items() if name.startswith((NUM, "raw_"))):
            raise tf.errors.InvalidArgumentError(None, None, "the resized image has no pixels")
        return values


def _reason(error: RuntimeError) -> str:
    """The last line of an OpenVINO error; lines before it name places in its sources."""
    return str(error).strip().splitlines()[-1]


def _model_file(path: str) -> str:
    return os.path.join(path, MODEL_FILE) if tf.io.gfile.isdir(path) else path
