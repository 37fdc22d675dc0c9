"""Reads TFLite models: float, float16 and quantized weights, in TensorFlow's layouts."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from flatbuffers import flexbuffers

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
        names = _operation_names(model, path)
        graph = model.subgraphs[0]
        constants = {
            index: Named(f"{_name(tensor)} #{index}", values)
            for index, tensor in enumerate(graph.tensors)
            if (values := _values(tensor, model.buffers[tensor.buffer].data, path)) is not None
        }
        shapes = [graph.tensors[index].shape for index in graph.inputs]
        images = [shape for shape in shapes if shape is not None and len(shape) == 4]
        structure, anchors = _read_layers(graph.operators, names, constants)
        return Published(
            {each.name: each.values for each in constants.values()},
            structure,
            has_names=False,
            anchors=anchors,
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


def _operation_names(model: Any, path: str) -> List[str]:
    """The kind and the number of each operation of the first subgraph, as `CONV_2D #3`."""
    codes = tflite_schema().BuiltinOperator
    known = {code: name for name, code in vars(codes).items()}
    kinds = []
    for code in model.operatorCodes:
        number = max(code.builtinCode, code.deprecatedBuiltinCode)
        kind = known.get(number, f"number {number}")
        if number == codes.CUSTOM:
            kind = str(code.customCode or b"", "utf-8", "replace")
        if kind not in (known.get(number), POSTPROCESS):
            raise RunError(
                f"{path} contains the operation {kind}, which is not known; of custom operations "
                f"only {POSTPROCESS} is. Import a model without it, or another format of this model"
            )
        kinds.append(kind)
    operators = model.subgraphs[0].operators
    return [f"{kinds[each.opcodeIndex]} #{number}" for number, each in enumerate(operators)]


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


def _read_layers(
    operators: Sequence[Any], names: Sequence[str], constants: Mapping[int, Named]
) -> Tuple[Structure, Optional[np.ndarray]]:
    """The layers of a model and its anchors.

    Args:
        names: Results of `_operation_names`.
        constants: Constants by number of their tensor.
    """
    kinds = [name.partition(" ")[0] for name in names]
    makers = {output: number for number, each in enumerate(operators) for output in each.outputs}

    def constant(index: int) -> Optional[Named]:
        for _ in operators:  # a damaged file may have a cycle
            if index not in makers or kinds[makers[index]] not in _SAME_VALUE:
                break
            index = operators[makers[index]].inputs[0]
        return constants.get(index)

    nodes: Dict[str, graphs.Node] = {}
    layers: List[Convolution] = []
    tokens: Dict[str, Tuple[object, ...]] = {}
    anchors = None
    for name, kind, each in zip(names, kinds, operators):
        inputs = each.inputs[:1] if kind in _CONVOLUTIONS else each.inputs
        sources = tuple(names[makers[index]] for index in inputs if index in makers)
        nodes[name] = graphs.Node(name, kind, sources)
        if kind in _POOLS:
            tokens[name] = (_POOLS[kind],)
        elif kind in _CONVOLUTIONS:
            layer = _layer(name, _CONVOLUTIONS[kind], each, constant)
            if layer is not None:
                layers.append(layer)
                tokens[name] = layer.token
        elif kind == POSTPROCESS and (center_sizes := constant(each.inputs[2])) is not None:
            anchors = corners(center_sizes.values)
    graph = graphs.Graph(nodes, {})
    parents = {name: graphs.parents_of(graph, name, tokens) for name in tokens}
    return Structure(tuple(layers), tokens, parents), anchors


def _layer(name: str, kind: str, operator: Any, constant: Any) -> Optional[Convolution]:
    weights = constant(operator.inputs[1])
    if weights is None:
        return None
    offset = constant(operator.inputs[2]) if len(operator.inputs) > 2 else None
    # OHWI -> HWIO, 1HWC -> HWC1, OI -> IO
    order = {"conv": (1, 2, 3, 0), "depthwise": (1, 2, 3, 0), "dense": (1, 0)}[kind]
    values = np.transpose(weights.values, order)
    if kind == "depthwise":
        multiplier = max(getattr(operator.builtinOptions, "depthMultiplier", 1), 1)
        values = values.reshape(*values.shape[:2], -1, multiplier)
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
