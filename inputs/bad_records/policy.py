"""The policy for bad records: which fault is treated how, from the reader's `bad_records`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional

from estimator_det.protos import input_reader_pb2
from inputs.bad_records import kinds
from inputs.bad_records.kinds import CLIP, FAIL, KINDS, SKIP, RecordFault
from inputs.label_map import LabelMap, read_label_map

OUTSIDE_TOLERANCE = 1e-4  # of the picture's side: rounding in label tools is no fault

_POLICIES = {
    input_reader_pb2.BadRecords.REFERENCE: "reference",
    input_reader_pb2.BadRecords.FAIL: FAIL,
    input_reader_pb2.BadRecords.SKIP: SKIP,
    input_reader_pb2.BadRecords.CLIP: CLIP,
}


@dataclass(frozen=True)
class BadRecordPolicy:
    """What counts as a fault, and what is done about it.

    Attributes:
        reader: What is read from records.
        actions: Kind -> one of `faults.ACTIONS`.
        max_skipped: Records that may be left out.
        max_pixels: Height times width of the largest picture that is decoded.
        num_classes: Of the model; None where ids have no upper limit.
        label_map: None where records are read by their ids alone.
        max_boxes: Boxes of an image that training takes; None for all.
        decode: Whether pictures are decoded to the end; without it only their headers are read.
    """

    reader: input_reader_pb2.InputReader
    actions: Mapping[str, str] = field(default_factory=lambda: kinds.resolve("reference", {}))
    max_skipped: int = 100
    max_pixels: float = 178.95697e6
    num_classes: Optional[int] = None
    label_map: Optional[LabelMap] = None
    max_boxes: Optional[int] = None
    decode: bool = True

    def __post_init__(self) -> None:
        if self.max_pixels < 1 or self.max_skipped < 0:
            raise ValueError(
                f"bad_records: max_megapixels must be positive ({self.max_pixels / 1e6} given) and "
                f"max_skipped 0 or more ({self.max_skipped} given)"
            )

    def refuses(self, kind: str) -> bool:
        """Whether a record with such a fault is not used."""
        return self.actions[kind] in (FAIL, SKIP)

    def may_skip(self, kind: str) -> bool:
        """Whether such a fault does not stop the run."""
        return self.actions[kind] != FAIL

    def finding(self, kind: str, message: str, count: int = 1) -> RecordFault:
        """A finding with the action and remedy of its kind."""
        return RecordFault(kind, message, KINDS[kind].remedy, self.actions[kind], count)


def make_policy(
    reader: input_reader_pb2.InputReader,
    num_classes: Optional[int] = None,
    max_boxes: Optional[int] = None,
    decode: bool = True,
) -> BadRecordPolicy:
    """The policy of a reader's `bad_records`, and its label map.

    Raises:
        ValueError: if they name an unknown kind of fault, or an impossible limit.
        ConfigError: if the label map cannot be read.
    """
    given = reader.bad_records
    exceptions = {one.kind: _POLICIES[one.policy] for one in given.exception}
    return BadRecordPolicy(
        reader=reader,
        actions=kinds.resolve(_POLICIES[given.policy], exceptions),
        max_skipped=given.max_skipped,
        max_pixels=given.max_megapixels * 1e6,
        num_classes=num_classes,
        label_map=read_label_map(reader.label_map_path) if reader.label_map_path else None,
        max_boxes=max_boxes,
        decode=decode,
    )
