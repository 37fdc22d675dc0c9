"""TFLite metadata: a label map, and how images are normalized, inside a model file.

https://ai.google.dev/edge/litert/models/metadata describes the format: a flatbuffer of the schema
`metadata_schema.fbs` in the model's metadata buffer, and files that are appended to the model as a
zip archive. Field numbers and codes below come from the schema.
"""

from __future__ import annotations

import io
import zipfile
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import flatbuffers
import numpy as np
from flatbuffers.table import Table

from estimator_det.compat import tf, tf1
from estimator_det.compat.private import tflite_schema
from estimator_det.errors import UsageError
from exporters.formats.tflite_reader import IDENTIFIER, unpack
from inputs.serving import COLOR_CHANNELS

METADATA_NAME = b"TFLITE_METADATA"  # name of the model's buffer
LABELS_FILE = "labels.txt"
_PARSER_VERSION = "1.0.0"  # the least that reads these fields
_METADATA_IDENTIFIER = b"M001"
# Codes of the schema.
_VALUE_LABELS = np.uint8(3)  # AssociatedFileType: names by the value of the tensor
_FEATURE_PROPERTY, _IMAGE_PROPERTIES, _BOX_PROPERTIES = map(np.uint8, (1, 2, 3))
_NORMALIZATION = np.uint8(1)  # ProcessUnitOptions
_RGB, _BOUNDARIES, _RATIO = map(np.uint8, (1, 1, 0))

# Names and descriptions of tensors.
_INPUT = ("image", "The image, resized to the size of the tensor with bilinear interpolation.")
_OUTPUTS = (
    ("location", "Boxes: ymin, xmin, ymax, xmax as fractions of the image."),
    ("category", "Classes of the boxes, from 0."),
    ("score", "Scores of the boxes."),
    ("number of detections", "How many boxes there are."),
    ("keypoints", "Keypoints of the boxes: y and x as fractions of the image."),
    ("keypoint score", "Scores of the keypoints."),
)
_DETECTOR_OUTPUTS = 4  # least number of outputs of a detector
_CATEGORY = 1  # place among these


class Normalization(NamedTuple):
    """Pixels x in 0..255 become (x - mean) / std; each for red, green and blue."""

    mean: Tuple[float, ...]
    std: Tuple[float, ...]


def add_metadata(
    content: bytes,
    normalization: Normalization,
    num_classes: int,
    class_names: Mapping[int, str],
    description: str,
) -> bytes:
    """A TFLite model with metadata.

    Args:
        content: The model, whose outputs are _OUTPUTS without or with keypoints, or raw.
        num_classes: Classes without a name have their id as one.
        class_names: By id from 1; without any, no labels are attached.
    """
    schema = tflite_schema()
    model = unpack(content)
    graph = model.subgraphs[0]
    height, width = (int(size) for size in graph.tensors[graph.inputs[0]].shape[1:3])
    count = len(graph.outputs)
    is_detector = count >= _DETECTOR_OUTPUTS
    data = _metadata((height, width), normalization, count, bool(class_names), description)
    buffer, entry = schema.BufferT(), schema.MetadataT()
    buffer.data = np.frombuffer(data, np.uint8)
    entry.name, entry.buffer = METADATA_NAME, len(model.buffers)
    model.buffers.append(buffer)
    model.metadata = [*(model.metadata or []), entry]
    result = io.BytesIO(pack(model))
    if class_names and is_detector:
        names = [class_names.get(i, str(i)) for i in range(1, num_classes + 1)]
        with zipfile.ZipFile(result, "a") as attached:
            attached.writestr(zipfile.ZipInfo(LABELS_FILE), "\n".join(names) + "\n")
    return result.getvalue()


def pack(model: Any) -> bytes:
    """A model of the schema's tables as the content of a file."""
    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), IDENTIFIER)
    return bytes(builder.Output())


def measure_normalization(normalize: Any) -> Normalization:
    """Scale and offset of a function of pixels, from its values for black and white."""
    with tf.Graph().as_default(), tf1.Session() as session:
        levels = [tf.fill([1, 1, 1, COLOR_CHANNELS], level) for level in (0.0, 100.0, 255.0)]
        black, gray, white = (
            values.reshape(-1).astype(np.float64)
            for values in session.run([normalize(level) for level in levels])
        )
    scale = (white - black) / 255
    if black.shape != (COLOR_CHANNELS,) or not np.allclose(gray, black + scale * 100, atol=1e-3):
        raise UsageError(
            "--format tflite: the feature extractor does not normalize pixels as (x - mean) / std, "
            "which is all that metadata can describe; export another format"
        )
    mean, std = -black / scale, 1 / scale
    return Normalization(tuple(np.round(mean, 4).tolist()), tuple(np.round(std, 4).tolist()))


def read_normalization(model: Any) -> Optional[Normalization]:
    """The normalization in the metadata of a `ModelT`; None if it has none."""
    entry = next((each for each in model.metadata or [] if each.name == METADATA_NAME), None)
    if entry is None:
        return None
    data = np.asarray(model.buffers[entry.buffer].data, np.uint8).tobytes()
    root = Table(bytearray(data), int(np.frombuffer(data, "<u4", 1)[0]))
    for graph in _tables(root, 3)[:1]:  # subgraph_metadata
        for tensor in _tables(graph, 2)[:1]:  # input_tensor_metadata
            for unit in _tables(tensor, 4):  # process_units
                kind, options = _union(unit, 0)
                if kind == _NORMALIZATION and options is not None:
                    mean, std = (_read_floats(options, slot) for slot in (0, 1))
                    if len(mean) in (1, COLOR_CHANNELS) and len(mean) == len(std):
                        repeats = COLOR_CHANNELS // len(mean)
                        return Normalization(mean * repeats, std * repeats)
    return None


def _field(table: Table, slot: int) -> int:
    """Offset of a field in the table; 0 if it is not set."""
    return int(table.Offset(4 + 2 * slot))


def _tables(table: Table, slot: int) -> List[Table]:
    offset = _field(table, slot)
    if not offset:
        return []
    start = table.Vector(offset)
    places = [start + 4 * i for i in range(table.VectorLen(offset))]
    return [Table(table.Bytes, table.Indirect(place)) for place in places]


def _union(table: Table, slot: int) -> Tuple[int, Optional[Table]]:
    """Code and table of a union, whose code is in `slot` and whose table in the next."""
    code, offset = _field(table, slot), _field(table, slot + 1)
    if not code or not offset:
        return 0, None
    kind = table.Get(flatbuffers.number_types.Uint8Flags, table.Pos + code)
    return int(kind), Table(table.Bytes, table.Indirect(table.Pos + offset))


def _read_floats(table: Table, slot: int) -> Tuple[float, ...]:
    offset = _field(table, slot)
    if not offset:
        return ()
    values = np.frombuffer(table.Bytes, "<f4", table.VectorLen(offset), table.Vector(offset))
    return tuple(values.tolist())


def _metadata(
    size: Tuple[int, int],
    normalization: Normalization,
    num_outputs: int,
    has_labels: bool,
    description: str,
) -> bytes:
    """The content of the metadata buffer; tables are dictionaries by field number."""
    height, width = size
    black, white = (
        _floats([(level - mean) / std for mean, std in zip(*normalization)]) for level in (0, 255)
    )
    properties = {0: _RGB, 1: {0: np.uint32(width), 1: np.uint32(height)}}
    unit = {0: _NORMALIZATION, 1: {0: _floats(normalization.mean), 1: _floats(normalization.std)}}
    image = {
        **dict(enumerate(_INPUT)),
        3: {0: _IMAGE_PROPERTIES, 1: properties},
        4: [unit],
        5: {0: white, 1: black},
    }
    # Positions of left, top, right and bottom in a box.
    box = {0: np.array([1, 0, 3, 2], np.uint32), 1: _BOUNDARIES, 2: _RATIO}
    feature = {0: _FEATURE_PROPERTY, 1: {}}
    contents = [{0: _BOX_PROPERTIES, 1: box}, *([feature] * (num_outputs - 1))]
    outputs: List[Dict[int, Any]] = [
        {**dict(enumerate(each)), 3: content} for each, content in zip(_OUTPUTS, contents)
    ]
    if has_labels:
        text = "Names of the classes, one a line."
        outputs[_CATEGORY][6] = [{0: LABELS_FILE, 1: text, 2: _VALUE_LABELS}]
    group = {0: "detection_result", 1: [name for name, _ in _OUTPUTS[:3]]}
    graph: Dict[int, Any] = {2: [image]}
    if num_outputs >= _DETECTOR_OUTPUTS:
        graph.update({3: outputs, 8: [group]})
    model = {0: "ObjectDetector", 1: description, 3: [graph], 7: _PARSER_VERSION}
    builder = flatbuffers.Builder(1024)
    builder.Finish(_write(builder, model), _METADATA_IDENTIFIER)
    return bytes(builder.Output())


def _write(builder: Any, value: Any) -> int:
    """Writes a text, numbers, a list or a table, children before parents; returns its offset."""
    if isinstance(value, str):
        return int(builder.CreateString(value))
    if isinstance(value, np.ndarray):
        return int(builder.CreateNumpyVector(value))
    if isinstance(value, list):
        children = [_write(builder, each) for each in value]
        builder.StartVector(4, len(children), 4)
        for child in reversed(children):
            builder.PrependUOffsetTRelative(child)
        return int(builder.EndVector())
    scalars = {slot: each for slot, each in value.items() if isinstance(each, np.integer)}
    offsets = {slot: _write(builder, each) for slot, each in value.items() if slot not in scalars}
    builder.StartObject(max(value, default=-1) + 1)
    for slot, number in scalars.items():
        prepend = builder.PrependUint8Slot if number.itemsize == 1 else builder.PrependUint32Slot
        prepend(slot, int(number), 0)
    for slot, offset in offsets.items():
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    return int(builder.EndObject())


def _floats(values: Sequence[float]) -> np.ndarray:
    return np.array(values, np.float32)
