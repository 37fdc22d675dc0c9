from estimator_det.protos import custom_pb2 as _custom_pb2
from estimator_det.protos import rules_pb2 as _rules_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EvalConfig(_message.Message):
    __slots__ = ("batch_size", "num_visualizations", "num_examples", "eval_interval_secs", "eval_interval_steps", "max_evals", "save_graph", "visualization_export_dir", "eval_master", "metrics_set", "parameterized_metric", "export_path", "ignore_groundtruth", "use_moving_averages", "eval_instance_masks", "min_score_threshold", "max_num_boxes_to_visualize", "skip_scores", "skip_labels", "visualize_groundtruth_boxes", "groundtruth_box_visualization_color", "keep_image_id_for_visualization_export", "retain_original_images", "include_metrics_per_category", "all_metrics_per_category", "super_categories", "recall_lower_bound", "recall_upper_bound", "retain_original_image_additional_channels", "tiles", "force_no_resize", "use_dummy_loss_in_eval", "keypoint_edge", "skip_predictions_for_unlabeled_class", "image_classes_field_map_empty_to_ones")
    class SuperCategoriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_VISUALIZATIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    EVAL_INTERVAL_SECS_FIELD_NUMBER: _ClassVar[int]
    EVAL_INTERVAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    MAX_EVALS_FIELD_NUMBER: _ClassVar[int]
    SAVE_GRAPH_FIELD_NUMBER: _ClassVar[int]
    VISUALIZATION_EXPORT_DIR_FIELD_NUMBER: _ClassVar[int]
    EVAL_MASTER_FIELD_NUMBER: _ClassVar[int]
    METRICS_SET_FIELD_NUMBER: _ClassVar[int]
    PARAMETERIZED_METRIC_FIELD_NUMBER: _ClassVar[int]
    EXPORT_PATH_FIELD_NUMBER: _ClassVar[int]
    IGNORE_GROUNDTRUTH_FIELD_NUMBER: _ClassVar[int]
    USE_MOVING_AVERAGES_FIELD_NUMBER: _ClassVar[int]
    EVAL_INSTANCE_MASKS_FIELD_NUMBER: _ClassVar[int]
    MIN_SCORE_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    MAX_NUM_BOXES_TO_VISUALIZE_FIELD_NUMBER: _ClassVar[int]
    SKIP_SCORES_FIELD_NUMBER: _ClassVar[int]
    SKIP_LABELS_FIELD_NUMBER: _ClassVar[int]
    VISUALIZE_GROUNDTRUTH_BOXES_FIELD_NUMBER: _ClassVar[int]
    GROUNDTRUTH_BOX_VISUALIZATION_COLOR_FIELD_NUMBER: _ClassVar[int]
    KEEP_IMAGE_ID_FOR_VISUALIZATION_EXPORT_FIELD_NUMBER: _ClassVar[int]
    RETAIN_ORIGINAL_IMAGES_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_METRICS_PER_CATEGORY_FIELD_NUMBER: _ClassVar[int]
    ALL_METRICS_PER_CATEGORY_FIELD_NUMBER: _ClassVar[int]
    SUPER_CATEGORIES_FIELD_NUMBER: _ClassVar[int]
    RECALL_LOWER_BOUND_FIELD_NUMBER: _ClassVar[int]
    RECALL_UPPER_BOUND_FIELD_NUMBER: _ClassVar[int]
    RETAIN_ORIGINAL_IMAGE_ADDITIONAL_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    TILES_FIELD_NUMBER: _ClassVar[int]
    FORCE_NO_RESIZE_FIELD_NUMBER: _ClassVar[int]
    USE_DUMMY_LOSS_IN_EVAL_FIELD_NUMBER: _ClassVar[int]
    KEYPOINT_EDGE_FIELD_NUMBER: _ClassVar[int]
    SKIP_PREDICTIONS_FOR_UNLABELED_CLASS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_CLASSES_FIELD_MAP_EMPTY_TO_ONES_FIELD_NUMBER: _ClassVar[int]
    batch_size: int
    num_visualizations: int
    num_examples: int
    eval_interval_secs: int
    eval_interval_steps: int
    max_evals: int
    save_graph: bool
    visualization_export_dir: str
    eval_master: str
    metrics_set: _containers.RepeatedScalarFieldContainer[str]
    parameterized_metric: _containers.RepeatedCompositeFieldContainer[ParameterizedMetric]
    export_path: str
    ignore_groundtruth: bool
    use_moving_averages: bool
    eval_instance_masks: bool
    min_score_threshold: float
    max_num_boxes_to_visualize: int
    skip_scores: bool
    skip_labels: bool
    visualize_groundtruth_boxes: bool
    groundtruth_box_visualization_color: str
    keep_image_id_for_visualization_export: bool
    retain_original_images: bool
    include_metrics_per_category: bool
    all_metrics_per_category: bool
    super_categories: _containers.ScalarMap[str, str]
    recall_lower_bound: float
    recall_upper_bound: float
    retain_original_image_additional_channels: bool
    tiles: Tiles
    force_no_resize: bool
    use_dummy_loss_in_eval: bool
    keypoint_edge: _containers.RepeatedCompositeFieldContainer[KeypointEdge]
    skip_predictions_for_unlabeled_class: bool
    image_classes_field_map_empty_to_ones: bool
    def __init__(self, batch_size: _Optional[int] = ..., num_visualizations: _Optional[int] = ..., num_examples: _Optional[int] = ..., eval_interval_secs: _Optional[int] = ..., eval_interval_steps: _Optional[int] = ..., max_evals: _Optional[int] = ..., save_graph: bool = ..., visualization_export_dir: _Optional[str] = ..., eval_master: _Optional[str] = ..., metrics_set: _Optional[_Iterable[str]] = ..., parameterized_metric: _Optional[_Iterable[_Union[ParameterizedMetric, _Mapping]]] = ..., export_path: _Optional[str] = ..., ignore_groundtruth: bool = ..., use_moving_averages: bool = ..., eval_instance_masks: bool = ..., min_score_threshold: _Optional[float] = ..., max_num_boxes_to_visualize: _Optional[int] = ..., skip_scores: bool = ..., skip_labels: bool = ..., visualize_groundtruth_boxes: bool = ..., groundtruth_box_visualization_color: _Optional[str] = ..., keep_image_id_for_visualization_export: bool = ..., retain_original_images: bool = ..., include_metrics_per_category: bool = ..., all_metrics_per_category: bool = ..., super_categories: _Optional[_Mapping[str, str]] = ..., recall_lower_bound: _Optional[float] = ..., recall_upper_bound: _Optional[float] = ..., retain_original_image_additional_channels: bool = ..., tiles: _Optional[_Union[Tiles, _Mapping]] = ..., force_no_resize: bool = ..., use_dummy_loss_in_eval: bool = ..., keypoint_edge: _Optional[_Iterable[_Union[KeypointEdge, _Mapping]]] = ..., skip_predictions_for_unlabeled_class: bool = ..., image_classes_field_map_empty_to_ones: bool = ...) -> None: ...

class Tiles(_message.Message):
    __slots__ = ("side", "overlap")
    SIDE_FIELD_NUMBER: _ClassVar[int]
    OVERLAP_FIELD_NUMBER: _ClassVar[int]
    side: int
    overlap: float
    def __init__(self, side: _Optional[int] = ..., overlap: _Optional[float] = ...) -> None: ...

class ParameterizedMetric(_message.Message):
    __slots__ = ("coco_keypoint_metrics", "custom")
    COCO_KEYPOINT_METRICS_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_FIELD_NUMBER: _ClassVar[int]
    coco_keypoint_metrics: CocoKeypointMetrics
    custom: _custom_pb2.Custom
    def __init__(self, coco_keypoint_metrics: _Optional[_Union[CocoKeypointMetrics, _Mapping]] = ..., custom: _Optional[_Union[_custom_pb2.Custom, _Mapping]] = ...) -> None: ...

class CocoKeypointMetrics(_message.Message):
    __slots__ = ("class_label", "keypoint_label_to_sigmas")
    class KeypointLabelToSigmasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    CLASS_LABEL_FIELD_NUMBER: _ClassVar[int]
    KEYPOINT_LABEL_TO_SIGMAS_FIELD_NUMBER: _ClassVar[int]
    class_label: str
    keypoint_label_to_sigmas: _containers.ScalarMap[str, float]
    def __init__(self, class_label: _Optional[str] = ..., keypoint_label_to_sigmas: _Optional[_Mapping[str, float]] = ...) -> None: ...

class KeypointEdge(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...
