"""ONNX models, written by tf2onnx and run by onnxruntime."""

from __future__ import annotations

import re
from typing import Any, Dict, List

import numpy as np

from estimator_det import files
from estimator_det.compat import tf
from estimator_det.errors import RunError
from exporters.formats.base import FORMATS
from exporters.formats.converters import GraphFormat
from exporters.loaded_model import LoadedModel
from inputs import machine

_TYPES = {"tensor(uint8)": np.uint8, "tensor(float)": np.float32}
# Field 1 of `ModelProto`, its IR version, is 3 or more; SavedModels have a field 1 of 1.
_VERSION = re.compile(rb"\x08[\x03-\xff].", re.DOTALL)


def _align_regions(graph: Any, node: Any, name: str, _: Any) -> None:
    """Puts a `RoiAlign` in the place of a `CropAndResize`: one bin around each place of a crop.

    tf2onnx makes a loop over the boxes, which takes longer and has one thread. Boxes lie inside of
    the image; past its border, the two operations differ.

    Args:
        graph: `tf2onnx.graph.Graph` with the node, which is changed.
    """
    import numpy as np
    from onnx import TensorProto
    from tf2onnx.utils import make_name

    def add(kind: str, inputs: List[str], **attributes: Any) -> str:
        return str(graph.make_node(kind, inputs, attributes, name=make_name(name)).output[0])

    def constant(values: Any, dtype: Any = np.float32) -> str:
        return str(graph.make_const(make_name(name), np.array(values, dtype)).output[0])

    images, boxes, indices, _ = node.input
    height, width = node.inputs[3].get_tensor_value()
    shape, dtype = graph.get_shape(node.output[0]), graph.get_dtype(node.output[0])
    graph.remove_node(name)
    ends = [constant([end], np.int64) for end in (1, 3)]
    sides = add("Cast", [add("Slice", [add("Shape", [images]), *ends])], to=TensorProto.FLOAT)
    last = add("Sub", [sides, constant([1.0])])
    corners = add("Mul", [boxes, add("Concat", [last, last], axis=0)])
    # Places of the corners become bins around them. One place has one bin, the whole box.
    y, x = (0.5 / (side - 1) if side > 1 else 0.0 for side in (height, width))
    # ymin, xmin, ymax, xmax by x1, y1, x2, y2
    bins = [[0, 1 + y, 0, -y], [1 + x, 0, -x, 0], [0, -y, 0, 1 + y], [-x, 0, 1 + x, 0]]
    regions = add("Add", [add("MatMul", [corners, constant(bins)]), constant([0.5])])
    channels_first = add("Transpose", [images], perm=[0, 3, 1, 2])
    aligned = add(
        "RoiAlign",
        [channels_first, regions, add("Cast", [indices], to=TensorProto.INT64)],
        output_height=height,
        output_width=width,
        sampling_ratio=1,
        coordinate_transformation_mode="half_pixel",
    )
    graph.make_node(
        "Transpose",
        [aligned],
        {"perm": [0, 2, 3, 1]},
        name=name,
        outputs=node.output,
        shapes=[shape],
        dtypes=[dtype],
    )


def _convert(graph: str, image: str, outputs: List[str], path: str) -> None:
    import copy
    import logging

    from tf2onnx import optimizer, tf_loader, tfonnx, utils

    logging.getLogger("tf2onnx").setLevel(logging.WARNING)
    tensors = [f"{image}:0"], [f"{name}:0" for name in outputs]
    graph_def, inputs, output_tensors = tf_loader.from_graphdef(graph, *tensors)
    tf = tf_loader.tf
    with tf.Graph().as_default() as tf_graph:
        tf.import_graph_def(graph_def, name="")
        # Opset of ONNX 1.12, which runtimes since 2022 run; the first with all that detectors need.
        converted = tfonnx.process_tf_graph(
            tf_graph,
            opset=17,
            input_names=inputs,
            output_names=output_tensors,
            custom_op_handlers={"CropAndResize": (_align_regions, [])},
        )
        for node in converted.get_nodes():
            if node.type == "Resize" and node.get_attr_value("mode") == b"cubic":
                # TensorFlow's kernel without half-pixel centres; tf2onnx assumes the other one.
                node.set_attr("cubic_coeff_a", -0.75)
                node.set_attr("exclude_outside", 0)
        # By default, tf2onnx copies the graph before each of its passes in case that one fails,
        # which is half of its work. One copy is enough: after a failure all begin again as usual.
        original = copy.deepcopy(converted)
        try:
            optimized = optimizer.optimize_graph(converted, catch_errors=False)
        except Exception:
            optimized = optimizer.optimize_graph(original)
        utils.save_protobuf(path, optimized.make_model("converted by tf2onnx"))


@FORMATS.register("onnx")
class Onnx(GraphFormat):
    """The exchange format of onnxruntime, TensorRT and others."""

    name = "onnx"
    file = "model.onnx"
    converter = ("tf2onnx", "tensorflow")
    runtime = ("onnxruntime",)
    resize_methods = ("BILINEAR", "NEAREST_NEIGHBOR", "BICUBIC")
    convert = staticmethod(_convert)
    helpers = (_align_regions,)
    uses_tensorflow = True
    start = _VERSION

    def load(self, path: str) -> LoadedModel:
        return OnnxDetector(path)


class OnnxDetector(LoadedModel):
    """An ONNX model with the inputs and outputs of a served detector."""

    def __init__(self, path: str) -> None:
        import onnxruntime

        super().__init__(path)
        errors = onnxruntime.capi.onnxruntime_pybind11_state
        options = onnxruntime.SessionOptions()
        # By default as many as the machine has cores; what a container does not get waits busily.
        options.intra_op_num_threads = machine.available_cpus()
        try:
            self._session: Any = onnxruntime.InferenceSession(
                files.read_bytes(path) if files.is_remote(path) else path,
                options,
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
        is_image = len(inputs) == 1 and len(inputs[0].shape) == 4 and inputs[0].type in _TYPES
        self.refuse_unless(is_image, (each.name for each in inputs), self._names)
        # Sizes that are not fixed have names.
        self.batch_size, height, width, channels = (
            each if isinstance(each, int) else None for each in inputs[0].shape
        )
        self.refuse_channels(channels, "run it with onnxruntime directly")
        self.image_size = (height, width)
        self._failures = (errors.Fail, errors.InvalidArgument, errors.RuntimeException)
        self._input, self._type = inputs[0].name, _TYPES[inputs[0].type]

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        feed = {self._input: images.astype(self._type)}
        try:
            values = self._session.run(list(self._names.values()), feed)
        except self._failures as error:
            raise tf.errors.InvalidArgumentError(None, None, str(error)) from error
        return dict(zip(self._names, values))
