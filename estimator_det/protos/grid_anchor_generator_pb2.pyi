from estimator_det.protos import rules_pb2 as _rules_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class GridAnchorGenerator(_message.Message):
    __slots__ = ("height", "width", "height_stride", "width_stride", "height_offset", "width_offset", "scales", "aspect_ratios")
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_STRIDE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_STRIDE_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    WIDTH_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SCALES_FIELD_NUMBER: _ClassVar[int]
    ASPECT_RATIOS_FIELD_NUMBER: _ClassVar[int]
    height: int
    width: int
    height_stride: int
    width_stride: int
    height_offset: int
    width_offset: int
    scales: _containers.RepeatedScalarFieldContainer[float]
    aspect_ratios: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, height: _Optional[int] = ..., width: _Optional[int] = ..., height_stride: _Optional[int] = ..., width_stride: _Optional[int] = ..., height_offset: _Optional[int] = ..., width_offset: _Optional[int] = ..., scales: _Optional[_Iterable[float]] = ..., aspect_ratios: _Optional[_Iterable[float]] = ...) -> None: ...
