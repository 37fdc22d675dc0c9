"""Examines one serialized record in Python: everything that is wrong with it, in full sentences.

The input pipeline does not look at records this way, for it would be slow; it asks here about a
record that it could not use. Programs that check data ask about all.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.protos import input_reader_pb2
from inputs.bad_records.kinds import CLIP, FAIL, KINDS, SKIP, RecordFault
from inputs.bad_records.policy import OUTSIDE_TOLERANCE, BadRecordPolicy, make_policy
from inputs.decoding import example, image_header
from inputs.decoding.example import OBJECT
from inputs.records.tfrecord import Damage

__all__ = ["BadRecordPolicy", "Examined", "damage_finding", "examine_record", "make_policy"]

NUM_SHOWN = 3  # boxes or names that a message lists
SIDES = ("ymin", "xmin", "ymax", "xmax")
PER_BOX = ("class/confidence", "weight", "area", "is_crowd", "difficult", "group_of")

_FIELDS = {tf.string: "bytes_list", tf.int64: "int64_list", tf.float32: "float_list"}


class Examined(NamedTuple):
    """What a record holds, and what is wrong with it."""

    findings: List[RecordFault]
    source_id: str  # or the file name, or the checksum; "" if it has none
    image_size: Optional[Tuple[int, int]]  # height, width; None where unknown
    boxes: np.ndarray  # float32 [n, 4] yxyx, as training takes them: mended, before any limit
    class_ids: np.ndarray  # int64 [n]
    usable: bool  # whether training takes the record


def examine_record(serialized: bytes, policy: BadRecordPolicy) -> Examined:
    """Everything that is wrong with a record, and what of it training takes.

    Of a sequence every frame is examined (or the one that `frame_index` names); `boxes` are those
    of all frames that were.
    """
    examination = _Examination(policy)
    try:
        frames, source_id = _frames(serialized, policy, examination)
    except _UnreadableError:
        return examination.result("")
    for prefix, features in frames:
        examination.frame(features, prefix)
    return examination.result(source_id)


def damage_finding(damage: Damage, policy: BadRecordPolicy) -> RecordFault:
    """The finding for what `recordfile` could not read."""
    return policy.finding(damage.kind, damage.message)


class _UnreadableError(Exception):
    """Nothing more can be said of a record."""


class _Features:
    """Values of one Example, or of one frame, by the keys of an Example."""

    def __init__(self, values: Dict[str, List[Any]], examination: _Examination) -> None:
        self._values = values
        self._add = examination.add

    def __getitem__(self, key: str) -> List[Any]:
        return self._values.get(key, [])

    def scalar(self, key: str, default: Any) -> Any:
        """The one value of a key."""
        values = self[key]
        return values[0] if values else default


def _frames(
    serialized: bytes, policy: BadRecordPolicy, examination: _Examination
) -> Tuple[List[Tuple[str, _Features]], str]:
    """What messages call each frame ("" if there is but one) and its features; a name for all."""
    is_sequence = policy.reader.input_type == input_reader_pb2.TF_SEQUENCE_EXAMPLE
    message = tf.train.SequenceExample if is_sequence else tf.train.Example
    try:
        record = message.FromString(serialized)
    except Exception as error:  # protobuf's DecodeError differs between its implementations
        examination.add("unparsable", f"it is no {message.__name__}: {error}")
        raise _UnreadableError from error
    types = _types(policy.reader)
    if not is_sequence:
        values = _values(record.features.feature, types, examination)
        features = _Features(values, examination)
        return [("", features)], _name(features)
    context = _values(record.context.feature, types, examination)
    lists = record.feature_lists.feature_list
    known = {**example.FRAME_LISTS, **example.FRAME_SCALARS}
    count = len(lists["image/encoded"].feature) if "image/encoded" in lists else 0
    wanted = range(count)
    index = policy.reader.frame_index
    if index >= 0:
        if index >= count:
            examination.add("missing_key", f"it has {count} frames, and frame_index is {index}")
        wanted = range(index, min(index + 1, count))
    elif not count:
        examination.add("missing_key", "it has no frames: image/encoded is missing or empty")
    frames = []
    for position in wanted:
        one = {
            known[key]: found.feature[position]
            for key, found in lists.items()
            if key in known and position < len(found.feature)
        }
        values = {**context, **_values(one, types, examination)}
        frames.append((f"frame {position}: ", _Features(values, examination)))
    names = [_name(features) for _, features in frames]
    named = next((name for name in names if name), "")
    return frames, named or _name(_Features(context, examination))


def _types(reader: input_reader_pb2.InputReader) -> Dict[str, Any]:
    """Key -> dtype of all that this reader reads from an Example."""
    skipped = {key for flag, keys in example.OPTIONAL if not getattr(reader, flag) for key in keys}
    types: Dict[str, Any] = dict(example.LISTS)
    if reader.mask_type == input_reader_pb2.PNG_MASKS:
        types[example.MASKS] = tf.string
    for key, default in example.SCALARS.items():
        types[key] = tf.string if isinstance(default, str) else tf.int64
    return {key: dtype for key, dtype in types.items() if key not in skipped}


def _values(
    features: Mapping[str, Any], types: Dict[str, Any], examination: _Examination
) -> Dict[str, List[Any]]:
    values = {}
    for key, dtype in types.items():
        if key not in features:
            continue
        feature = features[key]
        kind = feature.WhichOneof("kind")
        if kind is None:
            continue
        if kind != _FIELDS[dtype]:
            message = f"{key} holds a {kind}; the reader needs a {_FIELDS[dtype]}"
            examination.add("unparsable", message)
            continue
        values[key] = list(getattr(feature, kind).value)
        if key in example.SCALARS and len(values[key]) > 1:
            examination.add("unparsable", f"{key} has {len(values[key])} values; one is allowed")
    return values


def _name(features: _Features) -> str:
    keys = ("image/source_id", "image/filename", "image/key/sha256")
    found = next((features[key][0] for key in keys if features[key] and features[key][0]), b"")
    return str(found.decode("utf-8", "replace"))


class _Examination:
    """Findings and boxes, as they add up."""

    def __init__(self, policy: BadRecordPolicy) -> None:
        self.policy = policy
        self.findings: List[RecordFault] = []
        self.image_size: Optional[Tuple[int, int]] = None
        self.boxes: List[np.ndarray] = []
        self.class_ids: List[np.ndarray] = []

    def add(self, kind: str, message: str, count: int = 1) -> None:
        self.findings.append(self.policy.finding(kind, message, count))

    def result(self, source_id: str) -> Examined:
        usable = all(finding.action not in (FAIL, SKIP) for finding in self.findings)
        empty = np.zeros([0, 4], np.float32), np.zeros([0], np.int64)
        return Examined(
            self.findings,
            source_id,
            self.image_size,
            np.concatenate([empty[0], *self.boxes]),
            np.concatenate([empty[1], *self.class_ids]),
            usable,
        )

    def frame(self, features: _Features, prefix: str) -> None:
        """Looks at one image with its labels."""
        before = len(self.findings)
        size = self._image(features)
        if size is not None:
            self.image_size = size
        self._boxes(features, size)
        if prefix:
            self.findings[before:] = [
                finding._replace(message=prefix + finding.message)
                for finding in self.findings[before:]
            ]

    def _image(self, features: _Features) -> Optional[Tuple[int, int]]:
        encoded = features.scalar("image/encoded", b"")
        if not encoded:
            self.add("missing_key", "image/encoded is missing or empty")
            return None
        size = self._picture(encoded, "image/encoded")
        given = features.scalar("image/height", 0), features.scalar("image/width", 0)
        if size is not None and any(side > 0 and side != s for side, s in zip(given, size)):
            self.add(
                "size_mismatch",
                f"image/height and image/width say {given[0]} x {given[1]}, the picture is "
                f"{size[0]} x {size[1]}",
            )
        additional = features["image/additional_channels/encoded"]
        expected = self.policy.reader.num_additional_channels
        if len(additional) != expected:
            self.add(
                "length_mismatch",
                f"it has {len(additional)} additional channels, and num_additional_channels is "
                f"{expected}",
            )
        for position, channel in enumerate(additional):
            where = f"image/additional_channels/encoded[{position}]"
            found = self._picture(channel, where)
            if None not in (found, size) and found != size:
                self.add("length_mismatch", f"{where} is {found}, image/encoded {size}")
        return size

    def _picture(self, encoded: bytes, where: str) -> Optional[Tuple[int, int]]:
        """Height and width, None where it cannot be decoded."""
        claimed = image_header.claimed_size(encoded)
        if claimed is not None and claimed[0] * claimed[1] > self.policy.max_pixels:
            self.add(
                "huge_image",
                f"{where} ({len(encoded)} bytes) claims to be {claimed[0]} x {claimed[1]} pixels, "
                f"which is over the limit of {self.policy.max_pixels / 1e6:.6g} megapixels",
            )
            return None
        if not self.policy.decode:
            if claimed is None:
                start = f"it begins with {encoded[:8]!r}"
                self.add("undecodable_image", f"{where} is no JPEG, PNG, GIF or BMP: {start}")
            return claimed
        found = decode_size(encoded)
        if isinstance(found, tuple):
            return found
        if image_header.is_cut_short(encoded):
            self.add(
                "truncated_image",
                f"{where} is truncated: its {len(encoded)} bytes end within the "
                f"{image_header.format_of(encoded)} picture",
            )
        else:
            self.add("undecodable_image", f"{where} cannot be decoded: {found}")
        return None

    def _boxes(self, features: _Features, size: Optional[Tuple[int, int]]) -> None:
        sides = [np.asarray(features[f"{OBJECT}bbox/{side}"], np.float32) for side in SIDES]
        text = [x.decode("utf-8", "replace") for x in features[OBJECT + "class/text"]]
        labels = np.asarray(features[OBJECT + "class/label"], np.int64)
        label_map = self.policy.label_map
        classes = labels
        if label_map is not None and text:
            classes = np.asarray([label_map.ids.get(name, -1) for name in text], np.int64)
        lengths = {side: len(values) for side, values in zip(SIDES, sides)}
        lengths["class"] = len(classes)
        count = len(sides[0])
        for key in PER_BOX:
            number = len(features[OBJECT + key])
            if number:
                lengths[key] = number
        if len(set(lengths.values())) > 1:
            found = ", ".join(f"{key} {number}" for key, number in lengths.items())
            self.add("length_mismatch", f"lists under image/object/ differ in length: {found}")
            return
        self._other_lengths(features, count, size)
        boxes = np.stack(sides, axis=1) if count else np.zeros([0, 4], np.float32)
        flags = self._flags(boxes, classes, text, labels)
        self._tell_boxes(flags, boxes, classes, text, labels)
        actions = self.policy.actions
        left_out = np.zeros([count], bool)
        for kind in ("box_nan", "box_inverted", "box_degenerate", "unknown_text", "unknown_id"):
            if actions[kind] == CLIP:
                left_out |= flags[kind]
        if actions["box_outside"] == CLIP:
            was_empty = (boxes[:, :2] >= boxes[:, 2:]).any(1)
            boxes = np.clip(boxes, 0, 1)
            left_out |= ~was_empty & (boxes[:, :2] >= boxes[:, 2:]).any(1)
        self.boxes.append(boxes[~left_out])
        self.class_ids.append(classes[~left_out])
        limit = self.policy.max_boxes
        excess = 0 if limit is None else int((~left_out).sum()) - limit
        if excess > 0:
            message = f"{excess + (limit or 0)} boxes, and max_number_of_boxes is {limit}"
            self.add("too_many_boxes", message, excess)

    def _flags(
        self, boxes: np.ndarray, classes: np.ndarray, text: List[str], labels: np.ndarray
    ) -> Dict[str, np.ndarray]:
        """Kind -> bool [n]."""
        extent = boxes[:, 2:] - boxes[:, :2]
        by_text = self.policy.label_map is not None and bool(text)
        unknown = classes < 1
        above = classes > (self.policy.num_classes or np.iinfo(np.int64).max)
        contradiction = np.zeros([len(classes)], bool)
        if by_text and len(labels):
            contradiction = ~unknown & (len(labels) != len(classes) or labels != classes)
        return {
            "box_nan": ~np.isfinite(boxes.sum(1)),
            "box_inverted": (extent < 0).any(1),
            "box_degenerate": (extent == 0).any(1),
            "box_outside": (np.abs(boxes - 0.5) > 0.5 + OUTSIDE_TOLERANCE).any(1),
            "unknown_text": unknown & by_text,
            "unknown_id": (unknown & (not by_text)) | above,
            "label_contradiction": contradiction,
        }

    def _tell_boxes(
        self,
        flags: Dict[str, np.ndarray],
        boxes: np.ndarray,
        classes: np.ndarray,
        text: List[str],
        labels: np.ndarray,
    ) -> None:
        def box(i: int) -> str:
            return "[" + ", ".join(f"{side:.6g}" for side in boxes[i]) + "]"

        def pair(i: int) -> str:
            label = labels[i] if len(labels) == len(classes) else f"nothing ({len(labels)} labels)"
            return f"{text[i]!r} is {classes[i]} in the label map, the label says {label}"

        shown: Dict[str, Callable[[int], str]] = {
            "unknown_text": lambda i: repr(text[i]),
            "unknown_id": lambda i: str(classes[i]),
            "label_contradiction": pair,
        }
        for kind, flagged in flags.items():
            indices = np.flatnonzero(flagged).tolist()
            if not indices:
                continue
            examples = ", ".join(f"box {i}: {shown.get(kind, box)(i)}" for i in indices[:NUM_SHOWN])
            more = ", …" if len(indices) > NUM_SHOWN else ""
            limit = ""
            if kind == "unknown_id" and self.policy.num_classes is not None:
                limit = f"; num_classes = {self.policy.num_classes}"
            message = (
                f"{KINDS[kind].what}: {len(indices)} of {len(boxes)} ({examples}{more}){limit}"
            )
            self.add(kind, message, len(indices))

    def _other_lengths(
        self, features: _Features, count: int, size: Optional[Tuple[int, int]]
    ) -> None:
        """What has several values for each box, and what belongs to the image as a whole."""
        reader = self.policy.reader
        masks = features[example.MASKS]
        if masks and reader.mask_type == input_reader_pb2.PNG_MASKS:
            self._expect("PNG masks", len(masks), count)
            for position, mask in enumerate(masks):
                found = self._picture(mask, f"image/object/mask[{position}]")
                if None not in (found, size) and found != size:
                    self.add("length_mismatch", f"mask {position} is {found}, the picture {size}")
        elif masks and size is not None:
            self._expect("mask values", len(masks), count * size[0] * size[1])
        scores = features[OBJECT + "class/multiclass_scores"]
        if scores and (not count or len(scores) % count):
            message = f"{len(scores)} multiclass_scores are no multiple of its {count} boxes"
            self.add("length_mismatch", message)
        y, x = features[OBJECT + "keypoint/y"], features[OBJECT + "keypoint/x"]
        self._expect("keypoint/y", len(y), len(x))
        if reader.use_keypoint_label_map:
            self._expect("keypoint/text", len(features[OBJECT + "keypoint/text"]), len(y))
            if y and (not count or len(y) % count):
                message = f"{len(y)} keypoints are no multiple of its {count} boxes"
                self.add("length_mismatch", message)
        elif y:
            self._expect("keypoints", len(y), count * reader.num_keypoints)
        confidences = features["image/class/confidence"]
        if confidences:
            text, labels = features["image/class/text"], features["image/class/label"]
            by_text = text and self.policy.label_map is not None
            classes = text if by_text else labels
            self._expect("image/class/confidence", len(confidences), len(classes))
        context = features["image/context_features"]
        length = features.scalar("image/context_feature_length", 0)
        if context and (length < 1 or len(context) % length):
            message = f"{len(context)} context_features are no multiple of {length}"
            self.add("length_mismatch", message)

    def _expect(self, what: str, found: int, expected: int) -> None:
        if found != expected:
            message = f"it has {found} values of {what} where {expected} are needed"
            self.add("length_mismatch", message)


def decode_size(encoded: bytes) -> Any:
    """Height and width of a picture as TensorFlow decodes it, or why it cannot (a text)."""
    session, placeholder, shape = _image_decoder(os.getpid())
    try:
        height, width = session.run(shape, {placeholder: encoded})[:2]
    except tf.errors.OpError as error:
        return reason(error)
    return int(height), int(width)


def reason(error: tf.errors.OpError) -> str:
    """The line of a TensorFlow error that says what went wrong; the others say where."""
    lines = [line for line in str(error.message).splitlines() if line.strip()]
    nodes = [i for i, line in enumerate(lines[:-1]) if line.startswith("Node: ")]
    return lines[nodes[-1] + 1] if nodes else (lines or ["no reason given"])[0]


@functools.lru_cache(maxsize=1)
def _image_decoder(process: int) -> Tuple[Any, Any, Any]:
    """Session, placeholder and shape; made anew in a process that was forked."""
    del process
    with tf.Graph().as_default() as graph:
        placeholder = tf1.placeholder(tf.string, [])
        image = tf.io.decode_image(placeholder, channels=3, expand_animations=False)
        shape = tf.shape(image)
        return tf1.Session(graph=graph), placeholder, shape
