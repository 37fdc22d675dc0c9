"""Keypoints of the objects of one class: their heads, losses and detections.

A keypoint is regressed from the center of its object, and replaced by the nearest peak of a heatmap
of such keypoints if one lies close enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Mapping, NamedTuple, Tuple

from estimator_det import files
from estimator_det.boxes import geometry, heatmaps
from estimator_det.boxes.geometry import sizes
from estimator_det.compat import tf
from estimator_det.config.field_rules import PLACEHOLDER, no_effect, non_default_fields
from estimator_det.config.paths import KEYPOINTS_FIELD
from estimator_det.config.rules import rules
from estimator_det.config.text import nearest, parse_message
from estimator_det.console.printing import quoted
from estimator_det.detectors.base import Losses, check_parts
from estimator_det.detectors.center_net.heads import (
    Head,
    HeadMaps,
    Scene,
    heatmap_loss,
    make_head,
    vector_loss,
)
from estimator_det.detectors.center_net.keypoint_refinement import (
    KeypointEstimation,
    Refinement,
    make_refinement,
    refine,
)
from estimator_det.errors import ConfigError, Problem, UsageError, error
from estimator_det.losses.classification import ClassificationLoss, make_classification_loss
from estimator_det.losses.localization import (
    LocalizationLoss,
    compares_boxes,
    make_localization_loss,
)
from estimator_det.protos import center_net_pb2, string_int_label_map_pb2

HEATMAP, OFFSET, REGRESSION = "heatmap", "offset", "regression"
_LABELLED = 1e-3  # weight of a keypoint from which on it is labelled

HeadParams = center_net_pb2.CenterNet.PredictionHeadParams


class _Labels(NamedTuple):
    """Groundtruth of a task in pixels of the map; keypoints without a weight are at 0."""

    points: tf.Tensor  # float32 [B, G, P, 2]
    weights: tf.Tensor  # float32 [B, G, P]
    centers: tf.Tensor  # float32 [B, G, 2], of the objects
    deviations: tf.Tensor  # float32 [B, G], of the peaks of the objects


@dataclass(frozen=True)
class KeypointTask:
    """Estimation of the keypoints of one class."""

    name: str
    class_index: int  # from 0
    indices: Tuple[int, ...]  # places of its keypoints in the groundtruth
    heads: Tuple[Head, ...]
    heatmap_loss: ClassificationLoss
    point_loss: LocalizationLoss
    weights: Mapping[str, float]  # factors of the terms
    min_iou: float  # IoU that a box keeps within the radius of its Gaussian
    deviations: Tuple[float, ...]  # factors of the object's deviation, for each keypoint
    radius: int  # pixels around a keypoint or center that learn its offset or displacement
    has_own_offsets: bool  # True if each kind of keypoint has offsets of its own
    refinement: Refinement
    clips: bool  # True if keypoints outside of the image are moved to its edge
    rescores: bool  # True if keypoints change the score of their object
    rescoring_threshold: float

    def _head(self, kind: str) -> str:
        return f"{self.name}/keypoint/{kind}"

    def loss(self, maps: HeadMaps, scene: Scene) -> Losses:
        """Computes the three terms; each is divided by the number of what it learns."""
        labels = self._labels(scene)
        sums = {
            HEATMAP: self._heatmap_sum(maps, labels, scene),
            OFFSET: self._offset_sum(maps, labels, scene),
            REGRESSION: self._regression_sum(maps, labels, scene),
        }
        terms, divisors = {}, {}
        for kind, (total, count) in sums.items():
            name = f"Loss/{self._head(kind)}"
            terms[name] = self.weights[kind] * total / tf.maximum(count, 1.0)
            divisors[name] = count
        return Losses(terms, {}, divisors)

    def _labels(self, scene: Scene) -> _Labels:
        groundtruth = scene.groundtruth
        count = 0 if groundtruth.keypoints is None else groundtruth.keypoints.shape[2]
        if count is not None and count <= max(self.indices):  # a plug-in may leave it unknown
            raise ConfigError.at(
                "train_input_reader.num_keypoints",
                f"must be above {max(self.indices)}, an id of keypoint_label_map_path; given: "
                f"{count}",
                "set it, in each reader, to the number of keypoints of a box in the records",
            )
        points = tf.gather(groundtruth.keypoints, self.indices, axis=2)
        is_seen = ~tf.reduce_any(tf.math.is_nan(points), axis=3)
        if groundtruth.keypoint_visibilities is not None:
            is_seen &= tf.gather(groundtruth.keypoint_visibilities, self.indices, axis=2)
        classes = tf.argmax(groundtruth.classes, axis=2, output_type=tf.int32)
        own_weights = scene.weights * tf.cast(tf.equal(classes, self.class_index), tf.float32)
        y_center, x_center, heights, widths = geometry.centers_and_sizes(scene.boxes)
        return _Labels(
            tf.where(is_seen[..., tf.newaxis], points * scene.scale, tf.zeros_like(points)),
            tf.cast(is_seen, tf.float32) * own_weights[..., tf.newaxis],
            tf.stack([y_center, x_center], axis=-1),
            heatmaps.gaussian_deviations(heights, widths, self.min_iou),
        )

    def _heatmap_sum(
        self, maps: HeadMaps, labels: _Labels, scene: Scene
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        inside = _inside(scene)
        targets, kept = [], []
        for k, factor in enumerate(self.deviations):  # one by one: the peaks of all need memory
            weights = labels.weights[:, :, k]
            channel = heatmaps.draw_gaussians(
                labels.points[:, :, k],
                factor * labels.deviations,
                weights,
                tf.zeros_like(weights, tf.int32),
                (*scene.size, 1),
            )
            unlabelled = tf.cast(weights < _LABELLED, tf.float32)
            hidden = tf.reduce_max(inside * unlabelled[..., tf.newaxis, tf.newaxis], axis=1)
            hidden = tf.nn.relu(hidden)  # the maximum over no boxes is -inf
            targets.append(channel)
            kept.append((scene.pixel_weights * (1.0 - hidden))[..., tf.newaxis])
        total = heatmap_loss(
            self.heatmap_loss,
            maps[self._head(HEATMAP)],
            tf.concat(targets, axis=3),
            tf.concat(kept, axis=3),
        )
        return total, tf.reduce_sum(labels.weights)

    def _offset_sum(
        self, maps: HeadMaps, labels: _Labels, scene: Scene
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """Pixels around a keypoint learn the way to it."""
        pixels, weights = _pixels_around(labels.points, labels.weights, self.radius, scene)
        ways = labels.points[:, :, :, tf.newaxis] - tf.cast(pixels, tf.float32)
        values = maps[self._head(OFFSET)]
        if not self.has_own_offsets:
            total = vector_loss(self.point_loss, values, pixels, ways, weights)
            return total, tf.reduce_sum(weights)
        sums = [
            vector_loss(
                self.point_loss,
                [_pair(each, k) for each in values],
                pixels[:, :, k],
                ways[:, :, k],
                weights[:, :, k],
            )
            for k in range(len(self.indices))
        ]
        return tf.add_n(sums), tf.reduce_sum(weights)

    def _regression_sum(
        self, maps: HeadMaps, labels: _Labels, scene: Scene
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """Pixels around a center learn the ways to all keypoints of the object."""
        ones = tf.ones_like(scene.weights)
        pixels, inside = _pixels_around(labels.centers, ones, self.radius, scene)
        middles = tf.cast(pixels, tf.float32)[:, :, :, tf.newaxis]
        ways = labels.points[:, :, tf.newaxis] - middles  # [B, G, D, P, 2]
        weights = inside[..., tf.newaxis] * labels.weights[:, :, tf.newaxis]
        values = maps[self._head(REGRESSION)]
        total = vector_loss(self.point_loss, values, pixels, ways, weights)
        return total, tf.reduce_sum(weights)

    def detect(
        self, maps: HeadMaps, peaks: heatmaps.Pixels, boxes: tf.Tensor
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """Points [B, N, P, 2] and scores [B, N, P] of objects with boxes [B, N, 4] of the map."""
        ways = heatmaps.values_at(maps[self._head(REGRESSION)][-1], peaks.y, peaks.x)
        batch, count = sizes(ways)[:2]
        ways = tf.reshape(ways, [batch, count, len(self.indices), 2])
        regressed = peaks.points[:, :, tf.newaxis] + ways
        return refine(regressed, *self._candidates(maps), boxes, self.refinement)

    def rescored(self, scores: tf.Tensor, keypoint_scores: tf.Tensor) -> tf.Tensor:
        """Scores [B, N] of objects times the mean score of their visible keypoints [B, N, all]."""
        task_scores = tf.gather(keypoint_scores, self.indices, axis=2)
        visible = tf.cast(task_scores > self.rescoring_threshold, tf.float32)
        total = tf.reduce_sum(task_scores * visible, axis=2)
        return scores * tf.math.divide_no_nan(total, tf.reduce_sum(visible, axis=2))

    def _candidates(self, maps: HeadMaps) -> Tuple[tf.Tensor, tf.Tensor]:
        """The best peaks of each kind: points [B, M, P, 2] and scores [B, M, P]."""
        options = self.refinement
        scores = heatmaps.keep_peaks(tf.sigmoid(maps[self._head(HEATMAP)][-1]), options.window)
        offsets = maps[self._head(OFFSET)][-1]
        points, values = [], []
        for k in range(len(self.indices)):
            peaks = heatmaps.top_pixels(scores[..., k : k + 1], options.num_candidates)
            own_offsets = _pair(offsets, k) if self.has_own_offsets else offsets
            points.append(peaks.points + heatmaps.values_at(own_offsets, peaks.y, peaks.x))
            values.append(peaks.values)
        return tf.stack(points, axis=2), tf.stack(values, axis=2)


def _pair(maps: tf.Tensor, k: int) -> tf.Tensor:
    """The two channels of one kind of keypoint."""
    return maps[..., 2 * k : 2 * k + 2]


def _pixels_around(
    points: tf.Tensor, weights: tf.Tensor, radius: int, scene: Scene
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Pixels around points [..., 2]: int32 [..., D, 2], and their weights [..., D].

    Pixels beyond the map have the weight 0.
    """
    middles = tf.cast(tf.floor(points), tf.int32)[..., tf.newaxis, :]
    pixels = middles + tf.constant(heatmaps.disc(radius))
    is_inside = tf.reduce_all((pixels >= 0) & (pixels < tf.stack(scene.size)), axis=-1)
    return pixels, tf.cast(is_inside, tf.float32) * weights[..., tf.newaxis]


def _inside(scene: Scene) -> tf.Tensor:
    """1 for the pixels of boxes, else 0: float32 [B, G, h, w]."""
    low, high = scene.boxes[..., :2], scene.boxes[..., 2:]
    rows, columns = (
        tf.cast(
            (grid >= low[..., axis, tf.newaxis]) & (grid < high[..., axis, tf.newaxis]), tf.float32
        )
        for axis, grid in enumerate(tf.range(tf.cast(side, tf.float32)) for side in scene.size)
    )
    return rows[..., tf.newaxis] * columns[:, :, tf.newaxis, :]


@rules(KeypointEstimation)
def _check_loss(config: KeypointEstimation, at: str) -> Iterator[Problem]:
    used = ("classification_loss", "localization_loss")
    yield from check_parts(config.loss, f"{at}.loss", used)
    if compares_boxes(config.loss.localization_loss):
        field = f"{at}.loss.localization_loss"
        yield error(field, "must compare points, not boxes", "use l1_localization_loss")
    others = [field.name for field in config.loss.DESCRIPTOR.fields if field.name not in used]
    for name in non_default_fields(config.loss, others):
        yield no_effect(f"{at}.loss.{name}", "it is for anchors, which a CenterNet does not have")


@rules(center_net_pb2.CenterNet)
def _check_tasks(config: center_net_pb2.CenterNet, at: str) -> Iterator[Problem]:
    if config.keypoint_estimation_task and not config.keypoint_label_map_path:
        field = f"{at}.keypoint_label_map_path"
        yield error(field, "is missing", "name the label map, which lists the keypoints of classes")
    names = [task.task_name for task in config.keypoint_estimation_task]
    for number, name in enumerate(names):
        if name in names[:number]:  # the tasks would share the variables of their heads
            field = f"{at}.keypoint_estimation_task[{number}].task_name"
            yield error(field, f"{quoted(name)} is given twice", "give each task another name")


def make_keypoint_tasks(config: center_net_pb2.CenterNet) -> Tuple[KeypointTask, ...]:
    """Builds the tasks of a `CenterNet` message.

    Raises ConfigError if its label map cannot be read, lacks keypoints that a task names, or has a
    keypoint id that is not below the number of keypoints of all tasks.
    """
    path = config.keypoint_label_map_path
    if not config.keypoint_estimation_task or path in ("", PLACEHOLDER):
        return ()
    label_map = string_int_label_map_pb2.StringIntLabelMap()
    try:
        parse_message(files.read_text(path), label_map, path)
    except UsageError as reason:
        raise ConfigError.at(KEYPOINTS_FIELD, str(reason), "correct path or file") from None
    items = {item.name: item for item in label_map.item if item.keypoints}
    tasks = []
    for number, task in enumerate(config.keypoint_estimation_task):
        at = f"model.center_net.keypoint_estimation_task[{number}]"
        if task.keypoint_class_name not in items:
            raise ConfigError.at(
                f"{at}.keypoint_class_name",
                f"{quoted(task.keypoint_class_name)} has no keypoints in {path}"
                f"{nearest(task.keypoint_class_name, list(items))}",
                "name a class with keypoints of keypoint_label_map_path",
            )
        item = items[task.keypoint_class_name]
        labels = [point.label for point in item.keypoints]
        if unknown := sorted(set(task.keypoint_label_to_std) - set(labels)):
            raise ConfigError.at(
                f"{at}.keypoint_label_to_std",
                f"{quoted(unknown[0])} is not a keypoint of {quoted(item.name)} in {path}"
                f"{nearest(unknown[0], labels)}",
                "name a keypoint of the class",
            )
        tasks.append(_make_task(task, item, config))
    count = sum(len(task.indices) for task in tasks)
    if wrong := [i for task in tasks for i in task.indices if not 0 <= i < count]:
        raise ConfigError.at(
            KEYPOINTS_FIELD,
            f"{path} has the keypoint id {wrong[0]}, and the tasks have {count} keypoints in all",
            f"number them from 0 to {count - 1}",
        )
    return tuple(tasks)


def _make_task(
    config: KeypointEstimation,
    item: string_int_label_map_pb2.StringIntLabelMapItem,
    model: center_net_pb2.CenterNet,
) -> KeypointTask:
    count = len(item.keypoints)
    offsets = 2 * count if config.per_keypoint_offset else 2

    def head(kind: str, channels: int, params: HeadParams, bias: float = 0.0) -> Head:
        name = f"{config.task_name}/keypoint/{kind}"
        return make_head(name, channels, params, use_depthwise=model.use_depthwise, bias=bias)

    factor = config.task_loss_weight
    deviations = tuple(
        config.keypoint_label_to_std.get(point.label, 1.0) for point in item.keypoints
    )
    return KeypointTask(
        name=config.task_name,
        class_index=item.id - 1,
        indices=tuple(point.id for point in item.keypoints),
        heads=(
            head(HEATMAP, count, config.heatmap_head_params, config.heatmap_bias_init),
            head(REGRESSION, 2 * count, config.regress_head_params),
            head(OFFSET, offsets, config.offset_head_params),
        ),
        heatmap_loss=make_classification_loss(config.loss.classification_loss),
        point_loss=make_localization_loss(config.loss.localization_loss),
        weights={
            HEATMAP: factor * config.keypoint_heatmap_loss_weight,
            OFFSET: factor * config.keypoint_offset_loss_weight,
            REGRESSION: factor * config.keypoint_regression_loss_weight,
        },
        min_iou=model.object_center_params.min_box_overlap_iou,
        deviations=deviations,
        radius=config.offset_peak_radius,
        has_own_offsets=config.per_keypoint_offset,
        refinement=make_refinement(config, deviations),
        clips=config.clip_out_of_frame_keypoints,
        rescores=config.rescore_instances,
        rescoring_threshold=config.rescoring_threshold,
    )
