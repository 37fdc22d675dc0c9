"""Annotated images as plain values, which converters read, and the faults of a source.

A converter yields one `AnnotatedImage` after the other, and opens no image. `inputs.conversion`
opens the images, and checks the values of all formats.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from estimator_det.console.printing import LONGEST_LINE, plain
from estimator_det.errors import RunError, UsageError
from estimator_det.files.text import shortened
from inputs.bad_records.kinds import SOURCE_KINDS

# The fate of data with a fault.
STOPPED, SKIPPED, DROPPED, CLIPPED, KEPT = "stopped", "skipped", "dropped", "clipped", "kept"


SIDES = ("ymin", "xmin", "ymax", "xmax")


class SourceFault(NamedTuple):
    """One fault of a source, with the place that has it."""

    kind: str  # a key of SOURCE_KINDS
    file: str  # path of the annotation, or of the image if it alone has the fault
    line: int  # from 1; 0 for the whole file
    message: str  # the fault, with its values
    action: str = STOPPED

    def sentence(self) -> str:
        """File, line, what is wrong and the remedy, in one line."""
        where = plain(self.file, LONGEST_LINE) + (f", line {self.line}" if self.line else "")
        return f"{where}: {self.kind}: {self.message}. Remedy: {SOURCE_KINDS[self.kind].remedy}"


def fault_unit(kind: str, action: str) -> str:
    """The thing that a number of such faults counts."""
    return "box" if action == DROPPED else SOURCE_KINDS[kind].unit


class ConversionError(RunError):
    """A conversion stops: a fault of the source, or a state of the output folder."""


class SourceError(UsageError):
    """A part of a source that cannot be used, as a fault; of one image or of the whole source."""

    def __init__(self, kind: str, file: str, line: int, message: str) -> None:
        file = file.encode(errors="replace").decode()  # a name of a file may be no text
        self.fault = SourceFault(kind, file, line, shortened(message, 1_000))
        super().__init__(self.fault.sentence())


class AnnotatedObject(NamedTuple):
    """One object; a value is None or "" if the source lacks it."""

    class_name: str  # "" if the source has only an id, which it does not define
    box: Optional[Sequence[float]] = None  # ymin, xmin, ymax, xmax; None: around the mask
    line: int = 0  # in the file of the image
    class_id: int = 0  # id in the label map, 0 if unknown; it must agree with a name
    area: Optional[float] = None  # in square pixels
    is_crowd: Optional[bool] = None
    difficult: Optional[bool] = None
    group_of: Optional[bool] = None
    score: Optional[float] = None  # confidence, 0 to 1
    polygons: Optional[Sequence[Sequence[float]]] = None  # x, y, x, y, …, in the unit of the box
    run_lengths: Optional[Dict[str, Any]] = None  # COCO's form: "size" and "counts"
    # A PNG file, 0 outside of the object: path below `mask_images`, size, time of the last change.
    mask_file: Optional[Sequence[Any]] = None
    keypoints: Optional[Sequence[float]] = None  # x, y, visibility, …; 0 absent, 1 hidden, 2 seen
    fields: Optional[Dict[str, Any]] = None  # values without a key in records


class AnnotatedImage(NamedTuple):
    """One image and its annotations, all values of JSON."""

    image: str  # path relative to the folder of images; "" if only the faults matter
    file: str  # path of the annotation
    line: int = 0
    source_id: str = ""  # the path if empty
    height: Optional[int] = None  # in pixels, as the source says
    width: Optional[int] = None
    normalized: bool = False  # coordinates are fractions of height and width, not pixels
    objects: Sequence[AnnotatedObject] = ()
    image_classes: Sequence[Tuple[str, float]] = ()  # name and confidence, 1 present, 0 absent
    absent_classes: Sequence[str] = ()  # names, certainly absent
    incomplete_classes: Sequence[str] = ()  # names; some of their objects may lack a box
    faults: Sequence[SourceFault] = ()  # faults of single objects, which are left out
    fields: Optional[Dict[str, Any]] = None  # values without a key in records


@dataclass(frozen=True)
class SourceOptions:
    """The files of a data set; each converter says which of these fields it uses."""

    images: str = ""  # folder; no image outside of it is read
    annotations: str = ""  # file or folder
    classes: str = ""  # file with the names of classes
    image_labels: str = ""  # file with classes of whole images
    segmentations: str = ""  # file that names the mask of each object
    mask_images: str = ""  # folder of these masks; no file outside of it is read
    min_score: Optional[float] = None  # least score of detections
    scratch: str = ""  # existing folder for temporary files; "" for the system's own


class Source(NamedTuple):
    """A data set that is being read."""

    images: Iterable[AnnotatedImage]  # read once
    # Class id -> name, complete when all images are read; None: names of the objects, sorted.
    names: Optional[Dict[int, str]] = None
    dataset: Optional[Dict[str, Any]] = None  # facts about all images, kept beside the records
    total: Optional[int] = None  # images, if known
    # Class name -> names of its keypoints, in the order of `AnnotatedObject.keypoints`
    keypoints: Mapping[str, Sequence[str]] = MappingProxyType({})


def fault_image(error: SourceError) -> AnnotatedImage:
    """An image that only reports why a file or line cannot be used."""
    return AnnotatedImage("", error.fault.file, error.fault.line, faults=[error.fault])


def read_images(
    read: Callable[[Any], AnnotatedImage], parts: Iterable[Any]
) -> Iterable[AnnotatedImage]:
    """The image of each part of a source, or the fault if `read` raises SourceError."""
    for part in parts:
        try:
            yield read(part)
        except SourceError as error:
            yield fault_image(error)


def read_objects(
    read: Callable[[Any], Optional[AnnotatedObject]], parts: Iterable[Any]
) -> Tuple[List[AnnotatedObject], List[SourceFault]]:
    """The objects of an image, and the faults of parts for which `read` raises SourceError."""
    objects: List[AnnotatedObject] = []
    faults: List[SourceFault] = []
    for part in parts:
        try:
            annotated = read(part)
        except SourceError as error:
            faults.append(error.fault)
        else:
            objects += [annotated] if annotated is not None else []
    return objects, faults


def broken(file: str, line: int, message: str) -> SourceError:
    """An annotation that cannot be read."""
    return SourceError("broken_source", file, line, message)


def number(value: Any, file: str, line: int, what: str) -> float:
    """A number from text or JSON; NaN and infinity pass, for the check of boxes."""
    try:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return float(value)
    except (ValueError, OverflowError):  # no number, or an integer beyond all floats
        pass
    raise broken(file, line, f"{what} is {plain(repr(value))}, not a number")


def whole_number(value: Any, file: str, line: int, what: str) -> int:
    """Like `number`, without a fraction."""
    parsed = number(value, file, line, what)
    if parsed != parsed or abs(parsed) > 2**53 or parsed != int(parsed):
        raise broken(file, line, f"{what} is {plain(repr(value))}, not a whole number")
    return int(value) if isinstance(value, int) else int(parsed)


def optional_whole_number(value: Any, file: str, line: int, what: str) -> Optional[int]:
    """Like `whole_number`; None stays None."""
    return None if value is None else whole_number(value, file, line, what)


def numbers(values: Any, file: str, line: int, what: str) -> List[float]:
    """A JSON list of numbers."""
    if not isinstance(values, list):
        raise broken(file, line, f"{what} is {plain(repr(values))}, not a list of numbers")
    return [number(value, file, line, what) for value in values]
