"""Steps that mix several records into one image: how they are declared, checked and applied.

A mixture is a function `(samples, seed, config) -> sample`, decorated with `mixes` and registered
like any other step. The first of `samples` is the record whose turn it is, the others are its
partners: records that follow it in the stream, after the same earlier steps with seeds of their
own. Samples differ in size and number of boxes. The result has a float32 image. Its message has the
fields `probability` and `stop_at_step`, which `apply_mixture` handles.

The boxes of a mixture are those of its samples, in order, with all their fields. What concerns the
image as a whole becomes:

* IMAGE_CLASSES: classes that all samples with such labels annotate exhaustively; the confidence is
  the highest. NO_CLASS alone where they have none in common, since an empty list means all classes.
* VERIFIED_NEG_CLASSES: classes that are certainly absent from all samples.
* NOT_EXHAUSTIVE_CLASSES: those of any sample.
* IS_ANNOTATED: whether all samples are.
* Everything else, such as SOURCE_ID, HASH and ORIGINAL_SPATIAL_SHAPE: that of the first sample.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, TypeVar

from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from inputs import schema
from inputs.augment.base import (
    Link,
    apply_links,
    check_probability,
    records_of,
    split_seed,
    uniform,
)
from inputs.schema import PER_BOX_FIELDS, Sample

Mixture = Callable[[Sequence[Sample], tf.Tensor, Any], Sample]
AnyMixture = TypeVar("AnyMixture", bound=Mixture)

NO_CLASS = 0  # no class has this id, so a k-hot vector of it is 0

# Steps that change what values mean: samples cannot be mixed before the first, or after the second.
ONLY_BEFORE = "convert_class_logits_to_softmax"
ONLY_AFTER = "scale_boxes_to_pixel_coordinates"


def mixes(
    num_records: int,
    *,
    needs_masks: bool = False,
    check: Callable[[Any], object] = lambda config: None,
) -> Callable[[AnyMixture], AnyMixture]:
    """Decorator of a step that mixes `num_records` samples; `check` is that of `checked_by`."""

    def check_config(config: Any) -> None:
        check_probability("probability", config.probability)
        if config.HasField("stop_at_step") and not config.stop_at_step:
            raise ConfigError("stop_at_step is 0, so no step would be applied; remove it")
        check(config)

    def attach(function: AnyMixture) -> AnyMixture:
        # mypy: the type of a function has no attributes of ours.
        function.num_records = num_records  # type: ignore[attr-defined]
        function.needs_masks = needs_masks  # type: ignore[attr-defined]
        function.check_config = check_config  # type: ignore[attr-defined]
        return function

    return attach


def check_links(links: Sequence[Link], reader: Any) -> None:
    """Whether the mixtures of a chain suit the `InputReader` of training and the steps around them.

    Raises:
        ConfigError: if they do not.
    """
    for number, link in enumerate(links):
        if records_of(link) == 1:
            continue
        if reader.load_context_features:
            raise ConfigError(
                f"{link.where}: mixes images, but train_input_reader.load_context_features gives "
                "each image the context of its own camera. Remove one of the two"
            )
        if getattr(link.function, "needs_masks", False) and not reader.load_instance_masks:
            raise ConfigError(
                f"{link.where}: needs train_input_reader.load_instance_masks; set it, or remove "
                "the step"
            )
        before = [other.name for other in links[:number]]
        after = [other.name for other in links[number:]]
        for name, place, found in (
            (ONLY_AFTER, "after", before),
            (ONLY_BEFORE, "before", after),
        ):
            if name in found:
                raise ConfigError(f"{link.where}: move {name} {place} this step")


def stages_of(links: Sequence[Link]) -> List[range]:
    """The chain cut before each mixture: numbers of links; the first stage may be empty."""
    starts = [number for number, link in enumerate(links) if records_of(link) > 1]
    ends = [*starts, len(links)]
    return [range(begin, end) for begin, end in zip([0, *starts], ends)]


def partner_distances(links: Sequence[Link], batch_size: int) -> List[int]:
    """How far apart the samples of each mixture are in the stream, in the order of the chain.

    So far that no record is twice in one image or in the images of one batch: the partners of the
    last mixture are one batch apart, those of an earlier one as far as the later ones reach.
    """
    counts = [records_of(link) for link in links if records_of(link) > 1]
    return [batch_size * math.prod(counts[number + 1 :]) for number in range(len(counts))]


def num_sources(links: Sequence[Link]) -> int:
    """How many records an image may consist of."""
    return math.prod(records_of(link) for link in links)


def apply_mixture(
    links: Sequence[Link], samples: Sequence[Sample], seeds: Sequence[tf.Tensor], allowed: tf.Tensor
) -> Tuple[Sample, tf.Tensor]:
    """The first sample after a mixture and the steps that follow it.

    Args:
        links: The mixture, then steps on a single sample.
        samples: As many as the mixture needs.
        seeds: One for each link.
        allowed: bool scalar: whether the mixture may be applied.

    Returns:
        The sample, and whether the mixture was applied, bool scalar.
    """
    mixture, *others = links
    chance_seed, seed = split_seed(seeds[0], 2)
    chance = uniform([], chance_seed)
    mixed = allowed & (chance < mixture.config.probability)
    first = samples[0]._replace(image=tf.cast(samples[0].image, tf.float32))
    with tf.name_scope(mixture.name):
        sample: Sample = tf.cond(
            mixed, lambda: mixture.function(samples, seed, mixture.config), lambda: first
        )
    return apply_links(others, sample, seeds[1:]), mixed


def image_limit(link: Link, first_step: Optional[int], images_per_step: int) -> Optional[int]:
    """The number of images before the step at which a mixture stops; None if it does not.

    Images count from 0 at `first_step`, where the pipeline starts; None for a step that is unknown.

    Raises:
        ConfigError: if the mixture stops, but the step is unknown.
    """
    if not link.config.HasField("stop_at_step"):
        return None
    if first_step is None:
        raise ConfigError(
            f"{link.where}.stop_at_step: the workers of a cluster read at their own pace, so the "
            "step that uses an image is not known. Remove it, or train in one process"
        )
    return max(link.config.stop_at_step - first_step, 0) * images_per_step


def merge(samples: Sequence[Sample]) -> Sample:
    """The labels of all samples, in order, with the image of the first; see the module's docstring.

    The frames must be the same: boxes, keypoints and masks are joined unchanged.
    """
    joined = {
        name: tf.concat([getattr(sample, name) for sample in samples], 0)
        for name in PER_BOX_FIELDS
        if getattr(samples[0], name) is not None
    }
    levels = [sample.image_level for sample in samples if sample.image_level is not None]
    return samples[0]._replace(**joined, image_level=_merge_levels(levels) if levels else None)


def _merge_levels(levels: Sequence[Dict[str, tf.Tensor]]) -> Dict[str, tf.Tensor]:
    merged = dict(levels[0])
    for other in itertools.islice(levels, 1, None):
        if schema.IMAGE_CONFIDENCES in merged:
            ids, confidences = schema.IMAGE_CLASSES, schema.IMAGE_CONFIDENCES
            merged[ids], merged[confidences] = _common_labels(
                (merged[ids], merged[confidences]), (other[ids], other[confidences])
            )
        if schema.VERIFIED_NEG_CLASSES in merged:
            ids = merged[schema.VERIFIED_NEG_CLASSES]
            merged[schema.VERIFIED_NEG_CLASSES] = tf.boolean_mask(
                ids, tf.reduce_any(_pairs(ids, other[schema.VERIFIED_NEG_CLASSES]), axis=1)
            )
        if schema.NOT_EXHAUSTIVE_CLASSES in merged:
            key = schema.NOT_EXHAUSTIVE_CLASSES
            merged[key] = tf.concat([merged[key], other[key]], 0)
        if schema.IS_ANNOTATED in merged:
            merged[schema.IS_ANNOTATED] &= other[schema.IS_ANNOTATED]
    return merged


def _common_labels(
    ours: Tuple[tf.Tensor, tf.Tensor], theirs: Tuple[tf.Tensor, tf.Tensor]
) -> Tuple[tf.Tensor, tf.Tensor]:
    """Ids in both lists with the higher confidence; an empty list leaves the other unchanged."""
    (ids, confidences), (other_ids, other_confidences) = ours, theirs
    pairs = _pairs(ids, other_ids)
    num_ids, num_others = tf.size(ids), tf.size(other_ids)
    common = tf.reduce_any(pairs, axis=1) | tf.equal(num_others, 0)
    highest = tf.reduce_max(tf.where(pairs, other_confidences, 0.0), axis=1)
    others = tf.where(tf.equal(num_ids, 0), num_others, 0)  # how many of them to append
    nothing = (num_ids > 0) & tf.logical_not(tf.reduce_any(common))
    num_nothing = tf.cast(nothing, tf.int32)[tf.newaxis]
    joined = tf.concat(
        [
            tf.boolean_mask(ids, common),
            other_ids[:others],
            tf.fill(num_nothing, tf.constant(NO_CLASS, ids.dtype)),
        ],
        axis=0,
    )
    joined_confidences = tf.concat(
        [
            tf.boolean_mask(tf.maximum(confidences, highest), common),
            other_confidences[:others],
            tf.zeros(num_nothing, confidences.dtype),
        ],
        axis=0,
    )
    return joined, joined_confidences


def _pairs(ids: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    """Bool [k, m]: which ids, int [k] and [m], are equal."""
    return tf.equal(ids[:, tf.newaxis], others[tf.newaxis])
