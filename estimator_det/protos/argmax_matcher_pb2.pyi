from estimator_det.protos import rules_pb2 as _rules_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ArgMaxMatcher(_message.Message):
    __slots__ = ("matched_threshold", "unmatched_threshold", "ignore_thresholds", "negatives_lower_than_unmatched", "force_match_for_each_row", "use_matmul_gather")
    MATCHED_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    UNMATCHED_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    IGNORE_THRESHOLDS_FIELD_NUMBER: _ClassVar[int]
    NEGATIVES_LOWER_THAN_UNMATCHED_FIELD_NUMBER: _ClassVar[int]
    FORCE_MATCH_FOR_EACH_ROW_FIELD_NUMBER: _ClassVar[int]
    USE_MATMUL_GATHER_FIELD_NUMBER: _ClassVar[int]
    matched_threshold: float
    unmatched_threshold: float
    ignore_thresholds: bool
    negatives_lower_than_unmatched: bool
    force_match_for_each_row: bool
    use_matmul_gather: bool
    def __init__(self, matched_threshold: _Optional[float] = ..., unmatched_threshold: _Optional[float] = ..., ignore_thresholds: bool = ..., negatives_lower_than_unmatched: bool = ..., force_match_for_each_row: bool = ..., use_matmul_gather: bool = ...) -> None: ...
