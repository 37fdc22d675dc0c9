"""The table of faults: every message, count and JSON line uses one of its names.

`TABLE` is the only definition of a fault's description, remedy and action. `KINDS` are its rows for
records, which the decoder, the examiner of `check-data` and the guards read; `SOURCE_KINDS` are
those for the sources of conversions. This module imports no TensorFlow.
"""

from __future__ import annotations

import dataclasses
from typing import Dict, Iterator, Mapping, NamedTuple

from estimator_det.config.rules import rules
from estimator_det.config.text import nearest
from estimator_det.console.printing import escaped
from estimator_det.errors import Problem, error
from estimator_det.files.text import shortened
from estimator_det.protos import input_reader_pb2

LONGEST_MESSAGE = 1_000  # characters

# Actions.
FAIL = "fail"  # stops the program
SKIP = "skip"  # skips the record (or file), up to max_skipped
CLIP = "clip"  # corrects the boxes: see `FaultKind.correction`
KEEP = "keep"  # uses the record unchanged, and counts the fault
REFERENCE = "reference"  # a policy only: the action of `FaultKind.reference`


class FaultKind(NamedTuple):
    """One row of the table of faults."""

    description: str
    remedy: str = ""
    reference: str = ""  # the action of the Object Detection API; "" if no record has it
    correction: str = ""  # the effect of CLIP; "" if CLIP skips the record
    unit: str = "record"  # the thing that a count counts
    caused_by_config: bool = False  # by the configuration alone, so SKIP corrects it, too
    is_for_check: bool = False  # training does not look for it, so its action is always KEEP
    source_remedy: str = ""  # "" if no source of a conversion has it
    source_description: str = ""  # "" for `description`
    source_unit: str = ""  # "" for a box if `unit` is, else for an image


_CORRECT_BOX = "correct the box, or set bad_records { policy: CLIP } to drop such boxes"
_REWRITE_RECORD = (
    "write the record again, or set bad_records { policy: SKIP } in the input reader to skip such "
    "records"
)

TABLE: Dict[str, FaultKind] = {
    # Files.
    "no_file": FaultKind(
        "an input_path matches no file", "correct input_path in the input reader", FAIL,
        unit="pattern",
    ),
    "empty_file": FaultKind(
        "a file without records", "write the file again, or remove it", KEEP, unit="file"
    ),
    "damaged_record": FaultKind(
        "the frame or checksum of a record is damaged",
        _REWRITE_RECORD + "; copy the file again first", FAIL,
    ),
    "lost_records": FaultKind(
        "the rest of a file cannot be read",
        "copy or write the file again", FAIL, unit="file",
    ),
    "broken_source": FaultKind(
        "an annotation file or line cannot be read", source_remedy="correct the file or line",
        source_unit="file",
    ),
    # Single records, or annotations of an image.
    "unparsable": FaultKind(
        "a record is not the message that the reader expects", _REWRITE_RECORD, FAIL
    ),
    "missing_key": FaultKind(
        "a required key is missing or empty", _REWRITE_RECORD, FAIL,
        source_description="a required value is missing", source_remedy="add the value",
    ),
    "length_mismatch": FaultKind(
        "lists that belong together differ in length", _REWRITE_RECORD, FAIL,
        source_remedy="correct the list", source_unit="box",
    ),
    "outside_folder": FaultKind(
        "a path leads out of the folder of images",
        source_remedy="name a folder with --images that contains all images, and paths relative to "
        "it",
    ),
    "no_image": FaultKind(
        "the image file does not exist", source_remedy="correct the path or --images"
    ),
    "special_file": FaultKind(
        "a folder, named pipe or device in place of an image", source_remedy="name an image file"
    ),
    # Images.
    "undecodable_image": FaultKind(
        "an image cannot be decoded", _REWRITE_RECORD, FAIL, source_remedy="copy or save it again"
    ),
    "truncated_image": FaultKind(
        "an image file ends too early", _REWRITE_RECORD, FAIL, source_remedy="copy the image again"
    ),
    "corrupt_image": FaultKind(
        "the decoder warns of damage to an image, but decodes it",
        "view the image; write it again, or remove it if a part is missing. Only check-data finds "
        "this fault", KEEP, is_for_check=True,
        source_remedy="view the image; save or copy it again if a part is missing",
    ),
    "unsupported_image": FaultKind(
        "an image is not a JPEG, PNG, GIF, or BMP without a palette",
        source_remedy="add --encode jpeg or --encode png"
    ),
    "exif_rotation": FaultKind(
        "the EXIF data of an image rotate it, but training uses its pixels as stored",
        "look at its boxes with show-data. If they fit the upright photo, convert it again with "
        "--exif apply; if they fit the drawing, remove the EXIF orientation. Only check-data and "
        "show-data find this fault", KEEP, is_for_check=True,
        source_description="the EXIF data of an image rotate it, which training ignores",
        source_remedy="if the boxes fit the upright image, add --exif apply, which rotates the "
        "pixels and encodes them again; if they fit the pixels as stored, remove the EXIF "
        "orientation from the file",
    ),
    "huge_image": FaultKind(
        "an image header gives a size above the limit",
        "remove the image, or raise bad_records { max_megapixels } if the size is real", FAIL,
        source_description="an image is larger than the limit",
        source_remedy="remove the image, or raise --max_megapixels",
    ),
    "size_mismatch": FaultKind(
        "image/height and image/width differ from the image",
        "write image/height and image/width as decoded; if the image was rotated or resized "
        "afterwards, its boxes are wrong as well", KEEP,
        source_description="the annotation gives another size than the image has",
        source_remedy="annotate the image as it is, or correct the size in the annotation",
    ),
    "duplicate_id": FaultKind(
        "an image or its id is listed twice",
        source_remedy="list each image once, with an id of its own",
    ),
    "duplicate_image": FaultKind(
        "an image has the same content as another one",
        source_remedy="add --duplicates skip, or remove one of the two",
    ),
    "no_split": FaultKind(
        "a line of a split list names no image of the source",
        source_remedy="give the file name of an image",
    ),
    # Boxes.
    "box_nan": FaultKind(
        "boxes with a coordinate that is NaN or infinite", _CORRECT_BOX, CLIP, "dropped", "box",
        source_remedy="correct the box",
    ),
    "box_inverted": FaultKind(
        "boxes whose minimum exceeds their maximum", _CORRECT_BOX, FAIL, "dropped", "box",
        source_remedy="correct the box",
    ),
    "box_degenerate": FaultKind(
        "boxes without height or width", _CORRECT_BOX, KEEP, "dropped", "box",
        source_remedy="correct the box",
    ),
    "box_outside": FaultKind(
        "boxes that extend beyond the image",
        "divide pixels by the image's own height and width; bad_records { policy: CLIP } clips "
        "boxes to the image", KEEP, "clipped to the image, dropped if nothing remains", "box",
        source_remedy="correct the box, or add --clip_boxes, which clips boxes to the image",
    ),
    "box_fractions": FaultKind(
        "boxes in pixels with coordinates from 0 to 1, which are probably fractions of the image",
        source_remedy="multiply them by the width and height of the image",
        source_unit="box",
    ),
    "unknown_text": FaultKind(
        "boxes of a class name that the label map lacks",
        "add the name to the label map, or let the boxes be dropped", CLIP, "dropped", "box",
        caused_by_config=True, source_remedy="add the name to the label map",
    ),
    "unknown_id": FaultKind(
        "boxes of a class id outside 1..num_classes",
        "correct num_classes, the label map or the record (ids start at 1), or set bad_records "
        "{ policy: CLIP } to drop such boxes", FAIL, "dropped", "box",
        source_description="boxes of a class id that the source does not define",
        source_remedy="correct the id or the classes",
    ),
    "label_contradiction": FaultKind(
        "boxes whose class text and class label differ",
        "read the records with the label map they were written with; the text is used", KEEP,
        unit="box", source_description="boxes whose class name and class id differ",
        source_remedy="use the label map of the source",
    ),
    "broken_keypoints": FaultKind(
        "keypoints that are not finite or have an unknown visibility",
        source_remedy="correct the keypoints", source_unit="box",
    ),
    "broken_mask": FaultKind(
        "a polygon, run-length mask or file of a mask is not valid",
        source_remedy="correct the mask", source_unit="box",
    ),
    "mask_empty": FaultKind(
        "boxes whose mask is missing or empty",
        "add the mask, or set bad_records { policy: CLIP } to drop such boxes", KEEP, "dropped",
        "box", source_remedy="correct the mask",
    ),
    "mask_mismatch": FaultKind(
        "boxes whose mask fills another part of the image",
        "correct the order of masks or boxes, or set bad_records { policy: CLIP } to drop such "
        "boxes", KEEP, "dropped", "box",
        source_remedy="correct the mask or the box",
    ),
    "unsupported_shape": FaultKind(
        "a shape that is no object with an area", source_remedy="use rectangles and polygons",
        source_unit="box",
    ),
    "too_many_boxes": FaultKind(
        "boxes beyond max_number_of_boxes", "raise max_number_of_boxes in the input reader", CLIP,
        "dropped", "box", caused_by_config=True,
    ),
    "unexplained": FaultKind("a record that TensorFlow rejects", _REWRITE_RECORD, FAIL),
}  # fmt: skip

KINDS = {kind: row for kind, row in TABLE.items() if row.reference}
SOURCE_KINDS = {
    kind: FaultKind(
        row.source_description or row.description,
        row.source_remedy,
        unit=row.source_unit or ("box" if row.unit == "box" else "image"),
    )
    for kind, row in TABLE.items()
    if row.source_remedy
}

# Faults of single boxes, in the order in which the pipeline counts them.
BOX_FAULTS = (
    "box_nan", "box_inverted", "box_degenerate", "box_outside", "unknown_text", "unknown_id",
    "label_contradiction", "mask_empty", "mask_mismatch",
)  # fmt: skip

# Faults that the input pipeline itself counts, in the order of its vector of counts.
COUNTED = (*BOX_FAULTS, "size_mismatch", "too_many_boxes")
FAULT_COUNTS = "fault_counts"  # key inside the pipeline: int32 [len(COUNTED)]


@dataclasses.dataclass(frozen=True)
class RecordFault:
    """One fault, and the record that has it; one JSON line of a log."""

    kind: str  # a key of `KINDS`
    action: str  # FAIL, SKIP, CLIP or KEEP
    file: str = ""
    record: int = -1  # number in the file from 0; -1 for the whole file
    source_id: str = ""  # shortened; "" if it cannot be read
    count: int = 1  # boxes, if the unit of the kind is a box
    message: str = ""  # the fault, with the values
    remedy: str = ""

    def at(self, file: str, record: int = -1, source_id: str = "") -> RecordFault:
        """The fault in one record, or in the whole file if `record` is -1, with short texts."""
        return dataclasses.replace(
            self, file=file, record=int(record), source_id=shortened(source_id),
            message=shortened(self.message, LONGEST_MESSAGE),
        )  # fmt: skip

    def sentence(self) -> str:
        """File, record, source id, what is wrong and the remedy, in one line."""
        number = f", record {self.record}" if self.record >= 0 else ""
        # No quotes: TensorFlow escapes them in errors.
        name = f" (source_id {escaped(self.source_id)})" if self.source_id else ""
        message = escaped(self.message).rstrip(".")
        return f"{escaped(self.file)}{number}{name}: {message}. Remedy: {self.remedy}"


def effect(kind: str, action: str) -> str:
    """Effect of an action on data that have a fault of a kind, in words."""
    row = KINDS[kind]
    if action == CLIP:
        return row.correction or "corrected"
    skipped = "file skipped" if row.unit == "file" else "record skipped"
    return {FAIL: "stops the run", SKIP: skipped, KEEP: "used unchanged"}[action]


@rules(input_reader_pb2.BadRecords)
def _check_kinds(config: input_reader_pb2.BadRecords, at: str) -> Iterator[Problem]:
    for index, exception in enumerate(config.exception):
        kind, field = exception.kind, f"{at}.exception[{index}].kind"
        if kind not in KINDS:
            message = f"is {kind!r}{nearest(kind, list(KINDS))}"
            yield error(field, message, f"use one of {list(KINDS)}")
        elif KINDS[kind].is_for_check:
            message = f"is {kind!r}, which only check-data finds; training uses such records"
            yield error(field, message, "Remove the exception")


def resolve_actions(policy: str, exceptions: Mapping[str, str]) -> Dict[str, str]:
    """Kind -> action; a policy is REFERENCE, FAIL, SKIP or CLIP, of all kinds or of one alone."""
    return {kind: _action(row, exceptions.get(kind, policy)) for kind, row in KINDS.items()}


def _action(row: FaultKind, policy: str) -> str:
    if policy == REFERENCE or row.is_for_check:
        return row.reference
    if policy == FAIL:
        return FAIL
    if row.reference == KEEP and not row.correction:
        return KEEP if policy == CLIP or row.unit == "file" else SKIP
    if policy == CLIP or row.caused_by_config:
        return CLIP if row.correction else SKIP
    return SKIP
