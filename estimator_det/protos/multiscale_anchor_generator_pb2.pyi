from estimator_det.protos import rules_pb2 as _rules_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class MultiscaleAnchorGenerator(_message.Message):
    __slots__ = ("min_level", "max_level", "anchor_scale", "aspect_ratios", "scales_per_octave", "normalize_coordinates")
    MIN_LEVEL_FIELD_NUMBER: _ClassVar[int]
    MAX_LEVEL_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_SCALE_FIELD_NUMBER: _ClassVar[int]
    ASPECT_RATIOS_FIELD_NUMBER: _ClassVar[int]
    SCALES_PER_OCTAVE_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_COORDINATES_FIELD_NUMBER: _ClassVar[int]
    min_level: int
    max_level: int
    anchor_scale: float
    aspect_ratios: _containers.RepeatedScalarFieldContainer[float]
    scales_per_octave: int
    normalize_coordinates: bool
    def __init__(self, min_level: _Optional[int] = ..., max_level: _Optional[int] = ..., anchor_scale: _Optional[float] = ..., aspect_ratios: _Optional[_Iterable[float]] = ..., scales_per_octave: _Optional[int] = ..., normalize_coordinates: bool = ...) -> None: ...
