from estimator_det.protos import flexible_grid_anchor_generator_pb2 as _flexible_grid_anchor_generator_pb2
from estimator_det.protos import grid_anchor_generator_pb2 as _grid_anchor_generator_pb2
from estimator_det.protos import multiscale_anchor_generator_pb2 as _multiscale_anchor_generator_pb2
from estimator_det.protos import ssd_anchor_generator_pb2 as _ssd_anchor_generator_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AnchorGenerator(_message.Message):
    __slots__ = ("grid_anchor_generator", "ssd_anchor_generator", "multiscale_anchor_generator", "flexible_grid_anchor_generator")
    GRID_ANCHOR_GENERATOR_FIELD_NUMBER: _ClassVar[int]
    SSD_ANCHOR_GENERATOR_FIELD_NUMBER: _ClassVar[int]
    MULTISCALE_ANCHOR_GENERATOR_FIELD_NUMBER: _ClassVar[int]
    FLEXIBLE_GRID_ANCHOR_GENERATOR_FIELD_NUMBER: _ClassVar[int]
    grid_anchor_generator: _grid_anchor_generator_pb2.GridAnchorGenerator
    ssd_anchor_generator: _ssd_anchor_generator_pb2.SsdAnchorGenerator
    multiscale_anchor_generator: _multiscale_anchor_generator_pb2.MultiscaleAnchorGenerator
    flexible_grid_anchor_generator: _flexible_grid_anchor_generator_pb2.FlexibleGridAnchorGenerator
    def __init__(self, grid_anchor_generator: _Optional[_Union[_grid_anchor_generator_pb2.GridAnchorGenerator, _Mapping]] = ..., ssd_anchor_generator: _Optional[_Union[_ssd_anchor_generator_pb2.SsdAnchorGenerator, _Mapping]] = ..., multiscale_anchor_generator: _Optional[_Union[_multiscale_anchor_generator_pb2.MultiscaleAnchorGenerator, _Mapping]] = ..., flexible_grid_anchor_generator: _Optional[_Union[_flexible_grid_anchor_generator_pb2.FlexibleGridAnchorGenerator, _Mapping]] = ...) -> None: ...
