"""Whether a configuration suits a TPU, and the edits that make it suit one.

Nothing is built and TensorFlow is not imported; `check-config --compile` checks the graph.
"""

from __future__ import annotations

import copy
import difflib
from typing import List, NamedTuple

from google.protobuf import text_format

from estimator_det.config import tpu_model_rules, tpu_training_rules
from estimator_det.config.overrides import apply_overrides
from estimator_det.config.problem import SEVERITIES, Problem
from estimator_det.config.text import entries, is_repeated
from estimator_det.config.tpu_rules import RULES, Config, Target, is_placeholder

__all__ = [
    "RULES",
    "Fix",
    "Target",
    "diff",
    "fix",
    "heading",
    "lint",
    "without_placeholders",
]

RULE_MODULES = (tpu_model_rules, tpu_training_rules)  # to import them enters their rules


class Fix(NamedTuple):
    """A configuration with the safe edits applied."""

    config: Config
    applied: List[Problem]
    remaining: List[Problem]  # for the user, placeholders included


def lint(config: Config, target: Target) -> List[Problem]:
    """Everything about `config` that does not suit the TPU of `target`.

    Returns:
        Errors first, then warnings, advice and placeholders; empty if nothing was found.
    """
    problems = [problem for name in RULES for problem in RULES.get(name)(config, target)]
    return sorted(problems, key=lambda problem: SEVERITIES.index(problem.severity))


def fix(config: Config, target: Target) -> Fix:
    """`config` with every safe edit applied, and the problems that remain.

    One edit may require another, as a batch size does of a shuffle buffer; edits are applied until
    none is left.
    """
    applied: List[Problem] = []
    changed = config
    for _ in RULES:
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


def without_placeholders(config: Config) -> Config:
    """A copy without the paths that a sample configuration leaves to its user.

    For checks that read files.
    """
    changed = copy.deepcopy(config)
    for _, parent, field, value in list(entries(changed)):
        if field.cpp_type == field.CPPTYPE_STRING and is_placeholder(value):
            if is_repeated(field):
                getattr(parent, field.name).remove(value)
            else:
                parent.ClearField(field.name)
    return changed
