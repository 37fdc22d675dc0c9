from estimator_det.protos import center_net_pb2 as _center_net_pb2
from estimator_det.protos import faster_rcnn_pb2 as _faster_rcnn_pb2
from estimator_det.protos import ssd_pb2 as _ssd_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DetectionModel(_message.Message):
    __slots__ = ("faster_rcnn", "ssd", "experimental_model", "center_net")
    FASTER_RCNN_FIELD_NUMBER: _ClassVar[int]
    SSD_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENTAL_MODEL_FIELD_NUMBER: _ClassVar[int]
    CENTER_NET_FIELD_NUMBER: _ClassVar[int]
    faster_rcnn: _faster_rcnn_pb2.FasterRcnn
    ssd: _ssd_pb2.Ssd
    experimental_model: ExperimentalModel
    center_net: _center_net_pb2.CenterNet
    def __init__(self, faster_rcnn: _Optional[_Union[_faster_rcnn_pb2.FasterRcnn, _Mapping]] = ..., ssd: _Optional[_Union[_ssd_pb2.Ssd, _Mapping]] = ..., experimental_model: _Optional[_Union[ExperimentalModel, _Mapping]] = ..., center_net: _Optional[_Union[_center_net_pb2.CenterNet, _Mapping]] = ...) -> None: ...

class ExperimentalModel(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...
