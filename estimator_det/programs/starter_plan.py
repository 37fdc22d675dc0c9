"""Plans a starter configuration: reads the data, measures training steps, and decides.

The order matters: batch and input size follow from memory and speed, anchors from the input size,
and the schedule from the speed of the final model.
"""

from __future__ import annotations

import glob
import math
import os
from typing import Dict, List, NamedTuple, Optional

import numpy as np

from estimator_det.console.printing import counted, listed, quoted
from estimator_det.errors import RunError
from estimator_det.programs import (
    starter,
    starter_boxes,
    starter_keypoints,
    starter_small,
    step_speed,
)
from estimator_det.programs.pretrained import Pretrained
from estimator_det.programs.starter import Budget
from estimator_det.programs.starter_models import DEFAULT_MODEL, FINER_MODEL
from estimator_det.protos import pipeline_pb2
from inputs.checks.statistics import Columns, boxes_per_image
from inputs.label_map import read_label_map
from inputs.machine import available_cpus, available_memory
from model_fn.checks import data_check

TRAIN = "train"
# To evaluate an image takes this much of the time to train with it; a small detector took 0.4.
EVALUATED_IMAGE = 0.5
HELD_OUT = ("val", "validation", "valid", "eval", "test")  # names of parts, the first one is used


class Plan(NamedTuple):
    """A decided configuration."""

    config: pipeline_pb2.TrainEvalPipelineConfig
    reasons: Dict[str, str]  # by field
    findings: List[str]  # about the data and the anchors
    expectations: List[str]


def make_plan(
    folder: str, budget: Budget, *, model: Optional[str], weights: Optional[Pretrained]
) -> Plan:
    """Decides a configuration for the records of a folder."""
    records = find_records(folder)
    label_map = read_label_map(records.label_map)
    names = label_map.names
    draft = _draft(model, weights, records, names)
    keypoint_lines = starter_keypoints.set_keypoints(draft, label_map)
    report = data_check.check_data(draft.config, folder, jobs=available_cpus())
    columns = report.scans[0].columns
    num_held_out = sum(scan.columns.num_images for scan in report.scans[1:])
    _require_data(records, columns.num_boxes, num_held_out)
    if model is None and weights is None and starter_small.needs_finer_map(columns):
        draft = _draft(FINER_MODEL, None, records, names)
        reason = f"The smallest class needs finer feature maps than {DEFAULT_MODEL} has."
        draft.reasons[f"{draft.model_path}.feature_extractor"] = reason
    counts = np.concatenate([boxes_per_image(scan.columns) for scan in report.scans])
    starter.set_boxes(draft, counts)
    starter.set_augmentation(draft, names.values())  # part of the steps that are measured
    starter.set_decoding(draft, columns)
    is_fine_tuned = weights is not None
    if weights is None:
        starter.set_matching(draft, columns)
    else:
        starter.set_weights(draft, weights)
    anchor_lines = _set_sizes(draft, columns, budget, names, is_fine_tuned)
    precisions = step_speed.own_precisions(draft.config)
    speeds = step_speed.measure(draft.config, precisions)
    speed = step_speed.fastest(speeds)
    batch_size, num_images = draft.config.train_config.batch_size, columns.num_images
    evaluation_secs = num_held_out * EVALUATED_IMAGE * speed.seconds / batch_size
    evaluations = starter.num_evaluations(budget, evaluation_secs)
    evaluation_secs *= evaluations
    steps, why = starter.num_steps(
        budget, num_images, batch_size, is_fine_tuned, speed.seconds, evaluation_secs
    )
    epochs = steps * batch_size / num_images
    crops = is_fine_tuned or epochs >= starter.CROPPED_EPOCHS
    starter.set_augmentation(draft, names.values(), crops)
    starter.set_schedule(draft, steps, why, is_fine_tuned, evaluations)
    findings = [
        f"data: {counted(columns.num_images, 'image')} with {counted(columns.num_boxes, 'box')} of "
        f"{counted(len(names), 'class')}; evaluated on {counted(num_held_out, 'image')}",
        *_classes_without_boxes(names, columns),
        *keypoint_lines,
        *anchor_lines,
    ]
    training_secs = steps * speed.seconds / starter.SHARE_OF_STEPS + starter.START_SECS
    minutes = (training_secs + evaluation_secs) / 60
    expectation = (
        f"Expect: {steps:,} steps of {counted(batch_size, 'image')}, "
        f"{_passes(epochs, is_fine_tuned, steps * batch_size)}; "
        f"{_step_time(speeds, speed)}, so about "
        f"{counted(round(minutes), 'minute')} "
        f"with {counted(evaluations, 'evaluation')}, and at least "
        f"{speed.num_bytes / 1e9:.1f} GB of memory"
    )
    return Plan(draft.config, draft.reasons, findings, [expectation])


def _step_time(speeds: List[step_speed.Speed], fastest: step_speed.Speed) -> str:
    """Seconds of a step; `train` without --precision auto computes in float32, the first speed."""
    text = f"{fastest.seconds:.2f} s a step here"
    if fastest.precision == step_speed.FLOAT32:
        return text
    return f"{text} with --precision auto, {speeds[0].seconds:.2f} s without"


def _classes_without_boxes(names: Dict[int, str], columns: Columns) -> List[str]:
    missing = sorted(set(names) - set(columns.class_ids.tolist()))
    if not missing:
        return []
    texts = listed([quoted(names[i]) for i in missing], 5)
    return [f"no box to train on, so never found: {counted(len(missing), 'class')}, {texts}"]


def _passes(epochs: float, is_fine_tuned: bool, trained_images: int) -> str:
    text = counted(round(epochs), "pass", "passes") if epochs >= 1 else f"{epochs:.2g} of a pass"
    is_little = epochs < 1 or (not is_fine_tuned and trained_images < starter_boxes.FEW_IMAGES)
    remedy = ", which is little (give more time or steps)" if is_little else ""
    return f"{text} over the data{remedy}"


def _require_data(records: starter.Records, num_boxes: int, num_held_out: int) -> None:
    """Raises RunError for records that a run cannot train or be evaluated on."""
    if not num_boxes:
        raise RunError(f"{records.train} has no boxes to train on. Check the annotations")
    if not num_held_out:
        raise RunError(
            f"{records.held_out} has no image to evaluate on. Convert more images, or name some in "
            "a list, as in --split train,val=val.txt"
        )


def _draft(
    model: Optional[str],
    weights: Optional[Pretrained],
    records: starter.Records,
    names: Dict[int, str],
) -> starter.Draft:
    draft = starter.Draft(starter.base_config(model, weights, records))
    starter.set_classes(draft, names)
    return draft


def _set_sizes(
    draft: starter.Draft, columns: Columns, budget: Budget, names: Dict[int, str], has_heads: bool
) -> List[str]:
    """Decides batch size, width, input size and anchors; returns lines about the anchors."""
    # Small, so that measuring does not run out of memory where training would not either.
    draft.set("train_config.batch_size", 1 if draft.is_two_stage else 8)
    (speed,), memory = step_speed.measure(draft.config), available_memory()
    epochs, most_enlarged = None, math.inf
    if budget.hours is not None:
        step_secs = speed.seconds / speed.batch_size  # a step with a batch of 1
        images, _ = starter.num_steps(budget, columns.num_images, 1, has_heads, step_secs)
        if has_heads:  # Weights are good after few passes, but need some.
            most_enlarged = math.sqrt(images / columns.num_images / starter_boxes.FEW_EPOCHS)
        else:
            epochs = starter.set_width(draft, images / columns.num_images)
    resizer = starter.model_part(draft.config).image_resizer.fixed_shape_resizer
    # Memory is about proportional to the number of pixels; half of it must be enough.
    room = memory / 2 * speed.batch_size / speed.num_bytes
    enlarged = min(math.sqrt(room), most_enlarged)
    few_epochs = max(starter_boxes.FEW_EPOCHS, starter_boxes.FEW_IMAGES / columns.num_images)
    limits = starter_boxes.SizeLimits(epochs, resizer.height * enlarged, few_epochs)
    measured = resizer.height
    lines = starter_boxes.fit_boxes(draft, columns, limits, names, has_heads=has_heads)
    height = starter.model_part(draft.config).image_resizer.fixed_shape_resizer.height
    scale = (height / measured) ** 2 if measured else 1
    larger = speed._replace(num_bytes=int(speed.num_bytes * max(scale, 1)))
    starter.set_batch(draft, columns, larger, memory)
    return lines


def find_records(folder: str) -> starter.Records:
    """Parts of a data set by name: `train`, and the first of `HELD_OUT` that is there."""
    label_map = os.path.join(folder, "label_map.pbtxt")
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"there is no folder {folder}; correct the path")
    names = os.listdir(folder)
    parts = {name.partition(".record")[0] for name in names if ".record" in name}
    held_out = next((name for name in HELD_OUT if name in parts), None)
    if TRAIN not in parts or held_out is None or not os.path.isfile(label_map):
        contents = ", ".join(sorted(parts)) or "none"
        raise FileNotFoundError(
            f"{folder} needs records of a part {TRAIN}, records of a part to evaluate on "
            f"({', '.join(HELD_OUT)}) and label_map.pbtxt; parts found: {contents}. Write them by "
            "estimator-det convert --to tfrecord --split train=0.8,val=0.2, or give --from FORMAT"
        )
    # Patterns match one file as well as any number of shards.
    pattern = os.path.join(glob.escape(folder), "{}.record*")
    return starter.Records(pattern.format(TRAIN), pattern.format(held_out), label_map)
