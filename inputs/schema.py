"""Every key of the feature and label dictionaries, with dtype and shape, and the decoded sample.

Letters: B batch, G `max_number_of_boxes`, K classes, P keypoints, H x W x C the network's input,
h x w the original image, S and F count and length of context features, n the boxes of one image
before padding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, NamedTuple, Optional

if TYPE_CHECKING:
    from estimator_det.compat import tf


class Spec(NamedTuple):
    """What a batch holds under one key."""

    dtype: str
    shape: str  # letters of the module's docstring and numbers, e.g. "B G 4"


# Features.
IMAGE = "image"  # preprocessed, padded at the bottom and right
HASH = "hash"  # of the source id
TRUE_IMAGE_SHAPE = "true_image_shape"  # the real image inside the padded one
ORIGINAL_IMAGE = "original_image"  # resized as the network's input is, but not normalized
ORIGINAL_SPATIAL_SHAPE = "original_image_spatial_shape"  # height and width in the record
SOURCE_ID = "source_id"  # where the reader says include_source_id
CONTEXT_FEATURES = "context_features"
VALID_CONTEXT_SIZE = "valid_context_size"  # how many of the S context features are real
CONTEXT_FEATURES_IMAGE_ID_LIST = "context_features_image_id_list"
RECORD = "record"  # index among `inputs.records.stream.list_files`, number in that file from 0
STREAM_INDEX = "stream_index"  # of the record in the order of the data, see `inputs.records.cursor`
AUGMENTATION_SEED = "augmentation_seed"  # with it, the record gives the same picture again

# Labels.
NUM_BOXES = "num_groundtruth_boxes"
BOXES = "groundtruth_boxes"  # yxyx, normalized to the padded image
CLASSES = "groundtruth_classes"  # one-hot or k-hot, no background column
WEIGHTS = "groundtruth_weights"
CONFIDENCES = "groundtruth_confidences"  # 0 where CLASSES is 0
LABELED_CLASSES = "groundtruth_labeled_classes"  # k-hot: classes annotated exhaustively
VERIFIED_NEG_CLASSES = "groundtruth_verified_neg_classes"  # k-hot: certainly absent
NOT_EXHAUSTIVE_CLASSES = "groundtruth_not_exhaustive_classes"  # k-hot: some may lack a box
IMAGE_CLASSES = "groundtruth_image_classes"  # ids of the image as a whole, zero padding
IMAGE_CONFIDENCES = "groundtruth_image_confidences"  # of IMAGE_CLASSES, 1 present, 0 absent
MASKS = "groundtruth_instance_masks"  # 0 or 1
KEYPOINTS = "groundtruth_keypoints"  # y and x as BOXES; NaN where absent
KEYPOINT_VISIBILITIES = "groundtruth_keypoint_visibilities"
AREA = "groundtruth_area"  # pixels squared of the original image
IS_CROWD = "groundtruth_is_crowd"
GROUP_OF = "groundtruth_group_of"
DIFFICULT = "groundtruth_difficult"
IS_ANNOTATED = "is_annotated"  # sequence records only: whether anybody looked at the frame

FEATURES: Dict[str, Spec] = {
    IMAGE: Spec("float32", "B H W C"),
    HASH: Spec("int32", "B"),
    TRUE_IMAGE_SHAPE: Spec("int32", "B 3"),
    ORIGINAL_IMAGE: Spec("uint8", "B H W C"),
    ORIGINAL_SPATIAL_SHAPE: Spec("int32", "B 2"),
    SOURCE_ID: Spec("string", "B"),
    CONTEXT_FEATURES: Spec("float32", "B S F"),
    VALID_CONTEXT_SIZE: Spec("int32", "B"),
    CONTEXT_FEATURES_IMAGE_ID_LIST: Spec("string", "B S"),
    RECORD: Spec("int64", "B 2"),
    STREAM_INDEX: Spec("int64", "B"),
    AUGMENTATION_SEED: Spec("int64", "B 2"),
}

LABELS: Dict[str, Spec] = {
    NUM_BOXES: Spec("int32", "B"),
    BOXES: Spec("float32", "B G 4"),
    CLASSES: Spec("float32", "B G K"),
    WEIGHTS: Spec("float32", "B G"),
    CONFIDENCES: Spec("float32", "B G K"),
    LABELED_CLASSES: Spec("float32", "B K"),
    VERIFIED_NEG_CLASSES: Spec("float32", "B K"),
    NOT_EXHAUSTIVE_CLASSES: Spec("float32", "B K"),
    IMAGE_CLASSES: Spec("int64", "B K"),
    IMAGE_CONFIDENCES: Spec("float32", "B K"),
    MASKS: Spec("float32", "B G H W"),
    KEYPOINTS: Spec("float32", "B G P 2"),
    KEYPOINT_VISIBILITIES: Spec("bool", "B G P"),
    AREA: Spec("float32", "B G"),
    IS_CROWD: Spec("bool", "B G"),
    GROUP_OF: Spec("bool", "B G"),
    DIFFICULT: Spec("bool", "B G"),
    IS_ANNOTATED: Spec("bool", "B"),
}


class Sample(NamedTuple):
    """One decoded image with its labels, as it passes through augmentation.

    Fields per box share their first dimension; None means the record reader does not load them.
    """

    image: tf.Tensor  # uint8 (decoded) or float32 (augmented) [h, w, C], 0..255
    boxes: tf.Tensor  # float32 [n, 4], normalized yxyx
    classes: tf.Tensor  # int64 [n], ids of the label map, from 1
    weights: tf.Tensor  # float32 [n]
    confidences: Optional[tf.Tensor] = None  # float32 [n]
    multiclass_scores: Optional[tf.Tensor] = None  # float32 [n, K or K + 1], [n, 0] if not given
    masks: Optional[tf.Tensor] = None  # float32 [n, h, w]
    keypoints: Optional[tf.Tensor] = None  # float32 [n, P, 2], normalized y and x, NaN absent
    keypoint_visibilities: Optional[tf.Tensor] = None  # bool [n, P]
    area: Optional[tf.Tensor] = None  # float32 [n], pixels squared
    is_crowd: Optional[tf.Tensor] = None  # bool [n]
    difficult: Optional[tf.Tensor] = None  # bool [n]
    group_of: Optional[tf.Tensor] = None  # bool [n]
    image_level: Optional[Dict[str, tf.Tensor]] = None  # what belongs to no box, by schema key


PER_BOX_FIELDS = tuple(name for name in Sample._fields if name not in ("image", "image_level"))
