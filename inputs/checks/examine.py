"""Examines one serialized record in Python: all its faults, with their values.

The input pipeline examines only records that it could not use, since this is slow; `check-data`
examines all records. The pipeline has the same descriptions, actions and rules: see
`inputs.bad_records.kinds`, `inputs.decoding.box_rules` and `inputs.decoding.example`.
"""

from __future__ import annotations

import hashlib
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import numpy as np

from estimator_det.compat import tf
from estimator_det.console.printing import quoted
from estimator_det.files import image_header
from estimator_det.images.orientation import UPRIGHT, exif_orientation
from estimator_det.protos import input_reader_pb2
from inputs.bad_records.kinds import FAIL, KINDS, SKIP, RecordFault
from inputs.bad_records.policy import BadRecordPolicy
from inputs.checks.images import AS_GRAY, END_TOO_EARLY, decode_mask, decode_size, lacks_data
from inputs.decoding import example
from inputs.decoding.box_rules import (
    ABSENT_SIZE,
    NUMPY,
    MaskExtents,
    RecordBoxes,
    box_flags,
    correct_boxes,
    mask_extents,
    size_mismatch,
)
from inputs.decoding.example import OBJECT, SIDES, LengthRule, equal_rule, multiple_rule
from inputs.schema import PER_BOX_NUMBERS

NUM_SHOWN = 3  # boxes or names that a message lists

_Size = Optional[Tuple[int, int]]  # height and width; None if unknown

_FIELDS = {tf.string: "bytes_list", tf.int64: "int64_list", tf.float32: "float_list"}


def examine_record(serialized: bytes, policy: BadRecordPolicy) -> Examined:
    """All faults of a record, and the boxes that training uses.

    In a sequence every frame is examined, or only frame `frame_index`; `boxes` has the boxes of
    all examined frames.
    """
    examined = Examined(policy)
    frames, examined.source_id = _frames(serialized, examined)
    for prefix, features in frames:
        examined.add_frame(features, prefix)
    return examined


class _Features(Dict[str, List[Any]]):
    """Values of one Example, or of one frame, by the keys of an Example."""

    def __missing__(self, key: str) -> List[Any]:
        return []

    def scalar(self, key: str, default: Any) -> Any:
        return (self[key] or [default])[0]


def _frames(serialized: bytes, examined: Examined) -> Tuple[List[Tuple[str, _Features]], str]:
    """The message prefix and features of each frame, none if unreadable; a name for the record."""
    reader = examined.policy.reader
    is_sequence = reader.input_type == input_reader_pb2.TF_SEQUENCE_EXAMPLE
    message = tf.train.SequenceExample if is_sequence else tf.train.Example
    try:
        record = message.FromString(serialized)
    except example.PARSE_ERRORS as error:
        examined.add("unparsable", f"it is not a {message.__name__}: {error}")
        return [], ""
    types = example.key_types(reader)
    if not is_sequence:
        features = _values(record.features.feature, types, examined)
        return [("", features)], _name(features)
    context = _values(record.context.feature, types, examined)
    lists = record.feature_lists.feature_list
    known = {**example.FRAME_LISTS, **example.FRAME_SCALARS}
    count = len(lists["image/encoded"].feature) if "image/encoded" in lists else 0
    wanted = range(count)
    index = reader.frame_index
    if index >= 0:
        if index >= count:
            examined.add("missing_key", f"it has {count} frames, and frame_index is {index}")
        wanted = range(index, min(index + 1, count))
    elif not count:
        examined.add("missing_key", "it has no frames: image/encoded is missing or empty")
    frames = []
    for position in wanted:
        frame = {
            known[key]: entries.feature[position]
            for key, entries in lists.items()
            if key in known and position < len(entries.feature)
        }
        values = _Features({**context, **_values(frame, types, examined)})
        frames.append((f"frame {position}: ", values))
    names = (_name(features) for features in (*(values for _, values in frames), context))
    return frames, next((name for name in names if name), "")


def _values(features: Mapping[str, Any], types: Dict[str, Any], examined: Examined) -> _Features:
    values = _Features()
    for key, dtype in types.items():
        kind = features[key].WhichOneof("kind") if key in features else None
        if kind == _FIELDS[dtype]:
            values[key] = list(getattr(features[key], kind).value)
        elif kind is not None:
            message = f"{key} is a {kind}; the reader needs a {_FIELDS[dtype]}"
            examined.add("unparsable", message)
        if key in example.SCALARS and len(values[key]) > 1:
            examined.add("unparsable", f"{key} has {len(values[key])} values; one is allowed")
    return values


def _name(features: _Features) -> str:
    keys = ("image/source_id", "image/filename", "image/key/sha256")
    name = next((features[key][0] for key in keys if features[key] and features[key][0]), b"")
    return str(name.decode("utf-8", "replace"))


class Examined:
    """The content of a record, and its faults."""

    def __init__(self, policy: BadRecordPolicy) -> None:
        self.policy = policy
        self.faults: List[RecordFault] = []
        self.source_id = ""  # or the file name, or the checksum; "" if it has none
        self.image_size: _Size = None
        # Boxes yxyx, corrected as for training, before max_boxes applies.
        self.boxes = np.zeros([0, 4], np.float32)
        self.class_ids = np.zeros([0], np.int64)
        self.content = 0  # int64, equal for records with the same image; 0 without an image
        self._prefix = ""  # text before each message

    @property
    def usable(self) -> bool:
        """True if training uses the record."""
        return all(fault.action not in (FAIL, SKIP) for fault in self.faults)

    def add(self, kind: str, message: str, count: int = 1) -> None:
        self.faults.append(self.policy.fault(kind, self._prefix + message, count))

    def add_frame(self, features: _Features, prefix: str) -> None:
        """Examines one image with its labels."""
        self._prefix = prefix
        size = self._image(features)
        self.image_size = size or self.image_size
        self._boxes(features, size)

    def _image(self, features: _Features) -> _Size:
        encoded = features.scalar("image/encoded", b"")
        if not encoded:
            self.add("missing_key", "image/encoded is missing or empty")
            return None
        # A sequence has one digest of all its frames.
        digest = hashlib.blake2b(
            encoded, digest_size=8, salt=self.content.to_bytes(8, "little", signed=True)
        )
        self.content = int.from_bytes(digest.digest(), "little", signed=True)
        size = self._encoded_image(encoded, "image/encoded")
        orientation = exif_orientation(encoded)
        if size is not None and orientation != UPRIGHT:
            self.add("exif_rotation", f"the EXIF orientation of image/encoded is {orientation}")
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
            self._encoded_image(channel, where, size)
        return size

    def _encoded_image(self, encoded: bytes, where: str, expected: _Size = None) -> _Size:
        """The size of an image that can be decoded, which must be `expected` if that is known."""
        claimed = image_header.claimed_size(encoded)
        if claimed is not None and claimed[0] * claimed[1] > self.policy.max_pixels:
            self.add(
                "huge_image",
                f"the header of {where} ({len(encoded)} bytes) gives {claimed[0]} x {claimed[1]} "
                f"pixels; the limit is {self.policy.max_pixels / 1e6:.6g} megapixels",
            )
            return None
        real_size = decode_size(encoded)
        if isinstance(real_size, tuple):
            if lacks_data(encoded):
                self.add("corrupt_image", f"{where}: {END_TOO_EARLY}")
            if image_header.has_color_table(encoded):
                self.add("corrupt_image", f"{where} is a BMP with a palette, {AS_GRAY}")
            if expected not in (None, real_size):
                self.add("length_mismatch", f"{where} is {real_size}, image/encoded is {expected}")
            return real_size
        if image_header.is_cut_short(encoded):
            self.add(
                "truncated_image",
                f"{where} is truncated: its {len(encoded)} bytes end within the "
                f"{image_header.format_of(encoded)} image",
            )
        else:
            self.add("undecodable_image", f"{where} cannot be decoded: {real_size}")
        return None

    def _boxes(self, features: _Features, size: _Size) -> None:
        text = [x.decode("utf-8", "replace") for x in features[OBJECT + "class/text"]]
        labels = np.asarray(features[OBJECT + "class/label"], np.int64)
        classes, has_texts = labels, False
        if self.policy.label_map is not None and text:
            ids = self.policy.label_map.ids
            classes, has_texts = np.asarray([ids.get(name, -1) for name in text], np.int64), True
        own_labels = labels if len(labels) else classes
        if len(own_labels) != len(classes):
            own_labels = np.full_like(classes, -1)
        boxes = RecordBoxes(
            boxes=np.zeros([0, 4], np.float32),
            classes=classes,
            labels=own_labels,
            has_texts=np.bool_(has_texts),
            record_size=np.asarray(
                [features.scalar(key, ABSENT_SIZE) for key in ("image/height", "image/width")],
                np.int64,
            ),
            image_size=np.asarray(size or (0, 0), np.int64),
        )
        if size is not None and size_mismatch(boxes, NUMPY):
            height, width = (
                "missing" if side == ABSENT_SIZE else str(side) for side in boxes.record_size
            )
            self.add(
                "size_mismatch",
                f"image/height and image/width are {height} x {width}, the image is "
                f"{size[0]} x {size[1]}",
            )
        lengths = {**{key: len(features[key]) for key in SIDES}, OBJECT + "class": len(classes)}
        keys = [spec.record_key for spec in PER_BOX_NUMBERS]
        lengths.update({key: len(features[key]) for key in keys if features[key]})
        if len(set(lengths.values())) > 1:
            lengths_text = ", ".join(f"{key} {number}" for key, number in lengths.items())
            self.add("length_mismatch", f"lists of boxes differ in length: {lengths_text}")
            return
        count = len(classes)
        self._check_lengths(features, count, size)
        if count:
            sides = np.array([features[key] for key in SIDES], np.float32)
            boxes = boxes._replace(boxes=sides.T)
        if size is not None and self.policy.reader.load_instance_masks:
            boxes = boxes._replace(masks=_mask_extents(self.policy.reader, features, count, size))
        self._add_boxes(boxes, text, labels)

    def _add_boxes(self, arrays: RecordBoxes, text: List[str], labels: np.ndarray) -> None:
        """Adds the faults of boxes, and the boxes that training uses."""
        classes = arrays.classes

        def box(i: int) -> str:
            return "[" + ", ".join(f"{side:.6g}" for side in arrays.boxes[i]) + "]"

        def pair(i: int) -> str:
            label = labels[i] if len(labels) == len(classes) else f"missing ({len(labels)} labels)"
            return f"{quoted(text[i])} is {classes[i]} in the label map, the label is {label}"

        shown: Dict[str, Callable[[int], str]] = {
            "unknown_text": lambda i: quoted(text[i]),
            "unknown_id": lambda i: str(classes[i]),
            "label_contradiction": pair,
        }
        flags = box_flags(arrays, self.policy.num_classes, NUMPY)
        for kind, flagged in flags.items():
            indices = np.flatnonzero(flagged).tolist()
            if not indices:
                continue
            examples = ", ".join(f"box {i}: {shown.get(kind, box)(i)}" for i in indices[:NUM_SHOWN])
            ellipsis = ", …" if len(indices) > NUM_SHOWN else ""
            ids = ""
            if kind == "unknown_id" and self.policy.num_classes is not None:
                ids = f"; num_classes = {self.policy.num_classes}"
            examples_text = f"{len(indices)} of {len(classes)} ({examples}{ellipsis}){ids}"
            self.add(kind, f"{KINDS[kind].description}: {examples_text}", len(indices))
        boxes, dropped = correct_boxes(arrays.boxes, flags, self.policy.actions, NUMPY)
        self.boxes = np.concatenate([self.boxes, boxes[~dropped]])
        self.class_ids = np.concatenate([self.class_ids, classes[~dropped]])
        limit = self.policy.max_boxes
        count = int((~dropped).sum())
        if limit is not None and count > limit:
            message = f"{count} boxes, and max_number_of_boxes is {limit}"
            self.add("too_many_boxes", message, count - limit)

    def _check_lengths(self, features: _Features, count: int, size: _Size) -> None:
        """Lists with several values for each box, and lists of the whole image."""
        reader = self.policy.reader
        masks = features[example.MASKS]
        if reader.mask_type == input_reader_pb2.PNG_MASKS:
            self._check(equal_rule("PNG masks", len(masks), count))
            for position, mask in enumerate(masks):
                where = f"{example.MASKS}[{position}]"
                self._encoded_image(mask, where, size)
        elif size is not None:
            expected = count * size[0] * size[1]
            self._check(equal_rule("mask values (boxes x height x width)", len(masks), expected))
        scores = features[OBJECT + "class/multiclass_scores"]
        self._check(multiple_rule("multiclass_scores", len(scores), "boxes", count))
        y, x = (len(features[f"{OBJECT}keypoint/{axis}"]) for axis in "yx")
        self._check(equal_rule("keypoint/x", x, y, may_be_absent=False))
        if reader.use_keypoint_label_map:
            texts = len(features[OBJECT + "keypoint/text"])
            self._check(equal_rule("keypoint/text", texts, y, may_be_absent=False))
            self._check(multiple_rule("keypoints", y, "boxes", count))
        else:
            self._check(equal_rule("keypoints", y, count * reader.num_keypoints))
        has_texts = features["image/class/text"] and self.policy.label_map is not None
        classes = features["image/class/text" if has_texts else "image/class/label"]
        confidences = features["image/class/confidence"]
        self._check(equal_rule("image/class/confidence", len(confidences), len(classes)))
        num_features = len(features["image/context_features"])
        length = features.scalar("image/context_feature_length", 0)
        for rule in example.context_rules(num_features, length, self.policy.context_feature_length):
            self._check(rule)

    def _check(self, rule: LengthRule) -> None:
        if not rule.holds:
            numbers = ", ".join(str(number) for number in rule.numbers)
            self.add("length_mismatch", f"{rule.detail} {numbers}")


def _mask_extents(
    reader: input_reader_pb2.InputReader, features: _Features, count: int, size: Tuple[int, int]
) -> Optional[MaskExtents]:
    """None if the masks have other faults, which are reported already."""
    values = features[example.MASKS]
    if not values:
        return mask_extents(np.zeros([count, *size], np.float32), NUMPY)
    if reader.mask_type == input_reader_pb2.PNG_MASKS:
        # A header may claim any size.
        sound = (mask for mask in values if image_header.claimed_size(mask) == size)
        masks = [mask for mask in map(decode_mask, sound) if mask is not None]
    else:
        masks = values
    if len(values) != len(masks) or np.size(masks) != count * size[0] * size[1]:
        return None
    inside = np.reshape(np.asarray(masks) > 0, [count, *size])
    return mask_extents(inside.astype(np.float32), NUMPY)
