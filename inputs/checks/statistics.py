"""Statistics of a data set: sizes, shapes and classes of images and boxes, with NumPy alone.

Each process collects `Columns` of its images. They are joined in a fixed order, so that the numbers
do not depend on timing. Letters: N images, M boxes.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from inputs.datasets.source import SourceFault

FINE_SIDES = np.geomspace(2, 2048, 41)  # pixels
NUM_EXAMPLES = 3  # faults of a kind that a report shows

SizeRule = Callable[[int, int], Tuple[int, int]]  # height and width -> height and width

# Counts as JSON keeps them: numbers, lists of numbers and dictionaries of them. Tallies of parts of
# the data add up, and need no more memory for more images.
Tally = Dict[str, Any]


class Columns(NamedTuple):
    """The images and boxes of some records: a row for each image, and a row for each box."""

    sizes: np.ndarray  # int32 [N, 2], height and width in pixels
    source_ids: List[str]  # one for each image
    images: np.ndarray  # int64 [M], the row of each box's image
    boxes: np.ndarray  # float32 [M, 4], yxyx normalized to the image
    class_ids: np.ndarray  # int32 [M]
    contents: np.ndarray  # int64 [N], equal for images with the same bytes; 0: not known

    @property
    def num_images(self) -> int:
        return len(self.sizes)

    @property
    def num_boxes(self) -> int:
        return len(self.boxes)


class Scale(NamedTuple):
    """Ranges of a quantity; boxes or images are counted in each."""

    title: str
    unit: str  # name of the counted things
    names: Tuple[str, ...]  # one for each range
    edges: Tuple[float, ...]  # between the ranges; each edge belongs to the range above

    def histogram(self, values: np.ndarray) -> np.ndarray:
        """Values of the quantity -> int64, number of values in each range."""
        return np.bincount(np.digitize(values, self.edges), minlength=len(self.names))


def _range_names(lowest: Sequence[Any], highest: Sequence[Any]) -> Tuple[str, ...]:
    inner = (f"{low} to {high}" for low, high in zip(lowest, highest))
    return f"below {lowest[0]}", *inner, f"{lowest[-1]} and above"


_RATIOS = ("1:5", "1:3", "1:2", "4:5", "5:4", "2:1", "3:1", "5:1")
_SIDES = (100, 200, 300, 400, 500, 640, 800, 1024, 1400, 2048, 4096)
_AREA_NAMES = ("small (<32²)", "medium", "large (≥96²)")
_AREA_EDGES = (32.0**2, 96.0**2)  # COCO's
SCALES = {
    "areas": Scale("area of boxes in the records, pixels", "boxes", _AREA_NAMES, _AREA_EDGES),
    "resized": Scale("area of boxes after resizing, pixels", "boxes", _AREA_NAMES, _AREA_EDGES),
    "ratios": Scale(
        "aspect ratio of boxes, width : height",
        "boxes",
        _range_names(_RATIOS, _RATIOS[1:]),
        (1 / 5, 1 / 3, 1 / 2, 4 / 5, 5 / 4, 2.0, 3.0, 5.0),
    ),
    "counts": Scale(
        "boxes per image",
        "images",
        ("0", "1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65-128", ">128"),
        (1, 2, 3, 5, 9, 17, 33, 65, 129),
    ),
    "sides": Scale(
        "longer side of images, pixels",
        "images",
        _range_names(_SIDES, [side - 1 for side in _SIDES[1:]]),
        _SIDES,
    ),
}


class ImageRow(NamedTuple):
    """Values of one image."""

    size: Tuple[int, int]  # height and width in pixels
    source_id: str
    boxes: Any  # [n, 4], yxyx normalized
    class_ids: Any  # [n]
    content: int = 0  # see `Columns.contents`


def columns_of(rows: Sequence[ImageRow]) -> Columns:
    """The columns of some images, in their order."""
    boxes = [np.asarray(row.boxes, np.float32).reshape(-1, 4) for row in rows]
    class_ids = [np.asarray(row.class_ids, np.int32).reshape(-1) for row in rows]
    return Columns(
        sizes=np.asarray([row.size for row in rows], np.int32).reshape(-1, 2),
        source_ids=[row.source_id for row in rows],
        images=np.repeat(np.arange(len(rows)), np.asarray([len(x) for x in boxes], np.int64)),
        boxes=np.concatenate([np.zeros([0, 4], np.float32), *boxes]),
        class_ids=np.concatenate([np.zeros([0], np.int32), *class_ids]),
        contents=np.asarray([row.content for row in rows], np.int64),
    )


def join(parts: Sequence[Columns]) -> Columns:
    """The rows of all parts, in their order."""
    parts = [columns_of([]), *parts]
    starts = np.cumsum([0, *(part.num_images for part in parts)])
    return Columns(
        sizes=np.concatenate([part.sizes for part in parts]),
        source_ids=[name for part in parts for name in part.source_ids],
        images=np.concatenate([part.images + start for part, start in zip(parts, starts)]),
        boxes=np.concatenate([part.boxes for part in parts]),
        class_ids=np.concatenate([part.class_ids for part in parts]),
        contents=np.concatenate([part.contents for part in parts]),
    )


def first_boxes(columns: Columns, max_boxes: int) -> Columns:
    """Only the first `max_boxes` boxes of each image, as in training."""
    keep = ranks(columns) < max_boxes
    return columns._replace(
        images=columns.images[keep], boxes=columns.boxes[keep], class_ids=columns.class_ids[keep]
    )


def ranks(columns: Columns) -> np.ndarray:
    """int64 [M]: number of earlier boxes in the image of each box."""
    counts = boxes_per_image(columns)
    starts = np.cumsum(counts) - counts
    return np.arange(columns.num_boxes) - starts[columns.images]


def boxes_per_image(columns: Columns) -> np.ndarray:
    """int64 [N]."""
    return np.bincount(columns.images, minlength=columns.num_images)


def resized(sizes: np.ndarray, rule: SizeRule) -> np.ndarray:
    """Applies a rule to heights and widths [N, 2]; calls it once for each distinct size."""
    unique, back = np.unique(sizes, axis=0, return_inverse=True)
    new = [rule(int(height), int(width)) for height, width in unique]
    return np.asarray(new, np.int64).reshape(-1, 2)[back.reshape(-1)]


def box_sizes(columns: Columns, sizes: Optional[np.ndarray] = None) -> np.ndarray:
    """float32 [M, 2]: heights and widths of boxes in pixels, of images of `sizes` int [N, 2]."""
    sizes = columns.sizes if sizes is None else sizes
    scale = sizes[columns.images].astype(np.float32)
    return (columns.boxes[:, 2:] - columns.boxes[:, :2]) * scale


def area_classes(pixels: np.ndarray) -> np.ndarray:
    """Heights and widths [M, 2] -> 0 for small, 1 for medium, 2 for large."""
    return np.digitize(np.prod(pixels, axis=1), _AREA_EDGES)


def fine_sides(pixels: np.ndarray) -> np.ndarray:
    """Heights and widths [M, 2] -> boxes by the root of their area, in bins of `FINE_SIDES`."""
    sides = np.sqrt(np.maximum(np.prod(pixels, axis=1), 0))
    return np.histogram(np.clip(sides, FINE_SIDES[0], FINE_SIDES[-1]), FINE_SIDES)[0]


def centres(boxes: np.ndarray, cells: int) -> np.ndarray:
    """Boxes [M, 4] -> [cells, cells], number of centres of boxes in each part of the image."""
    middle = np.clip((boxes[:, :2] + boxes[:, 2:]) / 2, 0, 1)
    return np.histogram2d(middle[:, 0], middle[:, 1], bins=cells, range=[[0, 1], [0, 1]])[0]


def aspect_ratios(pixels: np.ndarray) -> np.ndarray:
    """Width over height of [M, 2]; infinite without height."""
    heights, widths = pixels[:, 0].astype(float), pixels[:, 1].astype(float)
    return np.divide(widths, heights, out=np.full(len(pixels), np.inf), where=heights > 0)


def common_sizes(sizes: np.ndarray) -> List[Tuple[Tuple[int, int], int]]:
    """((height, width), images) of every size, the most frequent first."""
    unique, counts = np.unique(sizes, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [((int(unique[i][0]), int(unique[i][1])), int(counts[i])) for i in order]


def class_counts(columns: Columns) -> Dict[int, Tuple[int, int]]:
    """Class id -> its boxes, and the images that have any; by rising id."""
    boxes = dict(zip(*(x.tolist() for x in np.unique(columns.class_ids, return_counts=True))))
    pairs = np.unique(np.stack([columns.images, columns.class_ids], axis=1), axis=0)
    ids, images = np.unique(pairs[:, 1], return_counts=True)
    return {int(identifier): (boxes[int(identifier)], int(n)) for identifier, n in zip(ids, images)}


def repeated_ids(columns: Columns) -> Dict[str, List[int]]:
    """Source id -> rows of the images that share it, if several do; empty ids do not count."""
    rows: Dict[str, List[int]] = {}
    for row, name in enumerate(columns.source_ids):
        if name:
            rows.setdefault(name, []).append(row)
    return {name: places for name, places in rows.items() if len(places) > 1}


def copies(columns: Columns) -> List[Tuple[int, int]]:
    """(row, first row) of each image that has the content of an earlier one."""
    first: Dict[int, int] = {}
    pairs = []
    for row, content in enumerate(columns.contents.tolist()):
        if content and first.setdefault(content, row) != row:
            pairs.append((row, first[content]))
    return pairs


def count_columns(columns: Columns, resized_boxes: Optional[np.ndarray] = None) -> Tally:
    """The counts of some images; `resized_boxes` are heights and widths [M, 2] after resizing."""
    pixels, boxes = box_sizes(columns), boxes_per_image(columns)
    values = {
        "areas": np.prod(pixels, axis=1),
        "ratios": aspect_ratios(pixels),  # without height as widest
        "counts": boxes,
        "sides": columns.sizes.max(axis=1, initial=0),
    }
    if resized_boxes is not None:
        values["resized"] = np.prod(resized_boxes, axis=1)
    return {
        "images": columns.num_images,
        "boxes": columns.num_boxes,
        "images_without_boxes": int((boxes == 0).sum()),
        "classes": {str(i): list(numbers) for i, numbers in class_counts(columns).items()},
        **{key: SCALES[key].histogram(x).tolist() for key, x in values.items()},
    }


def count_faults(faults: Iterable[SourceFault], tally: Optional[Tally] = None) -> Tally:
    """Kind and action with a space between -> number of faults, and the first as sentences.

    They are added to `tally`, if there is one.
    """
    tally = {} if tally is None else tally
    for fault in faults:
        row = tally.setdefault(f"{fault.kind} {fault.action}", {"count": 0, "examples": []})
        row["count"] += 1
        if len(row["examples"]) < NUM_EXAMPLES:
            row["examples"].append(fault.sentence())
    return tally


def add_tallies(tallies: Sequence[Any]) -> Any:
    """The sum of numbers, lists of numbers, and dictionaries key by key; examples are joined."""
    first = tallies[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for each in tallies for key in each)
        return {key: add_tallies([each[key] for each in tallies if key in each]) for key in keys}
    if isinstance(first, list):
        if any(isinstance(value, str) for each in tallies for value in each):
            return [value for each in tallies for value in each][:NUM_EXAMPLES]
        return [sum(values) for values in zip(*tallies)]
    return sum(tallies)
