from estimator_det.protos import argmax_matcher_pb2 as _argmax_matcher_pb2
from estimator_det.protos import bipartite_matcher_pb2 as _bipartite_matcher_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Matcher(_message.Message):
    __slots__ = ("argmax_matcher", "bipartite_matcher")
    ARGMAX_MATCHER_FIELD_NUMBER: _ClassVar[int]
    BIPARTITE_MATCHER_FIELD_NUMBER: _ClassVar[int]
    argmax_matcher: _argmax_matcher_pb2.ArgMaxMatcher
    bipartite_matcher: _bipartite_matcher_pb2.BipartiteMatcher
    def __init__(self, argmax_matcher: _Optional[_Union[_argmax_matcher_pb2.ArgMaxMatcher, _Mapping]] = ..., bipartite_matcher: _Optional[_Union[_bipartite_matcher_pb2.BipartiteMatcher, _Mapping]] = ...) -> None: ...
