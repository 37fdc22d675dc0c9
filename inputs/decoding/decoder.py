"""Decodes a serialized record to a `Sample`: parsing, image decoding, class names, and checks.

Values that a record does not have get defaults: `LabelSpec.default`, e.g. weight 1 and not crowd;
the box's area; keypoints that are NaN; an empty mask.

Faults of boxes are counted, and corrected or rejected by the reader's `bad_records`; see
`inputs.bad_records.kinds` for the kinds and `inputs.decoding.box_rules` for the rules. By default,
like in the reference, boxes with a NaN coordinate and boxes whose class text is not in the label
map are dropped: this allows training on some of the classes of a data set.
`inputs.checks.first_records` warns of it before the first batch, and rejects a label map that
matches no class text at all.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from estimator_det.compat import tf
from estimator_det.config.check import check_reader
from estimator_det.config.fields import check_supported
from estimator_det.config.text import ConfigError
from estimator_det.files.image_header import BMP, GIF, JPEG, PNG
from estimator_det.images.resize import Resizer
from estimator_det.protos import input_reader_pb2
from inputs import schema
from inputs.augment.base import keep_boxes
from inputs.bad_records.kinds import FAULT_COUNTS
from inputs.bad_records.policy import BadRecordPolicy, make_policy
from inputs.decoding.box_checks import Checked, check_boxes
from inputs.decoding.box_rules import TENSORFLOW, Boxes, mask_extents
from inputs.decoding.example import (
    MASKS,
    OBJECT,
    SIDES,
    LengthRule,
    Parsed,
    context_rules,
    equal_rule,
    make_parser,
    multiple_rule,
    parse_context,
    parse_image,
    record_name,
    require,
    require_length,
)
from inputs.decoding.hierarchy import expand_boxes, expand_image_labels, make_hierarchy
from inputs.label_map import LabelMap
from inputs.schema import PER_BOX_NUMBERS, Sample

Decoder = Callable[..., Sample]

JPEG_RATIOS = (2, 4, 8)  # by which a JPEG can be decoded smaller
# A decoded picture stays this much larger than the network's input, so that crops stay sharp.
KEPT_SCALE = 2.0

HASH_BUCKETS = 2**31  # so that a hash fits a non-negative int32

_HEAD = 26  # bytes that contain the size in PNG, GIF and BMP
# First bytes of a format; position, type and byte order of the two sides.
_SIDES = ((PNG, 16, tf.int32, False), (GIF, 6, tf.uint16, True), (BMP, 18, tf.int32, True))

# COCO's keypoint visibilities: 0 not labelled, 1 labelled but hidden, 2 visible.
HIDDEN, VISIBLE = 1, 2


class _Tables(NamedTuple):
    """Lookups from text to id, -1 if unknown; None without a label map."""

    classes: Optional[Any] = None
    keypoints: Optional[Any] = None


def make_decoder(
    config: input_reader_pb2.InputReader,
    policy: Optional[BadRecordPolicy] = None,
    resizer: Optional[Resizer] = None,
) -> Decoder:
    """Builds the function (serialized scalar string, seed=None) -> `Sample`, for the current graph.

    `seed` (integers [2]) chooses the frame of a sequence record if `frame_index` is -1; without it
    a record always has the same frame. The function fails for a record that `policy` (None: the
    reader's) rejects; `image_level[FAULT_COUNTS]` counts the faults of other records. With
    `fast_jpeg` a JPEG is decoded smaller if `resizer` makes much less of it.
    """
    policy = make_policy(config) if policy is None else policy
    label_map = policy.label_map
    check_supported(config, "input_reader")
    for problem in check_reader(config, "input_reader"):
        raise problem.as_error()
    tables = _make_tables(config, label_map)
    hierarchy = None
    if label_map is not None and config.expand_labels_hierarchy:
        hierarchy = make_hierarchy(config, label_map)
    parse = make_parser(config)
    reducing = resizer if config.fast_jpeg else None
    decode_image = _image_decoder(config, reducing)

    def decode(serialized: tf.Tensor, seed: Optional[tf.Tensor] = None) -> Sample:
        parsed = parse(serialized, seed)
        record = record_name(parsed)
        encoded = parsed["image/encoded"]
        pixels = claimed_pixels(encoded)
        has_image = require(
            tf.not_equal(encoded, "") & (pixels <= policy.max_pixels),
            record,
            ["missing_key", "huge_image"],
            "Pixels of image/encoded:",
            [pixels],
        )
        with tf.control_dependencies([has_image]):
            image = decode_image(parsed)
            size = tf.shape(image)[:2] if reducing is None else _full_size(encoded, image)
        sample, checked = _boxes(parsed, record, image, size, tables, policy, config.mask_type)
        sample = sample._replace(
            multiclass_scores=_multiclass_scores(parsed, record, sample),
            image_level=_image_level(
                parsed, serialized, record, size, tables, policy.context_feature_length
            ),
        )
        if config.num_keypoints:
            sample = _with_keypoints(sample, parsed, record, config.num_keypoints, tables)
        level = {**(sample.image_level or {}), FAULT_COUNTS: checked.counts}
        sample = keep_boxes(sample._replace(image_level=level), checked.kept)
        if hierarchy is not None:
            sample = expand_image_labels(expand_boxes(sample, hierarchy), hierarchy)
        return sample

    return decode


def _make_tables(config: input_reader_pb2.InputReader, label_map: Optional[LabelMap]) -> _Tables:
    def table(ids: Dict[str, int]) -> Any:
        initializer = tf.lookup.KeyValueTensorInitializer(
            tf.constant(list(ids)), tf.constant(list(ids.values()), tf.int64)
        )
        return tf.lookup.StaticHashTable(initializer, default_value=-1)

    if label_map is None:
        return _Tables()
    if not config.use_keypoint_label_map:
        return _Tables(table(label_map.ids))
    wrong_ids = {
        k: i for k, i in label_map.keypoint_ids.items() if not 0 <= i < config.num_keypoints
    }
    if wrong_ids or not label_map.keypoint_ids:
        raise ConfigError(
            None,
            f"{label_map.path}: the keypoint ids are {wrong_ids or 'missing'}; "
            "use_keypoint_label_map needs ids from 0 to num_keypoints - 1 = "
            f"{config.num_keypoints - 1}",
            "Correct the label map or num_keypoints",
        )
    return _Tables(table(label_map.ids), table(label_map.keypoint_ids))


def decode_example_image(serialized: tf.Tensor, num_additional_channels: int = 0) -> tf.Tensor:
    """Decodes only the image of a `tf.train.Example`: uint8 [h, w, 3 + additional]."""
    return _decode_image(parse_image(serialized), num_additional_channels)


def decode_example_context(
    serialized: tf.Tensor, shape: Tuple[int, int]
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Decodes only the context features of a `tf.train.Example`: float32 `shape`; int32 count.

    `shape` is the largest number for an image, and their length. Rows past the real ones are zero.
    """
    max_rows, length = shape
    features = _context(parse_context(serialized), tf.constant("?"), length)[:max_rows]
    count = tf.shape(features)[0]
    return tf.ensure_shape(tf.pad(features, [[0, max_rows - count], [0, 0]]), shape), count


def claimed_pixels(encoded: tf.Tensor) -> tf.Tensor:
    """Height times width in the header of an image, float32 scalar; 0 for unknown formats.

    Running it fails if the image starts like a JPEG but has no size.
    """

    def jpeg_format() -> tf.Tensor:
        return tf.reduce_prod(tf.cast(tf.io.extract_jpeg_shape(encoded), tf.float32)) / 3.0

    def other_format() -> tf.Tensor:
        # Padded, because a truncated file may be shorter than the header.
        head = tf.strings.join([tf.strings.substr(encoded, 0, _HEAD), "\0" * _HEAD])
        pixels = tf.constant(0.0)
        for start, position, dtype, is_little in _SIDES:
            sides = tf.strings.substr(head, position, 2 * dtype.size)
            # abs(): the height of a BMP is negative if its rows start at the top.
            sides = tf.cast(tf.io.decode_raw(sides, dtype, little_endian=is_little), tf.float32)
            matches = tf.equal(tf.strings.substr(head, 0, len(start)), start)
            pixels += tf.where(matches, tf.abs(tf.reduce_prod(sides)), 0.0)
        return pixels

    return tf.cond(_is_jpeg(encoded), jpeg_format, other_format)


def _decode_image(parsed: Parsed, num_additional_channels: int) -> tf.Tensor:
    """Decodes an image to uint8 [h, w, 3 + additional]; of an animation the first frame."""
    image = tf.io.decode_image(parsed["image/encoded"], channels=3, expand_animations=False)
    image.set_shape([None, None, 3])
    if not num_additional_channels:
        return image
    channels = tf.map_fn(
        lambda encoded: tf.io.decode_image(encoded, channels=1, expand_animations=False)[..., 0],
        parsed["image/additional_channels/encoded"],
        fn_output_signature=tf.TensorSpec([None, None], tf.uint8),
    )
    image = tf.concat([image, tf.transpose(channels, [1, 2, 0])], axis=2)
    return tf.ensure_shape(image, [None, None, 3 + num_additional_channels])


def _image_decoder(
    config: input_reader_pb2.InputReader, reducing: Optional[Resizer]
) -> Callable[[Parsed], tf.Tensor]:
    """Chooses how images are decoded, smaller or whole, and whether they are kept."""
    if reducing is not None:
        decode = functools.partial(_decode_reduced, resizer=reducing)
    else:
        decode = functools.partial(
            _decode_image, num_additional_channels=config.num_additional_channels
        )
    return _cached(decode) if config.cache == input_reader_pb2.MEMORY else decode


def _cached(decode: Callable[[Parsed], tf.Tensor]) -> Callable[[Parsed], tf.Tensor]:
    """Keeps images that have been decoded once, by their encoded bytes.

    Only decoding is left out: records are read in their order as ever, so that a resumed run and
    the search for bad records need not know of it.
    """
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.string, "", checkpoint=False)

    def recall(parsed: Parsed) -> tf.Tensor:
        key = tf.strings.to_hash_bucket_fast(parsed["image/encoded"], tf.int64.max)
        kept = table.lookup(key)

        def add() -> tf.Tensor:
            image = decode(parsed)
            with tf.control_dependencies([table.insert(key, tf.io.serialize_tensor(image))]):
                return tf.identity(image)

        is_new = tf.equal(tf.strings.length(kept), 0)
        image = tf.cond(is_new, add, lambda: tf.io.parse_tensor(kept, tf.uint8))
        return tf.ensure_shape(image, [None, None, 3])

    return recall


def _full_size(encoded: tf.Tensor, image: tf.Tensor) -> tf.Tensor:
    """Height and width, int32 [2], of an image that `_decode_reduced` may have made smaller."""
    return tf.cond(
        _is_jpeg(encoded),
        lambda: tf.io.extract_jpeg_shape(encoded)[:2],
        lambda: tf.shape(image)[:2],
    )


def _decode_reduced(parsed: Parsed, resizer: Resizer) -> tf.Tensor:
    """Decodes an image, a large JPEG smaller.

    The smaller picture is an average of the full one, so nothing is lost that the resizer, which
    takes single pixels, would keep.
    """
    encoded = parsed["image/encoded"]

    def full() -> tf.Tensor:
        return tf.io.decode_image(encoded, channels=3, expand_animations=False)

    def jpeg() -> tf.Tensor:
        size = tf.io.extract_jpeg_shape(encoded)[:2]
        resized = tf.stack(resizer.new_size(size[0], size[1]))
        room = tf.reduce_min(size / resized) / KEPT_SCALE
        decoders = [full] + [
            functools.partial(tf.io.decode_jpeg, encoded, channels=3, ratio=ratio)
            for ratio in JPEG_RATIOS
        ]
        branch = tf.reduce_sum(tf.cast(room >= tf.constant(JPEG_RATIOS, room.dtype), tf.int32))
        return tf.switch_case(branch, decoders)

    return tf.ensure_shape(tf.cond(_is_jpeg(encoded), jpeg, full), [None, None, 3])


def _is_jpeg(encoded: tf.Tensor) -> tf.Tensor:
    return tf.equal(tf.strings.substr(encoded, 0, len(JPEG)), JPEG)


def _ids_and_labels(
    text: tf.Tensor, labels: tf.Tensor, table: Optional[Any]
) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Looks up int64 ids, from texts if there are a label map and texts, else from labels.

    Also returns the labels if they accompany texts, else the ids; and True if texts are used.
    """
    if table is None:
        return labels, labels, tf.constant(False)
    # One concatenation and two slices instead of a tf.cond, which takes longer to start.
    both = tf.concat([table.lookup(text), labels], 0)
    num_texts = tf.size(text)
    has_texts = num_texts > 0
    ids = both[: tf.where(has_texts, num_texts, tf.size(labels))]
    # The last n of both are the labels if they accompany texts.
    return ids, both[tf.size(both) - tf.size(ids) :], has_texts


def _boxes(
    parsed: Parsed,
    record: tf.Tensor,
    image: tf.Tensor,
    image_size: tf.Tensor,
    tables: _Tables,
    policy: BadRecordPolicy,
    mask_type: int,
) -> Tuple[Sample, Checked]:
    """Decodes boxes, classes, masks and the numbers of each box, checked and corrected.

    `image_size` is that of the record, and the image may be smaller.
    """
    sides = [parsed[key] for key in SIDES]
    classes, label_ids, has_texts = _ids_and_labels(
        parsed[OBJECT + "class/text"], parsed[OBJECT + "class/label"], tables.classes
    )
    numbers = [parsed[spec.record_key] for spec in PER_BOX_NUMBERS]
    sizes = _check_sizes(record, sides, classes, numbers)
    with tf.control_dependencies([sizes]):
        boxes = tf.stack(sides, axis=1)
    masks = _masks(parsed, record, sizes[0], image_size, mask_type)
    record_boxes = Boxes(
        boxes,
        classes,
        label_ids,
        has_texts,
        record_size=tf.stack([parsed["image/height"], parsed["image/width"]]),
        image_size=tf.cast(image_size, tf.int64),
        masks=None if masks is None else mask_extents(masks, TENSORFLOW),
    )
    checked = check_boxes(record_boxes, record, policy)
    low, high = tf.split(checked.boxes, 2, axis=1)
    box_area = tf.reduce_prod((high - low) * tf.cast(image_size, tf.float32), axis=1)
    num_boxes = sizes[:1]
    # [[0, number of missing values]] of each list, which are the paddings of tf.pad.
    num_missing = tf.stack([tf.zeros_like(sizes), num_boxes - sizes], 1)[len(SIDES) + 1 :]
    fields = {}
    for spec, values, padding in zip(PER_BOX_NUMBERS, numbers, tf.split(num_missing, len(numbers))):
        if spec.default is None:
            values = tf.concat([values, box_area], 0)[: num_boxes[0]]
        else:
            values = tf.pad(values, padding, constant_values=spec.default)
        fields[spec.sample_field] = values > 0 if spec.dtype == "bool" else values
    sample = Sample(image=image, boxes=checked.boxes, classes=classes, masks=masks, **fields)
    return sample, checked


def _check_sizes(
    record: tf.Tensor, sides: List[tf.Tensor], classes: tf.Tensor, numbers: List[tf.Tensor]
) -> tf.Tensor:
    """Checks and returns the lengths of all lists, int32; all equal, those of numbers may be 0."""
    num_floats = sum(spec.dtype == "float32" for spec in PER_BOX_NUMBERS)
    floats = tf.shape_n([*sides, *numbers[:num_floats]])
    integers = tf.shape_n([classes, *numbers[num_floats:]])
    num_sides = len(sides)
    sizes = tf.concat([*floats[:num_sides], integers[0], *floats[num_sides:], *integers[1:]], 0)
    names = [*SIDES, OBJECT + "class", *(spec.record_key for spec in PER_BOX_NUMBERS)]
    absent = [-1] * (num_sides + 1) + [0] * len(numbers)
    holds = tf.reduce_all(tf.equal(sizes, floats[0]) | tf.equal(sizes, absent))
    rule = LengthRule(holds, f"Numbers of {', '.join(names)}:", [sizes])
    with tf.control_dependencies([require_length(rule, record)]):
        return tf.identity(sizes)


def _multiclass_scores(parsed: Parsed, record: tf.Tensor, sample: Sample) -> Optional[tf.Tensor]:
    """Reshapes the scores to float32 [n, scores of each box], [n, 0] if the record has none."""
    scores = parsed.get(OBJECT + "class/multiclass_scores")
    if scores is None:
        return None
    num_boxes = tf.size(sample.classes)
    width = tf.size(scores) // tf.maximum(num_boxes, 1)
    rule = multiple_rule("multiclass_scores", tf.size(scores), "boxes", num_boxes)
    with tf.control_dependencies([require_length(rule, record)]):
        return tf.reshape(scores, [num_boxes, width])


def _masks(
    parsed: Parsed, record: tf.Tensor, num_boxes: tf.Tensor, image_size: tf.Tensor, mask_type: int
) -> Optional[tf.Tensor]:
    """Decodes masks to float32 [n, h, w], 1 inside; all zero if the record has none."""
    values = parsed.get(MASKS)
    if values is None:
        return None
    shape = tf.concat([[num_boxes], image_size], 0)
    if mask_type == input_reader_pb2.PNG_MASKS:
        expected, unit = shape[0], "PNG masks"
    else:
        expected, unit = tf.reduce_prod(shape), "mask values (boxes x height x width)"
    size = tf.size(values)
    rule = equal_rule(unit, size, expected)
    with tf.control_dependencies([require_length(rule, record)]):
        values = tf.identity(values)

    def decoded() -> tf.Tensor:
        inside = values
        if mask_type == input_reader_pb2.PNG_MASKS:
            inside = tf.map_fn(
                lambda png: tf.io.decode_png(png, channels=1)[..., 0],
                values,
                fn_output_signature=tf.TensorSpec([None, None], tf.uint8),
            )
            # Masks with as many pixels in another shape would be scrambled by the reshape.
            mask_size = tf.shape(inside)[1:]
            has_size = require(
                tf.reduce_all(tf.equal(mask_size, image_size)),
                record,
                ["length_mismatch"],
                "Height and width of masks and image:",
                [mask_size, image_size],
            )
            with tf.control_dependencies([has_size]):
                inside = tf.identity(inside)
        return tf.reshape(tf.cast(inside > 0, tf.float32), shape)

    return tf.cond(size > 0, decoded, lambda: tf.zeros(shape))


def _with_keypoints(
    sample: Sample, parsed: Parsed, record: tf.Tensor, num_keypoints: int, tables: _Tables
) -> Sample:
    """Adds keypoints [n, P, 2], NaN if not labelled, and their visibilities [n, P]."""
    y, x, visibility = (parsed[f"{OBJECT}keypoint/{key}"] for key in ("y", "x", "visibility"))
    num_boxes = tf.size(sample.classes)
    size = tf.size(y)
    expected = num_boxes * num_keypoints
    rules = [equal_rule("keypoint/x", tf.size(x), size, may_be_absent=False)]
    if tables.keypoints is None:
        rules.append(equal_rule("keypoints", size, expected))
    else:
        text = parsed[OBJECT + "keypoint/text"]
        rules.append(equal_rule("keypoint/text", tf.size(text), size, may_be_absent=False))
        rules.append(multiple_rule("keypoints", size, "boxes", num_boxes))
    with tf.control_dependencies([require_length(rule, record) for rule in rules]):
        points = tf.stack([y, x], axis=1)
    is_present = tf.logical_not(tf.math.is_nan(x))
    visibility_codes = tf.concat([visibility, VISIBLE * tf.cast(is_present, tf.int64)], 0)
    offset = tf.where(tf.equal(tf.size(visibility), size), 0, tf.size(visibility))
    visibility_codes = visibility_codes[offset : offset + size]
    is_labelled = tf.equal(visibility_codes, HIDDEN) | tf.equal(visibility_codes, VISIBLE)
    if tables.keypoints is None:
        slots = tf.range(size)
    else:
        ids = tf.cast(tables.keypoints.lookup(text), tf.int32)
        per_box = tf.maximum(size // tf.maximum(num_boxes, 1), 1)
        slots = tf.range(size) // per_box * num_keypoints + ids
        is_labelled &= ids >= 0
    slot_indices = tf.boolean_mask(slots, is_labelled)[:, tf.newaxis]
    points = tf.tensor_scatter_nd_update(
        tf.fill([expected, 2], float("nan")), slot_indices, tf.boolean_mask(points, is_labelled)
    )
    visible = (
        tf.scatter_nd(slot_indices, tf.ones(tf.shape(slot_indices)[:1], tf.int32), [expected]) > 0
    )
    return sample._replace(
        keypoints=tf.reshape(points, [num_boxes, num_keypoints, 2]),
        keypoint_visibilities=tf.reshape(visible, [num_boxes, num_keypoints]),
    )


def _context(parsed: Parsed, record: tf.Tensor, expected: Optional[int]) -> tf.Tensor:
    """Reshapes context features to float32 [S, F]; S may be 0, F is `expected` unless None."""
    values = parsed["image/context_features"]
    length = tf.cast(parsed["image/context_feature_length"], tf.int32)
    rules = context_rules(tf.size(values), length, expected)
    with tf.control_dependencies([require_length(rule, record) for rule in rules]):
        count = tf.size(values) // tf.maximum(length, 1)
        return tf.reshape(values, [count, length if expected is None else expected])


def _image_level(
    parsed: Parsed,
    serialized: tf.Tensor,
    record: tf.Tensor,
    image_size: tf.Tensor,
    tables: _Tables,
    context_feature_length: Optional[int],
) -> Dict[str, tf.Tensor]:
    """Features and labels of the whole image, by schema key."""
    source_id = parsed["image/source_id"]
    # Without an id the content is hashed, so that the hash is the same in every epoch.
    hashed = tf.where(tf.equal(source_id, ""), serialized, source_id)
    classes, _, _ = _ids_and_labels(
        parsed["image/class/text"], parsed["image/class/label"], tables.classes
    )
    confidences = parsed["image/class/confidence"]
    rule = equal_rule("image/class/confidence", tf.size(confidences), tf.size(classes))
    default = tf.ones([tf.size(classes) * tf.cast(tf.equal(tf.size(confidences), 0), tf.int32)])
    confidences = tf.concat([confidences, default], 0)
    with tf.control_dependencies([require_length(rule, record)]):
        known_rows = tf.where(classes > 0)[:, 0]
    level = {
        schema.SOURCE_ID: record,
        schema.FILENAME: parsed["image/filename"],
        schema.HASH: tf.cast(tf.strings.to_hash_bucket_fast(hashed, HASH_BUCKETS), tf.int32),
        schema.ORIGINAL_SPATIAL_SHAPE: image_size,
        schema.IMAGE_CLASSES: tf.gather(classes, known_rows),
        schema.IMAGE_CONFIDENCES: tf.gather(confidences, known_rows),
        schema.VERIFIED_NEG_CLASSES: parsed["image/neg_category_ids"],
        schema.NOT_EXHAUSTIVE_CLASSES: parsed["image/not_exhaustive_category_ids"],
    }
    if "image/context_features" in parsed:
        level[schema.CONTEXT_FEATURES] = _context(parsed, record, context_feature_length)
    for key, name in (
        (schema.IS_ANNOTATED, schema.IS_ANNOTATED),
        (schema.CONTEXT_FEATURES_IMAGE_ID_LIST, "image/context_features_image_id_list"),
    ):
        if name in parsed:
            level[key] = parsed[name]
    return level
