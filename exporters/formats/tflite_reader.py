"""Reads TFLite models: float, float16 and quantized weights, in TensorFlow's layouts."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from typing import Any, Dict, Optional

import numpy as np
from flatbuffers import flexbuffers

from estimator_det import files
from estimator_det.compat.private import tflite_schema
from estimator_det.errors import RunError
from exporters.reading import graphs
from exporters.reading.published import Published, damaged, other_format

IDENTIFIER = b"TFL3"  # bytes 4 to 8 of a file
POSTPROCESS = "TFLite_Detection_PostProcess"
DAMAGE = (struct.error, IndexError, ValueError, TypeError, OverflowError, AttributeError, KeyError,
           MemoryError)  # fmt: skip
# Operations that have another name in TensorFlow.
_OPERATIONS = {
    "CONV_2D": "_FusedConv2D",
    "DEPTHWISE_CONV_2D": "_FusedDepthwiseConv2dNative",
    "FULLY_CONNECTED": "_FusedMatMul",
    "MAX_POOL_2D": "MaxPool",
    "AVERAGE_POOL_2D": "AvgPool",
    "DEQUANTIZE": "Identity",
    "QUANTIZE": "Identity",
    "CAST": "Cast",
}
# Order of the dimensions of weights: OHWI -> HWIO, 1HWC -> HWC1, OI -> IO.
_ORDERS = {
    "CONV_2D": np.array([1, 2, 3, 0]),
    "DEPTHWISE_CONV_2D": np.array([1, 2, 3, 0]),
    "FULLY_CONNECTED": np.array([1, 0]),
}
_TYPES = {0: "<f4", 1: "<f2", 2: "<i4", 3: "u1", 9: "i1"}  # TensorType -> NumPy type
_MAX_LABELS = 1 << 20  # bytes of a list of labels
_BACKGROUND = "???"  # the first line of lists that begin with the background


def read_tflite(path: str) -> Published:
    """The weights and layers of a TFLite model."""
    content = files.read_bytes(path)
    if content[4:8] != IDENTIFIER:
        raise other_format(
            f"{path} is not a TFLite model: its bytes 4 to 8 are {content[4:8]!r}, not "
            f"{IDENTIFIER!r}"
        )
    try:
        model = unpack(content)
        main = model.subgraphs[0]
        graph = _read_graph(model, path)
        shapes = [main.tensors[index].shape for index in main.inputs]
        images = [shape for shape in shapes if shape is not None and len(shape) == 4]
        return Published(
            graph.arrays,
            graphs.read_structure(graph),
            has_names=False,
            anchors=_anchors(graph),
            label_map=attached_labels(content),
            image_size=(int(images[0][1]), int(images[0][2])) if images else None,
        )
    except DAMAGE as error:
        raise damaged(f"{path} is damaged or cut off: {error!r}") from error


def unpack(content: bytes) -> Any:
    """The `ModelT` in the content of a file; one of DAMAGE if it is damaged."""
    schema = tflite_schema()
    return schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))


def find_postprocess(model: Any) -> Optional[Any]:
    """The operation POSTPROCESS in the first subgraph of a `ModelT`; None if it has none."""
    codes = [code.customCode for code in model.operatorCodes]
    operators = model.subgraphs[0].operators
    return next((op for op in operators if codes[op.opcodeIndex] == POSTPROCESS.encode()), None)


def postprocess_options(operator: Any) -> Dict[str, Any]:
    """The options of POSTPROCESS."""
    options: Dict[str, Any] = flexbuffers.Loads(bytearray(operator.customOptions))
    return options


def _read_graph(model: Any, path: str) -> graphs.Graph:
    """The operations as TensorFlow has them, and the constants with its order of dimensions."""
    kinds = [_operation_kind(each, path) for each in model.operatorCodes]
    tensors = model.subgraphs[0].tensors
    names = [f"{_name(tensor)} #{index}" for index, tensor in enumerate(tensors)]
    arrays = {}
    for name, tensor in zip(names, tensors):
        values = _values(tensor, model.buffers[tensor.buffer].data, path)
        if values is not None:
            arrays[name] = values
    nodes: Dict[str, graphs.Node] = {}

    def add(name: str, op: str, *inputs: str) -> str:
        nodes[name] = graphs.Node(name, op, inputs)
        return name

    makers: Dict[int, str] = {}  # names of operations by number of their tensors
    for number, each in enumerate(model.subgraphs[0].operators):
        kind = kinds[each.opcodeIndex]
        name = f"{kind} #{number}"
        # -1 stands for an optional input that the operation lacks.
        inputs = [makers.get(index, names[index]) for index in each.inputs if index >= 0]
        if kind in _ORDERS:
            arrays[f"order of {kind}"] = _ORDERS[kind]
            inputs[1] = add(f"{name} weights", "Transpose", inputs[1], f"order of {kind}")
        if kind == "DEPTHWISE_CONV_2D":
            _, height, width, _ = tensors[each.inputs[1]].shape
            shape = [height, width, -1, max(each.builtinOptions.depthMultiplier, 1)]
            arrays[f"{name} shape"] = np.array(shape)
            inputs[1] = add(f"{name} multiplied", "Reshape", inputs[1], f"{name} shape")
        add(name, _OPERATIONS.get(kind, kind), *inputs)
        makers.update(dict.fromkeys(each.outputs, name))
    return graphs.Graph(nodes, arrays)


def _anchors(graph: graphs.Graph) -> Optional[np.ndarray]:
    for node in graph.nodes.values():
        center_sizes = graphs.evaluate(graph, node.inputs[2]) if node.op == POSTPROCESS else None
        if center_sizes is not None:
            return corners(center_sizes)
    return None


def _operation_kind(code: Any, path: str) -> str:
    """`CONV_2D` or another name of TFLite's own operations, or POSTPROCESS."""
    codes = tflite_schema().BuiltinOperator
    number = max(code.builtinCode, code.deprecatedBuiltinCode)
    known = {code: name for name, code in vars(codes).items()}.get(number)
    kind = known or f"number {number}"
    if number == codes.CUSTOM:
        kind = str(code.customCode or b"", "utf-8", "replace")
    if kind not in (known, POSTPROCESS):
        raise RunError(
            f"{path} contains the operation {kind}, which is not known; of custom operations only "
            f"{POSTPROCESS} is. Import a model without it, or another format of this model"
        )
    return kind


def _name(tensor: Any) -> str:
    return str(tensor.name or b"", "utf-8", "replace")


def _values(tensor: Any, data: Any, path: str) -> Optional[np.ndarray]:
    """The values of a tensor with a buffer of its own, as float32 where it is quantized."""
    if data is None or tensor.type not in _TYPES:
        return None
    dtype = np.dtype(_TYPES[tensor.type])
    shape = [] if tensor.shape is None else [int(size) for size in tensor.shape]
    raw = np.asarray(data, np.uint8).tobytes()
    count = int(np.prod(shape, dtype=np.int64))
    if len(raw) != count * dtype.itemsize:
        raise damaged(
            f"{path}: tensor {_name(tensor)} of shape {shape} has {len(raw)} bytes and needs "
            f"{count * dtype.itemsize}"
        )
    values = np.frombuffer(raw, dtype).reshape(shape)
    if dtype.kind == "f":
        return values.astype(np.float32)
    return _dequantized(values, tensor.quantization)


def _dequantized(values: np.ndarray, quantization: Any) -> np.ndarray:
    if quantization is None or quantization.scale is None or not len(quantization.scale):
        return values
    scale = np.asarray(quantization.scale, np.float32)
    zero = np.asarray(quantization.zeroPoint if quantization.zeroPoint is not None else 0)
    if scale.size > 1:  # one for each slice of a dimension
        shape = [1] * values.ndim
        shape[quantization.quantizedDimension] = -1
        scale, zero = scale.reshape(shape), np.broadcast_to(zero, scale.size).reshape(shape)
    return (values.astype(np.float32) - zero.astype(np.float32)) * scale


def corners(anchors: np.ndarray) -> np.ndarray:
    """[A, 4], y, x, height and width -> ymin, xmin, ymax, xmax."""
    centers, half = anchors[:, :2], anchors[:, 2:] / 2
    return np.concatenate([centers - half, centers + half], 1)


def attached_labels(content: bytes) -> Dict[int, str]:
    """Class names by id from 1, of a list that is attached to a file as TFLite metadata has it."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as attached:
            lists = [each for each in attached.infolist() if each.filename.endswith(".txt")]
            if not lists or lists[0].file_size > _MAX_LABELS:
                return {}
            lines = attached.read(lists[0]).decode("utf-8", "replace").split("\n")
    except zipfile.BadZipFile:
        return {}  # most models have nothing attached
    except (RuntimeError, EOFError, zlib.error) as error:  # encrypted, or damaged inside
        raise ValueError(f"the attached list of labels cannot be read: {error}") from error
    names = [line.strip() for line in lines]
    first = 0 if names and names[0] == _BACKGROUND else 1
    return {index: name for index, name in enumerate(names, first) if index and name}
