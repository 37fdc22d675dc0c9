"""The action for each kind of fault, from the input reader's `bad_records`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional

from estimator_det.protos import input_reader_pb2
from inputs.bad_records.kinds import FAIL, KINDS, SKIP, RecordFault, resolve_actions
from inputs.label_map import LabelMap, optional_label_map


@dataclass(frozen=True)
class BadRecordPolicy:
    """The limits beyond which data are faulty, and the action for each kind of fault."""

    reader: input_reader_pb2.InputReader
    actions: Mapping[str, str]  # kind -> action
    max_skipped: int  # records
    max_pixels: float  # height times width of the largest image that is decoded
    num_classes: Optional[int]  # the model's; None if ids have no upper limit
    label_map: Optional[LabelMap]  # None if records are read by their ids alone
    max_boxes: Optional[int]  # boxes of an image that training uses; None for all
    context_feature_length: Optional[int]  # the model's; None for any

    def rejects(self, kind: str) -> bool:
        """True if a record with such a fault is not used."""
        return self.actions[kind] in (FAIL, SKIP)

    def fault(self, kind: str, message: str, count: int = 1) -> RecordFault:
        """A fault with the action and remedy of its kind."""
        action, remedy = self.actions[kind], KINDS[kind].remedy
        return RecordFault(kind, action, count=int(count), message=message, remedy=remedy)


def make_policy(
    reader: input_reader_pb2.InputReader,
    num_classes: Optional[int] = None,
    max_boxes: Optional[int] = None,
    context_feature_length: Optional[int] = None,
    label_map: Optional[LabelMap] = None,
) -> BadRecordPolicy:
    """The policy of a reader's `bad_records`; reads the reader's label map if it is not given."""
    label_map = label_map or optional_label_map(reader.label_map_path)
    config = reader.bad_records
    name = input_reader_pb2.BadRecords.Policy.Name  # name of a policy, in upper case
    exceptions = {exception.kind: name(exception.policy).lower() for exception in config.exception}
    return BadRecordPolicy(
        reader=reader,
        actions=resolve_actions(name(config.policy).lower(), exceptions),
        max_skipped=config.max_skipped,
        max_pixels=config.max_megapixels * 1e6,
        num_classes=num_classes,
        label_map=label_map,
        max_boxes=max_boxes,
        context_feature_length=context_feature_length,
    )
