"""Whether a configuration suits a TPU, and the edits that make it suit one.

Nothing is built and TensorFlow is not imported; `check-config --compile` checks the graph.
"""

from __future__ import annotations

import difflib
from typing import List, NamedTuple

from google.protobuf import text_format

from estimator_det.config.overrides import apply_overrides
from estimator_det.config.problem import SEVERITIES, Problem
from estimator_det.config.tpu_model_rules import check_model
from estimator_det.config.tpu_rules import Config, Target, without_placeholders
from estimator_det.config.tpu_training_rules import check_training

__all__ = ["Fix", "Target", "diff", "fix", "heading", "lint", "without_placeholders"]

_MOST_ROUNDS = 20  # an edit may require another one


class Fix(NamedTuple):
    """A configuration with the safe edits applied."""

    config: Config
    applied: List[Problem]
    remaining: List[Problem]  # for the user, placeholders included


def lint(config: Config, target: Target) -> List[Problem]:
    """Everything about `config` that does not suit the TPU of `target`, errors first."""
    problems = [*check_model(config, target), *check_training(config, target)]
    return sorted(problems, key=lambda problem: SEVERITIES.index(problem.severity))


def fix(config: Config, target: Target) -> Fix:
    """`config` with every safe edit applied, and the problems that remain.

    One edit may require another, as a batch size does of a shuffle buffer; edits are applied until
    none is left.
    """
    applied: List[Problem] = []
    changed = config
    for _ in range(_MOST_ROUNDS):
        safe = [problem for problem in lint(changed, target) if problem.safe]
        if not safe:
            break
        applied += safe
        changed = apply_overrides(changed, [edit for problem in safe for edit in problem.edits])
    return Fix(changed, applied, lint(changed, target))


def diff(before: Config, after: Config, name_before: str, name_after: str) -> str:
    """Unified diff of two configurations in text form; empty if they are the same."""
    lines = difflib.unified_diff(
        text_format.MessageToString(before).splitlines(keepends=True),
        text_format.MessageToString(after).splitlines(keepends=True),
        name_before,
        name_after,
    )
    return "".join(lines)


def heading(text: str) -> str:
    """The comment and blank lines that a configuration file begins with."""
    lines = text.splitlines(keepends=True)
    for index, line in enumerate(lines):
        if line.strip() and not line.lstrip().startswith("#"):
            return "".join(lines[:index])
    return text
