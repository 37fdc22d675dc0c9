"""Results of the Object Detection API's steps, and how our steps get the values that it drew."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import numpy as np

from estimator_det.compat import tf
from inputs.augment import AUGMENTATIONS, operations
from inputs.augment.color import distort, rotate_hue, shift_brightness
from inputs.augment.crop import (
    Crop,
    apply_crop,
    crop,
    gather_option,
    size_of_aspect_ratio,
    window_at,
)
from inputs.augment.geometry import flip, resize_by
from inputs.augment.labels import drop_label, jitter
from inputs.augment.pad import mean_color, pad, pad_to_aspect_ratio
from inputs.augment.patches import add_noise, blacken
from inputs.augment.square import fixed_size_frame, frame_by_scale, image_size, scale_to, to_square
from inputs.augment.ssd_crop import (
    SECOND_CROP_OVERLAP,
    _operations,
    _padding,
    _ssd_crop_pad_parts,
    color_of_crop,
)
from inputs.sample import Sample
from tests.inputs.augment.helpers import step

FOLDER = pathlib.Path(__file__).parents[2] / "golden" / "augmentations"

# Field of a golden -> field of a sample. Those that a sample does not have are not compared.
FIELDS = {
    "boxes": "boxes",
    "classes": "classes",
    "weights": "weights",
    "confidences": "confidences",
    "multiclass_scores": "multiclass_scores",
    "masks": "masks",
    "keypoints": "keypoints",
    "visibilities": "keypoint_visibilities",
}
# The Object Detection API ignores a field of these: our step without it gives its results.
IGNORED_FIELDS = {
    "ssd_random_crop_fixed_aspect_ratio {aspect_ratio:2}": "ssd_random_crop_fixed_aspect_ratio {}"
}
ROWS, COLUMNS = 24, 32  # of the image "small"


class Goldens(NamedTuple):
    """The document and its arrays."""

    document: Dict[str, Any]
    arrays: Dict[str, np.ndarray]

    def exact(self, name: str) -> List[str]:
        """The cases of a step."""
        return [case for case in self.document["exact"] if case.split("__")[0] == name]


@functools.cache
def load() -> Goldens:
    document = json.loads((FOLDER / "augmentations.json").read_text())
    with np.load(FOLDER / "augmentations.npz") as arrays:
        return Goldens(document, {name: arrays[name] for name in arrays.files})


def image_of(goldens: Goldens, name: str) -> np.ndarray:
    small = np.random.default_rng(3).integers(0, 256, (ROWS, COLUMNS, 3)).astype(np.float32)
    if name == "small":
        return small
    if name == "dim":
        dim = np.floor(small * 0.4) + 50
        dim[..., 1] = np.floor(small[..., 1] * 0.1) + 7
        return dim
    if name == "big":
        return np.random.default_rng(6).integers(0, 256, (900, 1100, 3)).astype(np.float32)
    return goldens.arrays[f"in__{name}"].astype(np.float32)


def sample_of_case(goldens: Goldens, case: Dict[str, Any]) -> Sample:
    """The Object Detection API's input; boxes, classes and weights are always there."""
    fields = {*case["fields"], "boxes", "classes", "weights"} & set(FIELDS)
    values = {FIELDS[field]: tf.constant(goldens.arrays[f"in__{field}"]) for field in fields}
    for name, value in values.items():
        dtype = {"classes": tf.int64, "keypoint_visibilities": tf.bool}.get(name, tf.float32)
        values[name] = tf.cast(value, dtype)
    return Sample(image=tf.constant(image_of(goldens, case["input_image"])), **values)


def run_case(goldens: Goldens, case: Dict[str, Any]) -> Sample:
    """Our result with what the Object Detection API drew."""
    sample = sample_of_case(goldens, case)
    if "operation" in case:
        return run_operation(sample, case)
    message = step(IGNORED_FIELDS.get(case["step"], case["step"]))
    name = message.WhichOneof("preprocessing_step")
    config, drawn = getattr(message, name), case.get("forced")
    if drawn is None:
        return AUGMENTATIONS.get(name)(sample, tf.constant([1, 2]), config)
    return FORCED[name](sample, config, drawn)


# How each step takes the values that the Object Detection API drew.


def _pair(values: Any) -> tf.Tensor:
    return tf.constant(values, tf.int32)


def _crop_of(sample: Sample, drawn: Dict[str, Any]) -> Crop:
    first_row, first_column, height, width = drawn.get("window_yxhw", [0, 0, ROWS, COLUMNS])
    window = window_at(_pair([first_row, first_column]), _pair([height, width]), sample.image)
    fraction = tf.constant(drawn.get("u", 1.0), tf.float32)
    return Crop(tf.constant(drawn.get("selector", 0)), fraction, window)


def _cropped(sample: Sample, operations: Any, drawn: Dict[str, Any]) -> Sample:
    return apply_crop(sample, operations, _crop_of(sample, drawn))


def _crop_padded(sample: Sample, parts: Any, drawn: Dict[str, Any]) -> Sample:
    operations, paddings = parts
    cropped = _cropped(sample, operations, drawn)
    color = color_of_crop(cropped, paddings, tf.constant(drawn.get("selector", 0)))
    return pad(cropped, _pair(drawn["target_hw"]), _pair(drawn["offset_hw"]), color)


def _padded(sample: Sample, config: Any, drawn: Dict[str, Any]) -> Sample:
    color = list(config.pad_color)
    return pad(
        sample,
        _pair(drawn["target_hw"]),
        _pair(drawn["offset_hw"]),
        tf.constant(color) if color else mean_color(sample.image),
    )


def _cut(sample: Sample, ratio: float, thresh: float, clip: Any, drawn: Dict[str, Any]) -> Sample:
    size = size_of_aspect_ratio(image_size(sample.image), ratio)
    window = window_at(_pair(drawn["offset_hw"]), size, sample.image)
    return crop(sample, window, tf.constant(thresh), tf.constant(clip))


def _crop_fixed(sample: Sample, config: Any, drawn: Dict[str, Any]) -> Sample:
    ratio = config.aspect_ratio
    operations = _operations(config)
    cropped = _cropped(sample, operations, drawn)
    clip = gather_option(operations, "clip_boxes", tf.constant(drawn["selector"]))
    return _cut(cropped, ratio, SECOND_CROP_OVERLAP, clip, drawn)


def _crop_pad_fixed(sample: Sample, config: Any, drawn: Dict[str, Any]) -> Sample:
    cropped = _cropped(sample, _operations(config), drawn)
    return pad_to_aspect_ratio(cropped, config.aspect_ratio, drawn["scale"])


def _distorted(sample: Sample, config: Any, drawn: Dict[str, Any]) -> Sample:
    values = {name.replace("adjust_", ""): value for name, value in drawn.items()}
    return distort(sample, config.color_ordering, **values)


def _jittered(sample: Sample, config: Any, drawn: Dict[str, Any]) -> Sample:
    fractions = tf.constant(drawn["u"], tf.float32)
    return sample._replace(boxes=jitter(sample.boxes, fractions, config.ratio, config.jitter_mode))


def _blackened(sample: Sample, config: Any, drawn: Dict[str, Any]) -> Sample:
    values = np.array(drawn["u_ymin_xmin_per_patch"], np.float32)
    is_drawn = values[:, 0] <= config.probability
    return blacken(sample, values[:, 1:], is_drawn, config.size_to_image_ratio)


def _noisy(sample: Sample, config: Any, drawn: Dict[str, Any]) -> Sample:
    side, center = drawn["patch_size"], np.array([drawn["y"], drawn["x"]])
    first = np.maximum(center - side // 2, 0)
    last = np.minimum(center - side // 2 + side, [ROWS, COLUMNS])
    noise = np.float32(np.random.default_rng(21).standard_normal((ROWS, COLUMNS, 3)))
    noise = (noise * np.float32(0.3))[first[0] : last[0], first[1] : last[1]]
    return sample._replace(image=add_noise(sample.image, _pair(first), tf.constant(noise)))


def _square_crop(sample: Sample, config: Any, drawn: Dict[str, Any]) -> Sample:
    center = _pair([drawn["y_center"], drawn["x_center"]])
    return to_square(sample, frame_by_scale(image_size(sample.image), drawn["scale"], center))


def _scaled_to_square(sample: Sample, config: Any, drawn: Dict[str, Any]) -> Sample:
    scale = config.scale_min + drawn["u_scale"] * (config.scale_max - config.scale_min)
    scaled = scale_to(sample, config.output_size, tf.constant(scale, tf.float32))
    fractions = tf.constant([drawn["u_offset_y"], drawn["u_offset_x"]])
    frame = fixed_size_frame(image_size(scaled.image), config.output_size, fractions)
    return to_square(scaled, frame)


FORCED: Dict[str, Callable[[Sample, Any, Dict[str, Any]], Sample]] = {
    "random_adjust_brightness": lambda s, _, d: shift_brightness(s, d["adjust_brightness"]),
    "random_adjust_hue": lambda s, _, d: rotate_hue(s, d["adjust_hue"]),
    "random_distort_color": _distorted,
    "random_jitter_boxes": _jittered,
    "random_crop_image": lambda s, c, d: _cropped(s, [c], d),
    "random_pad_image": _padded,
    "random_absolute_pad_image": _padded,
    "random_crop_pad_image": lambda s, c, d: _crop_padded(s, ([c], [_padding(c, c.pad_color)]), d),
    "random_crop_to_aspect_ratio": lambda s, c, d: _cut(
        s, c.aspect_ratio, c.overlap_thresh, c.clip_boxes, d
    ),
    "random_black_patches": _blackened,
    "random_resize_method": lambda s, c, d: resize_by(
        s, _pair([c.target_height, c.target_width]), tf.constant(d["selector"])
    ),
    "ssd_random_crop": lambda s, c, d: _cropped(s, _operations(c), d),
    "ssd_random_crop_pad": lambda s, c, d: _crop_padded(s, _ssd_crop_pad_parts(c), d),
    "ssd_random_crop_fixed_aspect_ratio": _crop_fixed,
    "ssd_random_crop_pad_fixed_aspect_ratio": _crop_pad_fixed,
    "drop_label_probabilistically": lambda s, c, d: drop_label(
        s, tf.constant(d["u"]), c.label, c.drop_probability
    ),
    "random_patch_gaussian": _noisy,
    "random_square_crop_by_scale": _square_crop,
    "random_scale_crop_and_pad_to_square": _scaled_to_square,
}


# The operations of AutoAugment; their golden cases have a name such as "Rotate_BBox_-30".

PIXEL_OPERATIONS: Dict[str, Callable[..., tf.Tensor]] = {
    "AutoContrast": operations.auto_contrast,
    "Equalize": operations.equalize,
    "Posterize": lambda rgb, bits: operations.posterize(rgb, int(bits)),
    "Solarize": lambda rgb, threshold: operations.solarize(rgb, int(threshold)),
    "SolarizeAdd": lambda rgb, addition: operations.solarize_add(rgb, int(addition)),
    "Color": operations.color,
    "Contrast": operations.contrast,
    "Brightness": operations.brightness,
    "Sharpness": operations.sharpness,
}
MOVES: Dict[str, Callable[[Sample, float], Sample]] = {
    "Rotate": operations.rotate,
    "ShearX": operations.shear_x,
    "ShearY": operations.shear_y,
    "TranslateX": operations.translate_x,
    "TranslateY": operations.translate_y,
}


def run_operation(sample: Sample, case: Dict[str, Any]) -> Sample:
    sample = sample._replace(image=tf.cast(sample.image, tf.uint8))
    text = case["operation"].replace("Translate_", "Translate").replace("_m4", "_-4")
    name, _, rest = text.partition("_")
    numbers = [part for part in rest.split("_") if part.lstrip("-").replace(".", "").isdigit()]
    level: Optional[float] = float(numbers[0]) if numbers else None
    drawn = case.get("forced")
    if drawn:
        return sample._replace(image=_covered(sample, drawn))

    def change(whole: Sample) -> Sample:
        if name == "Flip":
            return flip(whole, 1)
        if name in MOVES:
            return MOVES[name](whole, level)
        levels = [] if level is None else [level]
        return whole._replace(image=PIXEL_OPERATIONS[name](whole.image, *levels))

    if text.endswith("_box3"):
        return operations.change_boxes(sample, _pair([3]), lambda region, _: change(region))
    return change(sample)


def _covered(sample: Sample, drawn: Dict[str, Any]) -> tf.Tensor:
    center = _pair(drawn["center_yx"])
    if "box_index" in drawn:
        box = sample.boxes[drawn["box_index"]]
        return operations.cutout_in_box(sample.image, box, center, drawn["pad_fraction"])
    return operations.cutout(sample.image, center, _pair([drawn["pad_size"]] * 2))
