from estimator_det.protos import box_coder_pb2 as _box_coder_pb2
from estimator_det.protos import matcher_pb2 as _matcher_pb2
from estimator_det.protos import region_similarity_calculator_pb2 as _region_similarity_calculator_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TargetAssigner(_message.Message):
    __slots__ = ("matcher", "similarity_calculator", "box_coder")
    MATCHER_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_CALCULATOR_FIELD_NUMBER: _ClassVar[int]
    BOX_CODER_FIELD_NUMBER: _ClassVar[int]
    matcher: _matcher_pb2.Matcher
    similarity_calculator: _region_similarity_calculator_pb2.RegionSimilarityCalculator
    box_coder: _box_coder_pb2.BoxCoder
    def __init__(self, matcher: _Optional[_Union[_matcher_pb2.Matcher, _Mapping]] = ..., similarity_calculator: _Optional[_Union[_region_similarity_calculator_pb2.RegionSimilarityCalculator, _Mapping]] = ..., box_coder: _Optional[_Union[_box_coder_pb2.BoxCoder, _Mapping]] = ...) -> None: ...
