"""One decoded `Sample` -> the features and labels of one image, in the shapes of the schema."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from estimator_det.compat import tf
from estimator_det.config.facts import predicts_masks, readers
from estimator_det.config.field_rules import check_equal
from estimator_det.config.rules import Tpu, rules
from estimator_det.errors import Problem
from estimator_det.images.resize import Resizer
from estimator_det.protos import input_reader_pb2, pipeline_pb2
from inputs import schema
from inputs.bad_records.kinds import COUNTED, FAULT_COUNTS
from inputs.decoding.box_rules import FIRST_CLASS_ID
from inputs.decoding.example import checked
from inputs.sample import Sample, keep_boxes

# The detector's: float32 [B, h, w, C] -> inputs [B, H, W, C], true_shapes [B, 3].
Preprocess = Callable[[tf.Tensor], Tuple[tf.Tensor, tf.Tensor]]
Features = Dict[str, tf.Tensor]
Sizes = Dict[str, Optional[int]]

MERGE_STEPS = 10000  # boxes are merged if they agree to this fraction of the image

_FEATURES = (
    schema.HASH, schema.ORIGINAL_SPATIAL_SHAPE, schema.SOURCE_ID, schema.FILENAME,
    schema.CONTEXT_FEATURES, schema.CONTEXT_FEATURES_IMAGE_ID_LIST,
)  # fmt: skip


@dataclass(frozen=True)
class CollateOptions:
    """Shapes and choices of `collate`."""

    preprocess: Preprocess
    resizer: Resizer  # the model's, for masks and original images
    num_classes: int  # K
    max_boxes: int  # G; boxes beyond are dropped
    retain_original_image: bool = False  # adds ORIGINAL_IMAGE to the features
    retain_additional_channels: bool = False  # and ADDITIONAL_CHANNELS, if there are any
    merge_boxes: bool = False  # boxes with equal coordinates become one with several classes
    use_multiclass_scores: bool = False  # scores of all classes replace a box's one-hot class
    # An image without image-level labels is exhaustively annotated for all classes, not for none.
    all_classes_labeled_by_default: bool = True
    context_shape: Tuple[Optional[int], Optional[int]] = (None, None)  # S and F, if read


@rules(pipeline_pb2.TrainEvalPipelineConfig, target="tpu")
def _check_labels(
    config: pipeline_pb2.TrainEvalPipelineConfig, _: str, tpu: Tpu
) -> Iterator[Problem]:
    """Boxes have a chosen length, and masks are only there if the model learns them."""
    model, train = config.model, config.train_config
    for at, reader in readers(config):
        if not reader.HasField("max_number_of_boxes"):
            path, most = f"{at}.max_number_of_boxes", reader.max_number_of_boxes
            if at == "train_input_reader" and train.HasField("max_number_of_boxes"):
                most = train.max_number_of_boxes  # its older place
            yield Problem(
                "warning",
                path,
                f"is not set: boxes beyond {most} in an image are cut off",
                "set it to what the records need; memory for targets grows with it",
                (f"{path}={most}",),
                safe=True,
            )
    ssd_without = model.HasField("ssd") and not model.ssd.HasField("mask_head_config")
    if ssd_without or (model.HasField("faster_rcnn") and not predicts_masks(model)):
        reader = config.train_input_reader
        yield from check_equal(
            reader,
            "train_input_reader.load_instance_masks",
            False,
            f"{reader.max_number_of_boxes} masks of the image's size travel with every image, and "
            "the model predicts none",
            "warning",
        )


@rules(input_reader_pb2.InputReader, target="tpu")
def _check_batch(reader: input_reader_pb2.InputReader, at: str, tpu: Tpu) -> Iterator[Problem]:
    """Batches are whole and have no texts, which only the host of a TPU can read."""
    trains = at == "train_input_reader"
    if not (trains or tpu.inference):
        return
    for field in ("include_source_id", "load_context_image_ids"):
        why = "a TPU takes numbers only, and this is text"
        yield from check_equal(reader, f"{at}.{field}", False, why, "warning")
    path = f"{at}.drop_remainder"
    if trains:
        yield from check_equal(reader, path, True, "the last batch is smaller than the others")
    elif not (reader.HasField("drop_remainder") and reader.drop_remainder):
        yield Problem(
            "warning",
            path,
            "is not true: a TPU takes whole batches only, so that images of the last one are "
            "not evaluated",
            "or take a batch size that divides the number of images",
            (f"{path}=true",),
        )


def original_images(sample: Sample, options: CollateOptions) -> Features:
    """ORIGINAL_IMAGE and ADDITIONAL_CHANNELS, as far as `options` retain them.

    uint8 [H, W, 3] and [H, W, A], resized and padded as the network's input is.
    """
    features: Features = {}
    if options.retain_original_image:
        resized, _ = options.resizer.resize(sample.image[tf.newaxis, :, :, :3])
        features[schema.ORIGINAL_IMAGE] = tf.cast(resized[0], tf.uint8)
    if options.retain_additional_channels and sample.image.shape[2] > 3:
        plain = replace(options.resizer, grayscale=False, pad_values=())
        resized, _ = plain.resize(sample.image[tf.newaxis, :, :, 3:])
        features[schema.ADDITIONAL_CHANNELS] = tf.cast(resized[0], tf.uint8)
    return features


def collate(
    sample: Sample, options: CollateOptions, originals: Optional[Features] = None
) -> Tuple[Features, Features]:
    """Preprocesses, encodes and pads one sample.

    Boxes and keypoints are normalized to the sample's image before, and to the preprocessed image,
    padding included, afterwards. Features include `originals`, and FAULT_COUNTS if the sample has
    them, with the number of boxes dropped here appended.
    """
    level = sample.image_level or {}
    inputs, true_shapes = options.preprocess(tf.cast(sample.image, tf.float32)[tf.newaxis])
    image, true_shape = inputs[0], true_shapes[0]
    sample = _normalize_to_padded(sample, image, true_shape)
    sample = sample._replace(boxes=_checked_boxes(sample, options))
    one_hot = _one_hot(sample, options)
    confidences = one_hot
    if sample.confidences is not None:
        confidences = sample.confidences[:, tf.newaxis] * one_hot
    if options.merge_boxes:
        sample, one_hot, confidences = _merge_boxes(sample, one_hot, confidences)
    features = {schema.IMAGE: image, schema.TRUE_IMAGE_SHAPE: true_shape}
    features.update({key: level[key] for key in _FEATURES if key in level})
    features.update(originals or {})
    if schema.CONTEXT_FEATURES in level:
        count, most = tf.shape(level[schema.CONTEXT_FEATURES])[0], options.context_shape[0]
        features[schema.VALID_CONTEXT_SIZE] = count if most is None else tf.minimum(count, most)
    labels = _labels(sample, one_hot, confidences, options)
    sizes = {
        "G": options.max_boxes, "K": options.num_classes, "S": options.context_shape[0],
        "F": options.context_shape[1], "H": image.shape[0], "W": image.shape[1],
    }  # fmt: skip
    rows = {"G": labels[schema.NUM_BOXES]}
    if schema.IMAGE_CLASSES in level:
        rows["K"] = tf.minimum(tf.size(level[schema.IMAGE_CLASSES]), options.num_classes)
    specs: Dict[str, Any] = {**schema.FEATURES, **schema.LABELS}
    features = {key: _padded(x, specs[key].shape, sizes, rows) for key, x in features.items()}
    if FAULT_COUNTS in level:
        num_excess = tf.size(sample.classes) - labels[schema.NUM_BOXES]
        counts = tf.concat([level[FAULT_COUNTS], [num_excess]], 0)
        features[FAULT_COUNTS] = tf.ensure_shape(counts, [len(COUNTED)])
    return features, {key: _padded(x, specs[key].shape, sizes, rows) for key, x in labels.items()}


def prepare_for_mixing(sample: Sample, options: CollateOptions) -> Sample:
    """A checked sample that can be mixed with samples of other records.

    Multiclass scores become one for each class; they are removed unless `use_multiclass_scores`
    needs them.
    """
    sample = sample._replace(boxes=_checked_boxes(sample, options))
    if sample.multiclass_scores is None:
        return sample
    used = options.use_multiclass_scores
    return sample._replace(multiclass_scores=_one_hot(sample, options) if used else None)


def num_excess_boxes(sample: Sample, options: CollateOptions) -> tf.Tensor:
    """int32 scalar: number of boxes that `collate` drops."""
    if options.merge_boxes:
        one_hot = _one_hot(sample, options)
        sample, _, _ = _merge_boxes(sample, one_hot, one_hot)
    return tf.maximum(tf.size(sample.classes) - options.max_boxes, 0)


def _labels(
    sample: Sample, one_hot: tf.Tensor, confidences: tf.Tensor, options: CollateOptions
) -> Features:
    """The labels of the schema that the sample has, before padding."""
    level = sample.image_level or {}
    labels = {
        schema.NUM_BOXES: tf.minimum(tf.size(sample.classes), options.max_boxes),
        schema.CLASSES: one_hot,
        schema.CONFIDENCES: confidences,
    }
    if sample.masks is not None:
        labels[schema.MASKS] = options.resizer.resize_masks(sample.masks)
    for key, spec in schema.LABELS.items():
        value = getattr(sample, spec.field, None)
        if spec.image_level_key:
            value = level.get(spec.image_level_key)
        if key in labels or value is None:
            continue
        if spec.is_k_hot:
            is_one = key == schema.LABELED_CLASSES and options.all_classes_labeled_by_default
            value = _k_hot(value, options.num_classes, ones_if_empty=is_one)
        labels[key] = value
    return labels


def _normalize_to_padded(sample: Sample, image: tf.Tensor, true_shape: tf.Tensor) -> Sample:
    """Scales coordinates by the real part of the padded image; by 1 if there is no padding."""
    padded = tf.cast(tf.shape(image)[:2], tf.float32)
    scale = tf.cast(true_shape[:2], tf.float32) / padded
    sample = sample._replace(boxes=sample.boxes * tf.concat([scale, scale], 0))
    if sample.keypoints is not None:
        sample = sample._replace(keypoints=sample.keypoints * scale)
    return sample


def _checked_boxes(sample: Sample, options: CollateOptions) -> tf.Tensor:
    return checked(
        sample.boxes,
        tf.reduce_all(sample.classes <= options.num_classes),
        _record_name(sample),
        ["unknown_id"],
        f"num_classes is {options.num_classes}, and the class ids are:",
        [sample.classes],
    )


def _record_name(sample: Sample) -> tf.Tensor:
    return (sample.image_level or {}).get(schema.SOURCE_ID, tf.constant("?"))


def _one_hot(sample: Sample, options: CollateOptions) -> tf.Tensor:
    """float32 [n, K]: one-hot, or the scores of all classes if they are present and wanted."""
    one_hot = tf.one_hot(sample.classes - FIRST_CLASS_ID, options.num_classes)
    if not options.use_multiclass_scores:
        return one_hot
    scores = sample.multiclass_scores
    width = tf.shape(scores)[1]
    scores = checked(
        scores,
        tf.reduce_any(tf.equal(width, [0, options.num_classes, options.num_classes + 1])),
        _record_name(sample),
        ["length_mismatch"],
        f"num_classes is {options.num_classes}; multiclass_scores of each box, which may begin "
        "with one of the background:",
        [width],
    )
    without_background = scores[:, tf.maximum(width - options.num_classes, 0) :]
    chosen = tf.cond(width > 0, lambda: without_background, lambda: one_hot)
    return tf.ensure_shape(chosen, [None, options.num_classes])


def _merge_boxes(
    sample: Sample, one_hot: tf.Tensor, confidences: tf.Tensor
) -> Tuple[Sample, tf.Tensor, tf.Tensor]:
    """Merges equal boxes into one k-hot box with the other fields of the first box."""
    grid = tf.cast(sample.boxes * (MERGE_STEPS - 1), tf.int64)
    cell = tf.reduce_sum(grid * [1, MERGE_STEPS, MERGE_STEPS**2, MERGE_STEPS**3], axis=1)
    cells, group = tf.unique(cell)
    count = tf.size(cells)
    first = tf.math.unsorted_segment_min(tf.range(tf.size(group)), group, count)
    return (
        keep_boxes(sample, first),
        tf.math.unsorted_segment_max(one_hot, group, count),
        tf.math.unsorted_segment_max(confidences, group, count),
    )


def _k_hot(class_ids: tf.Tensor, num_classes: int, ones_if_empty: bool) -> tf.Tensor:
    """float32 [K] with 1 at each id; ids beyond the model's classes are ignored."""
    k_hot = tf.reduce_max(tf.one_hot(class_ids - FIRST_CLASS_ID, num_classes), axis=0)
    # The maximum over nothing is the lowest float.
    least = tf.cast(tf.equal(tf.size(class_ids), 0), tf.float32) if ones_if_empty else 0.0
    return tf.maximum(k_hot, least)


def _padded(tensor: tf.Tensor, shape_letters: str, sizes: Sizes, rows: Features) -> tf.Tensor:
    """Cuts and zero-pads each axis to the schema's size; axes of that size cost nothing.

    `sizes` has the size by letter, None if an axis keeps its size. `rows` has the number of real
    rows, at most the size, for letters whose tensors share it.
    """
    letters = shape_letters.split()[1:]
    targets = [sizes.get(letter) for letter in letters]
    if all(target in (None, size) for target, size in zip(targets, tensor.shape)):
        return tensor
    tensor = tensor[tuple(map(slice, targets))]
    paddings: List[Any] = []
    for axis, (letter, target) in enumerate(zip(letters, targets)):
        size = tensor.shape[axis]
        if size is None and target is not None:
            size = rows[letter] if letter in rows else tf.shape(tensor)[axis]
        paddings.append([0, 0 if target is None else target - size])
    padded = tf.pad(tensor, paddings, constant_values="" if tensor.dtype == tf.string else 0)
    padded.set_shape([target or size for target, size in zip(targets, tensor.shape)])
    return padded
