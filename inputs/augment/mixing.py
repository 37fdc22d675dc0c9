"""Steps that mix several records into one image: declaration, checks and application.

A mixture is a function `(samples, seed, config) -> sample`, decorated with `mixes` and registered
like any other step. The first of `samples` is the current record, the others are its partners:
records that follow it in the stream, after the same earlier steps with different seeds. Samples
differ in size and number of boxes. The result has a float32 image. The step's message has the
fields `probability` and `stop_at_step`, which `apply_mixture` handles.

A mixture has the boxes of all its samples, in order, with all their fields. Labels of the whole
image become:

* IMAGE_CLASSES: classes that all samples with such labels annotate exhaustively; the confidence is
  the highest. Only NO_CLASS if they have no class in common, since an empty list means all classes.
* VERIFIED_NEG_CLASSES: classes that are certainly absent from all samples.
* NOT_EXHAUSTIVE_CLASSES: such classes of any sample.
* IS_ANNOTATED: true if all samples are annotated.
* Everything else, such as SOURCE_ID, HASH and ORIGINAL_SPATIAL_SHAPE, is the first sample's.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union, cast

from estimator_det.compat import tf
from estimator_det.config.field_rules import no_effect
from estimator_det.config.rules import rules
from estimator_det.errors import ConfigError, Problem, error
from estimator_det.protos import input_reader_pb2, pipeline_pb2, preprocessor_pb2
from inputs import schema
from inputs.augment.base import (
    AUGMENTATIONS,
    STEPS,
    AugmentationStep,
    StepFunction,
    apply_steps,
    configured_steps,
    split_seed,
    uniform,
)
from inputs.sample import PER_BOX_FIELDS, Sample, is_in

Mixture = Callable[[Sequence[Sample], tf.Tensor, Any], Sample]

MixtureMessage = Union[preprocessor_pb2.Mosaic, preprocessor_pb2.MixUp, preprocessor_pb2.CopyPaste]

NO_CLASS = 0  # no class has this id, so a k-hot vector of it is 0

# These steps change the meaning of values: samples cannot be mixed before the first one, or after
# the second one.
ONLY_BEFORE = "convert_class_logits_to_softmax"
ONLY_AFTER = "scale_boxes_to_pixel_coordinates"


def mixes(num_records: int, *, needs_masks: bool = False) -> Callable[[Mixture], StepFunction]:
    """Decorates a step that mixes `num_records` samples."""
    return lambda function: StepFunction(function, num_records, needs_masks)


@rules(preprocessor_pb2.Mosaic, preprocessor_pb2.MixUp, preprocessor_pb2.CopyPaste)
def _check_stop(config: MixtureMessage, at: str) -> Iterator[Problem]:
    if config.HasField("stop_at_step") and not config.stop_at_step:
        yield error(f"{at}.stop_at_step", "is 0, so no step would be applied", "remove it")


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_mixtures(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    """Mixtures fit the training reader, the other steps and the length of training."""
    steps, num_steps = config.train_config.data_augmentation_options, config.train_config.num_steps
    yield from check_mixtures(steps, config.train_input_reader)
    for step in configured_steps(config):
        if 0 < num_steps <= getattr(step.config, "stop_at_step", 0):
            yield no_effect(f"{step.at}.stop_at_step", f"training ends at step {num_steps}")


def check_mixtures(
    steps: Sequence[preprocessor_pb2.PreprocessingStep], reader: input_reader_pb2.InputReader
) -> Iterator[Problem]:
    """Errors of mixtures that do not fit the training reader and other steps."""
    names = [step.WhichOneof("preprocessing_step") for step in steps]
    for number, name in enumerate(names):
        function = AUGMENTATIONS.get(name) if name in AUGMENTATIONS else None
        if not isinstance(function, StepFunction) or function.num_records == 1:
            continue  # fits any reader
        at = f"{STEPS}[{number}].{name}"
        if reader.load_context_features:
            yield error(
                at,
                "mixes images, but with train_input_reader.load_context_features each image "
                "has the context of its camera",
                "remove one of the two",
            )
        if function.needs_masks and not reader.load_instance_masks:
            message = "needs train_input_reader.load_instance_masks"
            yield error(at, message, "set it, or remove the step")
        if ONLY_AFTER in names[:number]:
            yield error(at, f"has {ONLY_AFTER} before it", f"move {ONLY_AFTER} after this step")
        if ONLY_BEFORE in names[number:]:
            yield error(at, f"has {ONLY_BEFORE} after it", f"move {ONLY_BEFORE} before this step")


def split_stages(chain: Sequence[AugmentationStep]) -> List[range]:
    """Cuts the chain before each mixture into ranges of steps; the first range may be empty."""
    # A mixture needs partners that have gone through the steps before it.
    starts = [number for number, step in enumerate(chain) if step.num_records > 1]
    ends = [*starts, len(chain)]
    return [range(begin, end) for begin, end in zip([0, *starts], ends)]


def partner_distances(chain: Sequence[AugmentationStep], batch_size: int) -> List[int]:
    """Distances in the stream between the samples of each mixture, in order of the chain.

    They are so large that no record is twice in one image or in the images of a batch: partners of
    the last mixture are one batch apart, partners of an earlier mixture as far as later ones reach.
    """
    counts = [step.num_records for step in chain if step.num_records > 1]
    return [batch_size * math.prod(counts[number + 1 :]) for number in range(len(counts))]


def num_sources(chain: Sequence[AugmentationStep]) -> int:
    """Largest number of records in an image."""
    return math.prod(step.num_records for step in chain)


def apply_mixture(
    chain: Sequence[AugmentationStep],
    samples: Sequence[Sample],
    seeds: Sequence[tf.Tensor],
    allowed: tf.Tensor,
) -> Tuple[Sample, tf.Tensor]:
    """Applies a mixture, if the scalar `allowed` is true, and the steps that follow it in `chain`.

    Returns the sample, and a bool scalar, True if the mixture was applied.
    """
    mixture, *later_steps = chain
    chance_seed, seed = split_seed(seeds[0], 2)
    chance = uniform([], chance_seed)
    is_mixed = allowed & (chance < cast(MixtureMessage, mixture.config).probability)
    # Both branches of the condition must have one type.
    first = samples[0]._replace(image=tf.cast(samples[0].image, tf.float32))
    with tf.name_scope(mixture.name):
        sample: Sample = tf.cond(
            is_mixed, lambda: mixture.function(samples, seed, mixture.config), lambda: first
        )
    return apply_steps(later_steps, sample, seeds[1:]), is_mixed


def image_limit(
    step: AugmentationStep, first_step: Optional[int], images_per_step: int
) -> Optional[int]:
    """Number of images before the step at which a mixture stops; None if it does not stop."""
    if not step.config.HasField("stop_at_step"):
        return None
    if first_step is None:
        raise ConfigError.at(
            f"{step.where}.stop_at_step",
            "the workers of a cluster read at their own pace, so the step that uses an image "
            "is unknown",
            "remove the field, or train in one process",
        )
    # Exact in a resumed run, because images count from the step that it resumes at.
    stop_at_step = cast(MixtureMessage, step.config).stop_at_step
    return max(stop_at_step - first_step, 0) * images_per_step


def merge(samples: Sequence[Sample]) -> Sample:
    """Concatenates the labels of all samples, with the image of the first; see the module."""
    fields = {
        name: tf.concat([getattr(sample, name) for sample in samples], 0)
        for name in PER_BOX_FIELDS
        if getattr(samples[0], name) is not None
    }
    levels = [sample.image_level for sample in samples if sample.image_level is not None]
    return samples[0]._replace(**fields, image_level=_merge_levels(levels) if levels else None)


def _merge_levels(levels: Sequence[Dict[str, tf.Tensor]]) -> Dict[str, tf.Tensor]:
    merged = dict(levels[0])
    for level in levels[1:]:
        if schema.IMAGE_CONFIDENCES in merged:
            ids, confidences = schema.IMAGE_CLASSES, schema.IMAGE_CONFIDENCES
            merged[ids], merged[confidences] = _common_labels(
                (merged[ids], merged[confidences]), (level[ids], level[confidences])
            )
        # A class is absent from the mixture only if it is absent from every part.
        key = schema.VERIFIED_NEG_CLASSES
        if key in merged:
            merged[key] = tf.boolean_mask(merged[key], is_in(merged[key], level[key]))
        # One part that may lack boxes of a class is enough.
        key = schema.NOT_EXHAUSTIVE_CLASSES
        if key in merged:
            merged[key] = tf.concat([merged[key], level[key]], 0)
        if schema.IS_ANNOTATED in merged:
            merged[schema.IS_ANNOTATED] &= level[schema.IS_ANNOTATED]
    return merged


def _common_labels(
    first: Tuple[tf.Tensor, tf.Tensor], second: Tuple[tf.Tensor, tf.Tensor]
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Ids in both lists with the higher confidence; an empty list leaves the other unchanged."""
    (ids, confidences), (other_ids, other_confidences) = first, second
    pairs = tf.equal(ids[:, tf.newaxis], other_ids)
    num_ids, num_others = tf.size(ids), tf.size(other_ids)
    common = tf.reduce_any(pairs, axis=1) | tf.equal(num_others, 0)
    highest = tf.reduce_max(tf.where(pairs, other_confidences, 0.0), axis=1)
    num_appended = tf.where(tf.equal(num_ids, 0), num_others, 0)
    is_empty = (num_ids > 0) & tf.logical_not(tf.reduce_any(common))
    # An empty list would mean "no image labels", which is another statement than "none in common".
    placeholder = [[0, tf.cast(is_empty, tf.int32)]]
    merged_ids = tf.concat([tf.boolean_mask(ids, common), other_ids[:num_appended]], 0)
    confidences = tf.boolean_mask(tf.maximum(confidences, highest), common)
    merged_confidences = tf.concat([confidences, other_confidences[:num_appended]], 0)
    return (
        tf.pad(merged_ids, placeholder, constant_values=NO_CLASS),
        tf.pad(merged_confidences, placeholder),
    )
