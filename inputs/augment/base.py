"""From a list of preprocessing steps to one function on samples; helpers that the steps share.

A step is a function `(sample, seed, config) -> sample`, registered in `AUGMENTATIONS` under the
name of its field in `PreprocessingStep`. It is stateless: the same sample and seed give the same
result, and the given sample does not change. Steps on geometry accept uint8 and float32 images;
steps that compute with pixel values are decorated with `float_image`: they receive and return
float32, 0 to 255. A step that mixes records receives several samples; see `inputs.augment.mixing`.

Letters in shapes: n boxes, P keypoints, h x w pixels, C channels.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, List, NamedTuple, Optional, Protocol, Sequence, Tuple, TypeVar

import numpy as np

from estimator_det.compat import tf
from estimator_det.config.registry import Registry
from estimator_det.config.text import ConfigError, nearest
from inputs.schema import PER_BOX_FIELDS, Sample

Step = Callable[[Sample, tf.Tensor, Any], Sample]
AnyStep = TypeVar("AnyStep", bound=Step)

AUGMENTATIONS: Registry[Callable[..., Sample]] = Registry("augmentation")
FIELD = "data_augmentation_options"


class Augmentation(Protocol):
    """What `make_augmentation` returns."""

    def __call__(self, sample: Sample, seed: tf.Tensor) -> Sample:
        """The changed sample; `seed` is int32 or int64 [2]."""


class Link(NamedTuple):
    """One step of a configuration."""

    name: str
    function: Callable[..., Sample]
    config: Any  # the message of the step
    where: str  # path of the message in train_config


def make_augmentation(steps: Sequence[Any]) -> Augmentation:
    """One function that applies `PreprocessingStep`s in order; no steps give the identity.

    Later changes to the protos have no effect.

    Raises:
        ConfigError: if a step is empty, is not supported, has impossible settings or mixes several
            records.
    """
    links = make_links(steps)
    for link in links:
        if records_of(link) > 1:
            raise ConfigError(
                f"{link.where}: mixes {records_of(link)} records, but there is one. Only the input "
                "pipeline of training applies this step; remove it here"
            )

    @tf.autograph.experimental.do_not_convert  # no step needs it, and tracing is faster without
    def augment(sample: Sample, seed: tf.Tensor) -> Sample:
        return apply_links(links, sample, split_seed(seed, len(links)) if links else [])

    return augment


def make_links(steps: Sequence[Any]) -> List[Link]:
    """The `PreprocessingStep`s with their functions, checked; errors as `make_augmentation`."""
    links: List[Link] = []
    for index, step in enumerate(steps):
        name, function = _find(step, f"{FIELD}[{index}]")
        where = f"{FIELD}[{index}].{name}"
        config = type(getattr(step, name))()
        config.CopyFrom(getattr(step, name))
        try:
            getattr(function, "check_config", lambda _: None)(config)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        links.append(Link(name, function, config, where))
    return links


def apply_links(links: Sequence[Link], sample: Sample, seeds: Sequence[tf.Tensor]) -> Sample:
    """The sample after all steps; each step has a seed of its own."""
    for link, seed in zip(links, seeds):
        with tf.name_scope(link.name):
            sample = link.function(sample, seed, link.config)
    return sample


def records_of(link: Link) -> int:
    """How many records a step mixes; 1 for a step on a single one."""
    return int(getattr(link.function, "num_records", 1))


def _find(step: Any, where: str) -> Tuple[str, Callable[..., Sample]]:
    name = step.WhichOneof("preprocessing_step")
    if name is None:
        raise ConfigError(f"{where} is empty; set one of {sorted(AUGMENTATIONS)}")
    if name not in AUGMENTATIONS:
        hint = nearest(name, list(AUGMENTATIONS)) or "."
        raise ConfigError(
            f"{where}: {name!r} is not supported{hint} Supported: {sorted(AUGMENTATIONS)}. "
            "Remove the step, use one of these, or register a function under its name"
        )
    return name, AUGMENTATIONS.get(name)


def float_image(function: AnyStep) -> AnyStep:
    """Decorator of steps that compute with pixel values: they receive a float32 image."""

    @functools.wraps(function)
    def on_float(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
        return function(sample._replace(image=tf.cast(sample.image, tf.float32)), seed, config)

    # mypy: a step of the type variable's bound, not of the type variable.
    return on_float  # type: ignore[return-value]


def checked_by(check: Callable[[Any], object]) -> Callable[[AnyStep], AnyStep]:
    """Decorator: `check(config)` raises ConfigError for settings that the step cannot use.

    `make_augmentation` calls it, so that a wrong configuration fails before any graph is built.
    """

    def attach(function: AnyStep) -> AnyStep:
        # mypy: the type of a function has no attributes of ours.
        function.check_config = check  # type: ignore[attr-defined]
        return function

    return attach


def check_range(low_name: str, low: float, high_name: str, high: float) -> None:
    """Raises ConfigError unless 0 <= low <= high."""
    if not 0 <= low <= high:
        raise ConfigError(
            f"{low_name} is {low:g} and {high_name} is {high:g}; they need 0 <= {low_name} <= "
            f"{high_name}"
        )


def check_probability(name: str, value: float) -> None:
    """Raises ConfigError unless 0 <= value <= 1."""
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {value:g}; it must lie within 0 and 1")


def split_seed(seed: tf.Tensor, num: int) -> List[tf.Tensor]:
    """`num` independent seeds from one: [2] -> list of [2], same dtype; as `tf.random.split`."""
    seed = tf.convert_to_tensor(seed)
    drawn = tf.raw_ops.StatelessRandomUniformFullInt(shape=[num, 2], seed=seed, dtype=seed.dtype)
    seeds: List[tf.Tensor] = tf.unstack(drawn, num=num)
    return seeds


def uniform(shape: Any, seed: tf.Tensor) -> tf.Tensor:
    """Float32 of a shape, uniform in [0, 1): the numbers of `tf.random.stateless_uniform`.

    One kernel in place of its five, each of which takes longer to start than to draw a few numbers.
    """
    return tf.raw_ops.StatelessRandomUniform(shape=shape, seed=seed)


def random_between(seed: tf.Tensor, low: float, high: float, shape: Any = ()) -> tf.Tensor:
    """Float32 of a shape, uniform in [low, high)."""
    return uniform(shape, seed) * (np.float32(high) - np.float32(low)) + low


def random_integers(seed: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """Int32 [k], uniform in [low, high) each; `low` if the range is empty."""
    span = tf.cast(tf.maximum(high - low, 0), tf.float32)
    fraction = uniform(tf.shape(span), seed)
    return low + tf.cast(fraction * span, tf.int32)


def image_size(image: tf.Tensor) -> tf.Tensor:
    """Image [h, w, C] -> int32 [2], height and width."""
    return tf.shape(image)[:2]


def apply_with_probability(
    sample: Sample,
    seed: tf.Tensor,
    probability: float,
    change: Callable[[Sample], Sample],
) -> Sample:
    """`change(sample)` with the given probability, else the unchanged sample.

    `image_level` never changes.
    """
    if probability <= 0:
        return sample
    if probability >= 1:
        return change(sample)
    return change_if(uniform([], seed) < probability, sample, change)


def change_if(condition: tf.Tensor, sample: Sample, change: Callable[[Sample], Sample]) -> Sample:
    """`change(sample)` where the scalar `condition` is true, else the unchanged sample.

    `image_level` never changes.
    """
    bare = sample._replace(image_level=None)
    if tf.executing_eagerly():
        return (change(bare) if condition else bare)._replace(image_level=sample.image_level)
    names: List[str] = []  # of the fields that change: the others need no branch

    def changed() -> List[tf.Tensor]:
        result = change(bare)
        names[:] = [
            name for name in bare._fields if getattr(result, name) is not getattr(bare, name)
        ]
        return [getattr(result, name) for name in names]

    # The branches are built in this order.
    values = tf.cond(condition, changed, lambda: [getattr(bare, name) for name in names])
    return sample._replace(**dict(zip(names, values))) if names else sample


def per_channel(
    image: tf.Tensor, values: tf.Tensor, change: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """`change(image, values)` of an image [h, w, C] and numbers [C], whose shapes broadcast.

    Broadcast along whole rows, which takes a third of the time of broadcasting along pixels.
    """
    shape = tf.shape(image)
    rows = tf.reshape(image, [shape[0], shape[1] * shape[2]])
    changed = tf.reshape(change(rows, tf.tile(values, [shape[1]])), shape)
    changed.set_shape(image.shape)
    return changed


def keep_boxes(sample: Sample, indices: tf.Tensor) -> Sample:
    """The sample with the boxes of `indices` (int [k]) alone, in that order."""
    kept = {
        name: tf.gather(getattr(sample, name), indices)
        for name in PER_BOX_FIELDS
        if getattr(sample, name) is not None
    }
    return sample._replace(**kept)


def reframe(sample: Sample, window: tf.Tensor) -> Sample:
    """Boxes and keypoints in coordinates where `window` is the unit square; nothing is clipped.

    `window` is float32 [4], yxyx: the new image in coordinates of the old one.
    """
    origin, end = window[:2], window[2:]
    extent = end - origin
    boxes = (sample.boxes - tf.tile(origin, [2])) / tf.tile(extent, [2])
    keypoints = sample.keypoints
    if keypoints is not None:
        keypoints = (keypoints - origin) / extent
    return sample._replace(boxes=boxes, keypoints=keypoints)


def scale_area(area: Optional[tf.Tensor], factor: tf.Tensor) -> Optional[tf.Tensor]:
    """Pixel areas [n] times `factor` ([n] or scalar); None stays None."""
    return None if area is None else area * factor
