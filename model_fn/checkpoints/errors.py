"""Errors of a run that its user can fix. Importing this module imports no TensorFlow."""

from __future__ import annotations


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
