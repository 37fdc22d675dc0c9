"""Starter configurations: values that follow from data, weights, time and this machine.

Each decision sets fields of a `Draft`, with the reasons, which become comments in the written file.
"""

from __future__ import annotations

import math
import os
from typing import Any, Dict, Iterable, NamedTuple, Optional, Tuple

import numpy as np

from estimator_det.config import pipeline
from estimator_det.config.text import entries
from estimator_det.console.printing import counted, listed
from estimator_det.errors import UsageError
from estimator_det.images.resize import make_resizer
from estimator_det.programs.pretrained import Pretrained
from estimator_det.programs.starter_models import DEFAULT_MODEL, find_starter
from estimator_det.programs.step_speed import Speed
from estimator_det.protos import eval_pb2, input_reader_pb2, pipeline_pb2
from inputs.checks.statistics import Columns

CONFIGS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "configs")
# Passes from which crops help a network from random weights. Before, it has not seen whole objects
# often enough: on 106 photographs crops change mAP from .30 to .28 in 75 passes, and from .31 to
# .37 in 151, means of three seeds.
CROPPED_EPOCHS = 100
MANY_IMAGES = 2000  # more of them are learned as well in larger batches
GOOD_EPOCHS = 200  # passes over the data after which a small network from scratch is good
NARROW_TYPES = ("ssd_mobilenet_v1", "ssd_mobilenet_v2")
NARROW_SPEED = 2.0  # half of the channels: a step is 2.3 times as fast on two cores
# On 106 photographs, 1,000 steps of 8 gave an mAP of .30 instead of .20 with the two, three seeds.
MATCHED_IOU = 0.4
LOCALIZATION_WEIGHT = 2.0
START_SECS = 25.0  # before the first step of a run, and to save the last one
EVALUATIONS = 4  # in a run at most, the last one included
# Evaluations get this much of the given time, and there is at least one.
SHARE_OF_EVALUATIONS = 0.25
# The rest of a run's time is for saving and for graphs of evaluations, which take seconds each.
SHARE_OF_STEPS = 0.85


class Records(NamedTuple):
    """Record files and label map of a folder that `convert` has written."""

    train: str  # pattern
    held_out: str  # pattern
    label_map: str


class Budget(NamedTuple):
    """Length of a training; it follows from the number of images if both are None."""

    hours: Optional[float] = None
    num_steps: Optional[int] = None


class Draft:
    """A configuration that decisions change one after the other."""

    def __init__(self, config: pipeline_pb2.TrainEvalPipelineConfig) -> None:
        self.config = config
        self.reasons: Dict[str, str] = {}  # by field
        # The step that mirrors images; "" if mirrored objects would be wrong.
        self.flip = "random_horizontal_flip { }"

    @property
    def is_ssd(self) -> bool:
        return bool(self.config.model.HasField("ssd"))

    @property
    def is_two_stage(self) -> bool:
        return bool(self.config.model.HasField("faster_rcnn"))

    @property
    def model_path(self) -> str:
        """`model.ssd`, `model.faster_rcnn` or `model.center_net`."""
        return f"model.{self.config.model.WhichOneof('model')}"

    def set(self, field: str, value: Any, reason: str = "") -> None:
        """Sets a field, in the form of `--set`."""
        self.config = pipeline.apply_overrides(self.config, [f"{field}={value}"])
        if reason:
            self.reasons[field] = reason


def base_config(
    model: Optional[str], weights: Optional[Pretrained], records: Records
) -> pipeline_pb2.TrainEvalPipelineConfig:
    """A configuration with the model of the weights, or else of a row of `MODELS`."""
    row = find_starter(model or DEFAULT_MODEL)
    source = pipeline.apply_overrides(
        pipeline.read_pipeline(os.path.join(CONFIGS, row.config)), row.changes
    )
    if weights is not None and weights.config is not None:
        theirs, ours = extractor_type(weights.config), extractor_type(source)
        if model is not None and theirs != ours:
            raise UsageError(
                f"--model: {model} has the feature extractor {ours}, and the weights of "
                f"{weights.name} have {theirs}. Leave --model out, or give weights of this model"
            )
        # Heads and anchors fit the checkpoint only with the model that it was trained with.
        source = weights.config
    masks: Dict[str, Any] = {}
    metrics = ["coco_detection_metrics"]
    if has_masks(source):
        masks = {"load_instance_masks": True, "mask_type": input_reader_pb2.PNG_MASKS}
        metrics.append("coco_mask_metrics")
    # Only the model is taken: readers and training of a shipped file belong to its data and
    # machine.
    config = pipeline_pb2.TrainEvalPipelineConfig(
        model=source.model,
        train_input_reader=_reader(records.train, records, **masks),
        # One reader keeps the order of images, so that pictures of evaluations can be compared.
        eval_input_reader=[
            _reader(records.held_out, records, shuffle=False, num_readers=1, **masks)
        ],
        eval_config=eval_pb2.EvalConfig(metrics_set=metrics),
    )
    if config.model.HasField("ssd"):
        config.model.ssd.ClearField("inplace_batchnorm_update")  # for the training loop of a TPU
    return config


def _reader(pattern: str, records: Records, **settings: Any) -> input_reader_pb2.InputReader:
    paths = input_reader_pb2.TFRecordInputReader(input_path=[pattern])
    return input_reader_pb2.InputReader(
        tf_record_input_reader=paths, label_map_path=records.label_map, **settings
    )


def model_part(config: pipeline_pb2.TrainEvalPipelineConfig) -> Any:
    """The message `model.ssd`, `model.faster_rcnn` or `model.center_net`."""
    return getattr(config.model, config.model.WhichOneof("model"))


def extractor_type(config: pipeline_pb2.TrainEvalPipelineConfig) -> str:
    """`feature_extractor.type` of a configuration."""
    return str(model_part(config).feature_extractor.type)


def has_masks(config: pipeline_pb2.TrainEvalPipelineConfig) -> bool:
    """True for Mask R-CNN."""
    return config.model.HasField("faster_rcnn") and config.model.faster_rcnn.number_of_stages == 3


def set_classes(draft: Draft, names: Dict[int, str]) -> None:
    """The number of classes, which must be the largest id of the label map."""
    reason = f"The classes of label_map.pbtxt: {listed(names.values(), 5)}."
    draft.set(f"{draft.model_path}.num_classes", max(names), reason)


def set_boxes(draft: Draft, boxes_per_image: np.ndarray) -> None:
    """Room for the boxes of the fullest image, in batches and in detections."""
    most = int(boxes_per_image.max())
    # Rounded up, because a few images of later data may have more.
    room = max(8, 8 * math.ceil(most / 8))
    reason = f"The fullest image has {counted(most, 'box', 'boxes')}."
    draft.set("train_input_reader.max_number_of_boxes", room, reason)
    draft.set("eval_input_reader[0].max_number_of_boxes", room)
    # Twice as many, because wrong detections take places, too.
    if 2 * room > 100 and draft.config.model.HasField("center_net"):
        path = f"{draft.model_path}.object_center_params.max_box_predictions"
        draft.set(path, 2 * room, f"The fullest image has {most} boxes.")
    elif 2 * room > 100:
        part = "post_processing" if draft.is_ssd else "second_stage_post_processing"
        for field in ("max_detections_per_class", "max_total_detections"):
            path = f"{draft.model_path}.{part}.batch_non_max_suppression.{field}"
            draft.set(path, 2 * room, f"The fullest image has {most} boxes.")


def set_augmentation(draft: Draft, names: Iterable[str], crops: bool = True) -> None:
    """Augmentations for photographs, which have an up and a down; with `crops`, parts of images."""
    words = " ".join(names).lower().replace("_", " ").split()
    is_sided = "left" in words or "right" in words
    steps = [] if is_sided or not draft.flip else [draft.flip]
    flip = "mirrored" if steps else "no flip, since classes have a left and a right"
    crops &= draft.is_ssd
    if crops:
        steps.append("ssd_random_crop { }")
    steps.append("random_distort_color { }")
    crop = ", cropped around objects" if crops else ""
    reason = f"Photographs: {flip}{crop}, in other light; never upside down."
    value = ", ".join(f"{{ {step} }}" for step in steps)
    draft.set("train_config.data_augmentation_options", f"[{value}]", reason)


def set_decoding(draft: Draft, columns: Columns) -> None:
    """`fast_jpeg`, if most photographs are so large that it has an effect."""
    height, width = np.median(columns.sizes, axis=0)
    resizer = make_resizer(model_part(draft.config).image_resizer)
    resized = resizer.new_size(int(height), int(width))
    if has_masks(draft.config) or height < 4 * resized[0] or width < 4 * resized[1]:
        return
    reason = f"Photographs of {width:.0f}x{height:.0f} pixels are read several times as fast."
    draft.set("train_input_reader.fast_jpeg", "true", reason)
    draft.set("eval_input_reader[0].fast_jpeg", "true")


def set_matching(draft: Draft, columns: Columns) -> None:
    """More anchors for each object, and heavier losses of boxes, for few images.

    For single-shot detectors from random weights; others learn as their models were published.
    """
    has_matcher = draft.config.model.ssd.matcher.HasField("argmax_matcher")
    if not has_matcher or columns.num_images > MANY_IMAGES:
        return
    matcher = "model.ssd.matcher.argmax_matcher"
    reason = f"With {MATCHED_IOU:g} an object trains more anchors, which helps if there are few."
    draft.set(f"{matcher}.matched_threshold", MATCHED_IOU, reason)
    draft.set(f"{matcher}.unmatched_threshold", MATCHED_IOU)
    reason = "Boxes are learned more slowly than classes if there are few."
    draft.set("model.ssd.loss.localization_weight", LOCALIZATION_WEIGHT, reason)


def set_weights(draft: Draft, weights: Pretrained) -> None:
    """Fields that make a training start from weights."""
    draft.config = pipeline.set_values(draft.config, weights.fields.items())
    draft.reasons["train_config.fine_tune_checkpoint"] = f"Weights of {weights.name}."


def set_width(draft: Draft, epochs: float) -> float:
    """Half of the channels of a MobileNet, if all of them allow few `epochs` in the time given.

    Returns the epochs that the width allows.
    """
    if extractor_type(draft.config) not in NARROW_TYPES or epochs >= GOOD_EPOCHS / NARROW_SPEED:
        return epochs
    reason = (
        f"In the given time all channels would allow {counted(round(epochs), 'pass', 'passes')} "
        f"over the data; half of them take {NARROW_SPEED:g} times as many."
    )
    draft.set("model.ssd.feature_extractor.depth_multiplier", 0.5, reason)
    return epochs * NARROW_SPEED


def set_batch(draft: Draft, columns: Columns, speed: Speed, memory: int) -> None:
    """The batch size, as large as is usual if it needs at most half of the memory.

    Args:
        speed: Measured with a small batch.
        memory: Bytes of this machine that are free.
    """
    batch = speed.batch_size
    if not draft.is_two_stage:
        # Small batches take more steps in the same time, which matters more for few images: .70
        # against .64 of mAP@.50 on 160 photographs in eight minutes, at 8 and 16 images.
        batch = 16 if columns.num_images > MANY_IMAGES else 8
    # Half of the memory stays for the input pipeline, evaluations and other programs.
    while batch > 1 and speed.num_bytes * batch / speed.batch_size > memory / 2:
        batch //= 2
    reason = "Smaller batches take more steps in the given time, larger ones need more memory"
    free = f"{memory / 1e9:.0f} GB of memory are free here."
    draft.set("train_config.batch_size", batch, f"{reason}: {free}")


def num_evaluations(budget: Budget, evaluation_secs: float) -> int:
    """Evaluations of a run, the last one included; images of each take `evaluation_secs`."""
    if budget.hours is None or not evaluation_secs:
        return EVALUATIONS
    fitting = int(SHARE_OF_EVALUATIONS * budget.hours * 3600 / evaluation_secs)
    return min(max(fitting, 1), EVALUATIONS)


def num_steps(
    budget: Budget,
    num_images: int,
    batch_size: int,
    is_fine_tuned: bool,
    step_secs: float,
    evaluation_secs: float = 0.0,
) -> Tuple[int, str]:
    """Steps to train, and why; `evaluation_secs` are for the images of all evaluations."""
    if budget.num_steps is not None:
        return budget.num_steps, "As asked for."
    if budget.hours is not None:
        usable = (budget.hours * 3600 - evaluation_secs) * SHARE_OF_STEPS - START_SECS
        # A multiple of 20, so that the steps of evaluations are round numbers, too.
        steps = max(20, int(usable / step_secs) // 20 * 20)
        return steps, f"As many as fit {budget.hours:g} hours, at {step_secs:.2f} s a step."
    # Random weights need many more passes than weights that only adapt.
    epochs, low, high = (30, 500, 25_000) if is_fine_tuned else (200, 3_000, 50_000)
    steps = min(max(epochs * num_images // batch_size, low), high)
    start = "pretrained" if is_fine_tuned else "random"
    return steps, f"Usual for this many images, from {start} weights."


def set_schedule(
    draft: Draft, steps: int, reason: str, is_fine_tuned: bool, evaluations: int
) -> None:
    """Steps, optimizer, rate, and averages of weights and of batch norm."""
    batch = draft.config.train_config.batch_size
    if draft.is_two_stage:
        # With momentum, rates grow with the batch.
        rate = 0.0005 * batch if is_fine_tuned else 0.001 * batch
    else:
        # With Adam, rates grow with the square root of the batch.
        rate = 0.0007 * math.sqrt(batch / 8) if is_fine_tuned else 0.002 * math.sqrt(batch / 16)
    warmup = min(1000, steps // 12)
    cosine = (
        f"learning_rate {{ cosine_decay_learning_rate {{ learning_rate_base: {rate:.2g} "
        f"total_steps: {steps} warmup_learning_rate: {rate / 10:.2g} warmup_steps: {warmup} }} }}"
    )
    optimizer = (
        f"momentum_optimizer {{ {cosine} momentum_optimizer_value: 0.9 }}" if draft.is_two_stage
        else f"adam_optimizer {{ {cosine} }}"
    )  # fmt: skip
    draft.set("train_config.num_steps", steps, reason)
    # An average over a tenth of the run; longer ones would still contain the random start.
    average = min(max(1 - 10 / steps, 0.9), 0.9999)
    draft.set(
        "train_config.optimizer",
        f"{{ {optimizer} use_moving_average: true moving_average_decay: {average:.4g} }}",
        "The rate rises for a twelfth of the steps, then falls to 0; evaluations and exports use "
        "averages of the weights.",
    )
    draft.set("train_config.gradient_clipping_by_norm", "10.0")
    draft.set("eval_config.use_moving_averages", "true")
    reason = f"{counted(evaluations, 'evaluation')} in the run, the last one included."
    draft.set("eval_config.eval_interval_steps", max(1, -(-steps // evaluations)), reason)
    # The published 0.9997 needs more steps than a short run has to forget its first statistics.
    decay = min(max(1 - 20 / steps, 0.9), 0.997)
    if draft.is_ssd:
        for entry in entries(draft.config):
            if entry.field.name == "batch_norm":
                draft.set(f"{entry.path}.decay", f"{decay:.4g}")
