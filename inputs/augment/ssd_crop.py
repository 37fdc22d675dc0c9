"""Crops of the SSD family, and crops followed by padding.

Source: Liu et al., SSD: Single Shot MultiBox Detector (2016), section 2.2; one of the operations
of a step is drawn for each image. Images may be uint8 or float32 and keep their dtype.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Iterator, List, Optional, Sequence, Tuple, Union

from estimator_det.compat import tf
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.images.resize import RGB
from estimator_det.protos import pipeline_pb2, preprocessor_pb2
from inputs.augment.base import AUGMENTATIONS, configured_steps, image_size, split_seed
from inputs.augment.crop import (
    Pair,
    apply_crop,
    crop_to_aspect_ratio,
    draw_crop,
    gather_option,
)
from inputs.augment.pad import mean_color, random_pad, random_pad_to_aspect_ratio
from inputs.sample import Sample

SECOND_CROP_OVERLAP = 0.3  # share of a box that must remain after the cut to a fixed aspect ratio


@dataclasses.dataclass(frozen=True)
class Padding:
    """Size of the canvas of a crop, height and width relative to the uncropped image."""

    min_ratio: Pair = (1.0, 1.0)
    max_ratio: Pair = (2.0, 2.0)
    color: Optional[Tuple[float, ...]] = None  # 0 to 255; None: the mean colour of the crop


SSD_OPERATIONS = tuple(
    preprocessor_pb2.SSDRandomCropOperation(
        min_object_covered=share, overlap_thresh=share, min_aspect_ratio=0.5, max_aspect_ratio=2.0,
        min_area=0.1, max_area=1.0, random_coef=0.15,
    )
    for share in (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
)  # fmt: skip


def _random_crop_pad(
    sample: Sample, seed: tf.Tensor, operations: Sequence[Any], paddings: Sequence[Padding]
) -> Sample:
    crop_seed, pad_seed = split_seed(seed, 2)
    size = tf.cast(image_size(sample.image), tf.float32)
    selection = draw_crop(sample, crop_seed, operations)
    # The canvas is relative to the uncropped image, so its size is taken before.
    cropped = apply_crop(sample, operations, selection)
    min_size = size * gather_option(paddings, "min_ratio", selection.index)
    max_size = size * gather_option(paddings, "max_ratio", selection.index)
    color = color_of_crop(cropped, paddings, selection.index)
    return random_pad(
        cropped, pad_seed, tf.cast(min_size, tf.int32), tf.cast(max_size, tf.int32), color
    )


def color_of_crop(cropped: Sample, paddings: Sequence[Padding], index: tf.Tensor) -> tf.Tensor:
    """Colour, float32 [C] or [1], of the selected padding; without one, the mean of the crop."""
    if paddings[0].color is None:
        return mean_color(cropped.image)
    return tf.gather(tf.constant([list(padding.color or ()) for padding in paddings]), index)


def _operations(
    config: Union[
        preprocessor_pb2.SSDRandomCrop,
        preprocessor_pb2.SSDRandomCropFixedAspectRatio,
        preprocessor_pb2.SSDRandomCropPad,
        preprocessor_pb2.SSDRandomCropPadFixedAspectRatio,
    ],
) -> List[Any]:
    """Operations of the step, or the seven of the SSD paper."""
    return list(config.operations or SSD_OPERATIONS)


PaddingMessage = Union[
    preprocessor_pb2.RandomCropPadImage,
    preprocessor_pb2.SSDRandomCropPadFixedAspectRatio,
    preprocessor_pb2.SSDRandomCropPadOperation,
]


@rules(
    preprocessor_pb2.RandomCropPadImage,
    preprocessor_pb2.SSDRandomCropPadOperation,
    preprocessor_pb2.SSDRandomCropPadFixedAspectRatio,
)
def _check_padding(config: PaddingMessage, at: str) -> Iterator[Problem]:
    for name in ("min_padded_size_ratio", "max_padded_size_ratio"):
        values = list(getattr(config, name))
        if len(values) not in (0, 2):
            yield error(f"{at}.{name}", f"is {values}", "give 2 numbers, height and width")
            return
    padding = _padding(config)
    if any(low > high for low, high in zip(padding.min_ratio, padding.max_ratio)):
        yield error(
            f"{at}.min_padded_size_ratio",
            f"is {padding.min_ratio} and max_padded_size_ratio is {padding.max_ratio}",
            "set min_padded_size_ratio <= max_padded_size_ratio",
        )


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_colors(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    for step in configured_steps(config):
        if not isinstance(step.config, preprocessor_pb2.SSDRandomCropPad):
            continue
        if step.config.operations and step.channels != RGB:
            yield error(
                f"{step.at}.operations",
                f"have colours of {RGB} numbers for images of {step.channels} channels",
                "remove the operations, or num_additional_channels",
            )


def _padding(
    config: PaddingMessage,
    color: Sequence[float] = (),
) -> Padding:
    """The bounds of the canvas in a message, and a colour; empty for the mean of the crop."""
    bounds = {}
    for name in ("min_padded_size_ratio", "max_padded_size_ratio"):
        values = tuple(getattr(config, name))
        if values:
            bounds[name.replace("_padded_size", "")] = values
    return Padding(**bounds, color=tuple(color) or None)


def _ssd_crop_pad_parts(
    config: preprocessor_pb2.SSDRandomCropPad,
) -> Tuple[List[Any], List[Padding]]:
    """Operations and paddings: listed operations have a colour, the standard ones the mean colour.

    The standard ones are `SSD_OPERATIONS` without the first one, which requires no overlap.
    """
    if not config.operations:
        # The Object Detection API's standard operations of this step begin at 0.1.
        return list(SSD_OPERATIONS[1:]), [Padding()] * len(SSD_OPERATIONS[1:])
    paddings = [
        _padding(op, (op.pad_color_r, op.pad_color_g, op.pad_color_b)) for op in config.operations
    ]
    return _operations(config), paddings


@AUGMENTATIONS.register("random_crop_pad_image")
def random_crop_pad_image(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.RandomCropPadImage
) -> Sample:
    """Crops, then places the crop on a canvas whose size is relative to the uncropped image."""
    return _random_crop_pad(sample, seed, [config], [_padding(config, config.pad_color)])


@AUGMENTATIONS.register("ssd_random_crop")
def ssd_random_crop(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.SSDRandomCrop
) -> Sample:
    """Crops by one of the operations, all equally likely."""
    operations = _operations(config)
    return apply_crop(sample, operations, draw_crop(sample, seed, operations))


@AUGMENTATIONS.register("ssd_random_crop_pad")
def ssd_random_crop_pad(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.SSDRandomCropPad
) -> Sample:
    """Crops by one of the operations, all equally likely, then pads with its colour."""
    operations, paddings = _ssd_crop_pad_parts(config)
    return _random_crop_pad(sample, seed, operations, paddings)


@AUGMENTATIONS.register("ssd_random_crop_fixed_aspect_ratio")
def ssd_random_crop_fixed_aspect_ratio(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.SSDRandomCropFixedAspectRatio
) -> Sample:
    """Crops to one aspect ratio, also images that are not cropped otherwise."""
    ratio = config.aspect_ratio
    operations = _operations(config)
    crop_seed, cut_seed = split_seed(seed, 2)
    selection = draw_crop(sample, crop_seed, operations, ratio)
    cropped = apply_crop(sample, operations, selection)
    # The operation that was drawn decides about the second crop as well.
    clip = gather_option(operations, "clip_boxes", selection.index)
    return crop_to_aspect_ratio(cropped, cut_seed, ratio, SECOND_CROP_OVERLAP, clip)


@AUGMENTATIONS.register("ssd_random_crop_pad_fixed_aspect_ratio")
def ssd_random_crop_pad_fixed_aspect_ratio(
    sample: Sample, seed: tf.Tensor, config: preprocessor_pb2.SSDRandomCropPadFixedAspectRatio
) -> Sample:
    """Crops to any shape, then pads with black to one aspect ratio."""
    operations, padding = _operations(config), _padding(config)
    crop_seed, pad_seed = split_seed(seed, 2)
    cropped = apply_crop(sample, operations, draw_crop(sample, crop_seed, operations))
    return random_pad_to_aspect_ratio(
        cropped, pad_seed, config.aspect_ratio, padding.min_ratio, padding.max_ratio
    )
