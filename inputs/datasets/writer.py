"""Makes `tf.train.Example` records from plain arrays and writes them as sharded TFRecord files.

`inputs.decoding.decoder` reads the same keys. Only the image is checked here: boxes and classes of
data sets have passed `inputs.conversion.objects`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import os
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Iterable, List, Mapping, Optional, Sequence

import numpy as np
from google.protobuf import text_format
from PIL import Image

from estimator_det.compat import tf
from estimator_det.files import atomic, image_header
from estimator_det.protos.string_int_label_map_pb2 import StringIntLabelMap
from inputs.schema import PER_BOX_NUMBERS


@dataclass(frozen=True)
class Annotations:
    """The n labelled objects of one image; the record has no optional field that is None."""

    boxes: np.ndarray  # float [n, 4], yxyx as fractions of the image's height and width
    class_ids: Sequence[int]  # ids in the label map, from 1
    class_names: Optional[Sequence[str]] = None  # names in the label map
    weights: Optional[Sequence[float]] = None  # weights in the loss
    area: Optional[Sequence[float]] = None  # in square pixels
    is_crowd: Optional[Sequence[bool]] = None  # True if the box contains a crowd of such objects
    difficult: Optional[Sequence[bool]] = None  # flag of PASCAL VOC
    group_of: Optional[Sequence[bool]] = None  # flag of Open Images
    masks: Optional[Sequence[bytes]] = None  # PNG files of the image's size, 0 outside the object
    keypoints: Optional[np.ndarray] = None  # float [n, P, 2], y and x as fractions; NaN: absent
    # int [n, P] of COCO: 0 absent, 1 hidden, 2 visible; None: 2 where keypoints are not NaN
    keypoint_visibilities: Optional[np.ndarray] = None
    keypoint_names: Optional[Sequence[str]] = None  # n * P names in the label map
    confidences: Optional[Sequence[float]] = None  # confidence of the class, 0 to 1


def encode_image(pixels: np.ndarray, image_format: str = "jpeg") -> bytes:
    """uint8 [h, w] or [h, w, 3] -> the bytes of an image file."""
    buffer = io.BytesIO()
    options = {"quality": 92} if image_format == "jpeg" else {}
    Image.fromarray(np.asarray(pixels, np.uint8)).save(buffer, image_format.upper(), **options)
    return buffer.getvalue()


def make_example(
    encoded: bytes,
    annotations: Annotations,
    *,
    filename: str,
    source_id: str = "",
    other: Optional[Mapping[str, Sequence[Any]]] = None,
) -> tf.train.Example:
    """One record of the bytes of a JPEG, PNG, GIF or BMP file, stored unchanged, and its objects.

    `source_id` identifies the image in evaluation; the file name replaces an empty one. `other` has
    further keys with lists of int, float or bytes.
    """
    image_format = image_header.format_of(encoded).lower()
    size = image_header.claimed_size(encoded)
    if size is None:
        raise ValueError(f"{filename}: not a readable image; allowed: JPEG, PNG, GIF and BMP")
    height, width = size
    example = tf.train.Example()
    feature = example.features.feature
    # The key decides the type of a list, since an image may have no object.
    _add(feature["image/encoded"].bytes_list, [encoded])
    _add(feature["image/format"].bytes_list, [image_format.encode()])
    _add(feature["image/filename"].bytes_list, [filename.encode()])
    _add(feature["image/source_id"].bytes_list, [(source_id or filename).encode()])
    _add(feature["image/key/sha256"].bytes_list, [hashlib.sha256(encoded).hexdigest().encode()])
    _add(feature["image/height"].int64_list, [height])
    _add(feature["image/width"].int64_list, [width])
    boxes = np.asarray(annotations.boxes, np.float32).reshape(-1, 4)
    for side, values in zip(("ymin", "xmin", "ymax", "xmax"), boxes.T.tolist()):
        _add(feature[f"image/object/bbox/{side}"].float_list, values)
    _add_objects(feature, annotations)
    for key, values in (other or {}).items():
        first = values[0] if values else b""
        kind = {int: "int64_list", float: "float_list", bytes: "bytes_list"}[type(first)]
        _add(getattr(feature[key], kind), values)
    return example


def _add_objects(feature: Any, annotations: Annotations) -> None:
    """Adds classes, and what is not None beside boxes."""
    _add(feature["image/object/class/label"].int64_list, map(int, annotations.class_ids))
    if annotations.class_names is not None:
        names = [name.encode() for name in annotations.class_names]
        _add(feature["image/object/class/text"].bytes_list, names)
    if annotations.keypoints is not None:
        points = np.asarray(annotations.keypoints, np.float32).reshape(-1, 2)
        _add(feature["image/object/keypoint/y"].float_list, points[:, 0].tolist())
        _add(feature["image/object/keypoint/x"].float_list, points[:, 1].tolist())
        seen = ~np.isnan(points).any(axis=1)
        stored = annotations.keypoint_visibilities
        visibilities = np.where(seen, 2, 0) if stored is None else np.ravel(stored)
        _add(feature["image/object/keypoint/visibility"].int64_list, map(int, visibilities))
        if annotations.keypoint_names is not None:
            texts = [name.encode() for name in annotations.keypoint_names]
            _add(feature["image/object/keypoint/text"].bytes_list, texts)
    if annotations.masks is not None:
        _add(feature["image/object/mask"].bytes_list, annotations.masks)
    for spec in PER_BOX_NUMBERS:
        numbers = getattr(annotations, spec.field)
        if numbers is not None and spec.dtype == "float32":
            _add(feature[spec.record_key].float_list, map(float, numbers))
        elif numbers is not None:
            _add(feature[spec.record_key].int64_list, map(int, numbers))


def shard_paths(path: str, num_shards: int) -> List[str]:
    """`train.record`, 2 -> `train.record-00000-of-00002`, `train.record-00001-of-00002`."""
    return [f"{path}-{shard:05d}-of-{num_shards:05d}" for shard in range(num_shards)]


def write_sharded(examples: Iterable[tf.train.Example], path: str, num_shards: int) -> None:
    """Writes examples to `shard_paths` in turn.

    A missing folder is created. A shard gets its name when all records are written.
    """
    finished = shard_paths(path, num_shards)
    unfinished = [f"{shard}.incomplete" for shard in finished]
    tf.io.gfile.makedirs(os.path.dirname(path) or ".")
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(tf.io.TFRecordWriter(shard)) for shard in unfinished]
        for example, writer in zip(examples, itertools.cycle(writers)):
            writer.write(example.SerializeToString())
    for source, target in zip(unfinished, finished):
        tf.io.gfile.rename(source, target, overwrite=True)


def write_label_map(
    names_by_id: Mapping[int, str],
    path: str,
    keypoints: Mapping[int, Sequence[str]] = MappingProxyType({}),
) -> None:
    """Writes `{1: "circle", …}` as a label map in text form; ids start at 1.

    Args:
        keypoints: Id of a class -> names of its keypoints, in the order of records.
    """
    if any(class_id < 1 for class_id in names_by_id):
        raise ValueError(f"label map ids start at 1; given {sorted(names_by_id)}")
    label_map = StringIntLabelMap()
    for class_id, name in sorted(names_by_id.items()):
        item = label_map.item.add(id=class_id, name=name)
        for number, label in enumerate(keypoints.get(class_id, ())):
            item.keypoints.add(id=number, label=label)
    atomic.write(path, text_format.MessageToString(label_map, as_utf8=True))


def _add(target: Any, values: Iterable[Any]) -> None:
    target.SetInParent()  # A list without values has its type, too.
    target.value.extend(values)
