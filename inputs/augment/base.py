"""Augmentation: builds one function from a list of preprocessing steps; helpers that steps share.

A step is a function `(sample, seed, config) -> sample`, registered in `AUGMENTATIONS` under the
name of its field in `PreprocessingStep`. It is stateless: the same sample and seed give the same
result, and the input sample does not change. Steps on geometry accept uint8 and float32 images;
steps that compute with pixel values are decorated with `float_image`: they receive and return
float32, 0 to 255. A step that mixes records receives several samples; see `inputs.augment.mixing`.

Letters in shapes: n boxes, P keypoints, h x w pixels, C channels.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence

import numpy as np
from google.protobuf.message import Message

from estimator_det.compat import tf
from estimator_det.config.field_rules import check_value, range_of
from estimator_det.config.registry import Registry
from estimator_det.config.rules import rules
from estimator_det.config.text import is_repeated
from estimator_det.errors import Problem, UsageError, error
from estimator_det.images.resize import RGB
from estimator_det.protos import custom_pb2, pipeline_pb2, preprocessor_pb2
from inputs.sample import PER_BOX_FIELDS, Sample

Step = Callable[..., Sample]  # (sample, seed, config), or (sample, seed, **parameters)

AUGMENTATIONS: Registry[Callable[..., Sample]] = Registry(
    "augmentation",
    chosen_by="PreprocessingStep.preprocessing_step",
    arguments=("sample", "seed"),
)
STEPS = "train_config.data_augmentation_options"

# Minima that the maximum of the same name must exceed, since the maximum is never drawn.
BELOW = ("min_jpeg_quality", "min_patch_size", "min_target_pixels", "original_minval")
# Minima without a rule of their order, or whose step has its own rule.
UNORDERED = ("target_minval", "min_target_pixels", "min_image_height", "min_image_width")


@dataclasses.dataclass(frozen=True)
class StepFunction:
    """The function of a step, and its demands on the input."""

    function: Callable[..., Sample]
    num_records: int = 1  # records that it mixes
    needs_masks: bool = False

    def __call__(self, *arguments: Any) -> Sample:
        return self.function(*arguments)


@dataclasses.dataclass(frozen=True)
class AugmentationStep:
    """A step of a configuration, with its function."""

    name: str
    function: StepFunction
    config: Message
    where: str  # path of the message

    @property
    def num_records(self) -> int:
        """Number of records that the step mixes; 1 if it does not mix."""
        return self.function.num_records


def make_steps(steps: Sequence[preprocessor_pb2.PreprocessingStep]) -> List[AugmentationStep]:
    """Looks up the functions of steps."""
    chain: List[AugmentationStep] = []
    for index, step in enumerate(steps):
        name = str(step.WhichOneof("preprocessing_step"))
        config = copy.deepcopy(getattr(step, name))  # the caller may change its message later
        function = _find_function(name, config)
        chain.append(AugmentationStep(name, function, config, f"{STEPS}[{index}].{name}"))
    return chain


class ConfiguredStep(NamedTuple):
    """A step of a configuration, and its place."""

    at: str  # path of its message
    name: str
    config: Message
    channels: int  # channels of the images before the step


def configured_steps(config: pipeline_pb2.TrainEvalPipelineConfig) -> Iterator[ConfiguredStep]:
    """The steps of a configuration in order, without empty ones."""
    channels = RGB + config.train_input_reader.num_additional_channels
    for index, step in enumerate(config.train_config.data_augmentation_options):
        name = step.WhichOneof("preprocessing_step")
        if name is not None:
            yield ConfiguredStep(f"{STEPS}[{index}].{name}", name, getattr(step, name), channels)
        if name == "rgb_to_gray":
            channels = 1


def apply_steps(
    chain: Sequence[AugmentationStep], sample: Sample, seeds: Sequence[tf.Tensor]
) -> Sample:
    """Applies all steps in order; each step has its own seed."""
    for step, seed in zip(chain, seeds):
        with tf.name_scope(step.name):
            sample = step.function(sample, seed, step.config)
    return sample


def _find_function(name: str, config: Message) -> StepFunction:
    if isinstance(config, custom_pb2.Custom):
        custom = AUGMENTATIONS.custom_function(config)
        return StepFunction(
            lambda sample, seed, config: _require_sample(config.name, custom(sample, seed), sample)
        )
    function = AUGMENTATIONS.get(name)
    return function if isinstance(function, StepFunction) else StepFunction(function)


def _require_sample(name: str, result: Any, sample: Sample) -> Sample:
    """The result of a plug-in for a sample, with the static shapes that `numpy_function` forgets.

    A sample whose fields have different numbers of boxes fails when the graph runs.

    Raises:
        UsageError: The result is not a sample, or a static shape is wrong.
    """
    if not isinstance(result, Sample):
        raise UsageError(
            f"custom augmentation {name!r} returns {type(result).__name__}, not a Sample: return "
            "sample._replace(…)"
        )
    counts, fields = {}, {}
    for field in ("image", *PER_BOX_FIELDS):
        before, after = getattr(sample, field), getattr(result, field)
        if before is None or after is None:
            continue
        if field in ("image", "masks"):
            shape = tf.TensorShape([None, None, before.shape[2] if field == "image" else None])
        else:
            shape = tf.TensorShape([None, *before.shape[1:]])
        if not after.shape.is_compatible_with(shape):
            raise UsageError(
                f"custom augmentation {name!r} returns {field} of the shape {after.shape}, not "
                f"{shape}"
            )
        fields[field] = tf.ensure_shape(after, shape)
        if field != "image":
            counts[field] = tf.shape(fields[field])[0]
    equal = tf.debugging.assert_equal(
        list(counts.values()),
        counts["boxes"],
        f"custom augmentation {name!r} returns different numbers of {', '.join(counts)}: change "
        "all of them, as keep_boxes of inputs.sample does",
    )
    with tf.control_dependencies([equal]):
        fields["boxes"] = tf.identity(fields["boxes"])
    return result._replace(**fields)


def float_image(function: Step) -> Step:
    """Decorates steps that compute with pixel values, so that they receive a float32 image."""

    @functools.wraps(function)
    def float_step(sample: Sample, seed: tf.Tensor, *config: Any, **parameters: Any) -> Sample:
        float_sample = sample._replace(image=tf.cast(sample.image, tf.float32))
        return function(float_sample, seed, *config, **parameters)

    return float_step


@rules(preprocessor_pb2.PreprocessingStep)
def _check_step(step: preprocessor_pb2.PreprocessingStep, at: str) -> Iterator[Problem]:
    name = step.WhichOneof("preprocessing_step")
    if name is None:
        yield error(at, "is empty", f"set one of {sorted(AUGMENTATIONS)}")
    elif name in AUGMENTATIONS:
        yield from _check_numbers(getattr(step, name), f"{at}.{name}")


def _check_numbers(config: Message, at: str) -> Iterator[Problem]:
    """Errors for numbers without a usable default, and minima that exceed their maxima."""
    names = [
        field.name
        for field in config.DESCRIPTOR.fields
        if not is_repeated(field) and range_of(field) is not None
    ]
    for name in names:
        if not config.HasField(name):  # the range of a value that is set is checked anyway
            field = config.DESCRIPTOR.fields_by_name[name]
            yield from check_value(field, field.default_value, f"{at}.{name}")
        largest = name.replace("min", "max")
        if largest in names and largest != name and name not in UNORDERED:
            bounds = getattr(config, name), getattr(config, largest)
            yield from check_order(f"{at}.{name}", *bounds)
    for index, operation in enumerate(getattr(config, "operations", ())):
        yield from _check_numbers(operation, f"{at}.operations[{index}]")


def check_order(path: str, low: float, high: float) -> Iterator[Problem]:
    """An error if `low`, the value of the field `path`, exceeds the value of its maximum."""
    least = path.rpartition(".")[2]
    if not (low < high or (low == high and least not in BELOW)):
        largest, sign = least.replace("min", "max"), "<" if least in BELOW else "<="
        yield error(
            path, f"is {low:.7g} and {largest} is {high:.7g}", f"set {least} {sign} {largest}"
        )


def split_seed(seed: tf.Tensor, num: int) -> List[tf.Tensor]:
    """Derives `num` independent seeds: [2] -> list of [2], same dtype; as `tf.random.split`."""
    seed = tf.convert_to_tensor(seed)
    random_seeds = tf.raw_ops.StatelessRandomUniformFullInt(
        shape=[num, 2], seed=seed, dtype=seed.dtype
    )
    seeds: List[tf.Tensor] = tf.unstack(random_seeds, num=num)
    return seeds


def uniform(shape: Any, seed: tf.Tensor) -> tf.Tensor:
    """Draws float32 of a shape, uniform in [0, 1): the numbers of `tf.random.stateless_uniform`."""
    # One kernel instead of five: starting a kernel takes longer than drawing a few numbers.
    return tf.raw_ops.StatelessRandomUniform(shape=shape, seed=seed)


def random_between(seed: tf.Tensor, low: float, high: float, shape: Any = ()) -> tf.Tensor:
    """Draws float32 of a shape, uniform in [low, high)."""
    return uniform(shape, seed) * (np.float32(high) - np.float32(low)) + low


def random_integer(seed: tf.Tensor, low: int, high: int) -> tf.Tensor:
    """Draws an int32 scalar, uniform in [low, high)."""
    return random_integers(seed, tf.constant([low]), tf.constant([high]))[0]


def random_integers(seed: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    """Draws int32 [k], uniform in [low, high) each; `low` if the range is empty."""
    span = tf.cast(tf.maximum(high - low, 0), tf.float32)
    fraction = uniform(tf.shape(span), seed)
    return low + tf.cast(fraction * span, tf.int32)


def image_size(image: tf.Tensor) -> tf.Tensor:
    """Returns height and width of an image [h, w, C], int32 [2]."""
    return tf.shape(image)[:2]


def apply_with_probability(
    sample: Sample, seed: tf.Tensor, probability: float, change: Callable[[Sample], Sample]
) -> Sample:
    """Returns `change(sample)` with a probability, else the unchanged sample."""
    if probability <= 0:
        return sample
    if probability >= 1:
        return change(sample)
    return change_if(uniform([], seed) < probability, sample, change)


def change_if(condition: tf.Tensor, sample: Sample, change: Callable[[Sample], Sample]) -> Sample:
    """Returns `change(sample)` if the scalar `condition` is true, else the unchanged sample."""
    bare = sample._replace(image_level=None)
    names: List[str] = []  # fields that change; the others need no branch

    def changed_fields() -> List[tf.Tensor]:
        result = change(bare)
        names[:] = [
            name for name in bare._fields if getattr(result, name) is not getattr(bare, name)
        ]
        return [getattr(result, name) for name in names]

    # tf.cond builds the true branch first, which fills `names` for the other branch.
    values = tf.cond(condition, changed_fields, lambda: [getattr(bare, name) for name in names])
    return sample._replace(**dict(zip(names, values))) if names else sample


def per_channel(
    image: tf.Tensor, values: tf.Tensor, change: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
) -> tf.Tensor:
    """Computes `change(image, values)` of an image [h, w, C] and numbers [C] that broadcast."""
    # Along whole rows, because that takes a third of the time of broadcasting along pixels.
    shape = tf.shape(image)
    rows = tf.reshape(image, [shape[0], shape[1] * shape[2]])
    changed = tf.reshape(change(rows, tf.tile(values, [shape[1]])), shape)
    changed.set_shape(image.shape)
    return changed


def cut(sample: Sample, begin: tf.Tensor, size: tf.Tensor) -> Sample:
    """Cuts `size` rows and columns, int32 [2], out of image and masks; -1 for all that remain.

    `begin` is the first row and column. Boxes and keypoints do not change.
    """
    image, masks = sample.image, sample.masks
    cut_image = tf.slice(image, tf.pad(begin, [[0, 1]]), tf.pad(size, [[0, 1]], constant_values=-1))
    cut_image.set_shape([None, None, image.shape[-1]])
    if masks is not None:
        sizes = tf.pad(size, [[1, 0]], constant_values=-1)
        masks = tf.slice(masks, tf.pad(begin, [[1, 0]]), sizes)
    return sample._replace(image=cut_image, masks=masks)


def reframe(sample: Sample, window: tf.Tensor) -> Sample:
    """Converts boxes and keypoints to coordinates in which `window` is the unit square, unclipped.

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
    """Multiplies pixel areas [n] by `factor` ([n] or scalar); None stays None."""
    return None if area is None else area * factor
