"""Coverage of groundtruth boxes by the anchors of a detector, before any training.

The boxes are resized and padded by the detector's resizer and matched to its anchors by its own
similarity and matcher: the result is the same as in training without augmentation. Letters: M
boxes, A anchors, S distinct shapes of anchors.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from estimator_det.boxes.geometry import pairwise_iou
from estimator_det.compat import tf, tf1
from estimator_det.detectors.ssd import SsdDetector
from estimator_det.detectors.two_stage.faster_rcnn import FasterRcnnDetector
from inputs.checks.statistics import Columns, boxes_per_image, ranks, resized
from model_fn.evaluation.metrics.overlaps import box_iou

PAIRS_AT_ONCE = 8_000_000  # box and anchor; bounds memory to some hundred megabytes
# Height and width of the network's input -> heights and widths of its feature maps.
MapSizes = Dict[Tuple[int, int], List[Tuple[int, int]]]

SHAPE_DECIMALS = 2  # hundredths of a pixel: anchors of one shape differ by rounding only

# Why no anchor is similar enough to a box.
SMALL, LARGE, ELONGATED, BETWEEN = "too small", "too large", "too elongated", "between anchors"


class MapAnchors(NamedTuple):
    """The anchors of one feature map, and how well they fit the boxes."""

    size: Tuple[int, int]  # height and width of the map
    num_anchors: int
    shapes: np.ndarray  # float32 [S, 2], distinct heights and widths in pixels
    num_best: int = 0  # boxes that have their best anchor here
    mean_iou: float = 0.0  # mean over these boxes; 0 if there are none


class Coverage(NamedTuple):
    """Fit of the anchors to each box."""

    pixels: np.ndarray  # float32 [M, 2], height and width in the network's input
    class_ids: np.ndarray  # int32 [M]
    best_iou: np.ndarray  # float32 [M]
    num_anchors: np.ndarray  # int64 [M], anchors that learn the box
    below: np.ndarray  # bool [M], no anchor reaches the matcher's threshold
    reasons: Dict[str, np.ndarray]  # bool [M] each; together they are `below`
    maps: List[MapAnchors]
    input_sizes: List[Tuple[int, int]]  # heights and widths of the network's input that occur
    threshold: Optional[float]  # threshold of the matcher; None if it has none
    forced: bool  # whether the matcher gives each box its best anchor all the same
    poor: np.ndarray  # bool [M], even the best anchor is so dissimilar that it is background
    background: Optional[float]  # similarity below which it is; None if the matcher has none
    num_left_out: int = 0  # anchors across the border, on inputs of the first size

    @property
    def lost(self) -> np.ndarray:
        """Boxes that no anchor learns: bool [M]."""
        return self.num_anchors == 0

    @property
    def stride(self) -> float:
        """Pixels between the cells of the finest feature map."""
        return min(self.input_sizes[0][0] / level.size[0] for level in self.maps)

    def shares(self, rows: np.ndarray) -> Dict[int, float]:
        """Class id -> share of its boxes that are in `rows`, bool [M]; the largest share first."""
        ids = np.unique(self.class_ids).tolist()
        shares = {i: float(rows[self.class_ids == i].mean()) for i in ids}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))


class _Layout(NamedTuple):
    """The anchors on network inputs of one size."""

    anchors: np.ndarray  # float32 [A, 4], normalized, by map
    maps: List[MapAnchors]
    num_left_out: int = 0  # anchors of these maps that training leaves out


# Best anchor of a box: IoU, similarity, feature map, number of anchors that learn the box.
_BEST = np.dtype([("iou", "f4"), ("similarity", "f4"), ("map", "i8"), ("num_anchors", "i8")])


def _assigner(detector: Any) -> Any:
    """Matches anchors to groundtruth; None if the detector has none that `measure` supports."""
    if isinstance(detector, FasterRcnnDetector):  # The first of the stages has the anchors.
        return detector.rpn_loss.assigner
    return detector.losses.assigner if isinstance(detector, SsdDetector) else None


def has_anchors(detector: Any) -> bool:
    """True if a detector matches anchors to groundtruth in a way that `measure` supports."""
    return _assigner(detector) is not None


def measure(
    detector: Any,
    columns: Columns,
    *,
    num_channels: int = 3,
    advance: Callable[[int], Any] = lambda images: None,
    map_sizes: Optional[MapSizes] = None,
) -> Coverage:
    """Matches all boxes to the anchors of a detector.

    Args:
        detector: A detector that `has_anchors` accepts.
        columns: The images and boxes, each image with as many boxes as training takes.
        advance: Called with the number of images done since the last call.
        map_sizes: Sizes of maps of this network that are known already; others are added.
    """
    map_sizes = {} if map_sizes is None else map_sizes
    resizer, assigner = detector.preprocess.resizer, _assigner(detector)
    generate = _anchors_of_maps if isinstance(detector, SsdDetector) else _anchors_of_first_stage
    input_sizes, boxes, pixels = _in_network_input(columns, resizer)
    sizes, kinds = np.unique(input_sizes, axis=0, return_inverse=True)
    kinds = kinds.reshape(-1)
    counts, best = boxes_per_image(columns), np.zeros(len(boxes), _BEST)
    layouts: Dict[Tuple[int, int], _Layout] = {}
    for kind, (height, width) in enumerate(sizes.tolist()):
        layouts[height, width] = layout = generate(detector, height, width, num_channels, map_sizes)
        for chunk in _chunks(np.flatnonzero(kinds == kind), counts, len(layout.anchors)):
            if counts[chunk].any():
                _match(best, assigner, layout, columns, boxes, chunk)
            advance(len(chunk))
    first = next(iter(layouts.values()), _Layout(np.zeros([0, 4]), []))

    matcher = assigner.matcher
    threshold = getattr(matcher, "matched_threshold", None)
    unmatched = getattr(matcher, "unmatched_threshold", None)
    below = np.zeros(len(boxes), bool) if threshold is None else best["similarity"] < threshold
    shapes = _distinct([level.shapes for layout in layouts.values() for level in layout.maps])
    return Coverage(
        pixels=pixels,
        class_ids=columns.class_ids,
        best_iou=best["iou"],
        num_anchors=best["num_anchors"],
        below=below,
        reasons=_reasons(pixels, below, shapes, threshold or 0.0),
        # Sizes and shapes belong to the first input size.
        maps=[
            _with_ious(level, best["iou"][best["map"] == number])
            for number, level in enumerate(first.maps)
        ],
        input_sizes=list(layouts),
        threshold=threshold,
        forced=bool(getattr(matcher, "force_match_for_each_row", True)),
        poor=below if unmatched is None else best["similarity"] < unmatched,
        background=threshold if unmatched is None else unmatched,
        num_left_out=first.num_left_out,
    )


def _in_network_input(columns: Columns, resizer: Any) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sizes of the network's input for each image, its normalized boxes, and their sizes in pixels.

    All are by height and width: [images, 2], [M, 4] and [M, 2].
    """
    inner = resized(columns.sizes, resizer.new_size)
    outer = inner if resizer.padded_size is None else resized(inner, resizer.padded_size)
    share = (inner / np.maximum(outer, 1)).astype(np.float32)
    boxes = columns.boxes * np.tile(share[columns.images], 2)
    pixels = (boxes[:, 2:] - boxes[:, :2]) * outer[columns.images].astype(np.float32)
    return outer, boxes, pixels


def _with_ious(level: MapAnchors, ious: np.ndarray) -> MapAnchors:
    return level._replace(num_best=len(ious), mean_iou=float(ious.mean()) if len(ious) else 0.0)


def _match(
    best: np.ndarray,
    assigner: Any,
    layout: _Layout,
    columns: Columns,
    boxes: np.ndarray,
    chunk: np.ndarray,
) -> None:
    """Sets `best` of the boxes in a chunk of images, indices [N] of images of the layout's size."""
    row_of = np.full(columns.num_images, -1)
    row_of[chunk] = np.arange(len(chunk))
    here = np.flatnonzero(row_of[columns.images] >= 0)
    place = (row_of[columns.images[here]], ranks(columns)[here])
    width = int(place[1].max()) + 1
    padded = np.zeros([len(chunk), width, 4], np.float32)
    valid = np.zeros([len(chunk), width], bool)
    padded[place], valid[place] = boxes[here], True
    padded, anchors = tf.constant(padded), tf.constant(layout.anchors)
    similarity = assigner.similarity(padded, anchors)
    matches = assigner.matcher(similarity, valid, valid).numpy()
    row_of_match, _ = np.nonzero(matches >= 0)
    matched = np.bincount(
        row_of_match * width + matches[matches >= 0], minlength=len(chunk) * width
    ).reshape(len(chunk), width)
    map_of = np.repeat(np.arange(len(layout.maps)), [level.num_anchors for level in layout.maps])
    best["iou"][here] = tf.reduce_max(pairwise_iou(padded, anchors), axis=2).numpy()[place]
    best["similarity"][here] = tf.reduce_max(similarity, axis=2).numpy()[place]
    best["map"][here] = map_of[tf.argmax(similarity, axis=2).numpy()[place]]
    best["num_anchors"][here] = matched[place]


def _centred(sizes: np.ndarray) -> np.ndarray:
    """Heights and widths [n, 2] -> boxes around the origin."""
    return np.concatenate([-sizes, sizes], axis=1) / 2


def _anchors_of_first_stage(
    detector: Any, height: int, width: int, num_channels: int, map_sizes: MapSizes
) -> _Layout:
    """Anchors of a first stage, as training uses them; builds no network.

    A network takes seconds to build, and images of a data set have hundreds of sizes.
    """
    del num_channels, map_sizes
    rpn, generator = detector.rpn, detector.rpn.anchor_generator
    sizes = detector.extractor.map_sizes(height, width)
    window = tf.constant([0.0, 0.0, height, width])
    anchors, kept = (np.asarray(each) for each in rpn.generate_anchors(sizes, window))
    numbers = generator.num_per_location
    counts = [rows * columns * number for (rows, columns), number in zip(sizes, numbers)]
    rows_of_anchors = kept if rpn.drops_crossing else np.arange(sum(counts))
    ends = np.searchsorted(rows_of_anchors, np.cumsum(counts))[:-1]
    # Not the shapes of the anchors: clipped ones fit no box elsewhere.
    everywhere = np.asarray(generator.generate([(1, 1)] * len(sizes), (1, 1)))
    candidates = np.split(anchors, ends)
    if not rpn.drops_crossing:
        candidates = np.split(everywhere, np.cumsum(numbers)[:-1])
    return _Layout(
        anchors=anchors / np.asarray([height, width] * 2, np.float32),
        maps=[
            MapAnchors(size, len(members), _distinct([shapes[:, 2:] - shapes[:, :2]]))
            for size, members, shapes in zip(sizes, np.split(anchors, ends), candidates)
        ],
        num_left_out=sum(counts) - len(anchors),
    )


def _anchors_of_maps(
    detector: Any, height: int, width: int, num_channels: int, map_sizes: MapSizes
) -> _Layout:
    """Anchors of a single-shot detector."""
    if (height, width) not in map_sizes:
        map_sizes[height, width] = _sizes_of_maps(detector, height, width, num_channels)
    counts = detector.anchor_generator.num_per_location
    sizes = map_sizes[height, width][: len(counts)]
    anchors = np.asarray(detector.anchor_generator.generate(sizes, (height, width)))
    pixels = (anchors[:, 2:] - anchors[:, :2]) * np.asarray([height, width], np.float32)
    levels, start = [], 0
    for (rows, columns), number in zip(sizes, counts):
        end = start + rows * columns * number
        levels.append(MapAnchors((rows, columns), end - start, _distinct([pixels[start:end]])))
        start = end
    return _Layout(anchors, levels)


def _sizes_of_maps(
    detector: Any, height: int, width: int, num_channels: int
) -> List[Tuple[int, int]]:
    """Builds the network below its heads to get its feature maps; runs nothing."""
    with tf.Graph().as_default(), tf1.variable_scope("Sizes", reuse=tf1.AUTO_REUSE):
        image = tf1.placeholder(tf.float32, [1, height, width, num_channels])
        if detector.preprocess.resizer.grayscale:
            image = image[..., :1]
        return [tuple(maps.shape[1:3].as_list()) for maps in detector.extractor.extract(image)]


def _distinct(shapes: List[np.ndarray]) -> np.ndarray:
    together = np.concatenate([np.zeros([0, 2], np.float32), *shapes])
    return np.unique(np.round(together, SHAPE_DECIMALS), axis=0)


def _chunks(rows: np.ndarray, counts: np.ndarray, num_anchors: int) -> List[np.ndarray]:
    """Images in groups whose padded pairs of box and anchor stay below `PAIRS_AT_ONCE`."""
    # Images with similar numbers of boxes share a chunk, for little padding.
    rows = rows[np.argsort(counts[rows], kind="stable")]
    starts: List[int] = []
    for place, row in enumerate(rows):
        images = place + 1 - starts[-1] if starts else 0
        if not starts or images * max(counts[row], 1) * num_anchors > PAIRS_AT_ONCE:
            starts.append(place)
    return np.split(rows, starts[1:]) if starts else []


def _reasons(
    pixels: np.ndarray, below: np.ndarray, shapes: np.ndarray, threshold: float
) -> Dict[str, np.ndarray]:
    """Divides the boxes that are `below` by the cause."""
    reasons = {name: np.zeros(len(below), bool) for name in (SMALL, LARGE, ELONGATED, BETWEEN)}
    rows = np.flatnonzero(below)
    if not len(rows) or not len(shapes):
        return reasons
    # Centred on the box, some anchor would match: only the anchors' places prevent it.
    fits = box_iou(_centred(pixels[rows]), _centred(shapes)).max(axis=1) >= threshold
    areas, box_areas = np.prod(shapes, axis=1), np.prod(pixels[rows], axis=1)
    # Even an anchor of the same aspect ratio, with the box inside, has no more than this IoU.
    small = ~fits & (box_areas < areas.min() * threshold)
    large = ~fits & (box_areas * threshold > areas.max())
    for name, mask in zip(reasons, (small, large, ~fits & ~small & ~large, fits)):
        reasons[name][rows[mask]] = True
    return reasons
