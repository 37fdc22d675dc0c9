from estimator_det.protos import rules_pb2 as _rules_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FlexibleGridAnchorGenerator(_message.Message):
    __slots__ = ("anchor_grid", "normalize_coordinates")
    ANCHOR_GRID_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_COORDINATES_FIELD_NUMBER: _ClassVar[int]
    anchor_grid: _containers.RepeatedCompositeFieldContainer[AnchorGrid]
    normalize_coordinates: bool
    def __init__(self, anchor_grid: _Optional[_Iterable[_Union[AnchorGrid, _Mapping]]] = ..., normalize_coordinates: bool = ...) -> None: ...

class AnchorGrid(_message.Message):
    __slots__ = ("base_sizes", "aspect_ratios", "height_stride", "width_stride", "height_offset", "width_offset")
    BASE_SIZES_FIELD_NUMBER: _ClassVar[int]
    ASPECT_RATIOS_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_STRIDE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_STRIDE_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    WIDTH_OFFSET_FIELD_NUMBER: _ClassVar[int]
    base_sizes: _containers.RepeatedScalarFieldContainer[float]
    aspect_ratios: _containers.RepeatedScalarFieldContainer[float]
    height_stride: int
    width_stride: int
    height_offset: int
    width_offset: int
    def __init__(self, base_sizes: _Optional[_Iterable[float]] = ..., aspect_ratios: _Optional[_Iterable[float]] = ..., height_stride: _Optional[int] = ..., width_stride: _Optional[int] = ..., height_offset: _Optional[int] = ..., width_offset: _Optional[int] = ...) -> None: ...
