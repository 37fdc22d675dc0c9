"""Starter configurations: values that follow from data, weights, time and this machine.

Each decision is a pure function that returns `Choice`s: a field, its value, and the reason, which
becomes the comment in the written file.
"""

from __future__ import annotations

import math
import os
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_det.config import pipeline
from estimator_det.config.printing import counted, listed
from estimator_det.config.text import ConfigError, nearest
from estimator_det.images.resize import make_resizer
from estimator_det.programs.pretrained import Pretrained, find_model
from estimator_det.programs.step_speed import Speed
from estimator_det.protos import input_reader_pb2
from inputs.checks.statistics import Columns

CONFIGS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "configs")
# Passes from which crops help a network from random weights. With 13 of them over 1,207 drawn
# images mAP@.50 was .32, and .79 without crops: it had not seen whole objects often enough.
CROPPED_EPOCHS = 60
MANY_IMAGES = 2000  # more of them are learned as well in larger batches
GOOD_EPOCHS = 200  # passes over the data after which a small network from scratch is good
NARROW_TYPES = ("ssd_mobilenet_v1", "ssd_mobilenet_v2")
NARROW_SPEED = 2.0  # half of the channels: a step is 2.3 times as fast on two cores
# On 107 photographs, 2,000 steps of 8 gave .77 instead of .66 of mAP@.50 with each of the two.
MATCHED_IOU = 0.4
LOCALIZATION_WEIGHT = 2.0
SMALLEST_SIZE = 160  # pixels; the last feature maps of an SSD are then 1x1
SIZE_STEP = 32  # the stride of the coarsest map of a backbone
MIN_OBJECT = 24  # pixels; anchors of smaller objects lie too far apart at stride 16
MIN_OBJECT_FPN = 12  # pixels, at stride 8
START_SECS = 25.0  # before the first step of a run, and to save the last one
EVALUATIONS = 4  # in a run, the last one included
SHARE_OF_STEPS = 0.85  # the rest of a run's time is for evaluation and saving


class Model(NamedTuple):
    """A row of `init --list`."""

    name: str
    config: str  # file whose model it starts from
    changes: Tuple[str, ...]  # to this file, in the form of --set
    input_size: str
    parameters: float  # millions, with 90 classes
    step_time: float  # relative to ssd_mobilenet_v1, for training an image on a CPU
    zoo: str  # the published detector of this design

    @property
    def published(self) -> str:
        """COCO mAP as published, with the name for `--pretrained`."""
        model = find_model(self.zoo)
        return f"{model.quality:>5}  {model.name}"


_SSD = "ssd_mobilenet_v1_300x300.config"
_LITE = (
    "model.ssd.feature_extractor.use_depthwise=true",
    "model.ssd.box_predictor.convolutional_box_predictor.use_depthwise=true",
    "model.ssd.box_predictor.convolutional_box_predictor.kernel_size=3",
)
_TYPE = "model.ssd.feature_extractor.type="
_SIZE_320 = (
    "model.ssd.image_resizer.fixed_shape_resizer.height=320",
    "model.ssd.image_resizer.fixed_shape_resizer.width=320",
)
MODELS = (
    Model("ssd_mobilenet_v1", _SSD, (), "300x300", 6.8, 1.0, "ssd_mobilenet_v1_coco"),
    Model("ssd_mobilenet_v2", _SSD, (_TYPE + "ssd_mobilenet_v2",), "300x300", 6.1, 0.9,
          "ssd_mobilenet_v2_coco"),
    Model("ssdlite_mobilenet_v2", _SSD, (_TYPE + "ssd_mobilenet_v2", *_LITE), "300x300", 4.5, 1.0,
          "ssdlite_mobilenet_v2_coco"),
    Model("ssdlite_mobilenet_v3_small", _SSD, (_TYPE + "ssd_mobilenet_v3_small", *_LITE,
          *_SIZE_320), "320x320", 1.8, 0.3, "ssd_mobilenet_v3_small_coco"),
    Model("ssdlite_mobilenet_v3_large", _SSD, (_TYPE + "ssd_mobilenet_v3_large", *_LITE,
          *_SIZE_320), "320x320", 3.3, 0.8, "ssd_mobilenet_v3_large_coco"),
    Model("ssd_mobilenet_v1_fpnlite", "ssd_mobilenet_v1_fpn_640x640.config",
          ("model.ssd.feature_extractor.use_depthwise=true",
           "model.ssd.box_predictor.weight_shared_convolutional_box_predictor.use_depthwise=true"),
          "640x640", 3.3, 8.7, "ssd_mobilenet_v1_fpn_coco"),
    Model("ssd_resnet50_fpn", "ssd_resnet50_v1_fpn_640x640.config", (), "640x640", 32.8, 40.4,
          "ssd_resnet_50_fpn_coco"),
    Model("faster_rcnn_resnet50", "faster_rcnn_resnet50_pets.config", (), "600 to 1024", 44.2, 39.6,
          "faster_rcnn_resnet50_coco"),
    Model("mask_rcnn_inception_v2", "mask_rcnn_inception_v2_pets.config", (), "600 to 1024", 13.3,
          19.3, "mask_rcnn_inception_v2_coco"),
)  # fmt: skip
DEFAULT_MODEL = "ssd_mobilenet_v1"


class Records(NamedTuple):
    """Record files and label map of a folder that `convert` has written."""

    train: str  # pattern
    held_out: str  # pattern
    label_map: str


class Choice(NamedTuple):
    """A field of the configuration, and why it has its value."""

    field: str  # in the form of --set
    value: str
    reason: str


class Budget(NamedTuple):
    """Length of a training; it follows from the number of images if both are None."""

    hours: Optional[float] = None
    num_steps: Optional[int] = None


def find_starter(name: str) -> Model:
    """The model with a name of `MODELS`."""
    models = {model.name: model for model in MODELS}
    if name not in models:
        raise ConfigError(
            "--model",
            f"{name!r} is not known{nearest(name, list(models))}",
            "`estimator-det init --list` prints all models",
        )
    return models[name]


def base_config(model: Optional[str], weights: Optional[Pretrained], records: Records) -> Any:
    """A configuration with the model of the weights, or else of a row of `MODELS`."""
    name = model or DEFAULT_MODEL
    row = find_starter(name)
    source = pipeline.apply_overrides(
        pipeline.read_pipeline(os.path.join(CONFIGS, row.config)), row.changes
    )
    # Only the model is taken: readers and training of a shipped file belong to its data and
    # machine.
    config = pipeline.parse_pipeline("")
    config.model.CopyFrom(source.model)
    if weights is not None and weights.config is not None:
        theirs, ours = extractor_type(weights.config), extractor_type(config)
        if model is not None and theirs != ours:
            raise ConfigError(
                "--model",
                f"{model} has the feature extractor {ours}, and the weights of {weights.name} "
                f"have {theirs}",
                "Leave --model out, or give weights of this model",
            )
        # Heads and anchors fit the checkpoint only with the model that it was trained with.
        config.model.CopyFrom(weights.config.model)
    part = model_part(config)
    if config.model.HasField("ssd"):
        part.ClearField("inplace_batchnorm_update")  # for the training loop of a TPU
    reader = config.train_input_reader
    reader.label_map_path = records.label_map
    reader.tf_record_input_reader.input_path.append(records.train)
    held_out = config.eval_input_reader.add()
    held_out.label_map_path = records.label_map
    held_out.shuffle = False
    # One reader keeps the order of images, so that pictures of evaluations can be compared.
    held_out.num_readers = 1
    held_out.tf_record_input_reader.input_path.append(records.held_out)
    config.eval_config.metrics_set.append("coco_detection_metrics")
    if has_masks(config):
        config.eval_config.metrics_set.append("coco_mask_metrics")
        for part_reader in (reader, held_out):
            part_reader.load_instance_masks = True
            part_reader.mask_type = input_reader_pb2.PNG_MASKS
    return config


def model_part(config: Any) -> Any:
    """`model.ssd` or `model.faster_rcnn`."""
    return getattr(config.model, config.model.WhichOneof("model"))


def extractor_type(config: Any) -> str:
    """`feature_extractor.type` of a configuration."""
    return str(model_part(config).feature_extractor.type)


def has_masks(config: Any) -> bool:
    """True for Mask R-CNN."""
    return config.model.HasField("faster_rcnn") and config.model.faster_rcnn.number_of_stages == 3


def class_choices(config: Any, names: Dict[int, str]) -> List[Choice]:
    """The number of classes, which must be the largest id of the label map."""
    field = f"model.{config.model.WhichOneof('model')}.num_classes"
    shown = listed(names.values(), 5)
    return [Choice(field, str(max(names)), f"The classes of label_map.pbtxt: {shown}.")]


def box_choices(config: Any, boxes_per_image: np.ndarray) -> List[Choice]:
    """Room for the boxes of the fullest image, in batches and in detections."""
    most = int(boxes_per_image.max())
    # Rounded up, because a few images of later data may have more.
    room = max(8, 8 * math.ceil(most / 8))
    choices = [
        Choice("train_input_reader.max_number_of_boxes", str(room),
               f"The fullest image has {counted(most, 'box', 'boxes')}."),
        Choice("eval_input_reader[0].max_number_of_boxes", str(room), ""),
    ]  # fmt: skip
    # Twice as many, because wrong detections take places, too.
    limit = max(100, 2 * room)
    if limit > 100:
        kind = config.model.WhichOneof("model")
        part = "post_processing" if kind == "ssd" else "second_stage_post_processing"
        nms = f"model.{kind}.{part}.batch_non_max_suppression"
        reason = f"The fullest image has {most} boxes."
        choices.append(Choice(f"{nms}.max_detections_per_class", str(limit), reason))
        choices.append(Choice(f"{nms}.max_total_detections", str(limit), reason))
    return choices


def augmentation_choices(config: Any, names: Sequence[str], crops: bool = True) -> List[Choice]:
    """Augmentations for photographs, which have an up and a down; with `crops`, parts of images."""
    words = " ".join(names).lower().replace("_", " ").split()
    is_sided = "left" in words or "right" in words
    steps = [] if is_sided else ["random_horizontal_flip"]
    crops &= config.model.HasField("ssd")
    if crops:
        steps.append("ssd_random_crop")
    steps.append("random_distort_color")
    flip = "no flip, since classes have a left and a right" if is_sided else "mirrored"
    crop = ", cropped around objects" if crops else ""
    reason = f"Photographs: {flip}{crop}, in other light; never upside down."
    value = ", ".join(f"{{ {step} {{ }} }}" for step in steps)
    return [Choice("train_config.data_augmentation_options", f"[{value}]", reason)]


def decoding_choices(config: Any, columns: Columns) -> List[Choice]:
    """`fast_jpeg`, if most photographs are so large that it has an effect."""
    height, width = np.median(columns.sizes, axis=0)
    resized = make_resizer(model_part(config).image_resizer).new_size(int(height), int(width))
    if has_masks(config) or height < 4 * resized[0] or width < 4 * resized[1]:
        return []
    reason = f"Photographs of {width:.0f}x{height:.0f} pixels are read several times as fast."
    return [
        Choice("train_input_reader.fast_jpeg", "true", reason),
        Choice("eval_input_reader[0].fast_jpeg", "true", ""),
    ]


def matching_choices(config: Any, columns: Columns) -> List[Choice]:
    """More anchors for each object, and heavier losses of boxes, for few images.

    For single-shot detectors from random weights; others learn as their models were published.
    """
    ssd = config.model.ssd
    if not ssd.matcher.HasField("argmax_matcher") or columns.num_images > MANY_IMAGES:
        return []
    threshold = "model.ssd.matcher.argmax_matcher.{}_threshold"
    reason = f"With {MATCHED_IOU:g} an object trains more anchors, which helps if there are few."
    weight = "Boxes are learned more slowly than classes if there are few."
    return [
        Choice(threshold.format("matched"), str(MATCHED_IOU), reason),
        Choice(threshold.format("unmatched"), str(MATCHED_IOU), ""),
        Choice("model.ssd.loss.localization_weight", str(LOCALIZATION_WEIGHT), weight),
    ]


def object_sides(columns: Columns) -> np.ndarray:
    """Square roots of the areas of boxes, as fractions of their images: float [M]."""
    extents = columns.boxes[:, 2:] - columns.boxes[:, :2]
    return np.sqrt(np.maximum(extents[:, 0] * extents[:, 1], 1e-8))


def width_choices(config: Any, epochs: float) -> List[Choice]:
    """Half of the channels of a MobileNet, if all of them allow few `epochs` in the time given."""
    if extractor_type(config) not in NARROW_TYPES or epochs >= GOOD_EPOCHS / NARROW_SPEED:
        return []
    reason = (
        f"In the given time all channels would allow {epochs:.0f} passes over the data; half of "
        f"them take {NARROW_SPEED:g} times as many."
    )
    return [Choice("model.ssd.feature_extractor.depth_multiplier", "0.5", reason)]


def size_choices(config: Any, columns: Columns, epochs: Optional[float]) -> List[Choice]:
    """The input size of a single-shot detector, larger for small objects; others keep theirs.

    Args:
        epochs: Passes over the data that fit the time at the present size, from random weights;
            None if size does not depend on time.
    """
    resizer = model_part(config).image_resizer
    if resizer.WhichOneof("image_resizer_oneof") != "fixed_shape_resizer":
        return []
    default = resizer.fixed_shape_resizer.height
    pyramid = "fpn" in extractor_type(config)
    # A percentile, because a single tiny box may be a slip of the annotator.
    smallest = float(np.percentile(object_sides(columns), 10))
    needed = _rounded((MIN_OBJECT_FPN if pyramid else MIN_OBJECT) / smallest)
    at_default = f"a tenth of the objects are smaller than {smallest * default:.0f} pixels"
    size = default
    reason = f"At this size {at_default}."
    if needed > default:
        # Beyond twice the size a step takes more than four times as long; a pyramid is better then.
        size = min(needed, 2 * default)
        reason = f"At {default} pixels {at_default}, too small to find them well."
    elif epochs is not None and epochs < GOOD_EPOCHS:
        # The time of a step is about proportional to the number of pixels.
        size = max(needed, _rounded(default * math.sqrt(epochs / GOOD_EPOCHS)), SMALLEST_SIZE)
        size = min(size, default)
        reason = (
            f"{default} pixels would allow {epochs:.0f} passes over the data in the given time, "
            f"which is few; with them {at_default}."
        )
    value = f"{{ fixed_shape_resizer {{ height: {size} width: {size} }} }}"
    return [Choice(f"model.{config.model.WhichOneof('model')}.image_resizer", value, reason)]


def _rounded(size: float) -> int:
    return int(math.ceil(size / SIZE_STEP) * SIZE_STEP)


def batch_choices(config: Any, columns: Columns, speed: Speed,
                  memory: int) -> List[Choice]:  # fmt: skip
    """The batch size, as large as is usual if it needs at most half of the memory.

    Args:
        speed: Measured with a small batch.
        memory: Bytes of this machine that are free.
    """
    wanted = speed.batch_size
    if config.model.HasField("ssd"):
        # Small batches take more steps in the same time, which matters more for few images: .70
        # against .64 of mAP@.50 on 160 photographs in eight minutes, at 8 and 16 images.
        wanted = 16 if columns.num_images > MANY_IMAGES else 8
    # Half of the memory stays for the input pipeline, evaluations and other programs.
    while wanted > 1 and speed.num_bytes * wanted / speed.batch_size > memory / 2:
        wanted //= 2
    reason = f"{memory / 2**30:.0f} GB of memory are free here."
    return [Choice("train_config.batch_size", str(wanted), reason)]


def num_steps(budget: Budget, columns: Columns, batch_size: int, is_fine_tuned: bool,
              seconds: float) -> Tuple[int, str]:  # fmt: skip
    """Steps to train, and why.

    Args:
        seconds: Duration of a step.
    """
    if budget.num_steps is not None:
        return budget.num_steps, "As asked for."
    if budget.hours is not None:
        # Each evaluation builds its graph, which takes seconds.
        usable = budget.hours * 3600 * SHARE_OF_STEPS - START_SECS
        # Round numbers, so that those of evaluations are round, too.
        steps = max(20, int(usable / seconds) // 20 * 20)
        return steps, f"As many as fit {budget.hours:g} hours, at {seconds:.2f} s a step."
    # Random weights need many more passes than weights that only adapt.
    epochs = 30 if is_fine_tuned else 200
    steps = epochs * columns.num_images // batch_size
    limits = (500, 25_000) if is_fine_tuned else (3_000, 50_000)
    start = "pretrained" if is_fine_tuned else "random"
    return min(
        max(steps, limits[0]), limits[1]
    ), f"Usual for this many images, from {start} weights."


def schedule_choices(config: Any, steps: int, reason: str, is_fine_tuned: bool) -> List[Choice]:
    """Steps, optimizer, rate, and averages of weights and of batch norm."""
    batch = config.train_config.batch_size
    is_ssd = config.model.HasField("ssd")
    if is_ssd:
        # With Adam, rates grow with the square root of the batch.
        rate = 0.0007 * math.sqrt(batch / 8) if is_fine_tuned else 0.002 * math.sqrt(batch / 16)
    else:
        # With momentum, rates grow with the batch.
        rate = 0.0005 * batch if is_fine_tuned else 0.001 * batch
    warmup = max(1, min(1000, steps // 12))
    cosine = (
        f"learning_rate {{ cosine_decay_learning_rate {{ learning_rate_base: {rate:.2g} "
        f"total_steps: {steps} warmup_learning_rate: {rate / 10:.2g} warmup_steps: {warmup} }} }}"
    )
    optimizer = (
        f"adam_optimizer {{ {cosine} }}" if is_ssd
        else f"momentum_optimizer {{ {cosine} momentum_optimizer_value: 0.9 }}"
    )  # fmt: skip
    # An average over a tenth of the run; longer ones would still contain the random start.
    average = min(max(1 - 10 / steps, 0.9), 0.9999)
    choices = [
        Choice("train_config.num_steps", str(steps), reason),
        Choice("train_config.optimizer",
               f"{{ {optimizer} use_moving_average: true moving_average_decay: {average:.4g} }}",
               "The rate rises for a twelfth of the steps, then falls to 0; evaluations and "
               "exports use averages of the weights."),
        Choice("train_config.gradient_clipping_by_norm", "10.0", ""),
        Choice("eval_config.use_moving_averages", "true", ""),
    ]  # fmt: skip
    # The published 0.9997 needs more steps than a short run has to forget its first statistics.
    decay = min(max(1 - 20 / steps, 0.9), 0.997)
    for path in _batch_norms(config):
        choices.append(Choice(f"{path}.decay", f"{decay:.4g}", ""))
    return choices


def _batch_norms(config: Any) -> List[str]:
    """Paths of the batch norms of a single-shot detector."""
    if not config.model.HasField("ssd"):
        return []
    ssd = config.model.ssd
    messages = {"feature_extractor.conv_hyperparams": ssd.feature_extractor.conv_hyperparams}
    predictor = ssd.box_predictor.WhichOneof("box_predictor_oneof")
    if predictor is not None:
        head = getattr(ssd.box_predictor, predictor)
        if hasattr(head, "conv_hyperparams"):
            messages[f"box_predictor.{predictor}.conv_hyperparams"] = head.conv_hyperparams
    return [
        f"model.ssd.{path}.batch_norm"
        for path, message in messages.items()
        if message.HasField("batch_norm")
    ]


def fine_tuning_choices(weights: Pretrained) -> List[Choice]:
    """Fields that make a training start from weights."""
    pairs = [text.partition("=") for text in weights.assignments]
    choices = [Choice(field, value, "") for field, _, value in pairs]
    return [choices[0]._replace(reason=f"Weights of {weights.name}."), *choices[1:]]


def apply(config: Any, choices: Sequence[Choice]) -> Any:
    """A copy of the configuration with the choices."""
    return pipeline.apply_overrides(config, [f"{c.field}={c.value}" for c in choices])


class Draft:
    """A configuration that decisions change one after the other."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.reasons: Dict[str, str] = {}

    def decide(self, choices: Sequence[Choice]) -> None:
        """Takes choices over, with their reasons."""
        self.config = apply(self.config, choices)
        self.reasons.update((choice.field, choice.reason) for choice in choices if choice.reason)
