"""Plans a starter configuration: reads the data, measures training steps, and decides.

The order matters: batch and input size follow from memory and speed, anchors from the input size,
and the schedule from the speed of the final model.
"""

from __future__ import annotations

import os
from typing import Dict, Iterable, List, NamedTuple, Optional, Union

import numpy as np

from estimator_det.config import pipeline
from estimator_det.console.printing import counted
from estimator_det.programs import starter, step_speed
from estimator_det.programs.pretrained import Pretrained
from estimator_det.programs.starter import Budget
from estimator_det.protos import faster_rcnn_pb2, pipeline_pb2, ssd_pb2
from inputs.checks.statistics import Columns, boxes_per_image
from inputs.label_map import read_label_map
from inputs.machine import available_cpus, available_memory
from model_fn.checkpoints.errors import RunError
from model_fn.checks import data_check
from model_fn.checks.anchor_coverage import Coverage

TRAIN = "train"
HELD_OUT = ("val", "validation", "valid", "eval", "test")  # names of parts, the first one is used
BETTER_IOU = 0.02  # by which anchors of the data must be better than published ones
MANY_UNMATCHED = 0.05  # share of boxes for which new anchors are worth new heads


class Plan(NamedTuple):
    """A decided configuration."""

    config: pipeline_pb2.TrainEvalPipelineConfig
    reasons: Dict[str, str]  # by field
    findings: List[str]  # about the data and the anchors
    expectations: List[str]
    precision: str  # in which this machine trains fastest


def make_plan(
    folder: str, budget: Budget, *, model: Optional[str], weights: Optional[Pretrained]
) -> Plan:
    """Decides a configuration for the records of a folder."""
    records = find_records(folder)
    names = read_label_map(records.label_map).names
    draft = starter.Draft(starter.base_config(model, weights, records))
    starter.set_classes(draft, names)
    report = data_check.check_data(draft.config, folder, jobs=available_cpus())
    columns = report.scans[0].columns
    if not columns.num_boxes:
        raise RunError(f"{records.train} has no boxes to train on. Check the annotations")
    starter.set_boxes(draft, boxes_per_image(columns))
    starter.set_augmentation(draft, names.values())  # part of the steps that are measured
    starter.set_decoding(draft, columns)
    is_fine_tuned = weights is not None
    if weights is None:
        starter.set_matching(draft, columns)
    else:
        starter.set_weights(draft, weights)
    coverage = _set_sizes(draft, columns, budget, is_fine_tuned)
    speed = step_speed.fastest(draft.config)
    batch_size, num_images = draft.config.train_config.batch_size, columns.num_images
    steps, why = starter.num_steps(budget, num_images, batch_size, is_fine_tuned, speed.seconds)
    epochs = steps * batch_size / num_images
    crops = is_fine_tuned or epochs >= starter.CROPPED_EPOCHS
    starter.set_augmentation(draft, names.values(), crops)
    starter.set_schedule(draft, steps, why, is_fine_tuned)
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
        f"{speed.seconds:.2f} s a step here, so about {counted(round(minutes), 'minute')}, and "
        f"{speed.num_bytes / 2**30:.1f} GB of memory"
    )
    return Plan(draft.config, draft.reasons, findings, [expectation], speed.precision)


def _set_sizes(
    draft: starter.Draft, columns: Columns, budget: Budget, is_fine_tuned: bool
) -> Optional[Coverage]:
    """Decides batch size, width, input size and anchors; returns what the anchors cover."""
    # Small, so that measuring does not run out of memory where training would not either.
    draft.set("train_config.batch_size", 8 if draft.is_ssd else 1)
    speed = step_speed.measure(draft.config)
    starter.set_batch(draft, columns, speed, available_memory())
    epochs = None
    if not is_fine_tuned and budget.hours is not None:
        step_secs = speed.seconds / speed.batch_size  # a step with a batch of 1
        images, _ = starter.num_steps(budget, columns.num_images, 1, is_fine_tuned, step_secs)
        epochs = starter.set_width(draft, images / columns.num_images)
    starter.set_size(draft, columns, epochs)
    return set_anchors(draft, columns, has_heads=is_fine_tuned)


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


def set_anchors(draft: starter.Draft, columns: Columns, *, has_heads: bool) -> Optional[Coverage]:
    """Takes anchors that follow from the data, if they fit its boxes better.

    Args:
        has_heads: Heads are restored, which have learned the present anchors; they are kept unless
            many boxes match none of them.
    """
    coverage = data_check.coverage_of(draft.config, columns, progress=False)
    anchors = anchors_of(columns, starter.model_part(draft.config))
    if coverage is None or anchors is None:
        return coverage
    field = f"{draft.model_path}.{'' if draft.is_ssd else 'first_stage_'}anchor_generator"
    # In one fine-tuning on 160 photographs restored heads were worth .09 of mAP@.50.
    if has_heads and (coverage.best_iou < 0.5).mean() < MANY_UNMATCHED:
        reason = "Those of the weights, whose heads have learned them; the boxes match them."
        draft.reasons[field] = reason
        return coverage
    changed = pipeline.apply_overrides(draft.config, [f"{field}={anchors}"])
    fit = data_check.coverage_of(changed, columns, progress=False)
    if fit is None or fit.best_iou.mean() < coverage.best_iou.mean() + BETTER_IOU:
        return coverage
    reason = (
        "From the sizes and shapes of the boxes, which overlap their best anchor by "
        f"{fit.best_iou.mean():.2f} on average; without that by {coverage.best_iou.mean():.2f}."
    )
    draft.set(field, anchors, reason)
    return fit


def _anchor_findings(coverage: Optional[Coverage]) -> List[str]:
    """Lines about how well anchors cover the boxes."""
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


def anchors_of(
    columns: Columns, model: Union[faster_rcnn_pb2.FasterRcnn, ssd_pb2.Ssd]
) -> Optional[str]:
    """Text form of a generator with anchors like the boxes; None for generators of other kinds."""
    generator = (
        model.anchor_generator
        if isinstance(model, ssd_pb2.Ssd)
        else model.first_stage_anchor_generator
    )
    kind = generator.WhichOneof("anchor_generator_oneof")
    message = getattr(generator, kind)
    # The rarest sizes are left to the matcher, which gives each box its best anchor.
    low, high = (float(np.percentile(starter.object_sides(columns), share)) for share in (4, 96))
    high = max(high, 2 * low)
    if kind == "ssd_anchor_generator":
        # Random crops and flips make objects a little smaller and larger than the records say.
        text = (
            f"num_layers: {message.num_layers} min_scale: {max(0.85 * low, 0.03):.3g} "
            f"max_scale: {min(max(high, 0.3), 0.95):.3g} reduce_boxes_in_lowest_layer: false"
        )
    elif kind == "multiscale_anchor_generator":
        # The finest map has anchors of this many strides.
        scale = low * model.image_resizer.fixed_shape_resizer.height / 2**message.min_level
        text = (
            f"min_level: {message.min_level} max_level: {message.max_level} "
            f"anchor_scale: {min(max(scale, 1.5), 4.0):.2g} "
            f"scales_per_octave: {message.scales_per_octave}"
        )
    elif kind == "grid_anchor_generator":
        side = model.image_resizer.keep_aspect_ratio_resizer.min_dimension or 600
        # Scale 1 is 256 pixels of the resized image.
        scales = np.geomspace(low, high, len(message.scales)) * side / 256
        text = (
            f"scales: {_listed(np.maximum(scales, 0.05))} "
            f"height_stride: {message.height_stride} width_stride: {message.width_stride}"
        )
    else:
        return None
    ratios = _listed(_aspect_ratios(columns, len(message.aspect_ratios)))
    return f"{{ {kind} {{ {text} aspect_ratios: {ratios} }} }}"


def _aspect_ratios(columns: Columns, number: int) -> List[float]:
    """1 and quantiles of the boxes' widths over heights, in images resized to a square.

    As many ratios as now, so that heads of a checkpoint fit.
    """
    # Records may have boxes without area, which `check-data` reports.
    extents = np.maximum(columns.boxes[:, 2:] - columns.boxes[:, :2], 1e-4)
    # Quantiles put ratios where boxes are; 1 stays, since generators treat it in a special way.
    places = (np.arange(number - 1) + 0.5) / max(number - 1, 1)
    return [1.0, *np.quantile(extents[:, 1] / extents[:, 0], places).clip(0.2, 5.0)]


def _listed(values: Iterable[float]) -> str:
    return "[" + ", ".join(f"{value:.3g}" for value in values) + "]"
