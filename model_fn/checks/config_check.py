"""Checks a configuration: its rules, the files that it names, and the graphs of a run."""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional

import model_fn.evaluation.readers  # noqa: F401  (these imports register the rules of components)
from estimator_det.config import paths, rules
from estimator_det.errors import Problem
from estimator_det.protos import pipeline_pb2
from inputs.label_map import LabelMap
from model_fn.checks import files, graphs
from model_fn.checks.subject import read_subject

# Each depth contains those before it.
NAMES = "names"  # finds problems that the configuration alone shows
FILES = "files"  # local files exist, and label maps fit the model and the metrics
CONTENTS = "contents"  # all files can be read, and a sample of records fits
GRAPHS = "graphs"  # graphs can be built, and the checkpoint to fine-tune from fits
DEPTHS = (NAMES, FILES, CONTENTS, GRAPHS)

# The checks beyond NAMES, in this order, by the least depth that has them. Each takes a `Subject`
# and gives problems.
CHECKS = (
    (FILES, files.check_label_maps),
    (FILES, files.check_hierarchies),
    (FILES, graphs.check_metrics),
    (CONTENTS, files.check_files),
    (GRAPHS, graphs.check_graphs),
)


class Result(NamedTuple):
    """Problems of a configuration, and what was read and built to find them."""

    problems: List[Problem]  # errors first
    label_maps: Mapping[str, LabelMap]  # by path, without damaged ones
    graphs: Optional[graphs.Graphs] = None


def check(
    config: pipeline_pb2.TrainEvalPipelineConfig, depth: str = FILES, *, targets_tpu: bool = False
) -> Result:
    """Checks a configuration with all changes applied.

    No part with an error is made or built.

    Args:
        depth: NAMES, FILES, CONTENTS or GRAPHS.
        targets_tpu: Leave paths that are placeholders out of what is read and built, because the
            rules for TPU report them.
    """
    problems = list(rules.check(config))
    built = None
    label_maps: Dict[str, LabelMap] = {}
    if depth != NAMES:
        problems += paths.check_paths(config)
        subject = read_subject(config, problems, reads_all=depth != FILES, targets_tpu=targets_tpu)
        for least, find in CHECKS:
            if DEPTHS.index(least) <= DEPTHS.index(depth):
                problems += find(subject)
        label_maps, built = subject.label_maps, subject.graphs
    problems.sort(key=lambda problem: problem.severity != "error")
    return Result(problems, label_maps, built)
