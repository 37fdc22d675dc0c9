from estimator_det.protos import rules_pb2 as _rules_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RegionSimilarityCalculator(_message.Message):
    __slots__ = ("neg_sq_dist_similarity", "iou_similarity", "ioa_similarity", "thresholded_iou_similarity")
    NEG_SQ_DIST_SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    IOU_SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    IOA_SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    THRESHOLDED_IOU_SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    neg_sq_dist_similarity: NegSqDistSimilarity
    iou_similarity: IouSimilarity
    ioa_similarity: IoaSimilarity
    thresholded_iou_similarity: ThresholdedIouSimilarity
    def __init__(self, neg_sq_dist_similarity: _Optional[_Union[NegSqDistSimilarity, _Mapping]] = ..., iou_similarity: _Optional[_Union[IouSimilarity, _Mapping]] = ..., ioa_similarity: _Optional[_Union[IoaSimilarity, _Mapping]] = ..., thresholded_iou_similarity: _Optional[_Union[ThresholdedIouSimilarity, _Mapping]] = ...) -> None: ...

class NegSqDistSimilarity(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class IouSimilarity(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class IoaSimilarity(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ThresholdedIouSimilarity(_message.Message):
    __slots__ = ("iou_threshold",)
    IOU_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    iou_threshold: float
    def __init__(self, iou_threshold: _Optional[float] = ...) -> None: ...
