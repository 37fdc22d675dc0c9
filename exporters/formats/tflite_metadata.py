"""TFLite metadata: a label map, and how images are normalized, inside a model file.

The format is that of https://ai.google.dev/edge/litert/models/metadata: a flatbuffer of the schema
`metadata_schema.fbs` in the model's metadata buffer, and files that are appended to the model as a
zip archive. Field numbers and codes below are those of the schema.
"""

from __future__ import annotations

import io
import zipfile
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import flatbuffers
import numpy as np
from flatbuffers.table import Table

from estimator_det.compat.private import tflite_schema
from exporters.formats.tflite_graph import COLOR_CHANNELS, Normalization
from exporters.importing.tflite import attached_labels

IDENTIFIER = b"TFL3"  # bytes 4 to 8 of a model file
METADATA_NAME = b"TFLITE_METADATA"  # name of the model's buffer
LABELS_FILE = "labels.txt"
_PARSER_VERSION = "1.0.0"  # the least that reads these fields
_METADATA_IDENTIFIER = b"M001"
# Codes of the schema.
_VALUE_LABELS = 3  # AssociatedFileType: names by the value of the tensor
_FEATURE_PROPERTY, _IMAGE_PROPERTIES, _BOX_PROPERTIES = 1, 2, 3  # ContentProperties
_NORMALIZATION = 1  # ProcessUnitOptions
_RGB, _BOUNDARIES, _RATIO = 1, 1, 0

# Names and descriptions of tensors.
_INPUT = ("image", "The image, resized to the size of the tensor with bilinear interpolation.")
_CATEGORY = "category"
_OUTPUTS = (
    ("location", "Boxes: ymin, xmin, ymax, xmax as fractions of the image."),
    (_CATEGORY, "Classes of the boxes, from 0."),
    ("score", "Scores of the boxes."),
    ("number of detections", "How many boxes there are."),
)


class Metadata(NamedTuple):
    """Values that are read from metadata."""

    class_names: Dict[int, str]  # by id from 1
    normalization: Optional[Normalization]


def add_metadata(
    content: bytes,
    normalization: Normalization,
    num_classes: int,
    class_names: Mapping[int, str],
    description: str,
) -> bytes:
    """A TFLite model with metadata.

    Args:
        content: Of the model, whose outputs are those of TFLite_Detection_PostProcess, or raw.
        num_classes: Classes without a name have their id as one.
        class_names: By id from 1; without any, no labels are attached.
    """
    schema = tflite_schema()
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0))
    graph = model.subgraphs[0]
    height, width = (int(size) for size in graph.tensors[graph.inputs[0]].shape[1:3])
    is_detector = len(graph.outputs) == len(_OUTPUTS)
    writer = _Writer()
    image = writer.image((height, width), normalization)
    outputs = writer.outputs(bool(class_names)) if is_detector else []
    data = writer.finish(image, outputs, description)
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


def packed_anew(content: bytes) -> bytes:
    """A model with the same tables, at places that are right.

    TFLite follows the offsets in a file without a check; Python checks them.
    """
    schema = tflite_schema()
    return pack(schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(content, 0)))


def read_metadata(content: bytes) -> Metadata:
    """The metadata of a TFLite model, as far as there is some."""
    return Metadata(attached_labels(content), _read_normalization(content))


def _read_normalization(content: bytes) -> Optional[Normalization]:
    model = tflite_schema().Model.GetRootAsModel(content, 0)
    entries = [model.Metadata(i) for i in range(model.MetadataLength())]
    entry = next((each for each in entries if each.Name() == METADATA_NAME), None)
    if entry is None:
        return None
    data = model.Buffers(entry.Buffer()).DataAsNumpy().tobytes()
    root = Table(bytearray(data), int(np.frombuffer(data, "<u4", 1)[0]))
    for graph in _tables(root, 3)[:1]:  # subgraph_metadata
        for tensor in _tables(graph, 2)[:1]:  # input_tensor_metadata
            for unit in _tables(tensor, 4):  # process_units
                kind, options = _union(unit, 0)
                if kind == _NORMALIZATION and options is not None:
                    mean, std = (_floats(options, slot) for slot in (0, 1))
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


def _floats(table: Table, slot: int) -> Tuple[float, ...]:
    offset = _field(table, slot)
    if not offset:
        return ()
    values = np.frombuffer(table.Bytes, "<f4", table.VectorLen(offset), table.Vector(offset))
    return tuple(values.tolist())


class _Writer:
    """Builds the flatbuffer: children before parents, as flatbuffers need it."""

    def __init__(self) -> None:
        self._builder = flatbuffers.Builder(1024)

    def image(self, size: Tuple[int, int], normalization: Normalization) -> int:
        """Metadata of the input."""
        height, width = size
        default_size = self._table([("Uint32", width), ("Uint32", height)])
        properties = self._table([("Uint8", _RGB), ("", default_size)])
        content = self._table([("Uint8", _IMAGE_PROPERTIES), ("", properties)])
        options = self._table([("", self._floats(each)) for each in normalization])
        unit = self._table([("Uint8", _NORMALIZATION), ("", options)])
        black, white = (
            [(level - mean) / std for mean, std in zip(*normalization)] for level in (0, 255)
        )
        stats = self._table([("", self._floats(white)), ("", self._floats(black))])
        return self._tensor(*_INPUT, content=content, units=[unit], stats=stats)

    def outputs(self, has_labels: bool) -> List[int]:
        """Metadata of boxes, classes, scores and number."""
        # Positions of left, top, right and bottom in a box.
        order = self._vector("Uint32", [1, 0, 3, 2])
        box = self._table([("", order), ("Uint8", _BOUNDARIES), ("Uint8", _RATIO)])
        contents = [self._table([("Uint8", _BOX_PROPERTIES), ("", box)])]
        contents += [
            self._table([("Uint8", _FEATURE_PROPERTY), ("", self._table([]))]) for _ in range(3)
        ]
        files = [self._file()] if has_labels else []
        return [
            self._tensor(name, text, content=content, files=files if name == _CATEGORY else [])
            for (name, text), content in zip(_OUTPUTS, contents)
        ]

    def finish(self, image: int, outputs: List[int], description: str) -> bytes:
        """The content of the metadata buffer."""
        groups = []
        if outputs:
            names = [self._text(name) for name, _ in _OUTPUTS[:3]]
            fields = [("", self._text("detection_result")), ("", self._tables(names))]
            groups = [self._table(fields)]
        graph = self._table(
            [
                *[("", None)] * 2,
                ("", self._tables([image])),
                ("", self._tables(outputs)),
                *[("", None)] * 4,
                ("", self._tables(groups)),
            ]
        )
        model = self._table(
            [
                ("", self._text("ObjectDetector")),
                ("", self._text(description)),
                ("", None),
                ("", self._tables([graph])),
                *[("", None)] * 3,
                ("", self._text(_PARSER_VERSION)),
            ]
        )
        self._builder.Finish(model, _METADATA_IDENTIFIER)
        return bytes(self._builder.Output())

    def _file(self) -> int:
        text = "Names of the classes, one a line."
        return self._table(
            [("", self._text(LABELS_FILE)), ("", self._text(text)), ("Uint8", _VALUE_LABELS)]
        )

    def _tensor(
        self,
        name: str,
        text: str,
        *,
        content: int,
        units: Sequence[int] = (),
        stats: Optional[int] = None,
        files: Sequence[int] = (),
    ) -> int:
        return self._table(
            [
                ("", self._text(name)),
                ("", self._text(text)),
                ("", None),
                ("", content),
                ("", self._tables(units)),
                ("", stats),
                ("", self._tables(files)),
            ]
        )

    def _table(self, fields: Sequence[Tuple[str, Optional[int]]]) -> int:
        """A table of (type, value) by slot; the type of a child is "", None leaves a field out."""
        self._builder.StartObject(len(fields))
        for slot, (kind, value) in enumerate(fields):
            if value is None:
                continue
            if kind:
                getattr(self._builder, f"Prepend{kind}Slot")(slot, value, 0)
            else:
                self._builder.PrependUOffsetTRelativeSlot(slot, value, 0)
        return int(self._builder.EndObject())

    def _text(self, text: str) -> int:
        return int(self._builder.CreateString(text))

    def _tables(self, children: Sequence[int]) -> Optional[int]:
        return self._vector("UOffsetTRelative", children) if children else None

    def _floats(self, values: Sequence[float]) -> int:
        return self._vector("Float32", values)

    def _vector(self, kind: str, values: Sequence[float]) -> int:
        self._builder.StartVector(4, len(values), 4)
        for value in reversed(values):
            getattr(self._builder, f"Prepend{kind}")(value)
        return int(self._builder.EndVector())
