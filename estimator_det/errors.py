"""Errors that a user can fix, and the problems of a configuration."""

from __future__ import annotations

import dataclasses
import functools
import shlex
from typing import Iterable, Optional, Tuple

SEVERITIES = ("error", "warning", "advice", "placeholder")

# First words of a message that continues its field: "train_config.num_steps is 0".
_PREDICATES = frozenset(
    ["is", "are", "has", "have", "must", "needs", "need", "cannot", "divides", "generates",
     "makes", "does", "repeats", "mixes", "lists", "takes", "trains"]
)  # fmt: skip


class ConfigError(ValueError):
    """A configuration or an argument that cannot be read, merged or used.

    Its text is one sentence of all three parts.

    Attributes:
        field: Path of the field, absolute or below its component; None if no field is at fault.
        message: What is wrong with the value, and what is allowed.
        remedy: What to do about it; "" if the message says it.
    """

    def __init__(self, field: Optional[str], message: str, remedy: str = "") -> None:
        super().__init__(field, message, remedy)  # all arguments, so that it can be pickled
        self.field = field
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        text = self.message
        if self.field:
            joint = " " if text.partition(" ")[0] in _PREDICATES else ": "
            text = f"{self.field}{joint}{text}"
        if self.remedy:
            text += f"{'. ' if self.remedy[0].isupper() else '; '}{self.remedy}"
        return text


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


class RunError(RuntimeError):
    """The run cannot continue; the message contains what was found, and the remedy."""


class FolderInUseError(RunError):
    """Another process trains in the folder, or exports to it."""


class FolderNotWritableError(RunError):
    """The folder of the run cannot be written to: no space, no permission, read-only."""


class CheckpointGoneError(RunError):
    """A checkpoint was deleted after it was found, and before it was read."""


class DamagedCheckpointsError(RunError):
    """There are checkpoints, and none of them is whole."""


class UnreadableCheckpointError(RunError):
    """A checkpoint cannot be read now, and may be whole: no permission, memory or storage."""


class MissingTaskError(RunError):
    """Another process of the cluster has not been there for too long."""


VARIABLES_LOST = (
    "the variables were lost with a parameter server: training begins again at the last checkpoint"
)


class SessionLostError(RunError):
    """The variables of a cluster were lost with a parameter server; training can begin again."""


class NotFiniteLossError(RunError):
    """A loss term, or the norm of the gradients, became NaN or infinite; the message names it."""


class NoTpuError(RunError):
    """The TPU that a run is meant for cannot be reached."""


class UsageError(Exception):
    """The command line asks for something that cannot be done; the message says what to do."""
