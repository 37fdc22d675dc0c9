"""Compares a written model with the checkpoint that it was made of."""

from __future__ import annotations

from typing import Dict, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.console import printing
from estimator_det.detectors.base import build_detector
from estimator_det.protos import model_pb2, pipeline_pb2, ssd_pb2
from exporters.formats.base import Tolerance
from exporters.loaded_model import (
    BOXES,
    CLASSES,
    KEYPOINT_SCORES,
    KEYPOINTS,
    NUM,
    SCORES,
    LoadedModel,
)
from inputs.serving import make_receiver
from model_fn.serving.graph import serve

RAW_BOXES, RAW_SCORES = "raw_detection_boxes", "raw_detection_scores"
# Proposals of nearly the same score may change places, and one may suppress another.
COMPARED_PROPOSALS = 0.95
# Quantization moves a few scores far: those at the edge of the ranges of their layers.
USUAL = 0.999


class ModelDifference(NamedTuple):
    """The differences of two models on the same images."""

    scores: float  # the largest one
    # Boxes and keypoints differ by fractions of the image, or of a box that reaches beyond it.
    boxes: float
    rows: int  # boxes that were compared
    usual_scores: float = np.inf  # USUAL of all differences are not larger
    usual_boxes: float = np.inf
    other_shape: str = ""  # an output that cannot be compared; the differences are infinite


class CheckpointDetector(LoadedModel):
    """A checkpoint of an export in the graph of its configuration."""

    def __init__(self, config: pipeline_pb2.TrainEvalPipelineConfig, checkpoint: str) -> None:
        super().__init__(checkpoint, {}, "")
        detector = build_detector(config.model, False, config.graph_rewriter)
        with tf.Graph().as_default() as graph:
            receiver = make_receiver("image_tensor", detector.preprocess)
            _, self._outputs = serve(detector, receiver.inputs, receiver.true_shapes)
            (self._images,) = receiver.placeholders.values()
            self._session = tf1.Session(graph=graph)
            tf1.train.Saver(tf1.global_variables()).restore(self._session, checkpoint)

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        return dict(self._session.run(self._outputs, {self._images: images}))


def compare(
    model_config: model_pb2.DetectionModel,
    expected: Sequence[Dict[str, np.ndarray]],
    model: LoadedModel,
    images: Sequence[np.ndarray],
) -> ModelDifference:
    """The largest difference of a model's raw predictions from expected outputs.

    Of a model without raw predictions the detections are compared. Other detections are compared
    with the raw predictions of the same model, since suppression may choose another of two boxes
    with nearly the same score.

    Args:
        expected: Outputs for each image, see `LoadedModel.run`.
        model: The written model.
        images: uint8 [h, w, 3] each.
    """
    parts = []
    for outputs, pixels in zip(expected, images):
        actual = {key: value[0] for key, value in model.run(pixels[None]).items()}
        wanted = {key: value[0] for key, value in outputs.items()}
        if RAW_SCORES not in actual:
            parts.append(_of_detections(wanted, actual))
        elif other_shape := _other_shape(wanted, actual):
            parts.append(ModelDifference(np.inf, np.inf, 0, other_shape=other_shape))
        elif model_config.WhichOneof("model") != "ssd":
            parts.append(_of_proposals(wanted, actual))
        else:
            score_differences = np.abs(wanted[RAW_SCORES] - actual[RAW_SCORES])
            box_differences = _box_differences(wanted[RAW_BOXES], actual[RAW_BOXES])
            parts.append(_difference(score_differences, box_differences))
            if _keeps_scores(model_config.ssd):
                parts.append(_of_suppression(wanted, actual, model_config.ssd.num_classes))
    # np.max, since Python's max depends on the order if a number is NaN.
    columns = zip(*(each[:-1] for each in parts))
    scores, boxes, _, *usual = (float(np.max(column)) for column in columns)
    rows, other_shape = sum(each.rows for each in parts), max(each.other_shape for each in parts)
    return ModelDifference(scores, boxes, rows, usual[0], usual[1], other_shape)


def describe(difference: ModelDifference) -> str:
    """The difference as text."""
    if difference.other_shape:
        return difference.other_shape
    text = f"scores differ by {difference.scores:.2g}, boxes by {difference.boxes:.2g} at most"
    if difference.usual_scores < difference.scores / 2:
        text += f", {USUAL:.1%} of them by {difference.usual_scores:.2g} and "
        text += f"{difference.usual_boxes:.2g}"
    return f"{text} ({printing.counted(difference.rows, 'box', 'boxes')})"


def failure_reason(path: str, difference: ModelDifference, tolerance: Tolerance) -> Optional[str]:
    """Why a model that differs by more than the tolerance must not be used; None below it."""
    differences = (difference.scores, difference.boxes)
    if tolerance.uses_quantile:
        differences = (difference.usual_scores, difference.usual_boxes)
    if differences[0] <= tolerance.scores and differences[1] <= tolerance.boxes:
        return None
    which = f" for {USUAL:.1%} of them" if tolerance.uses_quantile else ""
    return (
        f"{path} does not give what the checkpoint gives: {describe(difference)}; allowed are "
        f"{tolerance.scores} and {tolerance.boxes}{which}. Do not use it; export another format, "
        "or another --quantize, on photos like the training's (--sample_images)"
    )


def _other_shape(expected: Dict[str, np.ndarray], actual: Dict[str, np.ndarray]) -> str:
    """Says which raw prediction has another shape than expected, or ""."""
    for key in (RAW_BOXES, RAW_SCORES):
        shapes = list(actual[key].shape), list(expected[key].shape)
        if shapes[0] != shapes[1]:
            return f"{key} of an image has shape {shapes[0]}, and {shapes[1]} in the checkpoint"
    return ""


def _difference(scores: np.ndarray, boxes: np.ndarray) -> ModelDifference:
    """Difference from absolute differences [n, …]."""
    with np.errstate(invalid="ignore"):  # infinite ones give NaN, which is refused, too
        usual = [float(np.quantile(each, USUAL)) for each in (scores, boxes)]
    return ModelDifference(float(scores.max()), float(boxes.max()), len(boxes), usual[0], usual[1])


def _box_differences(expected: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Differences of boxes [..., n], which count less the further an expected box reaches.

    Boxes of an early checkpoint may be many images large, and float32 has seven digits of them.
    """
    sides = np.where(np.isfinite(expected), np.abs(expected), 0)
    reach = np.maximum(sides.max(-1, keepdims=True), 1)
    with np.errstate(invalid="ignore"):  # infinite sides, which may be equal
        return np.where(expected == actual, 0, np.abs(expected - actual) / reach)


def _of_proposals(
    expected: Dict[str, np.ndarray], actual: Dict[str, np.ndarray]
) -> ModelDifference:
    scores = np.abs(expected[RAW_SCORES][:, None] - actual[RAW_SCORES][None])
    boxes = _box_differences(expected[RAW_BOXES][:, None], actual[RAW_BOXES][None])
    return _of_most_similar(scores, boxes)


def _of_detections(
    expected: Dict[str, np.ndarray], actual: Dict[str, np.ndarray]
) -> ModelDifference:
    """Difference of each expected detection and the most similar one of its class."""
    counts = int(expected[NUM]), int(actual[NUM])
    if not all(counts):
        none = float(max(expected[SCORES].max(initial=0.0), actual[SCORES].max(initial=0.0)))
        return ModelDifference(none, none, 0, none, none)
    wanted_scores, wanted_places = _scores_and_places(expected)
    scores, places = _scores_and_places(actual)
    is_same = expected[CLASSES][: counts[0], None] == actual[CLASSES][: counts[1]]
    differences = np.abs(wanted_scores[:, None] - scores)
    return _of_most_similar(
        np.where(is_same[..., None], differences, np.inf),
        _box_differences(wanted_places[:, None], places[None]),
    )


def _scores_and_places(outputs: Dict[str, np.ndarray]) -> Tuple[np.ndarray, np.ndarray]:
    """Scores [n, …] and coordinates [n, …] of detections and of their keypoints, if any."""
    count = int(outputs[NUM])
    scores, places = (
        [outputs[key][:count].reshape(count, -1) for key in keys if key in outputs]
        for keys in ((SCORES, KEYPOINT_SCORES), (BOXES, KEYPOINTS))
    )
    return np.concatenate(scores, 1), np.concatenate(places, 1)


def _of_most_similar(scores: np.ndarray, boxes: np.ndarray) -> ModelDifference:
    """Difference of each expected row and its most similar one, for COMPARED_PROPOSALS of them.

    Args:
        scores: Differences of n expected rows and m others, [n, m, …].
        boxes: Differences, [n, m, …].
    """
    distances = np.maximum(scores.max(-1), boxes.max(-1))
    rows, nearest = np.arange(len(distances)), distances.argmin(1)
    kept = np.argsort(distances[rows, nearest])[: int(np.ceil(len(rows) * COMPARED_PROPOSALS))]
    return _difference(scores[kept, nearest[kept]], boxes[kept, nearest[kept]])


def _of_suppression(
    expected: Dict[str, np.ndarray], actual: Dict[str, np.ndarray], num_classes: int
) -> ModelDifference:
    """Difference of each detection and the most similar raw prediction of its class."""
    count = int(actual[NUM])
    if not count:
        none = float(expected[SCORES].max(initial=0.0))  # an object of this score is not detected
        return ModelDifference(none, none, 0, none, none)
    columns = actual[CLASSES][:count].astype(np.int64) - 1
    columns += actual[RAW_SCORES].shape[-1] - num_classes  # past the background column
    scores = np.abs(actual[RAW_SCORES][:, columns].T - actual[SCORES][:count, None])  # [n, A]
    clipped = np.clip(actual[RAW_BOXES], 0, 1)
    boxes = np.abs(np.clip(actual[BOXES][:count], 0, 1)[:, None] - clipped[None]).max(-1)
    nearest = np.maximum(scores, boxes).argmin(1)
    rows = np.arange(count)
    return _difference(scores[rows, nearest], boxes[rows, nearest])


def _keeps_scores(ssd: ssd_pb2.Ssd) -> bool:
    """Whether detections have the scores, and the frame, of raw predictions."""
    nms = ssd.post_processing.batch_non_max_suppression
    resizer = ssd.image_resizer.WhichOneof("image_resizer_oneof")
    return bool(resizer == "fixed_shape_resizer" and (nms.use_hard_nms or not nms.soft_nms_sigma))
