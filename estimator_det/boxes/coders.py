"""Box coders: boxes as offsets from anchors, which a network regresses.

All coders accept any leading dimensions; anchors [A, 4] broadcast to codes [B, A, code_size].
"""

from __future__ import annotations

import dataclasses
from typing import (
    Any,
    Callable,
    ClassVar,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Protocol,
    Tuple,
    Union,
)

from estimator_det.boxes.geometry import centers_and_sizes, from_centers_and_sizes
from estimator_det.compat import tf
from estimator_det.config.registry import Registry
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.protos import box_coder_pb2, faster_rcnn_box_coder_pb2, keypoint_box_coder_pb2

EPSILON = 1e-8  # keeps divisions and logarithms of empty boxes finite; the API's value


class Decoded(NamedTuple):
    """Decoded codes, in the frame of the anchors."""

    boxes: tf.Tensor  # float32 [..., 4]
    keypoints: Optional[tf.Tensor] = None  # float32 [..., P, 2], y and x


class BoxCoder(Protocol):
    """Encodes boxes relative to anchors, and decodes them."""

    @property
    def code_size(self) -> int:
        """Numbers per box."""

    def encode(
        self, boxes: tf.Tensor, anchors: tf.Tensor, keypoints: Optional[tf.Tensor] = None
    ) -> tf.Tensor:
        """Encodes boxes [..., 4] and, if the coder has them, keypoints [..., P, 2].

        The result for anchors [..., 4] is [..., code_size].
        """

    def decode(self, codes: tf.Tensor, anchors: tf.Tensor) -> Decoded:
        """Decodes [..., code_size], anchors [..., 4] to boxes and, if encoded, keypoints."""


CODERS: Registry[Callable[[Any], BoxCoder]] = Registry(
    "box coder", chosen_by="BoxCoder.box_coder_oneof"
)


@dataclasses.dataclass(frozen=True)
class CenterSizeCoder:
    """Center offsets in anchor sizes and log size ratios: ty, tx, th, tw, each times its scale.

    The coder of Faster R-CNN (https://arxiv.org/abs/1506.01497), `faster_rcnn_box_coder`.
    """

    y_scale: float = 1.0
    x_scale: float = 1.0
    height_scale: float = 1.0
    width_scale: float = 1.0
    code_size: ClassVar[int] = 4

    def encode(
        self, boxes: tf.Tensor, anchors: tf.Tensor, keypoints: Optional[tf.Tensor] = None
    ) -> tf.Tensor:
        del keypoints
        y_anchor, x_anchor, h_anchor, w_anchor = centers_and_sizes(anchors)
        y, x, h, w = centers_and_sizes(boxes)
        # Only anchors get the epsilon before the centers are divided, like in the API.
        h_anchor += EPSILON
        w_anchor += EPSILON
        ty = (y - y_anchor) / h_anchor * self.y_scale
        tx = (x - x_anchor) / w_anchor * self.x_scale
        th = tf.math.log((h + EPSILON) / h_anchor) * self.height_scale
        tw = tf.math.log((w + EPSILON) / w_anchor) * self.width_scale
        return tf.stack([ty, tx, th, tw], axis=-1)

    def decode(self, codes: tf.Tensor, anchors: tf.Tensor) -> Decoded:
        y_anchor, x_anchor, h_anchor, w_anchor = centers_and_sizes(anchors)
        ty, tx, th, tw = tf.unstack(codes, num=4, axis=-1)
        return Decoded(
            from_centers_and_sizes(
                ty / self.y_scale * h_anchor + y_anchor,
                tx / self.x_scale * w_anchor + x_anchor,
                tf.exp(th / self.height_scale) * h_anchor,
                tf.exp(tw / self.width_scale) * w_anchor,
            )
        )


@dataclasses.dataclass(frozen=True)
class KeypointCoder:
    """`CenterSizeCoder` codes followed by ky, kx of every keypoint, coded like box centers."""

    num_keypoints: int
    box_coder: CenterSizeCoder = CenterSizeCoder()  # keypoints have the scales of its centers

    @property
    def code_size(self) -> int:
        return 4 + 2 * self.num_keypoints

    @property
    def _scales(self) -> List[float]:
        return [self.box_coder.y_scale, self.box_coder.x_scale]

    def _frame(self, anchors: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        """Anchor centers and sizes, each [..., 1, 2], y and x."""
        sizes = anchors[..., 2:] - anchors[..., :2]
        centers = anchors[..., :2] + sizes / 2.0
        return centers[..., None, :], sizes[..., None, :]

    def encode(
        self, boxes: tf.Tensor, anchors: tf.Tensor, keypoints: Optional[tf.Tensor] = None
    ) -> tf.Tensor:
        """Encodes boxes [..., 4] and keypoints [..., P, 2], anchors [..., 4]: [..., 4 + 2 P].

        Absent keypoints (NaN) have NaN codes.
        """
        assert keypoints is not None
        centers, sizes = self._frame(anchors)
        codes = (keypoints - centers) / (sizes + EPSILON) * self._scales
        box_codes = self.box_coder.encode(boxes, anchors)
        return tf.concat([box_codes, self._flatten(codes)], axis=-1)

    def _flatten(self, points: tf.Tensor) -> tf.Tensor:
        """Flattens [..., P, 2] to [..., 2 P]."""
        # Not tf.reshape, which would lose the static size if a leading dimension is unknown.
        planes = tf.unstack(points, num=self.num_keypoints, axis=-2)
        return tf.concat(planes, axis=-1)

    def decode(self, codes: tf.Tensor, anchors: tf.Tensor) -> Decoded:
        centers, sizes = self._frame(anchors)
        points = tf.stack(tf.split(codes[..., 4:], self.num_keypoints, axis=-1), axis=-2)
        keypoints = points / self._scales * sizes + centers
        return Decoded(self.box_coder.decode(codes[..., :4], anchors).boxes, keypoints)


@dataclasses.dataclass(frozen=True)
class SquareCoder:
    """Center offsets and one log length ratio: ty, tx, tl; decodes to squares.

    Lengths are the square roots of areas, of boxes and anchors alike.
    """

    y_scale: float = 1.0
    x_scale: float = 1.0
    length_scale: float = 1.0
    code_size: ClassVar[int] = 3

    def encode(
        self, boxes: tf.Tensor, anchors: tf.Tensor, keypoints: Optional[tf.Tensor] = None
    ) -> tf.Tensor:
        del keypoints
        y_anchor, x_anchor, h_anchor, w_anchor = centers_and_sizes(anchors)
        y, x, h, w = centers_and_sizes(boxes)
        length_anchor = tf.sqrt(h_anchor * w_anchor) + EPSILON
        length = tf.sqrt(h * w) + EPSILON
        ty = (y - y_anchor) / length_anchor * self.y_scale
        tx = (x - x_anchor) / length_anchor * self.x_scale
        tl = tf.math.log(length / length_anchor) * self.length_scale
        return tf.stack([ty, tx, tl], axis=-1)

    def decode(self, codes: tf.Tensor, anchors: tf.Tensor) -> Decoded:
        y_anchor, x_anchor, h_anchor, w_anchor = centers_and_sizes(anchors)
        ty, tx, tl = tf.unstack(codes, num=3, axis=-1)
        length_anchor = tf.sqrt(h_anchor * w_anchor)
        length = tf.exp(tl / self.length_scale) * length_anchor
        y = ty / self.y_scale * length_anchor + y_anchor
        x = tx / self.x_scale * length_anchor + x_anchor
        return Decoded(from_centers_and_sizes(y, x, length, length))


@dataclasses.dataclass(frozen=True)
class CornerCoder:
    """Differences of the four coordinates in units of one standard deviation.

    The coder of Multibox detectors (https://arxiv.org/abs/1312.2249), `mean_stddev_box_coder`.
    """

    stddev: float = 0.01
    code_size: ClassVar[int] = 4

    def encode(
        self, boxes: tf.Tensor, anchors: tf.Tensor, keypoints: Optional[tf.Tensor] = None
    ) -> tf.Tensor:
        del keypoints
        return (boxes - anchors) / self.stddev

    def decode(self, codes: tf.Tensor, anchors: tf.Tensor) -> Decoded:
        return Decoded(codes * self.stddev + anchors)


def _make_center_size(
    config: Union[
        faster_rcnn_box_coder_pb2.FasterRcnnBoxCoder, keypoint_box_coder_pb2.KeypointBoxCoder
    ],
) -> CenterSizeCoder:
    return CenterSizeCoder(config.y_scale, config.x_scale, config.height_scale, config.width_scale)


@rules(keypoint_box_coder_pb2.KeypointBoxCoder)
def _check_keypoints(config: keypoint_box_coder_pb2.KeypointBoxCoder, at: str) -> Iterator[Problem]:
    if not config.num_keypoints:
        yield error(f"{at}.num_keypoints", "must be 1 or more", "set it")


@CODERS.register("keypoint_box_coder")
def _make_keypoint(config: keypoint_box_coder_pb2.KeypointBoxCoder) -> BoxCoder:
    return KeypointCoder(config.num_keypoints, _make_center_size(config))


CODERS.register("faster_rcnn_box_coder")(_make_center_size)
CODERS.register("square_box_coder")(
    lambda config: SquareCoder(config.y_scale, config.x_scale, config.length_scale)
)
CODERS.register("mean_stddev_box_coder")(lambda config: CornerCoder(config.stddev))


def code_size(config: box_coder_pb2.BoxCoder) -> int:
    """Numbers of a box code; 0 if no coder is chosen."""
    return make_box_coder(config).code_size if config.WhichOneof("box_coder_oneof") else 0


def make_box_coder(config: box_coder_pb2.BoxCoder) -> BoxCoder:
    """Builds the coder of a `BoxCoder` message."""
    return CODERS.make_chosen(config)
