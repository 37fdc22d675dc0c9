"""Reads TFLite models: float, float16 and quantized weights, in TensorFlow's layouts."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from estimator_det.compat.private import tflite_schema
from estimator_det.config import files
from exporters.importing import graphs
from exporters.importing.published import (
    Convolution,
    Named,
    Published,
    Structure,
    damaged,
    other_format,
)
from model_fn.checkpoints.errors import RunError

IDENTIFIER = b"TFL3"  # bytes 4 to 8 of a file
POSTPROCESS = "TFLite_Detection_PostProcess"
DAMAGE = (struct.error, IndexError, ValueError, TypeError, OverflowError, AttributeError, KeyError,
           MemoryError)  # fmt: skip
_CONVOLUTIONS = {"CONV_2D": "conv", "DEPTHWISE_CONV_2D": "depthwise", "FULLY_CONNECTED": "dense"}
_POOLS = {"MAX_POOL_2D": "max_pool", "AVERAGE_POOL_2D": "average_pool"}
_SAME_VALUE = ("DEQUANTIZE", "QUANTIZE", "CAST")
_TYPES = {0: "<f4", 1: "<f2", 2: "<i4", 3: "u1", 9: "i1"}  # TensorType -> NumPy type
_MAX_LABELS = 1 << 20  # bytes of a list of labels
_BACKGROUND = "???"  # the first line of lists that begin with the background


class _Operator(NamedTuple):
    op: str
    inputs: Tuple[int, ...]
    outputs: Tuple[int, ...]
    depth_multiplier: int  # multiplier of depthwise convolutions


class _Model(NamedTuple):
    """A parsed file."""

    path: str
    operators: List[_Operator]
    tensors: List[Any]  # TensorT of the schema
    buffers: List[Any]  # BufferT
    # Shape of the first input, if it is [batch, h, w, channels].
    image_size: Optional[Tuple[int, int]]

    def name(self, index: int) -> str:
        raw = self.tensors[index].name or b""
        return raw.decode("utf-8", "replace")


def read_tflite(path: str) -> Published:
    """The weights and layers of a TFLite model."""
    content = files.read_bytes(path)
    if content[4:8] != IDENTIFIER:
        raise other_format(
            f"{path} is not a TFLite model: its bytes 4 to 8 are {content[4:8]!r}, not "
            f"{IDENTIFIER!r}"
        )
    try:
        model = _parse(content, path)
        values = {
            index: array
            for index in range(len(model.tensors))
            if (array := _constant(model, index)) is not None
        }
        return _publish(model, values, attached_labels(content))
    except DAMAGE as error:
        raise damaged(f"{path} is damaged or cut off: {error!r}") from error


def unpack(content: bytes) -> Any:
    """The `ModelT` in the content of a file; one of DAMAGE if it is damaged."""
    schema = tflite_schema()
    return schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))


def _parse(content: bytes, path: str) -> _Model:
    model = unpack(content)
    codes = vars(tflite_schema().BuiltinOperator)
    known = {code: name for name, code in codes.items() if isinstance(code, int)}
    names = [_operation(code, known, path) for code in model.operatorCodes]
    graph = model.subgraphs[0]
    operators = [
        _Operator(
            names[each.opcodeIndex],
            tuple(each.inputs),
            tuple(each.outputs),
            max(getattr(each.builtinOptions, "depthMultiplier", 1), 1),
        )
        for each in graph.operators
    ]
    inputs = [graph.tensors[index].shape for index in graph.inputs]
    images = [
        (int(each[1]), int(each[2])) for each in inputs if each is not None and len(each) == 4
    ]
    size = images[0] if images else None
    return _Model(path, operators, graph.tensors, model.buffers, size)


def _operation(code: Any, known: Dict[int, str], path: str) -> str:
    number = max(code.builtinCode, code.deprecatedBuiltinCode)
    name = known.get(number, f"number {number}")
    if name == "CUSTOM":
        name = (code.customCode or b"").decode("utf-8", "replace")
        if name == POSTPROCESS:
            return name
    elif number in known:
        return name
    raise RunError(
        f"{path} contains the operation {name}, which is not known; of custom operations only "
        f"{POSTPROCESS} is. Import a model without it, or another format of this model"
    )


def _constant(model: _Model, index: int) -> Optional[np.ndarray]:
    """The values of a tensor with a buffer of its own, as float32 where it is quantized."""
    tensor = model.tensors[index]
    data = model.buffers[tensor.buffer].data
    if data is None or tensor.type not in _TYPES:
        return None
    dtype = np.dtype(_TYPES[tensor.type])
    shape = [] if tensor.shape is None else [int(size) for size in tensor.shape]
    raw = np.asarray(data, np.uint8).tobytes()
    count = int(np.prod(shape, dtype=np.int64))
    if len(raw) != count * dtype.itemsize:
        raise damaged(
            f"{model.path}: tensor {model.name(index)} of shape {shape} has {len(raw)} bytes and "
            f"needs {count * dtype.itemsize}"
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


def _publish(model: _Model, values: Dict[int, np.ndarray], labels: Dict[int, str]) -> Published:
    makers = {
        output: number for number, each in enumerate(model.operators) for output in each.outputs
    }

    def constant(index: int) -> Optional[Named]:
        for _ in model.operators:  # a damaged file may have a cycle
            if index < 0 or index in values or index not in makers:
                break
            maker = model.operators[makers[index]]
            if maker.op not in _SAME_VALUE:
                return None
            index = maker.inputs[0]
        if index not in values:
            return None
        return Named(f"{model.name(index)} #{index}", values[index])

    nodes: Dict[str, graphs.Node] = {}
    layers: List[Convolution] = []
    tokens: Dict[str, Tuple[object, ...]] = {}
    anchors = None
    for number, each in enumerate(model.operators):
        name = _node_name(number, each)
        sources = tuple(
            _node_name(makers[index], model.operators[makers[index]])
            for index in (each.inputs[:1] if each.op in _CONVOLUTIONS else each.inputs)
            if index in makers
        )
        nodes[name] = graphs.Node(name, each.op, sources)
        if each.op in _POOLS:
            tokens[name] = (_POOLS[each.op],)
        elif each.op in _CONVOLUTIONS:
            layer = _layer(name, each, constant)
            if layer is not None:
                layers.append(layer)
                tokens[name] = layer.token
        elif each.op == POSTPROCESS and (constant_anchors := constant(each.inputs[2])) is not None:
            anchors = corners(constant_anchors.values)
    graph = graphs.Graph(nodes, {})
    parents = {name: graphs.parents_of(graph, name, tokens) for name in tokens}
    arrays = {f"{model.name(index)} #{index}": array for index, array in values.items()}
    structure = Structure(tuple(layers), tokens, parents)
    return Published(arrays, structure, False, anchors, labels, model.image_size)


def _node_name(number: int, operator: _Operator) -> str:
    return f"{operator.op} #{number}"


def _layer(name: str, operator: _Operator, constant: Any) -> Optional[Convolution]:
    weights = constant(operator.inputs[1])
    if weights is None:
        return None
    kind = _CONVOLUTIONS[operator.op]
    offset = constant(operator.inputs[2]) if len(operator.inputs) > 2 else None
    # OHWI -> HWIO, 1HWC -> HWC1, OI -> IO
    order = {"conv": (1, 2, 3, 0), "depthwise": (1, 2, 3, 0), "dense": (1, 0)}[kind]
    values = np.transpose(weights.values, order)
    if kind == "depthwise":
        values = values.reshape(*values.shape[:2], -1, operator.depth_multiplier)
    values = np.ascontiguousarray(values)
    channels = values.shape[2] * values.shape[3] if kind == "depthwise" else values.shape[-1]
    if offset is not None and offset.values.shape != (channels,):
        raise ValueError(f"{offset.name} has shape {offset.values.shape}, its layer {channels}")
    return Convolution(name, kind, Named(weights.name, values), None, offset, None)


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
