"""From a list of preprocessing steps to one function on samples; helpers the steps share.

A step is a function `(sample, seed, config) -> sample`, entered in `AUGMENTATIONS` under the name
of its field in `PreprocessingStep`. It is stateless: the same sample and seed give the same result,
and the sample given is left alone. Steps on geometry work on uint8 and float32 images alike; those
that compute with pixel values are decorated with `float_image`: they see and return float32, 0 to
255.

Letters in shapes: n boxes, P keypoints, h x w pixels, C channels.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Callable, List, Optional, Protocol, Sequence, Tuple, TypeVar

from estimator_det.compat import tf
from estimator_det.config.registry import Registry, nearest
from inputs.schema import PER_BOX_FIELDS, Sample

Step = Callable[[Sample, tf.Tensor, Any], Sample]
AnyStep = TypeVar("AnyStep", bound=Step)

AUGMENTATIONS: Registry[Step] = Registry("augmentation")


class Augmentation(Protocol):
    """What `make_augmentation` returns."""

    @property
    def needs_float(self) -> bool:
        """True: the image that comes out is float32, whatever went in."""

    def __call__(self, sample: Sample, seed: tf.Tensor) -> Sample:
        """The changed sample; `seed` is int32 or int64 [2]."""


@dataclasses.dataclass(frozen=True)
class _Chain:
    """Steps in order, each with a seed of its own."""

    names: Tuple[str, ...]
    functions: Tuple[Step, ...]
    configs: Tuple[Any, ...]

    @property
    def needs_float(self) -> bool:
        return any(_wants_float(function) for function in self.functions)

    @tf.autograph.experimental.do_not_convert  # no step needs it, and tracing is faster without
    def __call__(self, sample: Sample, seed: tf.Tensor) -> Sample:
        seeds = split_seed(seed, len(self.names)) if self.names else []
        for name, function, config, own_seed in zip(
            self.names, self.functions, self.configs, seeds
        ):
            with tf.name_scope(name):
                sample = function(sample, own_seed, config)
        return sample


def make_augmentation(steps: Sequence[Any]) -> Augmentation:
    """One function that applies `steps` in order; no steps give the identity.

    Args:
        steps: `PreprocessingStep` protos; later changes to them have no effect.

    Returns:
        A callable `(sample, seed) -> sample` with the attribute `needs_float`.

    Raises:
        ValueError: if a step is empty, is not supported or has impossible settings.
    """
    names, functions, configs = [], [], []
    for index, step in enumerate(steps):
        where = f"data_augmentation_options[{index}]"
        name, function = _find(step, where)
        config = type(getattr(step, name))()
        config.CopyFrom(getattr(step, name))
        try:
            getattr(function, "check_config", lambda _: None)(config)
        except ValueError as error:
            raise ValueError(f"{where}.{name}: {error}") from error
        names.append(name)
        functions.append(function)
        configs.append(config)
    return _Chain(tuple(names), tuple(functions), tuple(configs))


def needs_float(steps: Sequence[Any]) -> bool:
    """Whether one of the `PreprocessingStep` protos computes with float32 pixel values.

    Where none does, the image may stay uint8 until it is resized for the network.
    """
    found = [_find(step, f"data_augmentation_options[{i}]") for i, step in enumerate(steps)]
    return any(_wants_float(function) for _, function in found)


def _find(step: Any, where: str) -> Tuple[str, Step]:
    name = step.WhichOneof("preprocessing_step")
    if name is None:
        raise ValueError(f"{where} is empty; name one of {sorted(AUGMENTATIONS)}")
    if name not in AUGMENTATIONS:
        hint = nearest(name, list(AUGMENTATIONS)) or "."
        raise ValueError(
            f"{where}: {name!r} is not supported{hint} Supported: {sorted(AUGMENTATIONS)}. "
            "Remedy: remove the step, use one of these, or register a function under its name"
        )
    return name, AUGMENTATIONS.get(name)


def _wants_float(function: Step) -> bool:
    return bool(getattr(function, "wants_float_image", False))


def float_image(function: AnyStep) -> AnyStep:
    """Decorator of steps that compute with pixel values: they are given a float32 image."""

    @functools.wraps(function)
    def on_float(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
        return function(sample._replace(image=tf.cast(sample.image, tf.float32)), seed, config)

    on_float.wants_float_image = True  # type: ignore[attr-defined]
    return on_float  # type: ignore[return-value]


def checked_by(check: Callable[[Any], object]) -> Callable[[AnyStep], AnyStep]:
    """Decorator: `check(config)` raises ValueError for settings that the step cannot work with.

    `make_augmentation` calls it, so that a wrong configuration fails before any graph is built.
    """

    def attach(function: AnyStep) -> AnyStep:
        function.check_config = check  # type: ignore[attr-defined]
        return function

    return attach


def check_range(low_name: str, low: float, high_name: str, high: float) -> None:
    """Raises ValueError unless 0 <= low <= high."""
    if not 0 <= low <= high:
        raise ValueError(f"needs 0 <= {low_name} <= {high_name}; found {low:g} and {high:g}")


def check_probability(name: str, value: float) -> None:
    """Raises ValueError unless 0 <= value <= 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must lie within 0 and 1; found {value:g}")


def split_seed(seed: tf.Tensor, num: int) -> List[tf.Tensor]:
    """`num` independent seeds from one: [2] -> list of [2], same dtype."""
    seeds: List[tf.Tensor] = tf.unstack(tf.random.split(seed, num), num=num)
    return seeds


def random_between(seed: tf.Tensor, low: float, high: float) -> tf.Tensor:
    """Float32 scalar, uniform in [low, high)."""
    return tf.random.stateless_uniform([], seed, low, high)


def random_integers(seed: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """Int32 [k], uniform in [low, high) each; `low` where the range is empty."""
    span = tf.cast(tf.maximum(high - low, 0), tf.float32)
    fraction = tf.random.stateless_uniform(tf.shape(span), seed)
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
    """`change(sample)` with the given probability, else the sample as it is.

    What belongs to no box is never changed.
    """
    if probability <= 0:
        return sample
    if probability >= 1:
        return change(sample)
    image_level = sample.image_level
    bare = sample._replace(image_level=None)
    chosen = tf.random.stateless_uniform([], seed) < probability
    result: Sample = tf.cond(chosen, lambda: change(bare), lambda: bare)
    return result._replace(image_level=image_level)


def keep_boxes(sample: Sample, indices: tf.Tensor) -> Sample:
    """The sample with those of its boxes that `indices` (int [k]) names, in that order."""
    kept = {
        name: tf.gather(getattr(sample, name), indices)
        for name in PER_BOX_FIELDS
        if getattr(sample, name) is not None
    }
    return sample._replace(**kept)


def reframe(sample: Sample, window: tf.Tensor) -> Sample:
    """Boxes and keypoints in coordinates where `window` is the unit square; nothing is clipped.

    Args:
        sample: coordinates normalized to the old image.
        window: float32 [4], yxyx, the new image in coordinates of the old one.
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
