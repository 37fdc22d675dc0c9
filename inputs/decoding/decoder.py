"""One serialized record -> one `Sample`: parsing, image decoding, class names, and checks.

Where a record leaves out what belongs to each box, it gets: weight 1, confidence 1, not crowd, not
difficult, not a group, the box's own area, no keypoints (NaN), an empty mask.

What is wrong with boxes is counted, and mended or refused as the reader's `bad_records` says; see
`inputs.bad_records.kinds` for the kinds, and `inputs.checks.examine` for the same in Python. By
default boxes with a NaN coordinate, and boxes whose class text is in no item of the label map, are
left out, as the reference does: that is how one trains on some of the classes of a data set
(`inputs.checks.class_names` warns before the first batch, and refuses a label map with none).
"""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

from estimator_det.compat import tf
from estimator_det.protos import input_reader_pb2
from inputs import schema
from inputs.augment.base import keep_boxes
from inputs.bad_records.kinds import FAULT_COUNTS
from inputs.bad_records.policy import BadRecordPolicy, make_policy
from inputs.decoding.box_checks import Checked, Facts, check_boxes
from inputs.decoding.example import (
    MASKS,
    OBJECT,
    Parsed,
    make_parser,
    parse_image,
    record_name,
    require,
)
from inputs.decoding.hierarchy import Hierarchy, expand_boxes, expand_image_labels
from inputs.decoding.image_header import claimed_pixels
from inputs.label_map import LabelMap
from inputs.schema import Sample

Decoder = Callable[..., Sample]

HASH_BUCKETS = 2**31  # so that a hash fits a non-negative int32

# COCO's keypoint visibilities: 0 not labelled, 1 labelled but hidden, 2 visible.
HIDDEN, VISIBLE = 1, 2

UNSUPPORTED = ("load_dense_pose", "load_track_id", "load_keypoint_depth_features")


class _Tables(NamedTuple):
    """Lookups from text to id, -1 where unknown; None without a label map."""

    classes: Optional[Any] = None
    keypoints: Optional[Any] = None


def make_decoder(
    config: input_reader_pb2.InputReader, policy: Optional[BadRecordPolicy] = None
) -> Decoder:
    """A function (serialized scalar string, seed=None) -> `Sample`, for the current graph.

    `seed` (integers [2]) chooses the frame of a sequence record where `frame_index` is -1; without
    it each record gives one and the same frame. The function fails for a record that `policy` (None
    for those of the reader) do not let pass, and tells in `image_level[FAULT_COUNTS]` what it
    mended or let pass.

    Raises:
        ValueError: if the reader asks for what is not supported, or needs a label map and names
            none.
        ConfigError: if the label map cannot be read.
    """
    for flag in UNSUPPORTED:
        if getattr(config, flag):
            raise ValueError(f"input_reader.{flag} is not supported: no model here uses it")
    policy = make_policy(config) if policy is None else policy
    label_map = policy.label_map
    for flag in ("expand_labels_hierarchy", "use_keypoint_label_map"):
        if getattr(config, flag) and label_map is None:
            raise ValueError(f"input_reader.{flag} needs input_reader.label_map_path")
    if config.use_keypoint_label_map and not config.num_keypoints:
        raise ValueError("input_reader.use_keypoint_label_map needs input_reader.num_keypoints")
    tables = _make_tables(config, label_map)
    hierarchy = (
        Hierarchy.from_label_map(label_map)
        if label_map is not None and config.expand_labels_hierarchy
        else None
    )
    parse = make_parser(config)
    max_pixels = policy.max_pixels

    def decode(serialized: tf.Tensor, seed: Optional[tf.Tensor] = None) -> Sample:
        parsed = parse(serialized, seed)
        record = record_name(parsed)
        encoded = parsed["image/encoded"]
        pixels = claimed_pixels(encoded)
        has_image = require(
            tf.not_equal(encoded, "") & (pixels <= max_pixels),
            record,
            "has no image/encoded, or one that claims too many pixels:",
            [pixels],
        )
        with tf.control_dependencies([has_image]):
            image = _decode_image(parsed, config.num_additional_channels)
        sample, checked = _boxes(parsed, record, image, tables, policy)
        sample = sample._replace(
            image=image,
            multiclass_scores=_multiclass_scores(parsed, record, sample),
            masks=_masks(parsed, record, sample, image, config.mask_type),
            image_level=_image_level(parsed, serialized, record, image, tables),
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
    wrong = {k: i for k, i in label_map.keypoint_ids.items() if not 0 <= i < config.num_keypoints}
    if wrong or not label_map.keypoint_ids:
        raise ValueError(
            f"{label_map.path}: use_keypoint_label_map needs keypoints with ids from 0 to "
            f"num_keypoints - 1 = {config.num_keypoints - 1}; found {wrong or 'none'}"
        )
    return _Tables(table(label_map.ids), table(label_map.keypoint_ids))


def decode_example_image(serialized: tf.Tensor, num_additional_channels: int = 0) -> tf.Tensor:
    """uint8 [h, w, 3 + additional] of a serialized `tf.train.Example`, labels left alone."""
    return _decode_image(parse_image(serialized), num_additional_channels)


def _decode_image(parsed: Parsed, num_additional_channels: int) -> tf.Tensor:
    """uint8 [h, w, 3 + additional]; of an animation the first picture."""
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


def _class_ids(text: tf.Tensor, labels: tf.Tensor, table: Optional[Any]) -> tf.Tensor:
    """Ids from text where there is any and a label map knows them, else from labels; int64."""
    return labels if table is None else _ids_and_labels(text, labels, table)[0]


def _ids_and_labels(
    text: tf.Tensor, labels: tf.Tensor, table: Any
) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Ids as above; the labels where they are beside texts, else the ids; whether texts count."""
    both = tf.concat([table.lookup(text), labels], 0)
    num_texts = tf.size(text)
    by_text = num_texts > 0
    ids = both[: tf.where(by_text, num_texts, tf.size(labels))]
    # The last n of both are the labels where they are beside texts.
    return ids, both[tf.size(both) - tf.size(ids) :], by_text


def _boxes(
    parsed: Parsed, record: tf.Tensor, image: tf.Tensor, tables: _Tables, policy: BadRecordPolicy
) -> Tuple[Sample, Checked]:
    """Boxes, classes and what else is one number for each box; and what is wrong with them."""
    sides = [parsed[f"{OBJECT}bbox/{side}"] for side in ("ymin", "xmin", "ymax", "xmax")]
    text, labels = parsed[OBJECT + "class/text"], parsed[OBJECT + "class/label"]
    classes, beside, by_text = labels, labels, tf.constant(False)
    if tables.classes is not None:
        classes, beside, by_text = _ids_and_labels(text, labels, tables.classes)
    names = ("class/confidence", "weight", "area", "is_crowd", "difficult", "group_of")
    optional = [parsed[OBJECT + name] for name in names]
    floats = tf.shape_n([*sides, *optional[:3]])
    integers = tf.shape_n([classes, *optional[3:]])
    sizes = tf.concat([*floats[:4], integers[0], *floats[4:], *integers[1:]], 0)
    num_boxes = floats[0]
    complete = require(
        tf.reduce_all(tf.equal(sizes, num_boxes) | tf.equal(sizes, [-1] * 5 + [0] * len(names))),
        record,
        "has fields of different lengths under image/object/. Numbers of ymin, xmin, ymax, xmax, "
        f"class; then (0 if absent) of {', '.join(names)}:",
        [sizes],
    )
    with tf.control_dependencies([complete]):
        boxes, sizes = tf.stack(sides, axis=1), tf.identity(sizes)
    size = tf.shape(image)[:2]
    given_size = tf.stack([parsed["image/height"], parsed["image/width"]])
    facts = Facts(boxes, classes, beside, by_text, given_size, tf.cast(size, tf.int64))
    checked = check_boxes(facts, record, policy)
    low, high = tf.split(checked.boxes, 2, axis=1)
    own_area = tf.reduce_prod((high - low) * tf.cast(size, tf.float32), axis=1)
    # [[0, number that is absent]] of each, as padding takes it.
    absent = tf.split(tf.stack([tf.zeros_like(sizes), num_boxes - sizes], 1)[5:], len(names))
    confidence, weight, area, is_crowd, difficult, group_of = optional
    sample = Sample(
        image=image,
        boxes=checked.boxes,
        classes=classes,
        confidences=tf.pad(confidence, absent[0], constant_values=1.0),
        weights=tf.pad(weight, absent[1], constant_values=1.0),
        area=tf.concat([area, own_area], 0)[: num_boxes[0]],
        is_crowd=tf.pad(is_crowd, absent[3]) > 0,
        difficult=tf.pad(difficult, absent[4]) > 0,
        group_of=tf.pad(group_of, absent[5]) > 0,
    )
    return sample, checked


def _multiclass_scores(parsed: Parsed, record: tf.Tensor, sample: Sample) -> Optional[tf.Tensor]:
    """float32 [n, scores per box], the latter 0 where the record has none."""
    scores = parsed.get(OBJECT + "class/multiclass_scores")
    if scores is None:
        return None
    num_boxes = tf.size(sample.classes)
    width = tf.size(scores) // tf.maximum(num_boxes, 1)
    fits = require(
        tf.equal(width * num_boxes, tf.size(scores)),
        record,
        "has multiclass_scores that are no multiple of its boxes; numbers of scores and boxes:",
        [tf.size(scores), num_boxes],
    )
    with tf.control_dependencies([fits]):
        return tf.reshape(scores, [num_boxes, width])


def _masks(
    parsed: Parsed, record: tf.Tensor, sample: Sample, image: tf.Tensor, mask_type: int
) -> Optional[tf.Tensor]:
    """float32 [n, h, w], 1 inside; all zero where the record has none."""
    values = parsed.get(MASKS)
    if values is None:
        return None
    shape = tf.concat([[tf.size(sample.classes)], tf.shape(image)[:2]], 0)
    if mask_type == input_reader_pb2.PNG_MASKS:
        expected, unit = shape[0], "PNG masks"
    else:
        expected, unit = tf.reduce_prod(shape), "mask values (boxes x height x width)"
    size = tf.size(values)
    fits = require(
        tf.equal(size, expected) | tf.equal(size, 0),
        record,
        f"has a wrong number of {unit}; found and expected:",
        [size, expected],
    )
    with tf.control_dependencies([fits]):
        values = tf.identity(values)

    def given() -> tf.Tensor:
        inside = values
        if mask_type == input_reader_pb2.PNG_MASKS:
            inside = tf.map_fn(
                lambda png: tf.io.decode_png(png, channels=1)[..., 0],
                values,
                fn_output_signature=tf.TensorSpec([None, None], tf.uint8),
            )
        return tf.reshape(tf.cast(inside > 0, tf.float32), shape)

    return tf.cond(size > 0, given, lambda: tf.zeros(shape))


def _with_keypoints(
    sample: Sample, parsed: Parsed, record: tf.Tensor, num_keypoints: int, tables: _Tables
) -> Sample:
    """Adds keypoints [n, P, 2], NaN where not labelled, and their visibilities [n, P]."""
    y, x, visibility = (parsed[f"{OBJECT}keypoint/{key}"] for key in ("y", "x", "visibility"))
    num_boxes = tf.size(sample.classes)
    size = tf.size(y)
    expected = num_boxes * num_keypoints
    fits = tf.equal(size, tf.size(x)) & (tf.equal(size, expected) | tf.equal(size, 0))
    if tables.keypoints is not None:
        text = parsed[OBJECT + "keypoint/text"]
        fits = tf.equal(size, tf.size(x)) & tf.equal(size, tf.size(text))
        fits &= tf.equal(tf.math.floormod(size, tf.maximum(num_boxes, 1)), 0)
    found = require(
        fits,
        record,
        f"has keypoints that do not fit num_keypoints = {num_keypoints} for each box; numbers of "
        "y, x, boxes:",
        [size, tf.size(x), num_boxes],
    )
    with tf.control_dependencies([found]):
        points = tf.stack([y, x], axis=1)
    given = tf.logical_not(tf.math.is_nan(x))
    seen = tf.concat([visibility, VISIBLE * tf.cast(given, tf.int64)], 0)
    offset = tf.where(tf.equal(tf.size(visibility), size), 0, tf.size(visibility))
    seen = seen[offset : offset + size]
    labelled = tf.equal(seen, HIDDEN) | tf.equal(seen, VISIBLE)
    if tables.keypoints is None:
        slots = tf.range(size)
    else:
        ids = tf.cast(tables.keypoints.lookup(text), tf.int32)
        per_box = tf.maximum(size // tf.maximum(num_boxes, 1), 1)
        slots = tf.range(size) // per_box * num_keypoints + ids
        labelled &= ids >= 0
    where = tf.boolean_mask(slots, labelled)[:, tf.newaxis]
    points = tf.tensor_scatter_nd_update(
        tf.fill([expected, 2], float("nan")), where, tf.boolean_mask(points, labelled)
    )
    visible = tf.scatter_nd(where, tf.ones(tf.shape(where)[:1], tf.int32), [expected]) > 0
    return sample._replace(
        keypoints=tf.reshape(points, [num_boxes, num_keypoints, 2]),
        keypoint_visibilities=tf.reshape(visible, [num_boxes, num_keypoints]),
    )


def _image_level(
    parsed: Parsed, serialized: tf.Tensor, record: tf.Tensor, image: tf.Tensor, tables: _Tables
) -> Dict[str, tf.Tensor]:
    """What belongs to the image as a whole, by schema key."""
    source_id = parsed["image/source_id"]
    # Without an id the content stands for it, so that the hash stays the same in every epoch.
    hashed = tf.where(tf.equal(source_id, ""), serialized, source_id)
    classes = _class_ids(parsed["image/class/text"], parsed["image/class/label"], tables.classes)
    confidences = parsed["image/class/confidence"]
    default = tf.ones([tf.size(classes) * tf.cast(tf.equal(tf.size(confidences), 0), tf.int32)])
    confidences = tf.concat([confidences, default], 0)
    fits = require(
        tf.equal(tf.size(confidences), tf.size(classes)),
        record,
        "has image/class fields of different lengths; numbers of confidences and classes:",
        [tf.size(confidences), tf.size(classes)],
    )
    with tf.control_dependencies([fits]):
        known = tf.where(classes > 0)[:, 0]
    level = {
        schema.SOURCE_ID: record,
        schema.HASH: tf.cast(tf.strings.to_hash_bucket_fast(hashed, HASH_BUCKETS), tf.int32),
        schema.ORIGINAL_SPATIAL_SHAPE: tf.shape(image)[:2],
        schema.IMAGE_CLASSES: tf.gather(classes, known),
        schema.IMAGE_CONFIDENCES: tf.gather(confidences, known),
        schema.VERIFIED_NEG_CLASSES: parsed["image/neg_category_ids"],
        schema.NOT_EXHAUSTIVE_CLASSES: parsed["image/not_exhaustive_category_ids"],
    }
    if schema.IS_ANNOTATED in parsed:
        level[schema.IS_ANNOTATED] = parsed[schema.IS_ANNOTATED]
    context = parsed.get("image/context_features")
    if context is not None:
        length = tf.cast(parsed["image/context_feature_length"], tf.int32)
        count = tf.size(context) // tf.maximum(length, 1)
        fits = require(
            tf.equal(count * length, tf.size(context)),
            record,
            "has context_features that are no multiple of its context_feature_length:",
            [tf.size(context), length],
        )
        with tf.control_dependencies([fits]):
            level[schema.CONTEXT_FEATURES] = tf.reshape(context, [count, length])
    if "image/context_features_image_id_list" in parsed:
        level[schema.CONTEXT_FEATURES_IMAGE_ID_LIST] = parsed[
            "image/context_features_image_id_list"
        ]
    return level
