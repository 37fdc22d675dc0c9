from estimator_det.protos import calibration_pb2 as _calibration_pb2
from estimator_det.protos import rules_pb2 as _rules_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BatchNonMaxSuppression(_message.Message):
    __slots__ = ("score_threshold", "iou_threshold", "max_detections_per_class", "max_total_detections", "use_static_shapes", "use_class_agnostic_nms", "max_classes_per_detection", "soft_nms_sigma", "use_partitioned_nms", "use_combined_nms", "change_coordinate_frame", "use_hard_nms", "use_cpu_nms", "static_kernel")
    SCORE_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    IOU_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MAX_DETECTIONS_PER_CLASS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOTAL_DETECTIONS_FIELD_NUMBER: _ClassVar[int]
    USE_STATIC_SHAPES_FIELD_NUMBER: _ClassVar[int]
    USE_CLASS_AGNOSTIC_NMS_FIELD_NUMBER: _ClassVar[int]
    MAX_CLASSES_PER_DETECTION_FIELD_NUMBER: _ClassVar[int]
    SOFT_NMS_SIGMA_FIELD_NUMBER: _ClassVar[int]
    USE_PARTITIONED_NMS_FIELD_NUMBER: _ClassVar[int]
    USE_COMBINED_NMS_FIELD_NUMBER: _ClassVar[int]
    CHANGE_COORDINATE_FRAME_FIELD_NUMBER: _ClassVar[int]
    USE_HARD_NMS_FIELD_NUMBER: _ClassVar[int]
    USE_CPU_NMS_FIELD_NUMBER: _ClassVar[int]
    STATIC_KERNEL_FIELD_NUMBER: _ClassVar[int]
    score_threshold: float
    iou_threshold: float
    max_detections_per_class: int
    max_total_detections: int
    use_static_shapes: bool
    use_class_agnostic_nms: bool
    max_classes_per_detection: int
    soft_nms_sigma: float
    use_partitioned_nms: bool
    use_combined_nms: bool
    change_coordinate_frame: bool
    use_hard_nms: bool
    use_cpu_nms: bool
    static_kernel: bool
    def __init__(self, score_threshold: _Optional[float] = ..., iou_threshold: _Optional[float] = ..., max_detections_per_class: _Optional[int] = ..., max_total_detections: _Optional[int] = ..., use_static_shapes: bool = ..., use_class_agnostic_nms: bool = ..., max_classes_per_detection: _Optional[int] = ..., soft_nms_sigma: _Optional[float] = ..., use_partitioned_nms: bool = ..., use_combined_nms: bool = ..., change_coordinate_frame: bool = ..., use_hard_nms: bool = ..., use_cpu_nms: bool = ..., static_kernel: bool = ...) -> None: ...

class PostProcessing(_message.Message):
    __slots__ = ("batch_non_max_suppression", "score_converter", "logit_scale", "calibration_config")
    class ScoreConverter(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        IDENTITY: _ClassVar[PostProcessing.ScoreConverter]
        SIGMOID: _ClassVar[PostProcessing.ScoreConverter]
        SOFTMAX: _ClassVar[PostProcessing.ScoreConverter]
    IDENTITY: PostProcessing.ScoreConverter
    SIGMOID: PostProcessing.ScoreConverter
    SOFTMAX: PostProcessing.ScoreConverter
    BATCH_NON_MAX_SUPPRESSION_FIELD_NUMBER: _ClassVar[int]
    SCORE_CONVERTER_FIELD_NUMBER: _ClassVar[int]
    LOGIT_SCALE_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_CONFIG_FIELD_NUMBER: _ClassVar[int]
    batch_non_max_suppression: BatchNonMaxSuppression
    score_converter: PostProcessing.ScoreConverter
    logit_scale: float
    calibration_config: _calibration_pb2.CalibrationConfig
    def __init__(self, batch_non_max_suppression: _Optional[_Union[BatchNonMaxSuppression, _Mapping]] = ..., score_converter: _Optional[_Union[PostProcessing.ScoreConverter, str]] = ..., logit_scale: _Optional[float] = ..., calibration_config: _Optional[_Union[_calibration_pb2.CalibrationConfig, _Mapping]] = ...) -> None: ...
