"""Kinds of damage to a record, each with the fault that a check of data must report for it."""

from __future__ import annotations

import gzip
import io
import itertools
import struct
import zlib
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

import numpy as np
from PIL import Image

from estimator_det.compat import tf
from inputs.datasets import shapes, writer
from inputs.datasets.masks import to_png
from inputs.records.tfrecord import masked_crc
from tests.inputs.examples import encoded

Features = Dict[str, Any]
SIZE = ("height", "width")
BOX, OBJECT = "image/object/bbox/", "image/object/"
MAX_BOXES = 8
NUM_KEYPOINTS = 2
OPTIONS = shapes.ShapeOptions(min_side=24, max_side=40, max_shapes=3)
READER = (
    f"max_number_of_boxes: {MAX_BOXES} num_keypoints: {NUM_KEYPOINTS} load_instance_masks: true "
    "mask_type: PNG_MASKS load_multiclass_scores: true"
)


class Damage(NamedTuple):
    """What is done to a record: to its features, its bytes, or its bytes in the file."""

    fault: str  # a kind of `inputs.bad_records.kinds`
    features: Callable[[Features], Any] = lambda features: None
    record: Callable[[bytes], bytes] = lambda record: record
    frame: Callable[[bytes], bytes] = lambda frame: frame
    follows: str = ""  # another kind that follows from the same damage


CLEAN = Damage("")


def bomb() -> bytes:
    """A PNG of some bytes that claims 60000 x 60000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    header = struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


def picture_bytes(kind: str, height: int, width: int) -> bytes:
    """An encoded black picture."""
    return encoded(np.zeros([height, width, 3], np.uint8), kind)


def frames_of(records: List[bytes]) -> List[bytes]:
    """Records as a file holds them: each length and each record with its checksum."""

    def with_checksum(data: bytes) -> bytes:
        return data + struct.pack("<I", masked_crc(data))

    lengths = [struct.pack("<Q", len(record)) for record in records]
    return [with_checksum(n) + with_checksum(record) for n, record in zip(lengths, records)]


def gzipped(data: bytes) -> bytes:
    """Some bytes as a .gz file holds them."""
    return gzip.compress(data, mtime=0)


def _edit(key: str, change: Callable[[List[Any]], List[Any]]) -> Callable[[Features], None]:
    """Changes the list of a key; an absent list becomes one of floats."""

    def apply(features: Features) -> None:
        kind = features[key].WhichOneof("kind") or "float_list"
        values = getattr(features[key], kind).value
        values[:] = change(list(values))

    return apply


def _first(key: str, change: Callable[[Any], Any]) -> Callable[[Features], None]:
    """Changes the first value of a key."""
    return _edit(key, lambda values: [change(values[0]), *values[1:]])


def _encoded(change: Callable[[bytes], bytes]) -> Callable[[Features], None]:
    return _first("image/encoded", change)


def _as(kind: str, change: Callable[[bytes], bytes]) -> Callable[[Features], None]:
    """The picture as a file of another format, of the same size, with a change."""

    def apply(features: Features) -> None:
        height, width = (features[f"image/{side}"].int64_list.value[0] for side in SIZE)
        content = change(picture_bytes(kind, height, width))
        features["image/encoded"].bytes_list.value[0] = content

    return apply


def _size(height: Any, width: Any) -> Callable[[Features], None]:
    """Functions of the right height and width, or values."""

    def apply(features: Features) -> None:
        right = [features[f"image/{side}"].int64_list.value[0] for side in SIZE]
        for side, value in zip(SIZE, (height, width)):
            new = value(*right) if callable(value) else value
            features[f"image/{side}"].int64_list.value[0] = new

    return apply


def _side(side: str, value: float) -> Callable[[Features], None]:
    return _first(BOX + side, lambda _: value)


def _pair(axis: str, change: Callable[[float, float], Tuple[float, float]]) -> Any:
    """Changes minimum and maximum of the first box along an axis."""

    def apply(features: Features) -> None:
        low, high = (features[BOX + axis + end].float_list.value for end in ("min", "max"))
        low[0], high[0] = change(low[0], high[0])

    return apply


def _in_pixels(features: Features) -> None:
    for key in ("ymin", "xmin", "ymax", "xmax"):
        _edit(BOX + key, lambda values: [40 * value + 1 for value in values])(features)


def _text(name: bytes) -> Callable[[Features], None]:
    return _first(OBJECT + "class/text", lambda _: name)


def _id(number: int) -> Callable[[Features], None]:
    def apply(features: Features) -> None:
        del features[OBJECT + "class/text"]
        features[OBJECT + "class/label"].int64_list.value[0] = number

    return apply


def _crowd(features: Features) -> None:
    for key in features:
        if key.startswith(OBJECT):
            _edit(key, lambda values: values * (MAX_BOXES + 2))(features)


def _more(key: str, *values: Any) -> Callable[[Features], None]:
    return _edit(key, lambda given: [*given, *values])


def _without(*keys: str) -> Callable[[Features], None]:
    return lambda f: [f.pop(key) for key in keys] and None


def _float_labels(features: Features) -> None:
    labels = features[OBJECT + "class/label"]
    labels.float_list.value.extend([float(label) for label in labels.int64_list.value])


def _mask(change: Callable[[bytes], bytes]) -> Callable[[Features], None]:
    return _first(OBJECT + "mask", change)


def _other_part(png: bytes) -> bytes:
    """A mask of two pixels in the corner of the image that is further from the object."""
    mask = _pixels_of(png)
    corner = np.zeros_like(mask)
    rows, columns = (np.flatnonzero(mask.any(axis)) for axis in (1, 0))
    corner[-2:, -2:] = rows[0] + columns[0] < sum(mask.shape) - rows[-1] - columns[-1]
    corner[:2, :2] = not corner.any()
    return to_png(corner)


def _pixels_of(png: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image) > 0


def _box_mask(box: np.ndarray, height: int, width: int) -> bytes:
    ymin, xmin, ymax, xmax = np.round(box * [height, width, height, width]).astype(int)
    mask = np.zeros((height, width), bool)
    mask[ymin:ymax, xmin:xmax] = True
    return to_png(mask)


def _jpeg_of_size(side: int) -> Callable[[bytes], bytes]:
    """The header gives another size; the data stay."""

    def change(jpeg: bytes) -> bytes:
        start = jpeg.index(b"\xff\xc0") + 5
        return jpeg[:start] + struct.pack(">HH", side, side) + jpeg[start + 4 :]

    return change


def _end_in_data(jpeg: bytes) -> bytes:
    middle = (jpeg.index(b"\xff\xda") + len(jpeg)) // 2
    return jpeg[:middle] + b"\xff\xd9" + jpeg[middle + 2 :]


def _with_unknown_marker(jpeg: bytes) -> bytes:
    return jpeg[:-2] + b"\xff\xf0\x00\x04ab" + jpeg[-2:]


def _with_palette(bmp: bytes) -> bytes:
    with Image.open(io.BytesIO(bmp)) as image:
        image.putpixel((0, 0), (255, 0, 0))
        return encoded(np.asarray(image), "BMP", "P")


def _flip(position: int) -> Callable[[bytes], bytes]:
    """Changes some bits of a byte; positions may be negative."""

    def change(data: bytes) -> bytes:
        damaged = bytearray(data)
        damaged[position] ^= 0x55
        return bytes(damaged)

    return change


def _half(data: bytes) -> bytes:
    return data[: len(data) // 2]


NAN, INF = float("nan"), float("inf")

DAMAGES: Dict[str, Damage] = {
    "no image": Damage("missing_key", _without("image/encoded")),
    "empty image": Damage("missing_key", _encoded(lambda _: b"")),
    "empty record": Damage("missing_key", record=lambda _: b""),
    "text as image": Damage("undecodable_image", _encoded(lambda _: b"<svg></svg>" * 9)),
    "tiff": Damage("undecodable_image", _as("TIFF", lambda content: content)),
    "jpeg without tables": Damage(
        "undecodable_image", _encoded(lambda jpeg: jpeg[:20] + jpeg[jpeg.index(b"\xff\xc0") :])
    ),
    "jpeg with an unknown marker": Damage("undecodable_image", _encoded(_with_unknown_marker)),
    "png with a wrong checksum": Damage("undecodable_image", _as("PNG", _flip(30))),
    "half a jpeg": Damage("truncated_image", _encoded(_half)),
    "half a png": Damage("truncated_image", _as("PNG", _half)),
    "half a gif": Damage("truncated_image", _as("GIF", _half)),
    "half a bmp": Damage("truncated_image", _as("BMP", _half)),
    "jpeg with an end in its data": Damage("corrupt_image", _encoded(_end_in_data)),
    "bmp with a palette": Damage("corrupt_image", _as("BMP", _with_palette)),
    "png bomb": Damage("huge_image", _encoded(lambda _: bomb())),
    "jpeg bomb": Damage("huge_image", _encoded(_jpeg_of_size(65500))),
    "bmp bomb": Damage(
        "huge_image", _as("BMP", lambda bmp: bmp[:18] + struct.pack("<ii", 60000, 60000) + bmp[26:])
    ),
    "wrong height": Damage("size_mismatch", _size(9, lambda h, w: w)),
    "height and width swapped": Damage("size_mismatch", _size(lambda h, w: w, lambda h, w: h)),
    "height 0": Damage("size_mismatch", _size(0, lambda h, w: w)),
    "width 0": Damage("size_mismatch", _size(lambda h, w: h, 0)),
    "negative height": Damage("size_mismatch", _size(-5, lambda h, w: w)),
    "negative size": Damage("size_mismatch", _size(lambda h, w: -h, lambda h, w: -w)),
    "nan": Damage("box_nan", _side("ymin", NAN)),
    "infinite": Damage("box_nan", _side("xmax", INF), follows="box_outside"),
    "minus infinite": Damage("box_nan", _side("ymin", -INF), follows="box_outside"),
    "y inverted": Damage("box_inverted", _pair("y", lambda low, high: (high, low))),
    "x inverted": Damage("box_inverted", _pair("x", lambda low, high: (high, low))),
    "no height": Damage("box_degenerate", _pair("y", lambda low, high: (low, low))),
    "no width": Damage("box_degenerate", _pair("x", lambda low, high: (low, low))),
    "right of the image": Damage("box_outside", _side("xmax", 1.25)),
    "above the image": Damage("box_outside", _side("ymin", -0.2)),
    "pixels": Damage("box_outside", _in_pixels),
    "unknown name": Damage("unknown_text", _text(b"cow")),
    "empty name": Damage("unknown_text", _text(b"")),
    "upper case name": Damage("unknown_text", _text(b"CIRCLE")),
    "name in latin-1": Damage("unknown_text", _text("kreis\xe9".encode("latin-1"))),
    "large id": Damage("unknown_id", _id(99)),
    "id 0": Damage("unknown_id", _id(0)),
    "negative id": Damage("unknown_id", _id(-1)),
    "huge id": Damage("unknown_id", _id(2**62)),
    "name and id differ": Damage(
        "label_contradiction", _first(OBJECT + "class/label", lambda label: label % 4 + 1)
    ),
    "more ids than names": Damage(
        "label_contradiction", _edit(OBJECT + "class/label", lambda labels: labels * 2)
    ),
    "too many boxes": Damage("too_many_boxes", _crowd),
    "one xmax too many": Damage("length_mismatch", _more(BOX + "xmax", 0.5)),
    "no ymin": Damage("length_mismatch", _without(BOX + "ymin")),
    "no classes": Damage(
        "length_mismatch", _without(OBJECT + "class/text", OBJECT + "class/label")
    ),
    "one area too many": Damage("length_mismatch", _more(OBJECT + "area", 1.0)),
    "one mask too many": Damage("length_mismatch", _edit(OBJECT + "mask", lambda masks: masks * 2)),
    "one point too many": Damage("length_mismatch", _more(OBJECT + "keypoint/x", 0.5)),
    "points of half a box": Damage(
        "length_mismatch", lambda f: [_more(OBJECT + f"keypoint/{axis}", 0.5)(f) for axis in "yx"]
    ),
    "scores of half a box": Damage(
        "length_mismatch",
        lambda f: f[OBJECT + "class/multiclass_scores"].float_list.value.extend(
            [0.5] * (len(f[BOX + "ymin"].float_list.value) * 3 + 1)
        ),
    ),
    "confidence without class": Damage("length_mismatch", _more("image/class/confidence", 1.0)),
    "labels as floats": Damage("unparsable", _float_labels),
    "image as number": Damage(
        "unparsable", lambda f: f["image/encoded"].int64_list.value.append(3), follows="missing_key"
    ),
    "two heights": Damage("unparsable", _more("image/height", 30)),
    "boxes as text": Damage(
        "unparsable",
        lambda f: f[BOX + "ymin"].bytes_list.value.append(b"0.5"),
        follows="length_mismatch",
    ),
    "rubbish": Damage("unparsable", record=lambda _: b"\xff\x01 rubbish"),
    "half a record": Damage("unparsable", record=_half),
    "mask that is no image": Damage("undecodable_image", _mask(lambda _: b"no mask at all")),
    "half a mask": Damage("truncated_image", _mask(_half)),
    "mask of another size": Damage(
        "length_mismatch", _mask(lambda _: picture_bytes("PNG", 20, 20))
    ),
    "empty mask": Damage("mask_empty", _mask(lambda mask: to_png(_pixels_of(mask) & False))),
    "no masks": Damage("mask_empty", _edit(OBJECT + "mask", lambda masks: [])),
    "mask of another object": Damage("mask_mismatch", _mask(_other_part)),
    "changed data": Damage("damaged_record", frame=_flip(200)),
    "changed length": Damage("damaged_record", frame=_flip(2)),
    "changed checksum": Damage("damaged_record", frame=_flip(-1)),
}


def clean_example(index: int, with_objects: bool) -> tf.train.Example:
    """A record without faults, with all the lists that READER loads.

    It has two objects or more `with_objects`, else any number.
    """
    images = (shapes.make_image((7, index, attempt), OPTIONS) for attempt in itertools.count())
    image = next(image for image in images if len(image.class_ids) > 1 or not with_objects)
    count = len(image.class_ids)
    height, width = image.pixels.shape[:2]
    return writer.make_example(
        writer.encode_image(image.pixels),
        writer.Annotations(
            image.boxes,
            image.class_ids,
            [shapes.CLASS_NAMES[number - 1] for number in image.class_ids],
            area=[9.0] * count,
            masks=[_box_mask(box, height, width) for box in image.boxes],
            keypoints=np.full([count, NUM_KEYPOINTS, 2], 0.5),
        ),
        filename=f"shape_{index}.jpg",
    )


def file_bytes(names: List[str]) -> bytes:
    """A record file; each record is damaged by the name in DAMAGES, or clean for ""."""
    frames = []
    for index, name in enumerate(names):
        damage = DAMAGES.get(name, CLEAN)
        example = clean_example(index, with_objects=bool(name))
        damage.features(example.features.feature)
        (frame,) = frames_of([damage.record(example.SerializeToString())])
        frames.append(damage.frame(frame))
    return b"".join(frames)
