"""Areas, overlaps, similarities and frames of boxes and keypoints, on any leading dimensions."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple

from estimator_det.compat import tf
from estimator_det.config.registry import Registry
from estimator_det.protos import region_similarity_calculator_pb2


def sizes(tensor: tf.Tensor) -> List[Any]:
    """Sizes of all axes, as ints where they are static, else as scalar tensors."""
    dynamic = tf.shape(tensor)
    return [dynamic[axis] if size is None else size for axis, size in enumerate(tensor.shape)]


def area(boxes: tf.Tensor) -> tf.Tensor:
    """Areas: [..., 4] -> [...], in the squared unit of the boxes."""
    ymin, xmin, ymax, xmax = tf.unstack(boxes, num=4, axis=-1)
    return (ymax - ymin) * (xmax - xmin)


def centers_and_sizes(boxes: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Centers and sizes: [..., 4] -> y center, x center, height, width, each [...]."""
    ymin, xmin, ymax, xmax = tf.unstack(boxes, num=4, axis=-1)
    height = ymax - ymin
    width = xmax - xmin
    return ymin + height / 2.0, xmin + width / 2.0, height, width


def from_centers_and_sizes(
    y_center: tf.Tensor, x_center: tf.Tensor, height: tf.Tensor, width: tf.Tensor
) -> tf.Tensor:
    """Builds boxes [..., 4] from centers and sizes, each [...]; inverse of `centers_and_sizes`."""
    half_height, half_width = height / 2.0, width / 2.0
    low = [y_center - half_height, x_center - half_width]
    return tf.stack([*low, y_center + half_height, x_center + half_width], axis=-1)


def intersection(boxes_a: tf.Tensor, boxes_b: tf.Tensor) -> tf.Tensor:
    """Intersection areas of boxes whose leading dimensions broadcast: [..., 4] twice -> [...]."""
    # One plane per coordinate: pairs of (y, x) in a last axis are slower on CPU.
    ymin_a, xmin_a, ymax_a, xmax_a = tf.unstack(boxes_a, num=4, axis=-1)
    ymin_b, xmin_b, ymax_b, xmax_b = tf.unstack(boxes_b, num=4, axis=-1)
    heights = tf.nn.relu(tf.minimum(ymax_a, ymax_b) - tf.maximum(ymin_a, ymin_b))
    widths = tf.nn.relu(tf.minimum(xmax_a, xmax_b) - tf.maximum(xmin_a, xmin_b))
    return heights * widths


def matched_iou(boxes_a: tf.Tensor, boxes_b: tf.Tensor) -> tf.Tensor:
    """Intersection over union, like `intersection`; 0 without overlap, also of empty boxes."""
    common = intersection(boxes_a, boxes_b)
    return tf.math.divide_no_nan(common, area(boxes_a) + area(boxes_b) - common)


def pairwise_iou(boxes_a: tf.Tensor, boxes_b: tf.Tensor) -> tf.Tensor:
    """`matched_iou` of all pairs: [..., N, 4], [..., M, 4] -> [..., N, M].

    Leading dimensions broadcast: boxes [B, G, 4] against anchors [A, 4] give [B, G, A].
    """
    return matched_iou(tf.expand_dims(boxes_a, -2), tf.expand_dims(boxes_b, -3))


def pairwise_ioa(boxes_a: tf.Tensor, boxes_b: tf.Tensor) -> tf.Tensor:
    """Intersection over the area of the *second* box, like `pairwise_iou`; empty ones give 0."""
    columns = tf.expand_dims(boxes_b, -3)
    common = intersection(tf.expand_dims(boxes_a, -2), columns)
    return tf.math.divide_no_nan(common, area(columns))


def pairwise_neg_sq_dist(boxes_a: tf.Tensor, boxes_b: tf.Tensor) -> tf.Tensor:
    """Negated squared distance of the four coordinates: [..., N, 4], [..., M, 4] -> [..., N, M]."""
    # |a - b|^2 = |a|^2 - 2ab + |b|^2: no tensor [N, M, 4] is built.
    product = tf.einsum("...nc,...mc->...nm", boxes_a, boxes_b)
    norms_a = tf.reduce_sum(tf.square(boxes_a), axis=-1)
    norms_b = tf.reduce_sum(tf.square(boxes_b), axis=-1)
    return 2.0 * product - tf.expand_dims(norms_a, -1) - tf.expand_dims(norms_b, -2)


def _area_between(low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """Area between two corners [..., 2], [..., 2] -> [...]; 0 if they are inside out."""
    sides = tf.nn.relu(high - low)
    return sides[..., 0] * sides[..., 1]


def matched_giou(boxes_a: tf.Tensor, boxes_b: tf.Tensor) -> tf.Tensor:
    """Generalized IoU of box pairs: [..., 4], [..., 4] -> [...], within -1..1.

    The IoU minus the share of the smallest enclosing box that neither box covers
    (https://arxiv.org/abs/1902.09630). Boxes that are inside out count as empty.
    """
    low_a, high_a = boxes_a[..., :2], boxes_a[..., 2:]
    low_b, high_b = boxes_b[..., :2], boxes_b[..., 2:]
    common = intersection(boxes_a, boxes_b)
    union = _area_between(low_a, high_a) + _area_between(low_b, high_b) - common
    hull = _area_between(tf.minimum(low_a, low_b), tf.maximum(high_a, high_b))
    iou = tf.math.divide_no_nan(common, union)
    return iou - tf.math.divide_no_nan(hull - union, hull)


def clip_to_window(boxes: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """Cuts boxes [..., 4] to a window; boxes outside it become empty boxes on its border.

    The window broadcasts to the boxes: [4], or for boxes [B, A, 4] also [B, 1, 4].
    """
    low = tf.concat([window[..., :2], window[..., :2]], axis=-1)
    high = tf.concat([window[..., 2:], window[..., 2:]], axis=-1)
    return tf.maximum(tf.minimum(boxes, high), low)


def change_frame(boxes: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """Expresses boxes [..., 4] relative to a window, whose corners become (0, 0) and (1, 1).

    The window broadcasts to the boxes, as in `clip_to_window`; an empty window gives 0.
    """
    origin = window[..., :2]
    size = window[..., 2:] - origin
    return tf.math.divide_no_nan(
        boxes - tf.concat([origin, origin], axis=-1), tf.concat([size, size], axis=-1)
    )


# Similarity of each groundtruth box [..., G, 4] to each anchor [..., A, 4]: [..., G, A], higher is
# closer. A third argument, the class targets of the groundtruth [..., G, C], may be missing.
Similarity = Callable[..., tf.Tensor]

SIMILARITIES: Registry[Callable[[Any], Similarity]] = Registry(
    "region similarity", chosen_by="RegionSimilarityCalculator.region_similarity"
)


def _ignoring_classes(pairwise: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> Similarity:
    return lambda groundtruth, anchors, classes=None: pairwise(groundtruth, anchors)


IOU_SIMILARITY = _ignoring_classes(pairwise_iou)
NEG_SQ_DIST_SIMILARITY = _ignoring_classes(pairwise_neg_sq_dist)

SIMILARITIES.register("iou_similarity")(lambda _: IOU_SIMILARITY)
SIMILARITIES.register("ioa_similarity")(lambda _: _ignoring_classes(pairwise_ioa))
SIMILARITIES.register("neg_sq_dist_similarity")(lambda _: NEG_SQ_DIST_SIMILARITY)


@SIMILARITIES.register("thresholded_iou_similarity")
def _make_thresholded_iou(
    config: region_similarity_calculator_pb2.ThresholdedIouSimilarity,
) -> Similarity:
    """Score of a box if its IoU exceeds `iou_threshold`, else 0.

    The score is 1 minus the first class column, which is the background.
    """
    threshold = config.iou_threshold

    def similarity(
        groundtruth: tf.Tensor, anchors: tf.Tensor, classes: Optional[tf.Tensor] = None
    ) -> tf.Tensor:
        above = tf.cast(pairwise_iou(groundtruth, anchors) > threshold, tf.float32)
        return above if classes is None else above * (1.0 - classes[..., :, :1])

    return similarity


def make_similarity(
    config: region_similarity_calculator_pb2.RegionSimilarityCalculator,
) -> Similarity:
    """Builds the similarity of a `RegionSimilarityCalculator`."""
    return SIMILARITIES.make_chosen(config)
