"""Changes of boxes, classes and scores that do not change the image."""

from __future__ import annotations

from typing import Iterator

from estimator_det.compat import tf
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.protos import pipeline_pb2, preprocessor_pb2
from inputs.augment.base import (
    AUGMENTATIONS,
    configured_steps,
    uniform,
)
from inputs.sample import Sample, is_in, keep_boxes

# Fields of steps that contain ids of the label map.
LABEL_FIELDS = {
    "drop_label_probabilistically": ("label",),
    "remap_labels": ("original_labels", "new_label"),
}
LEAST_BOX_SIDE = 1e-6  # shortest side of a jittered box, as a share of the image

_Modes = preprocessor_pb2.RandomJitterBoxes
SYMMETRIC = (_Modes.EXPAND_SYMMETRIC, _Modes.SHRINK_SYMMETRIC)
SYMMETRIC_XY = (_Modes.EXPAND_SYMMETRIC_XY, _Modes.SHRINK_SYMMETRIC_XY)
_EXPANDING = (_Modes.EXPAND, _Modes.EXPAND_SYMMETRIC, _Modes.EXPAND_SYMMETRIC_XY)


def jitter(boxes: tf.Tensor, fractions: tf.Tensor, ratio: float, mode: int) -> tf.Tensor:
    """Moves the sides of boxes [n, 4] by up to half of `ratio` times height or width.

    `fractions` are float32, 0 to 1: [n, 4] in the order of the sides, or in symmetric modes [n, 2],
    for height and width; modes ..._XY use only the first. A symmetric change ends where
    the box meets the edge of the image.
    """
    low = 0.0 if mode in _EXPANDING else -ratio
    high = ratio if mode in _EXPANDING or mode == _Modes.DEFAULT else 0.0
    center = (boxes[:, :2] + boxes[:, 2:]) / 2.0
    half = tf.maximum(boxes[:, 2:] - boxes[:, :2], LEAST_BOX_SIDE) / 2.0
    factors = 1.0 + (low + fractions * (high - low))
    if mode in SYMMETRIC + SYMMETRIC_XY:
        limit = tf.abs(tf.minimum(center, 1.0 - center) / half)
        if mode in SYMMETRIC_XY:
            limit = tf.reduce_min(limit, axis=1, keepdims=True)
            factors = factors[:, :1]
        factors = tf.broadcast_to(tf.clip_by_value(factors, -limit, limit), tf.shape(center))
        factors = tf.tile(factors, [1, 2])
    sides = tf.concat([center - half * factors[:, :2], center + half * factors[:, 2:]], axis=1)
    return tf.clip_by_value(sides, 0.0, 1.0)


@rules(preprocessor_pb2.RandomJitterBoxes)
def _check_jitter(config: preprocessor_pb2.RandomJitterBoxes, at: str) -> Iterator[Problem]:
    if config.ratio > 1 and config.jitter_mode not in _EXPANDING:
        message = f"is {config.ratio:g}; it must be at most 1 except in modes that EXPAND"
        yield error(f"{at}.ratio", message, "lower it")


@AUGMENTATIONS.register("random_jitter_boxes")
def random_jitter_boxes(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandomJitterBoxes
) -> Sample:
    """Moves the sides of all boxes; masks, keypoints and `area` still describe the object."""
    num_fractions = 2 if config.jitter_mode in SYMMETRIC + SYMMETRIC_XY else 4
    fractions = uniform([tf.shape(sample.boxes)[0], num_fractions], seed)
    boxes = jitter(sample.boxes, fractions, config.ratio, config.jitter_mode)
    return sample._replace(boxes=boxes)


def drop_label(sample: Sample, fractions: tf.Tensor, label: int, probability: float) -> Sample:
    """Drops the boxes of a class whose fraction, float32 [n], is at most `probability`."""
    is_kept = tf.not_equal(sample.classes, label) | (fractions > probability)
    return keep_boxes(sample, tf.where(is_kept)[:, 0])


@AUGMENTATIONS.register("drop_label_probabilistically")
def drop_label_probabilistically(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.DropLabelProbabilistically
) -> Sample:
    """Drops each box of the class `label` with `drop_probability`."""
    fractions = uniform(tf.shape(sample.classes), seed)
    return drop_label(sample, fractions, config.label, config.drop_probability)


@rules(preprocessor_pb2.RemapLabels)
def _check_remap(config: preprocessor_pb2.RemapLabels, at: str) -> Iterator[Problem]:
    if not config.original_labels:
        yield error(f"{at}.original_labels", "is empty", "list the ids of the classes to rename")


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_labels(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    """An error for each label in a step that is not a class of the model."""
    kind = config.model.WhichOneof("model")
    num_classes = getattr(getattr(config.model, kind), "num_classes", 0) if kind else 0
    for step in configured_steps(config):
        for field in LABEL_FIELDS.get(step.name, ()):
            value = getattr(step.config, field)
            for label in [value] if isinstance(value, int) else value:
                if label > num_classes >= 1:
                    yield error(
                        f"{step.at}.{field}",
                        f"{label} is not a class of the model, which has {num_classes}",
                        f"use ids of the label map from 1 to {num_classes}",
                    )


@AUGMENTATIONS.register("remap_labels")
def remap_labels(sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RemapLabels) -> Sample:
    """Replaces the class ids `original_labels` by the id `new_label`."""
    classes = sample.classes
    originals = tf.constant(list(config.original_labels), classes.dtype)
    new_label = tf.constant(config.new_label, classes.dtype)
    return sample._replace(classes=tf.where(is_in(classes, originals), new_label, classes))


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_scores(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    loads_scores = config.train_input_reader.load_multiclass_scores
    for step in configured_steps(config):
        if step.name == "convert_class_logits_to_softmax" and not loads_scores:
            yield error(
                step.at,
                "needs multiclass scores, but they are not loaded",
                "set train_input_reader.load_multiclass_scores=true, or remove the step",
            )


@AUGMENTATIONS.register("convert_class_logits_to_softmax")
def convert_class_logits_to_softmax(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.ConvertClassLogitsToSoftmax
) -> Sample:
    """Converts multiclass scores [n, K + 1] from logits to probabilities."""
    if sample.multiclass_scores is None:
        raise ValueError("the sample has no multiclass scores")
    scores = tf.nn.softmax(sample.multiclass_scores / config.temperature)
    return sample._replace(multiclass_scores=scores)
