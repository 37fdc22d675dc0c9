"""Checks a configuration: its names, the files that it names, and the graphs of a run."""

from __future__ import annotations

from typing import Iterable, List, NamedTuple, Optional

from estimator_det.config import pipeline
from estimator_det.config.problem import Problem
from estimator_det.protos import pipeline_pb2
from model_fn.checks import files, graphs
from model_fn.checks.names import check_names, check_unused
from model_fn.checks.subject import read_subject

# Each depth contains those before it.
NAMES = "names"  # finds problems that the configuration alone shows
FILES = "files"  # local files exist, and label maps fit the model and the metrics
CONTENTS = "contents"  # all files can be read, a sample of records fits, components can be made
GRAPHS = "graphs"  # graphs can be built, and the checkpoint to fine-tune from fits
DEPTHS = (NAMES, FILES, CONTENTS, GRAPHS)

# The checks beyond NAMES, in this order, by the least depth that has them. Each takes a `Subject`
# and gives problems.
CHECKS = (
    (FILES, files.check_label_maps),
    (FILES, files.check_hierarchies),
    (FILES, graphs.check_metrics),
    (CONTENTS, files.check_files),
    (CONTENTS, graphs.check_components),
    (GRAPHS, graphs.check_graphs),
)


class Result(NamedTuple):
    """Problems of a configuration, errors first, and the graphs that were built to find them."""

    problems: List[Problem]
    graphs: Optional[graphs.Graphs] = None


def check(
    config: pipeline_pb2.TrainEvalPipelineConfig, depth: str = FILES, *, targets_tpu: bool = False
) -> Result:
    """Checks a `TrainEvalPipelineConfig` with all changes applied.

    No part of a configuration with unknown names or values out of range is made or built.

    Args:
        depth: NAMES, FILES, CONTENTS or GRAPHS.
        targets_tpu: Leave paths that are placeholders out of what is read and built, because the
            rules for TPU report them.
    """
    unknown = check_names(config)
    problems: List[Problem] = list(unknown)
    parts = tuple(problem.field + end for problem in unknown for end in ".[")

    def add(others: Iterable[Problem]) -> None:
        """Adds problems, except in unknown parts and in fields that are refused already."""
        refused = {problem.field for problem in problems if problem.severity == "error"}
        problems.extend(
            each
            for each in others
            if each.field not in refused and not each.field.startswith(parts)
        )

    add(pipeline.check(config, check_files=depth != NAMES))
    add(check_unused(config))
    built = None
    if depth != NAMES:
        reads_all = depth != FILES
        subject = read_subject(config, unknown, reads_all=reads_all, targets_tpu=targets_tpu)
        for least, find in CHECKS:
            if DEPTHS.index(least) <= DEPTHS.index(depth):
                add(find(subject))
        built = subject.graphs
    problems.sort(key=lambda problem: problem.severity != "error")
    return Result(problems, built)
