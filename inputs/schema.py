"""Every key of the feature and label dictionaries, with dtype and shape.

Letters: B batch, G `max_number_of_boxes`, K classes, P keypoints, H x W x C the network's input,
A its channels beyond RGB, S and F count and length of context features, M the other records that
an image may be mixed with.
"""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional


class FeatureSpec(NamedTuple):
    """One feature of a batch."""

    dtype: str
    shape: str  # letters of the module's docstring and numbers, e.g. "B 3"
    in_train_step: bool = False  # True if a training step on TPU cores needs it
    in_eval_step: bool = False  # True if an evaluation step on TPU cores needs it


class LabelSpec(NamedTuple):
    """One label of a batch, from the record to the detector.

    `inputs.batch` copies a label from `Sample`, or computes it. Padding is 0.
    """

    dtype: str
    shape: str  # letters of the module's docstring and numbers, e.g. "B G 4"
    field: str = ""  # its field in Groundtruth and, unless `image_level_key` is set, in `Sample`
    image_level_key: str = ""  # the key of `Sample.image_level` that holds it
    is_k_hot: bool = False  # the ids under `image_level_key` become a k-hot vector
    record_key: str = ""  # key in a record of one number for each box, float32 or int64
    default: Optional[float] = 0  # without `record_key`; None: the decoder computes it
    reader_field: str = ""  # the field of InputReader that must be set to load it
    on_tpu: bool = True  # True if a loss or metric on TPU cores may need it


# Features.
IMAGE = "image"  # preprocessed, padded at the bottom and right
HASH = "hash"  # a hash of the source id
TRUE_IMAGE_SHAPE = "true_image_shape"  # the real image inside the padded one
ORIGINAL_IMAGE = "original_image"  # resized as the network's input is, but not normalized
ADDITIONAL_CHANNELS = "image_additional_channels"  # channels beyond RGB of ORIGINAL_IMAGE
ORIGINAL_SPATIAL_SHAPE = "original_image_spatial_shape"  # height and width in the record
SOURCE_ID = "source_id"  # if the reader sets include_source_id
FILENAME = "filename"  # name of the image file, beside SOURCE_ID; empty if the record has none
CONTEXT_FEATURES = "context_features"
VALID_CONTEXT_SIZE = "valid_context_size"  # number of real ones among the S context features
CONTEXT_FEATURES_IMAGE_ID_LIST = "context_features_image_id_list"
RECORD = "record"  # index in `inputs.records.stream.list_files`, number in that file from 0
PARTNER_RECORDS = "partner_records"  # like RECORD, the records mixed with that one; -1: none
STREAM_INDEX = "stream_index"  # in the order of records, see `inputs.records.cursor`
AUGMENTATION_SEED = "augmentation_seed"  # the same record and seed give the same image

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
IMAGE_CONFIDENCES = "groundtruth_image_confidences"  # for IMAGE_CLASSES, 1 present, 0 absent
MASKS = "groundtruth_instance_masks"  # 0 or 1
KEYPOINTS = "groundtruth_keypoints"  # y and x as BOXES; NaN where absent
KEYPOINT_VISIBILITIES = "groundtruth_keypoint_visibilities"
AREA = "groundtruth_area"  # pixels squared of the original image
IS_CROWD = "groundtruth_is_crowd"
GROUP_OF = "groundtruth_group_of"
DIFFICULT = "groundtruth_difficult"
IS_ANNOTATED = "is_annotated"  # sequence records only: True if the frame was annotated

FEATURES: Dict[str, FeatureSpec] = {
    IMAGE: FeatureSpec("float32", "B H W C", in_train_step=True, in_eval_step=True),
    TRUE_IMAGE_SHAPE: FeatureSpec("int32", "B 3", in_train_step=True, in_eval_step=True),
    HASH: FeatureSpec("int32", "B", in_eval_step=True),
    ORIGINAL_IMAGE: FeatureSpec("uint8", "B H W C", in_eval_step=True),
    ADDITIONAL_CHANNELS: FeatureSpec("uint8", "B H W A", in_eval_step=True),
    ORIGINAL_SPATIAL_SHAPE: FeatureSpec("int32", "B 2", in_eval_step=True),
    SOURCE_ID: FeatureSpec("string", "B"),
    FILENAME: FeatureSpec("string", "B"),
    CONTEXT_FEATURES: FeatureSpec("float32", "B S F", in_train_step=True, in_eval_step=True),
    VALID_CONTEXT_SIZE: FeatureSpec("int32", "B", in_train_step=True, in_eval_step=True),
    CONTEXT_FEATURES_IMAGE_ID_LIST: FeatureSpec("string", "B S"),
    RECORD: FeatureSpec("int64", "B 2"),
    PARTNER_RECORDS: FeatureSpec("int64", "B M 2"),
    STREAM_INDEX: FeatureSpec("int64", "B"),
    AUGMENTATION_SEED: FeatureSpec("int64", "B 2"),
}

# The one table of labels. Parser, decoder, examiner, padding, Groundtruth and TPU step read it.
LABELS: Dict[str, LabelSpec] = {
    NUM_BOXES: LabelSpec("int32", "B"),
    BOXES: LabelSpec("float32", "B G 4", "boxes"),
    CLASSES: LabelSpec("float32", "B G K", "classes"),
    CONFIDENCES: LabelSpec(
        "float32", "B G K", "confidences", record_key="image/object/class/confidence", default=1.0
    ),
    WEIGHTS: LabelSpec("float32", "B G", "weights", record_key="image/object/weight", default=1.0),
    AREA: LabelSpec("float32", "B G", "area", record_key="image/object/area", default=None),
    IS_CROWD: LabelSpec("bool", "B G", "is_crowd", record_key="image/object/is_crowd"),
    DIFFICULT: LabelSpec("bool", "B G", "difficult", record_key="image/object/difficult"),
    GROUP_OF: LabelSpec("bool", "B G", "group_of", record_key="image/object/group_of"),
    MASKS: LabelSpec("float32", "B G H W", "masks", reader_field="load_instance_masks"),
    KEYPOINTS: LabelSpec("float32", "B G P 2", "keypoints", reader_field="num_keypoints"),
    KEYPOINT_VISIBILITIES: LabelSpec(
        "bool", "B G P", "keypoint_visibilities", reader_field="num_keypoints"
    ),
    LABELED_CLASSES: LabelSpec("float32", "B K", "labeled_classes", IMAGE_CLASSES, is_k_hot=True),
    VERIFIED_NEG_CLASSES: LabelSpec(
        "float32", "B K", "verified_negatives", VERIFIED_NEG_CLASSES, is_k_hot=True
    ),
    NOT_EXHAUSTIVE_CLASSES: LabelSpec(
        "float32", "B K", "not_exhaustive", NOT_EXHAUSTIVE_CLASSES, is_k_hot=True
    ),
    IMAGE_CLASSES: LabelSpec("int64", "B K", image_level_key=IMAGE_CLASSES, on_tpu=False),
    IMAGE_CONFIDENCES: LabelSpec("float32", "B K", image_level_key=IMAGE_CONFIDENCES, on_tpu=False),
    IS_ANNOTATED: LabelSpec("bool", "B", "is_annotated", IS_ANNOTATED),
}

# Labels of one number for each box, which a record may lack.
PER_BOX_NUMBERS = tuple(spec for spec in LABELS.values() if spec.record_key)
