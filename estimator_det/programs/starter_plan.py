"""Plans a starter configuration: reads the data, measures training steps, and decides.

The order matters: batch and input size follow from memory and speed, anchors from the input size,
and the schedule from the speed of the final model.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from estimator_det.config.printing import counted
from estimator_det.programs import starter, step_speed
from estimator_det.programs.pretrained import Pretrained
from estimator_det.programs.starter import Budget, Choice
from inputs.checks.statistics import Columns, boxes_per_image
from inputs.label_map import read_label_map
from inputs.machine import available_cpus, available_memory
from model_fn.checkpoints.errors import RunError
from model_fn.checks import data_check
from model_fn.checks.anchor_coverage import Coverage

BETTER_IOU = 0.02  # by which anchors of the data must be better than published ones
MANY_UNMATCHED = 0.05  # share of boxes for which new anchors are worth new heads


class Plan(NamedTuple):
    """A decided configuration."""

    config: Any
    reasons: Dict[str, str]  # by field
    findings: List[str]  # about the data and the anchors
    expectations: List[str]
    is_bfloat16: bool  # this machine trains faster in it


class _Draft:
    """A configuration that decisions change one after the other."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.reasons: Dict[str, str] = {}

    def decide(self, choices: Sequence[Choice]) -> None:
        """Takes choices over, with their reasons."""
        self.config = starter.apply(self.config, choices)
        self.reasons.update((choice.field, choice.reason) for choice in choices if choice.reason)


def make_plan(
    folder: str, budget: Budget, *, model: Optional[str], weights: Optional[Pretrained]
) -> Plan:
    """Decides a configuration for the records of a folder.

    Raises:
        FileNotFoundError: if the folder does not have what `starter.find_records` needs.
        ConfigError: if the model is not known, or the weights belong to another one.
        RunError: if the records have no boxes.
    """
    records = starter.find_records(folder)
    names = read_label_map(records.label_map).names
    draft = _Draft(starter.base_config(model, weights, records))
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
        *_anchor_findings(coverage),
    ]
    minutes = (steps * speed.seconds / starter.SHARE_OF_STEPS + starter.START_SECS) / 60
    expectation = (
        f"Expect: {steps:,} steps of {counted(batch_size, 'image')}, "
        f"{epochs:.0f} passes over the data; "
        f"{speed.seconds:.2f} s a step here, so about {minutes:,.0f} minutes, and "
        f"{speed.num_bytes / 2**30:.1f} GB of memory"
    )
    return Plan(draft.config, draft.reasons, findings, [expectation], is_bfloat16)


def _decide_sizes(
    draft: _Draft, columns: Columns, budget: Budget, is_fine_tuned: bool
) -> Optional[Coverage]:
    """Decides batch size, width, input size and anchors."""
    # Small, so that measuring does not run out of memory where training would not either.
    draft.decide([Choice("train_config.batch_size", _first_batch(draft.config), "")])
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
    return _decide_anchors(draft, columns, has_heads=is_fine_tuned)


def _first_batch(config: Any) -> str:
    return "8" if config.model.HasField("ssd") else "1"


def _decide_anchors(draft: _Draft, columns: Columns, *, has_heads: bool) -> Optional[Coverage]:
    """Takes anchors that follow from the data, if they fit its boxes better.

    Args:
        has_heads: Heads are restored, which have learned the present anchors; they are kept unless
            many boxes match none of them.
    """
    coverage = data_check.coverage_of(draft.config, columns, progress=False)
    candidate = starter.anchor_candidate(draft.config, columns)
    if coverage is None or candidate is None:
        return coverage
    # In one fine-tuning on 160 photographs restored heads were worth .09 of mAP@.50.
    if has_heads and (coverage.best_iou < 0.5).mean() < MANY_UNMATCHED:
        reason = "Those of the weights, whose heads have learned them; the boxes match them."
        draft.reasons[candidate.field] = reason
        return coverage
    changed = starter.apply(draft.config, [candidate])
    fit = data_check.coverage_of(changed, columns, progress=False)
    if fit is None or fit.best_iou.mean() < coverage.best_iou.mean() + BETTER_IOU:
        return coverage
    reason = (
        "From the sizes and shapes of the boxes, which overlap their best anchor by "
        f"{fit.best_iou.mean():.2f} on average; without that by {coverage.best_iou.mean():.2f}."
    )
    draft.decide([candidate._replace(reason=reason)])
    return fit


def _anchor_findings(coverage: Optional[Coverage]) -> List[str]:
    if coverage is None:
        return []
    below = int(coverage.below.sum())
    lines = [
        f"anchors: boxes overlap their best anchor by {coverage.best_iou.mean():.2f} on average; "
        f"{counted(below, 'box overlaps', 'boxes overlap')} none by half"
    ]
    unused = [part for part in coverage.maps if not part.num_best]
    if unused:
        sizes = ", ".join(f"{part.size[0]}x{part.size[1]}" for part in unused)
        lines.append(f"no box matches the anchors of the feature maps of {sizes} cells")
    return lines
