from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
RULE_FIELD_NUMBER: _ClassVar[int]
rule: _descriptor.FieldDescriptor

class Rule(_message.Message):
    __slots__ = ("least", "largest", "above", "unit", "refused", "no_effect", "needs", "replaced_by", "remedy", "tpu")
    LEAST_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    NO_EFFECT_FIELD_NUMBER: _ClassVar[int]
    NEEDS_FIELD_NUMBER: _ClassVar[int]
    REPLACED_BY_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    TPU_FIELD_NUMBER: _ClassVar[int]
    least: float
    largest: float
    above: float
    unit: str
    refused: str
    no_effect: str
    needs: str
    replaced_by: str
    remedy: str
    tpu: OnTpu
    def __init__(self, least: _Optional[float] = ..., largest: _Optional[float] = ..., above: _Optional[float] = ..., unit: _Optional[str] = ..., refused: _Optional[str] = ..., no_effect: _Optional[str] = ..., needs: _Optional[str] = ..., replaced_by: _Optional[str] = ..., remedy: _Optional[str] = ..., tpu: _Optional[_Union[OnTpu, _Mapping]] = ...) -> None: ...

class OnTpu(_message.Message):
    __slots__ = ("value", "reason", "severity", "remedy", "safe", "inference")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SEVERITY_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    SAFE_FIELD_NUMBER: _ClassVar[int]
    INFERENCE_FIELD_NUMBER: _ClassVar[int]
    value: bool
    reason: str
    severity: str
    remedy: str
    safe: bool
    inference: bool
    def __init__(self, value: bool = ..., reason: _Optional[str] = ..., severity: _Optional[str] = ..., remedy: _Optional[str] = ..., safe: bool = ..., inference: bool = ...) -> None: ...
