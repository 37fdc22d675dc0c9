"""Problems that a check of a configuration reports."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from typing import Iterable, Tuple

from estimator_det.config.text import ConfigError

SEVERITIES = ("error", "warning", "advice", "placeholder")


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a configuration."""

    # "error": it stops a run or makes it useless; "warning": the run works, but badly or not as
    # meant; "advice": the run may work better; "placeholder": a path that the user still has to
    # fill in.
    severity: str
    field: str  # path of the field, in the form that `--set` takes
    message: str  # the fault, with the value
    remedy: str = ""  # advice besides `edits`
    edits: Tuple[str, ...] = ()  # assignments, as `--set` takes them, that remove the problem
    # True if the edits keep the model's variables and its task and loss, so that they can be
    # applied without review.
    safe: bool = False

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"severity must be one of {SEVERITIES}, given {self.severity!r}")
        if not (self.edits or self.remedy):
            raise ValueError(f"a problem of {self.field} needs an edit or a remedy")
        if self.safe and not self.edits:
            raise ValueError(f"a problem of {self.field} without an edit cannot be safe to fix")

    def __str__(self) -> str:
        return f"{self.severity}: {self.field}: {self.message}. Remedy: {self.full_remedy()}"

    def full_remedy(self) -> str:
        """The edits, and the advice besides them."""
        return "; ".join(filter(None, (self._edits_text(), self.remedy)))

    def as_error(self) -> ConfigError:
        """The problem as an exception."""
        return ConfigError(self.field, self.message, self.remedy or self._edits_text())

    def _edits_text(self) -> str:
        return " ".join(f"--set {shlex.quote(edit)}" for edit in self.edits)


error = functools.partial(Problem, "error")
warning = functools.partial(Problem, "warning")


def from_error(reason: ConfigError, field: str, remedy: str) -> Problem:
    """The problem of an error in `field`; `remedy` is for errors that have none."""
    return Problem("error", field, reason.message, reason.remedy or remedy)


def refuse(problems: Iterable[Problem], heading: str = "") -> None:
    """Raises a ConfigError of all that prevents a run, in lines under the heading.

    A single problem without a heading is raised with its own field and remedy.
    """
    listed = [problem for problem in problems if problem.severity in ("error", "placeholder")]
    if len(listed) == 1 and not heading:
        raise listed[0].as_error()
    if listed:
        raise ConfigError(None, "\n".join(filter(None, [heading, *map(str, listed)])))


def raise_first(problems: Iterable[Problem]) -> None:
    """Raises the first error as a ConfigError; warnings are left to `config.check`."""
    for problem in problems:
        if problem.severity == "error":
            raise problem.as_error()
