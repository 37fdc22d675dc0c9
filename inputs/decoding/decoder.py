"""Decodes a serialized record to a `Sample`: parsing, image decoding, class names, and checks.

Values that a record does not have get defaults: `LabelSpec.default`, e.g. weight 1 and not crowd;
the box's area; keypoints that are NaN; an empty mask.

Faults of boxes are counted, and corrected or rejected by the reader's `bad_records`; see
`inputs.bad_records.kinds` for the kinds and `inputs.decoding.box_rules` for the rules. By default,
like in the Object Detection API, boxes with a NaN coordinate and boxes whose class text is not in
the label map are dropped: this allows training on some of the classes of a data set.
`inputs.checks.first_records` warns of it before the first batch, and rejects a label map that
matches no class text at all.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from estimator_det.compat import tf
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, UsageError, error, warning
from estimator_det.images.resize import Resizer
from estimator_det.protos import input_reader_pb2
from inputs import schema
from inputs.bad_records.kinds import BOX_FAULTS, FAULT_COUNTS
from inputs.bad_records.policy import BadRecordPolicy, make_policy
from inputs.decoding.box_rules import (
    TENSORFLOW,
    RecordBoxes,
    box_flags,
    correct_boxes,
    mask_extents,
    size_mismatch,
)
from inputs.decoding.example import (
    MASKS,
    OBJECT,
    SIDES,
    LengthRule,
    Parsed,
    checked,
    context_rules,
    equal_rule,
    list_or_scalar,
    make_parser,
    multiple_rule,
    record_name,
    with_lengths,
)
from inputs.decoding.hierarchy import expand_boxes, expand_image_labels, make_hierarchy
from inputs.decoding.images import claimed_pixels, decode_image, make_image_decoder
from inputs.label_map import LabelMap
from inputs.sample import Sample, choose, keep_boxes
from inputs.schema import PER_BOX_NUMBERS

HASH_BUCKETS = 2**31  # so that a hash fits a non-negative int32

# COCO's keypoint visibilities: 0 not labelled, 1 labelled but hidden, 2 visible.
HIDDEN, VISIBLE = 1, 2
NAN = float("nan")


@rules(input_reader_pb2.InputReader)
def _check_reader(reader: input_reader_pb2.InputReader, at: str) -> Iterator[Problem]:
    """Fields that need another one, or exclude it."""
    for field, needed in (
        ("expand_labels_hierarchy", "label_map_path"),
        ("use_keypoint_label_map", "label_map_path"),
        ("use_keypoint_label_map", "num_keypoints"),
    ):
        if getattr(reader, field) and not getattr(reader, needed):
            yield error(f"{at}.{field}", f"needs {at}.{needed}", "set it")
    for field in ("load_instance_masks", "num_additional_channels"):
        if reader.fast_jpeg and getattr(reader, field):
            message = f"does not go with {field}, which needs all pixels"
            yield error(f"{at}.fast_jpeg", message, "remove one of them")
    if reader.cache == input_reader_pb2.MEMORY:
        path = f"{at}.cache"
        if reader.num_additional_channels:
            yield error(path, "does not go with num_additional_channels", "remove one of them")
        if reader.input_type == input_reader_pb2.TF_SEQUENCE_EXAMPLE:
            yield error(path, "does not go with sequences of images", "leave it out")
        if at.startswith("eval"):
            yield warning(path, "has no effect: an evaluation reads each image once", "remove it")


def make_decoder(
    config: input_reader_pb2.InputReader,
    policy: Optional[BadRecordPolicy] = None,
    resizer: Optional[Resizer] = None,
) -> Callable[..., Sample]:
    """Builds the function (serialized scalar string, seed=None) -> `Sample`, for the current graph.

    `seed` (integers [2]) chooses the frame of a sequence record if `frame_index` is -1; without it
    a record always has the same frame. The function fails for a record that `policy` (None: the
    reader's) rejects; `image_level[FAULT_COUNTS]` counts the faults of other records. With
    `fast_jpeg` a JPEG is decoded smaller if `resizer` makes much less of it.
    """
    policy = make_policy(config) if policy is None else policy
    label_map = policy.label_map
    class_table, keypoint_table = _make_tables(config, label_map)
    hierarchy = None
    if label_map is not None and config.expand_labels_hierarchy:
        hierarchy = make_hierarchy(config, label_map)
    parse = make_parser(config)
    decode_pixels = make_image_decoder(config, resizer)

    def decode(serialized: tf.Tensor, seed: Optional[tf.Tensor] = None) -> Sample:
        parsed = parse(serialized, seed)
        record = record_name(parsed)
        encoded = parsed["image/encoded"]
        pixels = claimed_pixels(encoded)
        parsed["image/encoded"] = checked(
            encoded,
            (tf.strings.length(encoded) > 0) & (pixels <= policy.max_pixels),
            record,
            ["missing_key", "huge_image"],
            "Pixels of image/encoded:",
            [pixels],
        )
        image, size = decode_pixels(parsed)
        sample, kept, counts = _boxes(
            parsed, record, image, size, class_table, policy, config.mask_type
        )
        context_length = policy.context_feature_length
        level = _image_level(parsed, serialized, record, size, class_table, context_length)
        level[FAULT_COUNTS] = counts
        scores = _multiclass_scores(parsed, record, sample)
        sample = sample._replace(multiclass_scores=scores, image_level=level)
        if config.num_keypoints:
            sample = _with_keypoints(sample, parsed, record, config.num_keypoints, keypoint_table)
        sample = keep_boxes(sample, kept)
        if hierarchy is not None:
            sample = expand_image_labels(expand_boxes(sample, hierarchy), hierarchy)
        return sample

    return decode


def _make_tables(
    config: input_reader_pb2.InputReader, label_map: Optional[LabelMap]
) -> Tuple[Any, Any]:
    """Lookups from text to id of classes and keypoints, -1 if unknown; None without them."""

    def table(ids: Dict[str, int]) -> Any:
        initializer = tf.lookup.KeyValueTensorInitializer(
            tf.constant(list(ids)), tf.constant(list(ids.values()), tf.int64)
        )
        return tf.lookup.StaticHashTable(initializer, default_value=-1)

    if label_map is None:
        return None, None
    if not config.use_keypoint_label_map:
        return table(label_map.ids), None
    ids, classes = label_map.keypoint_ids, label_map.keypoints.values()
    wrong_ids = {k: i for k, i in ids.items() if not 0 <= i < config.num_keypoints}
    wrong_ids.update((k, i) for each in classes for k, i in each.items() if i != ids[k])
    if wrong_ids or not label_map.keypoint_ids:
        raise UsageError(
            f"{label_map.path}: the keypoint ids are {wrong_ids or 'missing'}; "
            "use_keypoint_label_map needs ids from 0 to num_keypoints - 1 = "
            f"{config.num_keypoints - 1}, and one id for a name in all classes. Correct the label "
            "map or num_keypoints"
        )
    return table(label_map.ids), table(label_map.keypoint_ids)


def decode_example_image(serialized: tf.Tensor, num_additional_channels: int = 0) -> tf.Tensor:
    """Decodes only the image of a `tf.train.Example`: uint8 [h, w, 3 + additional]."""
    additional = "image/additional_channels/encoded"
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),  # fails if there is none
        additional: list_or_scalar(additional, tf.string),
    }
    parsed = tf.io.parse_single_example(serialized, features)
    return decode_image(parsed, num_additional_channels)


def decode_example_context(
    serialized: tf.Tensor, shape: Tuple[int, int]
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Decodes only the context features of a `tf.train.Example`: float32 `shape`; int32 count.

    `shape` is the largest number for an image, and their length. Rows past the real ones are zero.
    """
    max_rows, length = shape
    types = {"image/context_features": tf.float32, "image/context_feature_length": tf.int64}
    parsed = tf.io.parse_single_example(
        serialized, {key: list_or_scalar(key, dtype) for key, dtype in types.items()}
    )
    features = _context(parsed, tf.constant("?"), length)[:max_rows]
    count = tf.shape(features)[0]
    return tf.ensure_shape(tf.pad(features, [[0, max_rows - count], [0, 0]]), shape), count


def _ids_and_labels(
    text: tf.Tensor, labels: tf.Tensor, table: Optional[Any]
) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Looks up int64 ids, from texts if there are a label map and texts, else from labels.

    Also returns the labels if they accompany texts, -1 if they differ in number, and else the ids;
    and True if texts are used.
    """
    if table is None:
        return labels, labels, tf.constant(False)
    # One concatenation and two slices instead of a tf.cond, which takes longer to start.
    both = tf.concat([table.lookup(text), labels], 0)
    num_texts = tf.size(text)
    has_texts = num_texts > 0
    ids = both[: choose(has_texts, num_texts, tf.size(labels))]
    # The last n of both are the labels if they accompany texts.
    accompanying = both[tf.size(both) - tf.size(ids) :]
    is_odd = has_texts & (tf.size(labels) > 0) & tf.not_equal(tf.size(labels), num_texts)
    return ids, tf.where(is_odd, tf.constant(-1, ids.dtype), accompanying), has_texts


def _boxes(
    parsed: Parsed,
    record: tf.Tensor,
    image: tf.Tensor,
    image_size: tf.Tensor,
    class_table: Any,
    policy: BadRecordPolicy,
    mask_type: int,
) -> Tuple[Sample, tf.Tensor, tf.Tensor]:
    """Decodes boxes, classes, masks and the numbers of each box, checked and corrected.

    `image_size` is the size of the encoded image; the decoded one may be smaller. Also returns the
    indices and counts of `_check_boxes`. The numbers of each box may have more rows than there are
    boxes; the indices leave them out.
    """
    sides = [parsed[key] for key in SIDES]
    classes, label_ids, has_texts = _ids_and_labels(
        parsed[OBJECT + "class/text"], parsed[OBJECT + "class/label"], class_table
    )
    numbers = [parsed[spec.record_key] for spec in PER_BOX_NUMBERS]
    sizes = _check_sizes(record, [*sides, classes], numbers)
    with tf.control_dependencies([sizes]):
        boxes = tf.stack(sides, axis=1)
    num_boxes = sizes[0]
    masks = _masks(parsed, record, num_boxes, image_size, mask_type)
    record_boxes = RecordBoxes(
        boxes,
        classes,
        label_ids,
        has_texts,
        record_size=tf.stack([parsed["image/height"], parsed["image/width"]]),
        image_size=tf.cast(image_size, tf.int64),
        masks=None if masks is None else mask_extents(masks, TENSORFLOW),
    )
    boxes, kept, counts = _check_boxes(record_boxes, record, policy)
    low, high = tf.split(boxes, 2, axis=1)
    box_area = tf.reduce_prod((high - low) * tf.cast(image_size, tf.float32), axis=1)
    fields = {}
    for spec, values in zip(PER_BOX_NUMBERS, numbers):
        # The list has all values or none.
        default = box_area if spec.default is None else tf.fill([num_boxes], spec.default)
        values = tf.concat([values, tf.cast(default, values.dtype)], 0)
        fields[spec.field] = values > 0 if spec.dtype == "bool" else values
    return Sample(image, boxes, classes, masks=masks, **fields), kept, counts


def _check_boxes(
    record_boxes: RecordBoxes, record: tf.Tensor, policy: BadRecordPolicy
) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Counts faults, and corrects or rejects them by the policy.

    Returns:
        Corrected boxes, float32 [n, 4]; indices of boxes that are not dropped, int64 [k]; counts,
        int32, the first entries of COUNTED: all but the last one.
    """
    flags = box_flags(record_boxes, policy.num_classes, TENSORFLOW)
    box_counts = tf.reduce_sum(tf.cast(tf.stack(list(flags.values())), tf.int32), 1)
    has_wrong_size = tf.cast(size_mismatch(record_boxes, TENSORFLOW), tf.int32)
    counts = tf.concat([box_counts, has_wrong_size[tf.newaxis]], 0)
    kinds = (*BOX_FAULTS, "size_mismatch")
    rejected = [kind for kind in kinds if policy.rejects(kind)]
    if rejected:
        rejected_counts = tf.gather(counts, [kinds.index(kind) for kind in rejected])
        counts = checked(
            counts,
            tf.equal(tf.reduce_sum(rejected_counts), 0),
            record,
            rejected,
            "Number of each, boxes, and class ids:",
            [rejected_counts, record_boxes.boxes, record_boxes.classes],
        )
    boxes, dropped = correct_boxes(record_boxes.boxes, flags, policy.actions, TENSORFLOW)
    return boxes, tf.where(tf.logical_not(dropped))[:, 0], counts


def _check_sizes(
    record: tf.Tensor, needed: List[tf.Tensor], optional: List[tf.Tensor]
) -> tf.Tensor:
    """Checks and returns the lengths of all lists, int32; all equal, optional ones may be 0."""
    sizes = tf.stack([tf.size(values) for values in (*needed, *optional)])
    names = [*SIDES, OBJECT + "class", *(spec.record_key for spec in PER_BOX_NUMBERS)]
    absent = [-1] * len(needed) + [0] * len(optional)
    holds = tf.reduce_all(tf.equal(sizes, sizes[0]) | tf.equal(sizes, absent))
    rule = LengthRule(holds, f"Numbers of {', '.join(names)}:", [sizes])
    return with_lengths(sizes, record, rule)


def _multiclass_scores(parsed: Parsed, record: tf.Tensor, sample: Sample) -> Optional[tf.Tensor]:
    """Reshapes the scores to float32 [n, scores of each box], [n, 0] if the record has none."""
    scores = parsed.get(OBJECT + "class/multiclass_scores")
    if scores is None:
        return None
    num_boxes = tf.size(sample.classes)
    width = tf.size(scores) // tf.maximum(num_boxes, 1)
    rule = multiple_rule("multiclass_scores", tf.size(scores), "boxes", num_boxes)
    return tf.reshape(with_lengths(scores, record, rule), [num_boxes, width])


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
    values = with_lengths(values, record, equal_rule(unit, size, expected))

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
            has_size = tf.reduce_all(tf.equal(mask_size, image_size))
            detail = "Height and width of masks and image:"
            rule = LengthRule(has_size, detail, [mask_size, image_size])
            inside = with_lengths(inside, record, rule)
        return tf.reshape(tf.cast(inside > 0, tf.float32), shape)

    return tf.cond(size > 0, decoded, lambda: tf.zeros(shape))


def _with_keypoints(
    sample: Sample, parsed: Parsed, record: tf.Tensor, num_keypoints: int, table: Any
) -> Sample:
    """Adds keypoints [n, P, 2], NaN if not labelled, and their visibilities [n, P]."""
    y, x, visibility = (parsed[f"{OBJECT}keypoint/{key}"] for key in ("y", "x", "visibility"))
    num_boxes = tf.size(sample.classes)
    size = tf.size(y)
    expected = num_boxes * num_keypoints
    rules = [equal_rule("keypoint/x", tf.size(x), size, may_be_absent=False)]
    if table is None:
        rules.append(equal_rule("keypoints", size, expected))
    else:
        text = parsed[OBJECT + "keypoint/text"]
        rules.append(equal_rule("keypoint/text", tf.size(text), size, may_be_absent=False))
        rules.append(multiple_rule("keypoints", size, "boxes", num_boxes))
    x = with_lengths(x, record, *rules)
    is_present = tf.logical_not(tf.math.is_nan(x))
    visibility_codes = tf.concat([visibility, VISIBLE * tf.cast(is_present, tf.int64)], 0)
    offset = tf.where(tf.equal(tf.size(visibility), size), 0, tf.size(visibility))
    visibility_codes = visibility_codes[offset : offset + size]
    is_labelled = tf.equal(visibility_codes, HIDDEN) | tf.equal(visibility_codes, VISIBLE)
    if table is None:
        slots = tf.range(size)
    else:
        ids = tf.cast(table.lookup(text), tf.int32)
        per_box = tf.maximum(size // tf.maximum(num_boxes, 1), 1)
        slots = tf.range(size) // per_box * num_keypoints + ids
        is_labelled &= ids >= 0
    # A row for each labelled keypoint: y, x, and 1 for visible.
    rows = tf.boolean_mask(tf.stack([y, x, tf.ones_like(y)], axis=1), is_labelled)
    unlabelled = tf.tile([[NAN, NAN, 0.0]], [expected, 1])
    slot_indices = tf.boolean_mask(slots, is_labelled)[:, tf.newaxis]
    points = tf.tensor_scatter_nd_update(unlabelled, slot_indices, rows)
    points = tf.reshape(points, [num_boxes, num_keypoints, 3])
    return sample._replace(keypoints=points[..., :2], keypoint_visibilities=points[..., 2] > 0)


def _context(parsed: Parsed, record: tf.Tensor, expected: Optional[int]) -> tf.Tensor:
    """Reshapes context features to float32 [S, F]; S may be 0, F is `expected` unless None."""
    values = parsed["image/context_features"]
    length = tf.cast(parsed["image/context_feature_length"], tf.int32)
    rules = context_rules(tf.size(values), length, expected)
    values = with_lengths(values, record, *rules)
    count = tf.size(values) // tf.maximum(length, 1)
    return tf.reshape(values, [count, length if expected is None else expected])


def _image_level(
    parsed: Parsed,
    serialized: tf.Tensor,
    record: tf.Tensor,
    image_size: tf.Tensor,
    class_table: Any,
    context_feature_length: Optional[int],
) -> Dict[str, tf.Tensor]:
    """Features and labels of the whole image, by schema key."""
    source_id = parsed["image/source_id"]
    # Without an id the content is hashed, so that the hash is the same in every epoch.
    hashed = choose(tf.equal(source_id, ""), serialized, source_id)
    classes, _, _ = _ids_and_labels(
        parsed["image/class/text"], parsed["image/class/label"], class_table
    )
    confidences = parsed["image/class/confidence"]
    rule = equal_rule("image/class/confidence", tf.size(confidences), tf.size(classes))
    # The list has all values or none; the rows come from its beginning.
    confidences = tf.concat([confidences, tf.ones_like(classes, tf.float32)], 0)
    known_rows = tf.where(with_lengths(classes, record, rule) > 0)[:, 0]
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
    if schema.IS_ANNOTATED in parsed:
        level[schema.IS_ANNOTATED] = parsed[schema.IS_ANNOTATED]
    if "image/context_features_image_id_list" in parsed:
        ids = parsed["image/context_features_image_id_list"]
        level[schema.CONTEXT_FEATURES_IMAGE_ID_LIST] = ids
    return level
