from estimator_det.protos import rules_pb2 as _rules_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf.internal import python_message as _python_message
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InstanceMaskType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEFAULT: _ClassVar[InstanceMaskType]
    NUMERICAL_MASKS: _ClassVar[InstanceMaskType]
    PNG_MASKS: _ClassVar[InstanceMaskType]

class InputType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INPUT_DEFAULT: _ClassVar[InputType]
    TF_EXAMPLE: _ClassVar[InputType]
    TF_SEQUENCE_EXAMPLE: _ClassVar[InputType]

class Cache(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NO_CACHE: _ClassVar[Cache]
    MEMORY: _ClassVar[Cache]
DEFAULT: InstanceMaskType
NUMERICAL_MASKS: InstanceMaskType
PNG_MASKS: InstanceMaskType
INPUT_DEFAULT: InputType
TF_EXAMPLE: InputType
TF_SEQUENCE_EXAMPLE: InputType
NO_CACHE: Cache
MEMORY: Cache

class InputReader(_message.Message):
    __slots__ = ("name", "label_map_path", "shuffle", "shuffle_buffer_size", "filenames_shuffle_buffer_size", "num_epochs", "sample_1_of_n_examples", "num_readers", "num_parallel_batches", "num_prefetch_batches", "queue_capacity", "min_after_dequeue", "read_block_length", "prefetch_size", "num_parallel_map_calls", "drop_remainder", "num_additional_channels", "num_keypoints", "keypoint_type_weight", "max_number_of_boxes", "load_multiclass_scores", "load_context_features", "load_context_image_ids", "load_instance_masks", "mask_type", "load_dense_pose", "load_track_id", "load_keypoint_depth_features", "use_display_name", "include_source_id", "input_type", "frame_index", "use_keypoint_label_map", "tf_record_input_reader", "external_input_reader", "sample_from_datasets_weights", "expand_labels_hierarchy", "label_hierarchy_path", "bad_records", "fast_jpeg", "cache")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABEL_MAP_PATH_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_BUFFER_SIZE_FIELD_NUMBER: _ClassVar[int]
    FILENAMES_SHUFFLE_BUFFER_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_1_OF_N_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    NUM_READERS_FIELD_NUMBER: _ClassVar[int]
    NUM_PARALLEL_BATCHES_FIELD_NUMBER: _ClassVar[int]
    NUM_PREFETCH_BATCHES_FIELD_NUMBER: _ClassVar[int]
    QUEUE_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    MIN_AFTER_DEQUEUE_FIELD_NUMBER: _ClassVar[int]
    READ_BLOCK_LENGTH_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_PARALLEL_MAP_CALLS_FIELD_NUMBER: _ClassVar[int]
    DROP_REMAINDER_FIELD_NUMBER: _ClassVar[int]
    NUM_ADDITIONAL_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    NUM_KEYPOINTS_FIELD_NUMBER: _ClassVar[int]
    KEYPOINT_TYPE_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_NUMBER_OF_BOXES_FIELD_NUMBER: _ClassVar[int]
    LOAD_MULTICLASS_SCORES_FIELD_NUMBER: _ClassVar[int]
    LOAD_CONTEXT_FEATURES_FIELD_NUMBER: _ClassVar[int]
    LOAD_CONTEXT_IMAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    LOAD_INSTANCE_MASKS_FIELD_NUMBER: _ClassVar[int]
    MASK_TYPE_FIELD_NUMBER: _ClassVar[int]
    LOAD_DENSE_POSE_FIELD_NUMBER: _ClassVar[int]
    LOAD_TRACK_ID_FIELD_NUMBER: _ClassVar[int]
    LOAD_KEYPOINT_DEPTH_FEATURES_FIELD_NUMBER: _ClassVar[int]
    USE_DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    INPUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    FRAME_INDEX_FIELD_NUMBER: _ClassVar[int]
    USE_KEYPOINT_LABEL_MAP_FIELD_NUMBER: _ClassVar[int]
    TF_RECORD_INPUT_READER_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_INPUT_READER_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FROM_DATASETS_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    EXPAND_LABELS_HIERARCHY_FIELD_NUMBER: _ClassVar[int]
    LABEL_HIERARCHY_PATH_FIELD_NUMBER: _ClassVar[int]
    BAD_RECORDS_FIELD_NUMBER: _ClassVar[int]
    FAST_JPEG_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    name: str
    label_map_path: str
    shuffle: bool
    shuffle_buffer_size: int
    filenames_shuffle_buffer_size: int
    num_epochs: int
    sample_1_of_n_examples: int
    num_readers: int
    num_parallel_batches: int
    num_prefetch_batches: int
    queue_capacity: int
    min_after_dequeue: int
    read_block_length: int
    prefetch_size: int
    num_parallel_map_calls: int
    drop_remainder: bool
    num_additional_channels: int
    num_keypoints: int
    keypoint_type_weight: _containers.RepeatedScalarFieldContainer[float]
    max_number_of_boxes: int
    load_multiclass_scores: bool
    load_context_features: bool
    load_context_image_ids: bool
    load_instance_masks: bool
    mask_type: InstanceMaskType
    load_dense_pose: bool
    load_track_id: bool
    load_keypoint_depth_features: bool
    use_display_name: bool
    include_source_id: bool
    input_type: InputType
    frame_index: int
    use_keypoint_label_map: bool
    tf_record_input_reader: TFRecordInputReader
    external_input_reader: ExternalInputReader
    sample_from_datasets_weights: _containers.RepeatedScalarFieldContainer[float]
    expand_labels_hierarchy: bool
    label_hierarchy_path: str
    bad_records: BadRecords
    fast_jpeg: bool
    cache: Cache
    def __init__(self, name: _Optional[str] = ..., label_map_path: _Optional[str] = ..., shuffle: bool = ..., shuffle_buffer_size: _Optional[int] = ..., filenames_shuffle_buffer_size: _Optional[int] = ..., num_epochs: _Optional[int] = ..., sample_1_of_n_examples: _Optional[int] = ..., num_readers: _Optional[int] = ..., num_parallel_batches: _Optional[int] = ..., num_prefetch_batches: _Optional[int] = ..., queue_capacity: _Optional[int] = ..., min_after_dequeue: _Optional[int] = ..., read_block_length: _Optional[int] = ..., prefetch_size: _Optional[int] = ..., num_parallel_map_calls: _Optional[int] = ..., drop_remainder: bool = ..., num_additional_channels: _Optional[int] = ..., num_keypoints: _Optional[int] = ..., keypoint_type_weight: _Optional[_Iterable[float]] = ..., max_number_of_boxes: _Optional[int] = ..., load_multiclass_scores: bool = ..., load_context_features: bool = ..., load_context_image_ids: bool = ..., load_instance_masks: bool = ..., mask_type: _Optional[_Union[InstanceMaskType, str]] = ..., load_dense_pose: bool = ..., load_track_id: bool = ..., load_keypoint_depth_features: bool = ..., use_display_name: bool = ..., include_source_id: bool = ..., input_type: _Optional[_Union[InputType, str]] = ..., frame_index: _Optional[int] = ..., use_keypoint_label_map: bool = ..., tf_record_input_reader: _Optional[_Union[TFRecordInputReader, _Mapping]] = ..., external_input_reader: _Optional[_Union[ExternalInputReader, _Mapping]] = ..., sample_from_datasets_weights: _Optional[_Iterable[float]] = ..., expand_labels_hierarchy: bool = ..., label_hierarchy_path: _Optional[str] = ..., bad_records: _Optional[_Union[BadRecords, _Mapping]] = ..., fast_jpeg: bool = ..., cache: _Optional[_Union[Cache, str]] = ...) -> None: ...

class BadRecords(_message.Message):
    __slots__ = ("policy", "max_skipped", "max_megapixels", "exception")
    class Policy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REFERENCE: _ClassVar[BadRecords.Policy]
        FAIL: _ClassVar[BadRecords.Policy]
        SKIP: _ClassVar[BadRecords.Policy]
        CLIP: _ClassVar[BadRecords.Policy]
    REFERENCE: BadRecords.Policy
    FAIL: BadRecords.Policy
    SKIP: BadRecords.Policy
    CLIP: BadRecords.Policy
    class Exception(_message.Message):
        __slots__ = ("kind", "policy")
        KIND_FIELD_NUMBER: _ClassVar[int]
        POLICY_FIELD_NUMBER: _ClassVar[int]
        kind: str
        policy: BadRecords.Policy
        def __init__(self, kind: _Optional[str] = ..., policy: _Optional[_Union[BadRecords.Policy, str]] = ...) -> None: ...
    POLICY_FIELD_NUMBER: _ClassVar[int]
    MAX_SKIPPED_FIELD_NUMBER: _ClassVar[int]
    MAX_MEGAPIXELS_FIELD_NUMBER: _ClassVar[int]
    EXCEPTION_FIELD_NUMBER: _ClassVar[int]
    policy: BadRecords.Policy
    max_skipped: int
    max_megapixels: float
    exception: _containers.RepeatedCompositeFieldContainer[BadRecords.Exception]
    def __init__(self, policy: _Optional[_Union[BadRecords.Policy, str]] = ..., max_skipped: _Optional[int] = ..., max_megapixels: _Optional[float] = ..., exception: _Optional[_Iterable[_Union[BadRecords.Exception, _Mapping]]] = ...) -> None: ...

class TFRecordInputReader(_message.Message):
    __slots__ = ("input_path",)
    INPUT_PATH_FIELD_NUMBER: _ClassVar[int]
    input_path: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, input_path: _Optional[_Iterable[str]] = ...) -> None: ...

class ExternalInputReader(_message.Message):
    __slots__ = ()
    Extensions: _python_message._ExtensionDict
    def __init__(self) -> None: ...
