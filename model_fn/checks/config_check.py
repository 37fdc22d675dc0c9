"""Checks a configuration: its names, the files that it names, and the graphs of a run."""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional

from estimator_det.config import pipeline, tpu_lint
from estimator_det.config.problem import Problem
from estimator_det.config.ranges import check_ranges
from model_fn.checks import files
from model_fn.checks.graphs import Graphs, examine, examine_components
from model_fn.checks.metric_names import check_metrics
from model_fn.checks.names import check_names, check_unused

# Each depth contains those before it.
NAMES = "names"  # what the configuration alone shows
FILES = "files"  # local files exist, and label maps fit the model and the metrics
CONTENTS = "contents"  # all files can be read, first records fit, components can be made
GRAPHS = "graphs"  # graphs can be built, and the checkpoint to fine-tune from fits


class Checked(NamedTuple):
    """The result of a check."""

    problems: List[Problem]
    graphs: Optional[Graphs] = None  # None: not built


def check(config: Any, depth: str = FILES, *, on_tpu: bool = False) -> Checked:
    """Problems of a `TrainEvalPipelineConfig`; those of depth NAMES and FILES errors first.

    Args:
        config: The configuration, with all changes applied.
        depth: NAMES, FILES, CONTENTS or GRAPHS.
        on_tpu: Leave paths that are placeholders out of CONTENTS and GRAPHS: the rules for TPU
            report them.
    """
    maps = files.LabelMaps()
    unknown = check_names(config)
    parts = tuple(f"{problem.field}{end}" for problem in unknown for end in ".[")
    others = [*pipeline.check(config, check_files=depth != NAMES), *check_unused(config)]
    if depth != NAMES:
        others += files.check_label_maps(config, maps)
        others += files.check_hierarchies(config, maps)
        others += check_metrics(config, maps)
    # Hide problems inside components that are themselves unknown.
    problems = [*unknown, *(each for each in others if not each.field.startswith(parts))]
    problems.sort(key=lambda problem: problem.severity != "error")
    if depth in (NAMES, FILES):
        return Checked(problems)
    # A label map of other records replaces all else about this map.
    wrong = list(files.check_first_records(config, maps))
    fields = {problem.field for problem in wrong}
    problems = [*wrong, *(problem for problem in problems if problem.field not in fields)]
    if unknown or not config.model.WhichOneof("model") or any(check_ranges(config)):
        return Checked(problems)
    if on_tpu:
        config = tpu_lint.without_placeholders(config)
    built = examine(config, maps) if depth == GRAPHS else None
    deeper = built.problems if built else examine_components(config, maps)
    reported = {problem.field for problem in problems if problem.severity == "error"}
    deeper = [*deeper, *files.check_files(config, maps)]
    return Checked([*problems, *(p for p in deeper if p.field not in reported)], built)
