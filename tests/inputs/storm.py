"""A data set of shapes with damage of every kind in some records, and the faults to expect."""

from __future__ import annotations

import io
import pathlib
import struct
import zlib
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import numpy as np

from estimator_det.compat import tf
from inputs.datasets import shapes, writer
from inputs.records.tfrecord import masked_crc
from tests.inputs.examples import pipeline

NUM_FILES = 6
MAX_BOXES = 8
SMALL = shapes.ShapeOptions(min_side=24, max_side=40, max_shapes=3)
BOX = "image/object/bbox/"

Features = Dict[str, Any]


class Storm(NamedTuple):
    """The files, and the damage of each damaged record."""

    config: Any
    paths: List[str]
    damaged: Dict[Tuple[int, int], str]  # (file, record) -> kind
    names: Dict[Tuple[int, int], str]  # (file, record) -> source id, of damaged ones as well


def bomb() -> bytes:
    """A PNG of some bytes that claims 60000 x 60000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


def _set(key: str, position: int, value: float) -> Callable[[Features], None]:
    def change(features: Features) -> None:
        features[key].float_list.value[position] = value

    return change


def _encoded(new: Callable[[bytes], bytes]) -> Callable[[Features], None]:
    def change(features: Features) -> None:
        values = features["image/encoded"].bytes_list.value
        values[0] = new(values[0])

    return change


def _flatten(features: Features) -> None:
    low = features[BOX + "ymin"].float_list.value
    features[BOX + "ymax"].float_list.value[0] = low[0]


def _invert(features: Features) -> None:
    low, high = features[BOX + "xmin"].float_list.value, features[BOX + "xmax"].float_list.value
    low[0], high[0] = high[0], low[0]


def _unknown_id(features: Features) -> None:
    del features["image/object/class/text"]
    features["image/object/class/label"].int64_list.value[0] = 99


def _contradict(features: Features) -> None:
    labels = features["image/object/class/label"].int64_list.value
    labels[0] = labels[0] % 4 + 1


def _crowd(features: Features) -> None:
    for key, feature in features.items():
        if key.startswith("image/object/"):
            values = getattr(feature, feature.WhichOneof("kind")).value
            values.extend(list(values)[:1] * (MAX_BOXES + 4))


def _wrong_type(features: Features) -> None:
    labels = features["image/object/class/label"]
    numbers = [float(label) for label in labels.int64_list.value]
    labels.float_list.value.extend(numbers)


CHANGES: Dict[str, Callable[[Features], None]] = {
    "missing_key": lambda features: features.pop("image/encoded") and None,
    "length_mismatch": lambda features: features[BOX + "xmax"].float_list.value.append(0.5),
    "undecodable_image": _encoded(lambda encoded: b"no picture" + encoded[10:]),
    "truncated_image": _encoded(lambda encoded: encoded[: len(encoded) // 2]),
    "huge_image": _encoded(lambda encoded: bomb()),
    "size_mismatch": lambda features: features["image/height"].int64_list.value.__setitem__(0, 9),
    "box_nan": _set(BOX + "ymin", 0, float("nan")),
    "box_inverted": _invert,
    "box_degenerate": _flatten,
    "box_outside": _set(BOX + "xmax", 0, 1.25),
    "unknown_text": lambda f: f["image/object/class/text"].bytes_list.value.__setitem__(0, b"cow"),
    "unknown_id": _unknown_id,
    "label_contradiction": _contradict,
    "too_many_boxes": _crowd,
    "unparsable": _wrong_type,
}


def _frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return b"".join(
        [length, struct.pack("<I", masked_crc(length)), data, struct.pack("<I", masked_crc(data))]
    )


def _changed_at(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :]


def make_storm(folder: pathlib.Path, of_each_kind: int) -> Storm:
    """Writes the files: some records of each kind of damage, and one file without any bytes."""
    per_file = 2 + 16 * of_each_kind
    random = np.random.default_rng(11)
    places = [(file, record) for file in range(NUM_FILES) for record in range(per_file - 1)]
    chosen = [places[i] for i in random.permutation(len(places))]
    kinds = [*CHANGES, "rubbish", "bad_data", "bad_length"]
    damaged = {chosen.pop(): kind for kind in kinds for _ in range(of_each_kind)}
    damaged[(2, per_file - 1)] = "cut_file"
    frames: List[List[bytes]] = [[] for _ in range(NUM_FILES)]
    names = {}
    for file in range(NUM_FILES):
        for record in range(per_file):
            image = shapes.make_image((5, file * per_file + record), SMALL)
            texts = [shapes.CLASS_NAMES[i - 1] for i in image.class_ids]
            example = writer.make_example(
                writer.encode_image(image.pixels),
                writer.Annotations(image.boxes, image.class_ids, texts),
                filename=f"shape_{file}_{record}.jpg",
            )
            names[file, record] = f"shape_{file}_{record}.jpg"
            kind = damaged.get((file, record), "")
            if kind in CHANGES:
                CHANGES[kind](example.features.feature)
            data = example.SerializeToString()
            frame = _frame(b"\xff\x01 rubbish" if kind == "rubbish" else data)
            if kind == "bad_data":
                frame = _changed_at(frame, 200)
            elif kind == "bad_length":
                frame = _changed_at(frame, 2)
            elif kind == "cut_file":
                frame = frame[: len(frame) - 30]
            frames[file].append(frame)
    paths = [str(folder / f"storm-{file}.record") for file in range(NUM_FILES)]
    for path, parts in zip(paths, frames):
        pathlib.Path(path).write_bytes(b"".join(parts))
    (folder / "storm-9.record").write_bytes(b"")
    writer.write_label_map(dict(enumerate(shapes.CLASS_NAMES, 1)), str(folder / "map.pbtxt"))
    reported = {"rubbish": "unparsable"}
    framing = dict.fromkeys(("bad_data", "bad_length", "cut_file"), "damaged_record")
    reported.update(framing)
    damaged = {place: reported.get(kind, kind) for place, kind in damaged.items()}
    return Storm(_config(folder), paths, damaged, names)


def _config(folder: pathlib.Path) -> Any:
    config = pipeline("train_config { batch_size: 7 }")
    for reader in (config.train_input_reader, config.eval_input_reader[0]):
        reader.label_map_path = str(folder / "map.pbtxt")
        reader.max_number_of_boxes = MAX_BOXES
        reader.num_epochs = 1
        reader.drop_remainder = False
        reader.include_source_id = True
        reader.tf_record_input_reader.input_path.append(str(folder / "storm-*.record"))
    return config


def gzipped(data: bytes) -> bytes:
    """Some bytes as a .gz file holds them."""
    packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def picture_bytes(kind: str, height: int, width: int) -> bytes:
    """An encoded black picture."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (width, height)).save(buffer, kind)
    return buffer.getvalue()


def frames_of(records: List[bytes]) -> List[bytes]:
    """Records as a file holds them."""
    return [_frame(record) for record in records]


def shape_record(index: int) -> tf.train.Example:
    """A clean record."""
    image = shapes.make_image((5, index), SMALL)
    return writer.make_example(
        writer.encode_image(image.pixels),
        writer.Annotations(image.boxes, image.class_ids),
        filename=f"shape_{index}.jpg",
    )
