from estimator_det.protos import rules_pb2 as _rules_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class SquareBoxCoder(_message.Message):
    __slots__ = ("y_scale", "x_scale", "length_scale")
    Y_SCALE_FIELD_NUMBER: _ClassVar[int]
    X_SCALE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_SCALE_FIELD_NUMBER: _ClassVar[int]
    y_scale: float
    x_scale: float
    length_scale: float
    def __init__(self, y_scale: _Optional[float] = ..., x_scale: _Optional[float] = ..., length_scale: _Optional[float] = ...) -> None: ...
