"""One decoded `Sample` -> the features and labels of one image, in the shapes of the schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Tuple

from estimator_det.compat import tf
from estimator_det.images.resize import Resizer
from inputs import schema
from inputs.augment.base import keep_boxes
from inputs.bad_records.kinds import COUNTED, FAULT_COUNTS
from inputs.decoding.example import require
from inputs.schema import Sample

Preprocess = Callable[[tf.Tensor], Tuple[tf.Tensor, tf.Tensor]]
Features = Dict[str, tf.Tensor]

FIRST_CLASS_ID = 1  # label maps count from 1, one-hot columns from 0
MERGE_STEPS = 10000  # boxes equal to this fraction of the image are one where labels are merged

# Labels that are a field of the sample as it is.
_DIRECT = {
    schema.BOXES: "boxes",
    schema.WEIGHTS: "weights",
    schema.AREA: "area",
    schema.IS_CROWD: "is_crowd",
    schema.DIFFICULT: "difficult",
    schema.GROUP_OF: "group_of",
    schema.KEYPOINTS: "keypoints",
    schema.KEYPOINT_VISIBILITIES: "keypoint_visibilities",
}

# Image-level lists of class ids that become k-hot vectors: key of the sample -> key of the label.
_K_HOT = {
    schema.IMAGE_CLASSES: schema.LABELED_CLASSES,
    schema.VERIFIED_NEG_CLASSES: schema.VERIFIED_NEG_CLASSES,
    schema.NOT_EXHAUSTIVE_CLASSES: schema.NOT_EXHAUSTIVE_CLASSES,
}

_FEATURES = (schema.HASH, schema.ORIGINAL_SPATIAL_SHAPE, schema.SOURCE_ID)
_OPTIONAL_LABELS = (schema.IMAGE_CLASSES, schema.IMAGE_CONFIDENCES, schema.IS_ANNOTATED)


@dataclass(frozen=True)
class Layout:
    """What the features and labels of an image look like.

    Attributes:
        preprocess: The detector's: float32 [1, h, w, C] -> inputs [1, H, W, C], true_shapes [1, 3].
        resizer: The model's image resizer, for masks and original images.
        num_classes: K.
        max_boxes: G; boxes beyond are clipped.
        retain_original_image: Whether ORIGINAL_IMAGE is among the features.
        merge_boxes: Whether boxes at the same place become one with several classes.
        use_multiclass_scores: Whether a box's scores of all classes take the place of one-hot.
        all_classes_labeled_by_default: Whether an image without image-level labels counts as
            exhaustively annotated for all classes, or for none.
        context_shape: S and F, where context features are read.
    """

    preprocess: Preprocess
    resizer: Resizer
    num_classes: int
    max_boxes: int
    retain_original_image: bool = False
    merge_boxes: bool = False
    use_multiclass_scores: bool = False
    all_classes_labeled_by_default: bool = True
    context_shape: Tuple[Optional[int], Optional[int]] = (None, None)

    def __post_init__(self) -> None:
        if self.num_classes < 1 or self.max_boxes < 1:
            raise ValueError(
                f"num_classes {self.num_classes} and max_number_of_boxes {self.max_boxes} must be "
                "positive"
            )


def original_image(sample: Sample, layout: Layout) -> tf.Tensor:
    """uint8 [H, W, 3], resized and padded as the network's input is."""
    resized, _ = layout.resizer.resize(sample.image[tf.newaxis, :, :, :3])
    return tf.cast(resized[0], tf.uint8)


def collate(
    sample: Sample, layout: Layout, original: Optional[tf.Tensor] = None
) -> Tuple[Features, Features]:
    """Preprocesses, encodes and pads one sample.

    Boxes and keypoints, normalized to the sample's image, come out normalized to the preprocessed
    one, padding included.

    Args:
        sample: As augmented; its image uint8 or float32.
        layout: Shapes and choices.
        original: ORIGINAL_IMAGE, taken before augmentation.

    Returns:
        Features and labels without batch dimension; among the features are the SOURCE_ID, and
        FAULT_COUNTS where the sample has them, completed by the boxes that were cut off.
    """
    level = sample.image_level or {}
    image, true_shape = _preprocess(sample.image, layout)
    sample = _into_padded_frame(sample, image, true_shape)
    sample = sample._replace(boxes=_checked_boxes(sample, layout))
    one_hot = _one_hot(sample, layout)
    confidences = one_hot
    if sample.confidences is not None:
        confidences = sample.confidences[:, tf.newaxis] * one_hot
    if layout.merge_boxes:
        sample, one_hot, confidences = _merge_boxes(sample, one_hot, confidences)
    num_excess = tf.maximum(tf.size(sample.classes) - layout.max_boxes, 0)
    features = {schema.IMAGE: image, schema.TRUE_IMAGE_SHAPE: true_shape}
    features.update({key: level[key] for key in _FEATURES if key in level})
    if original is not None:
        features[schema.ORIGINAL_IMAGE] = original
    features.update(_context(level))

    num_boxes = tf.minimum(tf.size(sample.classes), layout.max_boxes)
    labels = {
        schema.NUM_BOXES: num_boxes,
        schema.CLASSES: one_hot,
        schema.CONFIDENCES: confidences,
    }
    for key, name in _DIRECT.items():
        if getattr(sample, name) is not None:
            labels[key] = getattr(sample, name)
    if sample.masks is not None:
        labels[schema.MASKS] = layout.resizer.resize_masks(sample.masks)
    for source, key in _K_HOT.items():
        if source in level:
            default = layout.all_classes_labeled_by_default and source == schema.IMAGE_CLASSES
            labels[key] = _k_hot(level[source], layout.num_classes, default)
    labels.update({key: level[key] for key in _OPTIONAL_LABELS if key in level})

    sizes = _sizes(layout, image)
    features = {key: _padded(x, schema.FEATURES[key], sizes) for key, x in features.items()}
    if FAULT_COUNTS in level:
        counts = tf.concat([level[FAULT_COUNTS], [num_excess]], 0)
        features[FAULT_COUNTS] = tf.ensure_shape(counts, [len(COUNTED)])
    return features, {key: _padded(x, schema.LABELS[key], sizes) for key, x in labels.items()}


def _preprocess(image: tf.Tensor, layout: Layout) -> Tuple[tf.Tensor, tf.Tensor]:
    inputs, true_shapes = layout.preprocess(tf.cast(image, tf.float32)[tf.newaxis])
    return inputs[0], true_shapes[0]


def _into_padded_frame(sample: Sample, image: tf.Tensor, true_shape: tf.Tensor) -> Sample:
    """Shrinks coordinates by the part of the padded image that is real; 1 where none is padding."""
    padded = tf.cast(tf.shape(image)[:2], tf.float32)
    scale = tf.cast(true_shape[:2], tf.float32) / padded
    sample = sample._replace(boxes=sample.boxes * tf.concat([scale, scale], 0))
    if sample.keypoints is not None:
        sample = sample._replace(keypoints=sample.keypoints * scale)
    return sample


def _checked_boxes(sample: Sample, layout: Layout) -> tf.Tensor:
    known = require(
        tf.reduce_all(sample.classes <= layout.num_classes),
        (sample.image_level or {}).get(schema.SOURCE_ID, tf.constant("?")),
        f"has a class id above the model's num_classes = {layout.num_classes}; label map and "
        "model do not fit. Its class ids:",
        [sample.classes],
    )
    with tf.control_dependencies([known]):
        return tf.identity(sample.boxes)


def _one_hot(sample: Sample, layout: Layout) -> tf.Tensor:
    """float32 [n, K]: one-hot, or the scores of all classes where they are there and asked for."""
    one_hot = tf.one_hot(sample.classes - FIRST_CLASS_ID, layout.num_classes)
    if not layout.use_multiclass_scores:
        return one_hot
    if sample.multiclass_scores is None:
        raise ValueError(
            "train_config.use_multiclass_scores needs train_input_reader.load_multiclass_scores"
        )
    scores = sample.multiclass_scores
    width = tf.shape(scores)[1]
    fits = require(
        tf.reduce_any(tf.equal(width, [0, layout.num_classes, layout.num_classes + 1])),
        (sample.image_level or {}).get(schema.SOURCE_ID, tf.constant("?")),
        f"has multiclass_scores for a wrong number of classes; num_classes is "
        f"{layout.num_classes}, scores of each box (with or without background first):",
        [width],
    )
    with tf.control_dependencies([fits]):
        without_background = scores[:, tf.maximum(width - layout.num_classes, 0) :]
    chosen = tf.cond(width > 0, lambda: without_background, lambda: one_hot)
    return tf.ensure_shape(chosen, [None, layout.num_classes])


def _merge_boxes(
    sample: Sample, one_hot: tf.Tensor, confidences: tf.Tensor
) -> Tuple[Sample, tf.Tensor, tf.Tensor]:
    """Makes one k-hot box of all at the same place; other fields are those of the first."""
    grid = tf.cast(sample.boxes * (MERGE_STEPS - 1), tf.int64)
    place = tf.reduce_sum(grid * [1, MERGE_STEPS, MERGE_STEPS**2, MERGE_STEPS**3], axis=1)
    places, group = tf.unique(place)
    count = tf.size(places)
    first = tf.math.unsorted_segment_min(tf.range(tf.size(group)), group, count)
    return (
        keep_boxes(sample, first),
        tf.math.unsorted_segment_max(one_hot, group, count),
        tf.math.unsorted_segment_max(confidences, group, count),
    )


def _k_hot(class_ids: tf.Tensor, num_classes: int, ones_if_empty: bool) -> tf.Tensor:
    """float32 [K] with 1 at each id; ids of no class of the model do not count."""
    k_hot = tf.reduce_max(tf.one_hot(class_ids - FIRST_CLASS_ID, num_classes), axis=0)
    # The maximum over nothing is the lowest float.
    return tf.where(tf.size(class_ids) > 0, k_hot, 1.0 if ones_if_empty else 0.0)


def _context(level: Features) -> Features:
    found = {
        key: level[key]
        for key in (schema.CONTEXT_FEATURES, schema.CONTEXT_FEATURES_IMAGE_ID_LIST)
        if key in level
    }
    if schema.CONTEXT_FEATURES in found:
        found[schema.VALID_CONTEXT_SIZE] = tf.shape(found[schema.CONTEXT_FEATURES])[0]
    return found


def _sizes(layout: Layout, image: tf.Tensor) -> Dict[str, Optional[int]]:
    """What the letters of the schema stand for; None where an axis keeps its size."""
    height, width, channels = image.shape
    count, length = layout.context_shape
    return {
        "G": layout.max_boxes,
        "K": layout.num_classes,
        "P": None,
        "H": height,
        "W": width,
        "C": channels,
        "S": count,
        "F": length,
    }


def _padded(tensor: tf.Tensor, spec: schema.Spec, sizes: Dict[str, Optional[int]]) -> tf.Tensor:
    """Clips and zero-pads each axis to the schema's size; axes that fit already cost nothing."""
    axes = spec.shape.split()[1:]
    targets = [int(axis) if axis.isdigit() else sizes[axis] for axis in axes]
    static: List[Optional[int]] = tensor.shape.as_list()
    open_axes = [
        axis
        for axis, target in enumerate(targets)
        if target is not None and target != static[axis] and axes[axis] != "C"
    ]
    if not open_axes:
        return tensor
    last = open_axes[-1]
    tensor = tensor[
        tuple(slice(targets[a]) if a in open_axes else slice(None) for a in range(last + 1))
    ]
    shape = tf.shape(tensor)
    amounts = [
        [0, targets[axis] - shape[axis] if axis in open_axes else 0] for axis in range(len(axes))
    ]
    tensor = tf.pad(tensor, amounts, constant_values="" if tensor.dtype == tf.string else 0)
    tensor.set_shape([t if a in open_axes else static[a] for a, t in enumerate(targets)])
    return tensor
