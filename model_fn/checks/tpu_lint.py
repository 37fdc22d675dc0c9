"""Problems of a configuration on a TPU, and the edits that solve them.

Nothing is built; `check-config --compile` checks the graph.
"""

from __future__ import annotations

import difflib
import itertools
from typing import List, Tuple

from google.protobuf import text_format

import model_fn.checks.config_check  # noqa: F401  (registers the rules of components)
from estimator_det.config.overrides import apply_overrides
from estimator_det.config.rules import Tpu, check_tpu
from estimator_det.errors import SEVERITIES, Problem
from estimator_det.protos import pipeline_pb2

Config = pipeline_pb2.TrainEvalPipelineConfig


def lint(config: Config, tpu: Tpu) -> List[Problem]:
    """Everything about a configuration that does not suit a TPU, errors first."""
    problems = check_tpu(config, tpu)
    return sorted(problems, key=lambda problem: SEVERITIES.index(problem.severity))


def fix(config: Config, tpu: Tpu) -> Tuple[Config, List[Problem]]:
    """`config` with every safe edit applied, and the problems that had them.

    An edit may require another edit, as a batch size changes the shuffle buffer; so edits are
    applied until none is new.
    """
    applied: List[Problem] = []
    while safe := [each for each in lint(config, tpu) if each.safe and each not in applied]:
        applied += safe
        config = apply_overrides(config, [edit for problem in safe for edit in problem.edits])
    return config, applied


def diff(before: Config, after: Config, name_before: str, name_after: str) -> str:
    """Unified diff of two configurations in text form; empty if they are the same."""
    old, new = (text_format.MessageToString(each).splitlines() for each in (before, after))
    return "\n".join(difflib.unified_diff(old, new, name_before, name_after, lineterm=""))


def heading(text: str) -> str:
    """The comment and blank lines that a configuration file begins with."""
    lines = text.splitlines(keepends=True)
    return "".join(itertools.takewhile(lambda line: line.strip()[:1] in ("", "#"), lines))
