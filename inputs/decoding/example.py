"""Keys of records, their parsing into dense tensors, and the rules for lengths of lists.

`tf.train.Example` and `tf.train.SequenceExample` records of the Object Detection API have the same
keys. A frame of a sequence is returned under the keys of an Example. The length rules are defined
once: the decoder applies them to tensors, the examiner of `check-data` to Python integers.
"""

from __future__ import annotations

from typing import AbstractSet, Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from google.protobuf.message import DecodeError

from estimator_det.compat import tf
from estimator_det.protos import input_reader_pb2
from inputs import schema
from inputs.bad_records.kinds import KINDS
from inputs.decoding.box_rules import ABSENT_SIZE

Parsed = Dict[str, tf.Tensor]
Parser = Callable[[tf.Tensor, Optional[tf.Tensor]], Parsed]

# Raised for bytes that are not a message; protobuf without its C library also raises ValueError for
# keys that are not UTF-8.
PARSE_ERRORS = (DecodeError, ValueError)

OBJECT = "image/object/"
MASKS = OBJECT + "mask"
SIDES = tuple(f"{OBJECT}bbox/{side}" for side in ("ymin", "xmin", "ymax", "xmax"))

# Keys with any number of values, and their dtypes.
LISTS = {
    "image/additional_channels/encoded": tf.string,
    "image/class/label": tf.int64,
    "image/class/text": tf.string,
    "image/class/confidence": tf.float32,
    "image/neg_category_ids": tf.int64,
    "image/not_exhaustive_category_ids": tf.int64,
    **dict.fromkeys(SIDES, tf.float32),
    **{
        spec.record_key: tf.float32 if spec.dtype == "float32" else tf.int64
        for spec in schema.PER_BOX_NUMBERS
    },
    "image/object/class/label": tf.int64,
    "image/object/class/text": tf.string,
    "image/object/class/multiclass_scores": tf.float32,
    MASKS: tf.float32,  # strings if the reader sets PNG_MASKS
    "image/object/keypoint/y": tf.float32,
    "image/object/keypoint/x": tf.float32,
    "image/object/keypoint/visibility": tf.int64,
    "image/object/keypoint/text": tf.string,
    "image/context_features": tf.float32,
    "image/context_features_image_id_list": tf.string,
}

# Keys with one value, and their defaults.
SCALARS = {
    "image/encoded": "",
    "image/source_id": "",
    "image/filename": "",
    "image/key/sha256": "",
    "image/height": ABSENT_SIZE,
    "image/width": ABSENT_SIZE,
    "image/context_feature_length": 0,
}

# Keys that only some readers load: (field of InputReader, keys).
OPTIONAL = (
    ("num_additional_channels", ("image/additional_channels/encoded",)),
    ("load_multiclass_scores", ("image/object/class/multiclass_scores",)),
    ("load_instance_masks", (MASKS,)),
    ("num_keypoints", tuple(OBJECT + "keypoint/" + key for key in ("y", "x", "visibility"))),
    ("use_keypoint_label_map", ("image/object/keypoint/text",)),
    ("load_context_features", ("image/context_features", "image/context_feature_length")),
    ("load_context_image_ids", ("image/context_features_image_id_list",)),
)

# Sequence records: key of a frame's list -> key in an Example.
FRAME_LISTS = {
    **{key.replace("image/object/", "region/"): key for key in SIDES},
    "region/label/string": "image/object/class/text",
    "region/label/index": "image/object/class/label",
    "region/label/confidence": "image/object/weight",
}
FRAME_SCALARS = {"image/encoded": "image/encoded", "image/source_id": "image/source_id"}
FRAME_IS_ANNOTATED = "region/is_annotated"


def make_parser(config: input_reader_pb2.InputReader) -> Parser:
    """Builds the function (serialized scalar string, seed or None) -> tensors by key.

    Absent lists are empty. `seed` (integers [2]) chooses the frame of a sequence if `frame_index`
    is -1; without it a sequence always has the same frame.
    """
    if config.input_type != input_reader_pb2.TF_SEQUENCE_EXAMPLE:
        features = {key: list_or_scalar(key, dtype) for key, dtype in key_types(config).items()}
        return lambda serialized, _: tf.io.parse_single_example(serialized, features)
    skipped = _skipped_keys(config)
    return lambda serialized, seed: _parse_sequence(serialized, seed, config.frame_index, skipped)


def key_types(config: input_reader_pb2.InputReader) -> Dict[str, tf.DType]:
    """Dtype by key of everything that a reader loads from an Example."""
    types = dict(LISTS)
    if config.mask_type == input_reader_pb2.PNG_MASKS:
        types[MASKS] = tf.string
    for key, default in SCALARS.items():
        types[key] = tf.string if isinstance(default, str) else tf.int64
    skipped = _skipped_keys(config)
    return {key: dtype for key, dtype in types.items() if key not in skipped}


def _skipped_keys(config: input_reader_pb2.InputReader) -> AbstractSet[str]:
    return {key for field, keys in OPTIONAL if not getattr(config, field) for key in keys}


def list_or_scalar(key: str, dtype: tf.DType) -> Any:
    """The feature of a key, with its default; an absent list is empty."""
    if key in SCALARS:
        return tf.io.FixedLenFeature([], dtype, SCALARS[key])
    return tf.io.FixedLenSequenceFeature([], dtype, allow_missing=True)


def _parse_sequence(
    serialized: tf.Tensor, seed: Optional[tf.Tensor], frame_index: int, skipped: AbstractSet[str]
) -> Parsed:
    """Parses one frame of a sequence, under the keys of an Example."""
    context_features: Dict[str, Any] = {
        key: tf.io.RaggedFeature(dtype)
        for key, dtype in LISTS.items()
        if key.startswith("image/context") and key not in skipped
    }
    if "image/context_feature_length" not in skipped:
        context_features["image/context_feature_length"] = tf.io.FixedLenFeature([], tf.int64, 0)
    context_features["image/filename"] = tf.io.FixedLenFeature([], tf.string, "")
    lists: Dict[str, Any] = {
        key: tf.io.RaggedFeature(LISTS[name]) for key, name in FRAME_LISTS.items()
    }
    for key, dtype in (*((k, tf.string) for k in FRAME_SCALARS), (FRAME_IS_ANNOTATED, tf.int64)):
        lists[key] = tf.io.FixedLenSequenceFeature([], dtype, allow_missing=True)
    parsed, frames = tf.io.parse_single_sequence_example(serialized, context_features, lists)
    num_frames = tf.size(frames["image/encoded"])
    if frame_index >= 0:
        index = tf.constant(frame_index)
    else:
        # A hash of the content: without a seed, a record has the same frame in every epoch.
        bits = tf.strings.to_hash_bucket_fast(serialized, 2**31 - 1)
        seed = tf.stack([bits, 0]) if seed is None else seed
        index = tf.random.stateless_uniform([], seed, 0, tf.maximum(num_frames, 1), tf.int32)
    sequence_name = tf.concat([frames["image/source_id"], [parsed["image/filename"]]], 0)[0]
    detail = "frame_index and number of frames:"
    has_frame = index < num_frames
    index = checked(index, has_frame, sequence_name, ["missing_key"], detail, [index, num_frames])
    for key in FRAME_SCALARS:
        # Concatenated with a default, because the list may be absent.
        parsed[key] = tf.concat([frames[key][index : index + 1], [""]], 0)[0]
    for key, name in FRAME_LISTS.items():
        parsed[name] = frames[key][index : index + 1].values
    annotated = tf.concat([frames[FRAME_IS_ANNOTATED][index : index + 1], [1]], 0)[0]
    parsed[schema.IS_ANNOTATED] = annotated > 0
    for key, dtype in LISTS.items():
        if key not in skipped:
            parsed.setdefault(key, tf.zeros([0], dtype))
    parsed.setdefault("image/key/sha256", tf.constant(""))
    for key in ("image/height", "image/width"):  # a sequence does not have these
        parsed[key] = tf.constant(ABSENT_SIZE, tf.int64)
    return parsed


def record_name(parsed: Parsed) -> tf.Tensor:
    """Name of a record for errors: source id, file name or checksum, the first one present."""
    names = tf.stack(
        [parsed["image/source_id"], parsed["image/filename"], parsed["image/key/sha256"], "?"]
    )
    return tf.gather(names, tf.argmax(tf.not_equal(names, "")))


def require(
    condition: tf.Tensor,
    record: tf.Tensor,
    kinds: Sequence[str],
    detail: str,
    values: List[tf.Tensor],
) -> Any:
    """Builds an operation that fails unless `condition`, with the kinds' descriptions."""
    faults = ", or ".join(f"{kind}: {KINDS[kind].description}" for kind in kinds)
    remedies = "; ".join(dict.fromkeys(KINDS[kind].remedy for kind in kinds))
    # Not tf.debugging.Assert, which wraps all but strings and int32 in a tf.cond (for GPUs):
    # slower.
    data = ["Record", record, f"has a fault. {faults}. {detail}", *values, f"Remedy: {remedies}"]
    return tf.raw_ops.Assert(condition=condition, data=data, summarize=12)


def checked(
    value: tf.Tensor,
    condition: tf.Tensor,
    record: tf.Tensor,
    kinds: Sequence[str],
    detail: str,
    values: List[tf.Tensor],
) -> tf.Tensor:
    """Returns `value`; evaluating it fails as `require` does unless `condition`."""
    with tf.control_dependencies([require(condition, record, kinds, detail, values)]):
        return tf.identity(value)


class LengthRule(NamedTuple):
    """Rule for the lengths of lists; all numbers are Python integers, or all are tensors."""

    holds: Any  # bool, or bool scalar tensor
    detail: str  # names the numbers
    numbers: List[Any]


def _equal(size: Any, expected: Any) -> Any:
    return size == expected if isinstance(size, int) else tf.equal(size, expected)


def multiple_rule(name: str, size: Any, unit: str, count: Any) -> LengthRule:
    """Requires `size` to be a multiple of `count`, or 0."""
    divisor = max(count, 1) if isinstance(count, int) else tf.maximum(count, 1)
    holds = _equal(size // divisor * count, size)
    return LengthRule(holds, f"Number of {name}, and {unit}:", [size, count])


def equal_rule(name: str, size: Any, expected: Any, *, may_be_absent: bool = True) -> LengthRule:
    """Requires `size` to be equal to `expected`, or 0."""
    holds = _equal(size, expected)
    if may_be_absent:
        holds |= _equal(size, 0)
    return LengthRule(holds, f"Number of {name}, found and expected:", [size, expected])


def context_rules(size: Any, length: Any, expected: Optional[int]) -> List[LengthRule]:
    """Rules for `size` numbers of context features, each of `length`; `expected` by the model."""
    key = "image/context_feature_length"
    rules = [multiple_rule("context_features", size, key, length)]
    if expected is not None:
        detail = f"{key}, and context_config.context_feature_length of the model:"
        fits = _equal(size, 0) | _equal(length, expected)
        rules.append(LengthRule(fits, detail, [length, expected]))
    return rules


def with_lengths(value: tf.Tensor, record: tf.Tensor, *rules: LengthRule) -> tf.Tensor:
    """Returns `value`; evaluating it fails for a record that breaks a rule: a length_mismatch."""
    for rule in rules:
        value = checked(value, rule.holds, record, ["length_mismatch"], rule.detail, rule.numbers)
    return value
