"""Plans a starter configuration: reads the data, measures training steps, and decides.

The order matters: batch and input size follow from memory and speed, anchors from the input size,
and the schedule from the speed of the final model.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, NamedTuple, Optional

from estimator_det.config.printing import counted
from estimator_det.programs import starter, starter_anchors, step_speed
from estimator_det.programs.pretrained import Pretrained
from estimator_det.programs.starter import Budget, Choice
from inputs.checks.statistics import Columns, boxes_per_image
from inputs.label_map import read_label_map
from inputs.machine import available_cpus, available_memory
from model_fn.checkpoints.errors import RunError
from model_fn.checks import data_check
from model_fn.checks.anchor_coverage import Coverage

TRAIN = "train"
HELD_OUT = ("val", "validation", "valid", "eval", "test")  # names of parts, the first one is used


class Plan(NamedTuple):
    """A decided configuration."""

    config: Any
    reasons: Dict[str, str]  # by field
    findings: List[str]  # about the data and the anchors
    expectations: List[str]
    is_bfloat16: bool  # this machine trains faster in it


def make_plan(
    folder: str, budget: Budget, *, model: Optional[str], weights: Optional[Pretrained]
) -> Plan:
    """Decides a configuration for the records of a folder."""
    records = find_records(folder)
    names = read_label_map(records.label_map).names
    draft = starter.Draft(starter.base_config(model, weights, records))
    draft.decide(starter.class_choices(draft.config, names))
    report = data_check.check_data(draft.config, folder, jobs=available_cpus())
    columns = report.scans[0].columns
    if not columns.num_boxes:
        raise RunError(f"{records.train} has no boxes to train on. Check the annotations")
    draft.decide(starter.box_choices(draft.config, boxes_per_image(columns)))
    draft.decide(starter.augmentation_choices(draft.config, list(names.values())))
    draft.decide(starter.decoding_choices(draft.config, columns))
    if weights is not None:
        draft.decide(starter.fine_tuning_choices(weights))
    else:
        draft.decide(starter.matching_choices(draft.config, columns))
    is_fine_tuned = weights is not None
    coverage = _decide_sizes(draft, columns, budget, is_fine_tuned)
    speed, is_bfloat16 = step_speed.fastest(draft.config)
    batch_size = draft.config.train_config.batch_size
    steps, why = starter.num_steps(budget, columns, batch_size, is_fine_tuned, speed.seconds)
    epochs = steps * batch_size / columns.num_images
    crops = is_fine_tuned or epochs >= starter.CROPPED_EPOCHS
    draft.decide(starter.augmentation_choices(draft.config, list(names.values()), crops))
    draft.decide(starter.schedule_choices(draft.config, steps, why, is_fine_tuned))
    num_held_out = sum(scan.columns.num_images for scan in report.scans[1:])
    findings = [
        f"data: {counted(columns.num_images, 'image')} with {counted(columns.num_boxes, 'box')} of "
        f"{counted(len(names), 'class')}; evaluated on {counted(num_held_out, 'image')}",
        *starter_anchors.findings(coverage),
    ]
    minutes = (steps * speed.seconds / starter.SHARE_OF_STEPS + starter.START_SECS) / 60
    expectation = (
        f"Expect: {steps:,} steps of {counted(batch_size, 'image')}, "
        f"{epochs:.0f} passes over the data; "
        f"{speed.seconds:.2f} s a step here, so about {counted(round(minutes), 'minute')}, and "
        f"{speed.num_bytes / 2**30:.1f} GB of memory"
    )
    return Plan(draft.config, draft.reasons, findings, [expectation], is_bfloat16)


def _decide_sizes(
    draft: starter.Draft, columns: Columns, budget: Budget, is_fine_tuned: bool
) -> Optional[Coverage]:
    """Decides batch size, width, input size and anchors."""
    # Small, so that measuring does not run out of memory where training would not either.
    first_batch = "8" if draft.config.model.HasField("ssd") else "1"
    draft.decide([Choice("train_config.batch_size", first_batch, "")])
    speed = step_speed.measure(draft.config, is_bfloat16=False)
    draft.decide(starter.batch_choices(draft.config, columns, speed, available_memory()))
    epochs = None
    if not is_fine_tuned and budget.hours is not None:
        per_image = speed.seconds / speed.batch_size
        # Steps of one image each.
        images, _ = starter.num_steps(budget, columns, 1, False, per_image)
        epochs = images / columns.num_images
        narrow = starter.width_choices(draft.config, epochs)
        draft.decide(narrow)
        epochs *= starter.NARROW_SPEED if narrow else 1.0
    draft.decide(starter.size_choices(draft.config, columns, epochs))
    return starter_anchors.decide_anchors(draft, columns, has_heads=is_fine_tuned)


def find_records(folder: str) -> starter.Records:
    """Parts of a data set by name: `train`, and the first of `HELD_OUT` that is there."""
    label_map = os.path.join(folder, "label_map.pbtxt")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    parts = {name.partition(".record")[0] for name in names if ".record" in name}
    held_out = next((name for name in HELD_OUT if name in parts), None)
    if TRAIN not in parts or held_out is None or not os.path.isfile(label_map):
        contents = ", ".join(sorted(parts)) or "none"
        raise FileNotFoundError(
            f"{folder} needs records of a part {TRAIN}, records of a part to evaluate on "
            f"({', '.join(HELD_OUT)}) and label_map.pbtxt; parts found: {contents}. Write them by "
            "estimator-det convert --to tfrecord --split train=0.8,val=0.2"
        )
    # Patterns match one file as well as any number of shards.
    pattern = os.path.join(folder, "{}.record*")
    return starter.Records(pattern.format(TRAIN), pattern.format(held_out), label_map)
