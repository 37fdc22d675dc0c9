from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ServingPredictionLog(_message.Message):
    __slots__ = ("predict_log",)
    PREDICT_LOG_FIELD_NUMBER: _ClassVar[int]
    predict_log: ServingPredictLog
    def __init__(self, predict_log: _Optional[_Union[ServingPredictLog, _Mapping]] = ...) -> None: ...

class ServingPredictLog(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: ServingPredictRequest
    def __init__(self, request: _Optional[_Union[ServingPredictRequest, _Mapping]] = ...) -> None: ...

class ServingPredictRequest(_message.Message):
    __slots__ = ("model_spec", "inputs")
    class InputsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    MODEL_SPEC_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    model_spec: ServingModelSpec
    inputs: _containers.ScalarMap[str, bytes]
    def __init__(self, model_spec: _Optional[_Union[ServingModelSpec, _Mapping]] = ..., inputs: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class ServingModelSpec(_message.Message):
    __slots__ = ("signature_name",)
    SIGNATURE_NAME_FIELD_NUMBER: _ClassVar[int]
    signature_name: str
    def __init__(self, signature_name: _Optional[str] = ...) -> None: ...
