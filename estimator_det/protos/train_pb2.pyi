from estimator_det.protos import optimizer_pb2 as _optimizer_pb2
from estimator_det.protos import preprocessor_pb2 as _preprocessor_pb2
from estimator_det.protos import rules_pb2 as _rules_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CheckpointVersion(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    UNKNOWN: _ClassVar[CheckpointVersion]
    V1: _ClassVar[CheckpointVersion]
    V2: _ClassVar[CheckpointVersion]
UNKNOWN: CheckpointVersion
V1: CheckpointVersion
V2: CheckpointVersion

class TrainConfig(_message.Message):
    __slots__ = ("batch_size", "data_augmentation_options", "sync_replicas", "keep_checkpoint_every_n_hours", "optimizer", "gradient_clipping_by_norm", "fine_tune_checkpoint", "fine_tune_checkpoint_type", "fine_tune_checkpoint_version", "from_detection_checkpoint", "load_all_detection_checkpoint_vars", "run_fine_tune_checkpoint_dummy_computation", "num_steps", "startup_delay_steps", "bias_grad_multiplier", "update_trainable_variables", "freeze_variables", "replicas_to_aggregate", "batch_queue_capacity", "num_batch_queue_threads", "prefetch_queue_capacity", "merge_multiple_label_boxes", "use_multiclass_scores", "add_regularization_loss", "max_number_of_boxes", "unpad_groundtruth_tensors", "retain_original_images", "use_bfloat16", "summarize_gradients", "min_restored_share", "recompute")
    class Recompute(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        AUTO: _ClassVar[TrainConfig.Recompute]
        ON: _ClassVar[TrainConfig.Recompute]
        OFF: _ClassVar[TrainConfig.Recompute]
    AUTO: TrainConfig.Recompute
    ON: TrainConfig.Recompute
    OFF: TrainConfig.Recompute
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_AUGMENTATION_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SYNC_REPLICAS_FIELD_NUMBER: _ClassVar[int]
    KEEP_CHECKPOINT_EVERY_N_HOURS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_CLIPPING_BY_NORM_FIELD_NUMBER: _ClassVar[int]
    FINE_TUNE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    FINE_TUNE_CHECKPOINT_TYPE_FIELD_NUMBER: _ClassVar[int]
    FINE_TUNE_CHECKPOINT_VERSION_FIELD_NUMBER: _ClassVar[int]
    FROM_DETECTION_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    LOAD_ALL_DETECTION_CHECKPOINT_VARS_FIELD_NUMBER: _ClassVar[int]
    RUN_FINE_TUNE_CHECKPOINT_DUMMY_COMPUTATION_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    STARTUP_DELAY_STEPS_FIELD_NUMBER: _ClassVar[int]
    BIAS_GRAD_MULTIPLIER_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TRAINABLE_VARIABLES_FIELD_NUMBER: _ClassVar[int]
    FREEZE_VARIABLES_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_TO_AGGREGATE_FIELD_NUMBER: _ClassVar[int]
    BATCH_QUEUE_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    NUM_BATCH_QUEUE_THREADS_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_QUEUE_CAPACITY_FIELD_NUMBER: _ClassVar[int]
    MERGE_MULTIPLE_LABEL_BOXES_FIELD_NUMBER: _ClassVar[int]
    USE_MULTICLASS_SCORES_FIELD_NUMBER: _ClassVar[int]
    ADD_REGULARIZATION_LOSS_FIELD_NUMBER: _ClassVar[int]
    MAX_NUMBER_OF_BOXES_FIELD_NUMBER: _ClassVar[int]
    UNPAD_GROUNDTRUTH_TENSORS_FIELD_NUMBER: _ClassVar[int]
    RETAIN_ORIGINAL_IMAGES_FIELD_NUMBER: _ClassVar[int]
    USE_BFLOAT16_FIELD_NUMBER: _ClassVar[int]
    SUMMARIZE_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    MIN_RESTORED_SHARE_FIELD_NUMBER: _ClassVar[int]
    RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
    batch_size: int
    data_augmentation_options: _containers.RepeatedCompositeFieldContainer[_preprocessor_pb2.PreprocessingStep]
    sync_replicas: bool
    keep_checkpoint_every_n_hours: float
    optimizer: _optimizer_pb2.Optimizer
    gradient_clipping_by_norm: float
    fine_tune_checkpoint: str
    fine_tune_checkpoint_type: str
    fine_tune_checkpoint_version: CheckpointVersion
    from_detection_checkpoint: bool
    load_all_detection_checkpoint_vars: bool
    run_fine_tune_checkpoint_dummy_computation: bool
    num_steps: int
    startup_delay_steps: float
    bias_grad_multiplier: float
    update_trainable_variables: _containers.RepeatedScalarFieldContainer[str]
    freeze_variables: _containers.RepeatedScalarFieldContainer[str]
    replicas_to_aggregate: int
    batch_queue_capacity: int
    num_batch_queue_threads: int
    prefetch_queue_capacity: int
    merge_multiple_label_boxes: bool
    use_multiclass_scores: bool
    add_regularization_loss: bool
    max_number_of_boxes: int
    unpad_groundtruth_tensors: bool
    retain_original_images: bool
    use_bfloat16: bool
    summarize_gradients: bool
    min_restored_share: float
    recompute: TrainConfig.Recompute
    def __init__(self, batch_size: _Optional[int] = ..., data_augmentation_options: _Optional[_Iterable[_Union[_preprocessor_pb2.PreprocessingStep, _Mapping]]] = ..., sync_replicas: bool = ..., keep_checkpoint_every_n_hours: _Optional[float] = ..., optimizer: _Optional[_Union[_optimizer_pb2.Optimizer, _Mapping]] = ..., gradient_clipping_by_norm: _Optional[float] = ..., fine_tune_checkpoint: _Optional[str] = ..., fine_tune_checkpoint_type: _Optional[str] = ..., fine_tune_checkpoint_version: _Optional[_Union[CheckpointVersion, str]] = ..., from_detection_checkpoint: bool = ..., load_all_detection_checkpoint_vars: bool = ..., run_fine_tune_checkpoint_dummy_computation: bool = ..., num_steps: _Optional[int] = ..., startup_delay_steps: _Optional[float] = ..., bias_grad_multiplier: _Optional[float] = ..., update_trainable_variables: _Optional[_Iterable[str]] = ..., freeze_variables: _Optional[_Iterable[str]] = ..., replicas_to_aggregate: _Optional[int] = ..., batch_queue_capacity: _Optional[int] = ..., num_batch_queue_threads: _Optional[int] = ..., prefetch_queue_capacity: _Optional[int] = ..., merge_multiple_label_boxes: bool = ..., use_multiclass_scores: bool = ..., add_regularization_loss: bool = ..., max_number_of_boxes: _Optional[int] = ..., unpad_groundtruth_tensors: bool = ..., retain_original_images: bool = ..., use_bfloat16: bool = ..., summarize_gradients: bool = ..., min_restored_share: _Optional[float] = ..., recompute: _Optional[_Union[TrainConfig.Recompute, str]] = ...) -> None: ...
