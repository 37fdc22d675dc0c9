"""Checks all data of a configuration before any training: records, labels, sizes and anchors."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from estimator_det.config import facts
from estimator_det.config.rules import check
from estimator_det.console.bars import progress_bar
from estimator_det.console.printing import counted
from estimator_det.detectors import build_detector
from estimator_det.errors import (
    ConfigError,
    Problem,
    UsageError,
    error,
    raise_errors,
    warning,
)
from estimator_det.images.resize import make_resizer
from estimator_det.protos import faster_rcnn_pb2, input_reader_pb2, pipeline_pb2, ssd_pb2
from inputs.bad_records.policy import BadRecordPolicy, make_policy
from inputs.checks import scan, statistics
from inputs.checks.scan import Scan, ScanPlan
from inputs.checks.statistics import count_columns
from inputs.label_map import LabelMap
from model_fn.checks import anchor_coverage, data_problems
from model_fn.checks.anchor_coverage import Coverage
from model_fn.checks.data_problems import ANCHOR_GENERATOR
from model_fn.checks.data_report import DataReport
from model_fn.checks.files import compare_with_model
from model_fn.checks.subject import read_label_maps

TRAIN_READER = "train_input_reader"


def check_data(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    title: str,
    *,
    readers: str = "all",
    jobs: int = 1,
    max_records: Optional[int] = None,
    progress: bool = True,
) -> DataReport:
    """Reads all records of a `TrainEvalPipelineConfig`, the first `max_records` of each file.

    `title` names the configuration in the report; `readers` is "train", "eval" or "all".
    """
    chosen = _readers(config, readers)
    errors = [problem for problem in check(config) if problem.severity == "error"]
    raise_errors(problem for problem in errors if problem.field == "model")
    model = getattr(config.model, str(config.model.WhichOneof("model")))
    parts = tuple(f"{field}." for field, _ in chosen)
    problems = [each for each in errors if each.field.startswith(("model.", *parts))]
    can_be_made = not any(problem.field.startswith("model.") for problem in problems)
    chosen = [
        each for each in chosen if not any(p.field.startswith(f"{each[0]}.") for p in problems)
    ]
    plans, problems_of_readers = _plans(config, chosen, model.num_classes, max_records)
    problems += problems_of_readers
    counts = [plan.num_records for plan in plans]
    total = None if None in counts else sum(number or 0 for number in counts)
    with progress_bar("reading", total, "records", shown=progress) as advance:
        scans = scan.run(plans, jobs=jobs, advance=advance)
    for part, plan in zip(scans, plans):
        problems += _problems_of(part, plan.policy)
    columns = {part.reader: part.columns for part in scans}
    if TRAIN_READER in columns:
        others = {field: c for field, c in columns.items() if field != TRAIN_READER}
        problems += data_problems.check_overlap(columns[TRAIN_READER], others)
    maps = [plan.policy.label_map for plan in reversed(plans) if plan.policy.label_map is not None]
    names = {i: name for label_map in maps for i, name in label_map.names.items()}
    coverage: Optional[Coverage] = None
    problems_of_anchors: List[Problem] = []
    resized: Dict[str, np.ndarray] = {}
    if can_be_made:
        coverage, problems_of_anchors = _coverage(config, plans, scans, names, progress)
        resized = _resized(model, scans)
    tallies = {part.reader: count_columns(part.columns, resized.get(part.reader)) for part in scans}
    return DataReport(
        config=title,
        scans=scans,
        names=names,
        resized=resized,
        tallies=tallies,
        problems=sorted(
            [*problems, *problems_of_anchors], key=lambda problem: problem.severity != "error"
        ),
        anchors=coverage,
    )


def anchor_problems(
    config: pipeline_pb2.TrainEvalPipelineConfig, max_records: int
) -> List[Problem]:
    """Problems of the anchors with the boxes of the first evaluation reader's records."""
    report = check_data(config, "", readers="eval", max_records=max_records, progress=False)
    return [problem for problem in report.problems if problem.field.endswith(ANCHOR_GENERATOR)]


def _plans(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    chosen: Sequence[Tuple[str, input_reader_pb2.InputReader]],
    num_classes: int,
    max_records: Optional[int],
) -> Tuple[List[ScanPlan], List[Problem]]:
    """Returns plans of what to read, and problems that prevent reading."""
    plans: List[ScanPlan] = []
    table = read_label_maps(chosen)
    problems = list(compare_with_model(table, config.model))
    for entry in table:
        field, reader, labels = entry
        if labels is None:
            remedy = "set it, so that classes have names and are checked"
            problems.append(warning(f"{field}.label_map_path", "there is no label map", remedy))
        # Without a readable label map, records are read by their class ids.
        policy = _policy(field, reader, config, num_classes, entry.label_map)
        try:
            plans.append(scan.plan(field, policy, max_records))
        except UsageError as reason:
            problems.append(error(field, str(reason), "name the files to read"))
    return plans, problems


def _readers(config: pipeline_pb2.TrainEvalPipelineConfig, which: str) -> List[Tuple[str, Any]]:
    prefix = "" if which == "all" else which
    readers = [each for each in facts.readers(config) if each[0].startswith(prefix)]
    if not readers:
        raise UsageError(f"the configuration has no input reader to check (readers: {which})")
    return readers


def _policy(
    field: str,
    reader: input_reader_pb2.InputReader,
    config: pipeline_pb2.TrainEvalPipelineConfig,
    num_classes: int,
    label_map: Optional[LabelMap],
) -> BadRecordPolicy:
    max_boxes = reader.max_number_of_boxes
    if field == TRAIN_READER and not reader.HasField("max_number_of_boxes"):
        max_boxes = config.train_config.max_number_of_boxes
    context = facts.context_shape(config.model)
    without_map = copy.deepcopy(reader)
    without_map.ClearField("label_map_path")  # the file is read already
    policy = make_policy(without_map, num_classes, max_boxes, context[1] if context else None)
    return dataclasses.replace(policy, label_map=label_map)


def _problems_of(of: Scan, policy: BadRecordPolicy) -> Iterator[Problem]:
    if policy.label_map is not None:
        is_training = of.reader == TRAIN_READER
        yield from data_problems.check_labels(
            of.reader, policy.label_map, of.columns, is_training=is_training
        )
    skipped, limit = of.num_skipped, policy.max_skipped
    if skipped > limit:
        yield error(
            f"{of.reader}.bad_records.max_skipped",
            f"{counted(skipped, 'record')} to be skipped, and the limit is {limit}",
            "repair the records, or raise the limit",
        )
    yield from data_problems.check_content(of.reader, of.columns)


def _coverage(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    plans: Sequence[ScanPlan],
    scans: Sequence[Scan],
    names: Mapping[int, str],
    progress: bool,
) -> Tuple[Optional[Coverage], List[Problem]]:
    """The first reader's boxes against the anchors; None if there is nothing to compare."""
    columns, num_channels = None, 3
    if scans:
        columns, policy = scans[0].columns, plans[0].policy
        num_channels += policy.reader.num_additional_channels
        if policy.max_boxes is not None:
            columns = statistics.first_boxes(columns, policy.max_boxes)
    try:
        coverage = coverage_of(config, columns, num_channels=num_channels, progress=progress)
    except ConfigError as reason:  # shapes do not fit
        return None, list(reason.problems)
    if coverage is None:
        return None, []
    kind = config.model.WhichOneof("model")
    return coverage, list(data_problems.check_anchors(f"model.{kind}", coverage, names))


def coverage_of(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    columns: Optional[statistics.Columns],
    *,
    num_channels: int = 3,
    progress: bool = True,
    map_sizes: Optional[anchor_coverage.MapSizes] = None,
) -> Optional[Coverage]:
    """Boxes against the anchors of a model; None if either is missing.

    `map_sizes` is as in `anchor_coverage.measure`.
    """
    detector = build_detector(config.model, is_training=True)
    if columns is None or not columns.num_boxes or not anchor_coverage.has_anchors(detector):
        return None
    with progress_bar("anchors", columns.num_images, "images", shown=progress) as advance:
        return anchor_coverage.measure(
            detector,
            columns,
            num_channels=num_channels,
            advance=advance,
            map_sizes=map_sizes,
        )


def _resized(
    model: Union[faster_rcnn_pb2.FasterRcnn, ssd_pb2.Ssd], scans: Sequence[Scan]
) -> Dict[str, np.ndarray]:
    """Reader -> [M, 2], heights and widths of boxes after resizing; nothing without a resizer."""
    resizer = make_resizer(model.image_resizer)
    return {
        scan.reader: statistics.box_sizes(
            scan.columns, statistics.resized(scan.columns.sizes, resizer.new_size)
        )
        for scan in scans
    }
