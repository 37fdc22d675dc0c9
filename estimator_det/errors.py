"""Errors that a user can fix, and the problems of a configuration.

Programs print them in a line. Any other error is a defect, and keeps its traceback.
"""

from __future__ import annotations

import dataclasses
import functools
import shlex
from typing import Iterable, Tuple

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
        return f"{self.severity}: {self.text()}"

    def text(self) -> str:
        """The problem in a line, without its severity."""
        end = "" if self.message.endswith(("?", ".")) else "."
        return f"{self.field}: {self.message}{end} Remedy: {self.full_remedy()}"

    def full_remedy(self) -> str:
        """The edits, and the advice besides them."""
        return "; ".join(filter(None, (self._edits_text(), self.remedy)))

    def _edits_text(self) -> str:
        return " ".join(f"--set {shlex.quote(edit)}" for edit in self.edits)


error = functools.partial(Problem, "error")
warning = functools.partial(Problem, "warning")


class UsageError(ValueError):
    """An argument, a flag or a file cannot be used; the message says what to do."""


class ConfigError(UsageError):
    """A configuration cannot be used."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    @classmethod
    def at(cls, field: str, message: str, remedy: str) -> ConfigError:
        """The error of a single problem."""
        return cls([error(field, message, remedy)])

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0].text()
        return "\n".join(["the configuration cannot be run", *map(str, self.problems)])


def raise_errors(problems: Iterable[Problem]) -> None:
    """Raises a ConfigError of the problems that prevent a run, if there are any."""
    errors = [problem for problem in problems if problem.severity in ("error", "placeholder")]
    if errors:
        raise ConfigError(errors)


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


class StorageError(RunError):
    """Cloud Storage refuses or fails: what is wrong, with the path, and the remedy."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}. {remedy}")
        self.what, self.remedy = what, remedy


class NotInStorageError(StorageError, FileNotFoundError):
    """The bucket or file does not exist."""
