"""Heads of CenterNet, small stacks of convolutions on each feature map, and sums of their losses.

Letters in shapes of this package: B images, h x w pixels of a feature map, G groundtruth boxes, N
detections, K classes, P keypoints of a task. Coordinates are y and x in pixels of the map.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, NamedTuple, Sequence, Tuple

from estimator_det.boxes.geometry import sizes
from estimator_det.boxes.heatmaps import real_pixels, values_at
from estimator_det.compat import slim, tf, tf1
from estimator_det.detectors.base import Groundtruth
from estimator_det.extractors.center_net.registry import STRIDE
from estimator_det.images.resize import Length, height_and_width
from estimator_det.losses.classification import ClassificationLoss
from estimator_det.losses.localization import LocalizationLoss
from estimator_det.nets.layers import conv2d, separable_conv2d
from estimator_det.nets.object_paths import Paths, functional, nested
from estimator_det.protos import center_net_pb2

SCOPE = "PredictionHeads"
_FILTERS, _KERNEL = 256, 3  # the one hidden layer that a head has by default

HeadMaps = Dict[str, Tuple[tf.Tensor, ...]]  # by head, float32 [B, h, w, C] of each feature map


@dataclass(frozen=True)
class Head:
    """A stack of convolutions with ReLU, and a last 1x1 convolution."""

    name: str  # name in losses and checkpoints, e.g. "box/scale"
    num_channels: int
    layers: Tuple[Tuple[int, int], ...] = ((_FILTERS, _KERNEL),)  # filters and kernel sizes
    bias: float = 0.0  # initial bias of the last convolution
    use_depthwise: bool = False  # split the convolutions before the last one

    def predict(self, features: tf.Tensor, number: int) -> tf.Tensor:
        """Computes float32 [B, h, w, num_channels] from the feature map with this number."""
        net = features
        with (
            tf1.variable_scope(f"{SCOPE}/{self.name}/{number}"),
            slim.arg_scope(
                [slim.conv2d, slim.separable_conv2d],
                weights_initializer=slim.xavier_initializer(),
                activation_fn=tf.nn.relu,
            ),
        ):
            convolve = separable_conv2d if self.use_depthwise else conv2d
            for place, (filters, kernel) in enumerate(self.layers):
                net = convolve(net, filters, kernel, scope=f"layer_{place}")
            bias = tf1.constant_initializer(self.bias)
            net = conv2d(
                net,
                self.num_channels,
                1,
                activation_fn=None,
                biases_initializer=bias,
                scope=f"layer_{len(self.layers)}",
            )
        return tf.cast(net, tf.float32)


def make_head(
    name: str,
    num_channels: int,
    params: center_net_pb2.CenterNet.PredictionHeadParams,
    *,
    use_depthwise: bool,
    bias: float = 0.0,
) -> Head:
    """Builds a head with the layers of a `PredictionHeadParams` message."""
    layers = tuple(zip(params.num_filters, params.kernel_sizes)) or Head.layers
    return Head(name, num_channels, layers, bias, use_depthwise)


def object_paths(scopes: Sequence[str]) -> Paths:
    """Paths of the heads' layers in object-based checkpoints; see `nets.object_paths`."""
    layers: Dict[str, list[str]] = {}
    for scope in scopes:
        if scope.startswith(f"{SCOPE}/"):
            layers.setdefault(scope.rpartition("/")[0], []).append(scope)
    paths: Paths = {}
    for parent, names in layers.items():
        head, _, number = parent.removeprefix(f"{SCOPE}/").rpartition("/")
        escaped = head.replace("/", ".S")
        paths.update(nested(f"model/_prediction_head_dict/{escaped}/{number}", functional(names)))
    return paths


class Scene(NamedTuple):
    """Groundtruth on the pixels of the feature maps."""

    groundtruth: Groundtruth
    weights: tf.Tensor  # float32 [B, G], 0 for padding and images without annotation
    pixel_weights: tf.Tensor  # float32 [B, h, w], 0 beyond the real image
    scale: tf.Tensor  # float32 [2], height and width of the images in pixels of the map

    @property
    def boxes(self) -> tf.Tensor:
        """Boxes, float32 [B, G, 4], in pixels of the map."""
        return self.groundtruth.boxes * tf.tile(self.scale, [2])

    @property
    def size(self) -> Tuple[Length, Length]:
        """Height and width of the map."""
        return height_and_width(self.pixel_weights)


def make_scene(
    inputs: tf.Tensor, true_shapes: tf.Tensor, feature_map: tf.Tensor, groundtruth: Groundtruth
) -> Scene:
    """Puts groundtruth, normalized to inputs [B, H, W, 3], on a feature map [B, h, w, C]."""
    weights = tf.where(groundtruth.valid, groundtruth.weights, 0.0)
    pixel_weights = real_pixels(true_shapes, height_and_width(feature_map), STRIDE)
    if groundtruth.is_annotated is not None:
        annotated = tf.cast(groundtruth.is_annotated, tf.float32)
        weights *= annotated[:, tf.newaxis]
        pixel_weights *= annotated[:, tf.newaxis, tf.newaxis]
    scale = tf.cast(tf.stack(height_and_width(inputs)), tf.float32) / STRIDE
    return Scene(groundtruth, weights, pixel_weights, scale)


def heatmap_loss(
    loss: ClassificationLoss,
    logits: Sequence[tf.Tensor],  # float32 [B, h, w, C] of each feature map
    targets: tf.Tensor,  # float32 [B, h, w, C]
    weights: tf.Tensor,  # float32 [B, h, w, C or 1]
) -> tf.Tensor:
    """Sum over pixels, channels and images of a loss, the mean of all feature maps."""

    def rows(maps: tf.Tensor) -> tf.Tensor:
        return tf.reshape(maps, [sizes(maps)[0], -1, maps.shape[3]])

    sums = [tf.reduce_sum(loss(rows(maps), rows(targets), rows(weights))) for maps in logits]
    return tf.add_n(sums) / len(sums)


def vector_loss(
    loss: LocalizationLoss,
    maps: Sequence[tf.Tensor],  # float32 [B, h, w, C] of each feature map
    pixels: tf.Tensor,  # int32 [B, ..., 2], y and x
    targets: tf.Tensor,  # float32 [B, ..., C], or [B, ..., C / 2, 2]
    weights: tf.Tensor,  # float32, of targets without their last axis
) -> tf.Tensor:
    """Sum over pixels and images of a loss of the vectors at pixels, the mean of all maps."""
    batch = sizes(targets)[0]
    expected = tf.reshape(targets, [batch, -1, targets.shape[-1]])
    rows = tf.reshape(weights, [batch, -1])
    sums = [
        tf.reduce_sum(
            loss(
                tf.reshape(values_at(each, pixels[..., 0], pixels[..., 1]), tf.shape(expected)),
                expected,
                rows,
            )
        )
        for each in maps
    ]
    return tf.add_n(sums) / len(sums)
