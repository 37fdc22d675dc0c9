"""Whether a configuration suits a TPU, and the edits that make it suit one.

Nothing is built and TensorFlow is not imported; `check-config --compile` checks the graph.
"""

from __future__ import annotations

import difflib
import itertools
from typing import List, Tuple

from google.protobuf import text_format

from estimator_det.config.overrides import apply_overrides
from estimator_det.config.problem import SEVERITIES, Problem
from estimator_det.config.tpu_model_rules import Config, Target, check_model
from estimator_det.config.tpu_training_rules import check_training

__all__ = ["Target", "diff", "fix", "heading", "lint"]


def lint(config: Config, target: Target) -> List[Problem]:
    """Everything about `config` that does not suit the TPU of `target`, errors first."""
    problems = [*check_model(config, target), *check_training(config, target)]
    return sorted(problems, key=lambda problem: SEVERITIES.index(problem.severity))


def fix(config: Config, target: Target) -> Tuple[Config, List[Problem]]:
    """`config` with every safe edit applied, and the problems that had them.

    One edit may require another, as a batch size does of a shuffle buffer; edits are applied until
    there is no new one.
    """
    applied: List[Problem] = []
    while safe := [each for each in lint(config, target) if each.safe and each not in applied]:
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
