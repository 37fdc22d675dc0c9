"""Checks a configuration: its names, the files that it names, and the graphs of a run."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional

from estimator_det.config import check_model, pipeline
from estimator_det.config.check import named_paths, without_placeholders
from estimator_det.config.problem import Problem
from estimator_det.config.ranges import check_ranges
from model_fn.checks import files
from model_fn.checks.graphs import Graphs, check_components, check_metrics, examine
from model_fn.checks.names import check_names, check_unused

# Each depth contains those before it.
NAMES = "names"  # finds problems that the configuration alone shows
FILES = "files"  # local files exist, and label maps fit the model and the metrics
CONTENTS = "contents"  # all files can be read, first records fit, components can be made
GRAPHS = "graphs"  # graphs can be built, and the checkpoint to fine-tune from fits


class Result(NamedTuple):
    """Problems of a configuration, and the graphs that were built to find them."""

    problems: List[Problem]
    graphs: Optional[Graphs] = None


def check(config: Any, depth: str = FILES, *, targets_tpu: bool = False) -> Result:
    """Checks a `TrainEvalPipelineConfig` with all changes applied.

    Problems of depth NAMES and FILES come first, errors before warnings. A configuration with
    unknown names or values out of range is not checked for GRAPHS, and no file is read for it.

    Args:
        depth: NAMES, FILES, CONTENTS or GRAPHS.
        targets_tpu: Leave paths that are placeholders out of CONTENTS and GRAPHS, because the
            rules for TPU report them.
    """
    reads_contents = depth in (CONTENTS, GRAPHS)
    readable = without_placeholders(config) if targets_tpu else config
    readers = [] if depth == NAMES else check_model.readers(readable)
    table = files.read_label_maps(readers, with_remote=reads_contents)
    label_map = files.label_map_of_evaluations(table)
    unknown = check_names(config)
    others = [
        *pipeline.check(config, check_files=depth != NAMES),
        *check_unused(config),
        *files.check_label_maps(table, config.model),
        *files.check_hierarchies(table),
    ]
    # Metrics need the classes of the label map; without it, known names are all that counts.
    if depth != NAMES and not any(each.field.startswith("eval_config.") for each in unknown):
        others += check_metrics(config, label_map)
    # Hide problems inside components that are themselves unknown.
    parts = tuple(f"{problem.field}{end}" for problem in unknown for end in ".[")
    problems = [*unknown, *(each for each in others if not each.field.startswith(parts))]
    problems.sort(key=lambda problem: problem.severity != "error")
    if not reads_contents:
        return Result(problems)
    # A label map of other records replaces all else about this map.
    foreign = list(files.check_first_records(table))
    fields = {problem.field for problem in foreign}
    problems = [*foreign, *(problem for problem in problems if problem.field not in fields)]
    if unknown or not config.model.WhichOneof("model") or any(check_ranges(config)):
        return Result(problems)
    graphs = examine(readable, label_map) if depth == GRAPHS else None
    others = graphs.problems if graphs else check_components(readable)
    others = [*others, *files.check_files(named_paths(readable))]
    reported = {problem.field for problem in problems if problem.severity == "error"}
    return Result([*problems, *(each for each in others if each.field not in reported)], graphs)
