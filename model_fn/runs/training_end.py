"""The end of a training, which the last line of progress.jsonl marks for other processes."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from estimator_det.compat import tf
from estimator_det.files import json_lines, lock
from model_fn.events import PROGRESS_FILE, append_progress

ENDED = "ended"  # key of the line that marks the end: the reason
EARLIER_FILE = "training_over.json"  # the mark of earlier versions


def mark_over(model_dir: str, step: int, reason: str) -> None:
    """Marks for other processes that no step and no checkpoint will follow.

    A training that resumes ends the mark by its next report, after its first step.
    """
    append_progress(model_dir, {"step": step, ENDED: reason})


def clear_earlier(model_dir: str) -> None:
    """Deletes the mark of an earlier version: training begins or resumes."""
    path = os.path.join(model_dir, EARLIER_FILE)
    if tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)


def last_step(model_dir: str) -> Optional[int]:
    """The step at which training ended; None while it may continue."""
    mark = _read_mark(model_dir)
    return None if mark is None else int(mark["step"])


def _read_mark(model_dir: str) -> Optional[Dict[str, Any]]:
    line = json_lines.read_last(os.path.join(model_dir, PROGRESS_FILE))
    if ENDED not in line:
        line = json_lines.read_last(os.path.join(model_dir, EARLIER_FILE))
    return line if "step" in line else None


class TrainingEnd:
    """The end of a training as another process sees it.

    A mark from before this object may be the mark of an earlier run, which training resumes. Such a
    mark counts if that run got to `num_steps`, or, if that number is not certain, while no process
    trains in the folder.

    Args:
        num_steps: Last step of the training; None if it only ends with its data.
        is_certain: False if the training may have another number, from its own command line.
    """

    def __init__(
        self, model_dir: str, num_steps: Optional[int], *, is_certain: bool = True
    ) -> None:
        self._model_dir, self._num_steps, self._is_certain = model_dir, num_steps, is_certain
        self._earlier = _read_mark(model_dir)

    def is_reached(self) -> bool:
        return self._marked_step() is not None

    def is_last(self, step: int) -> bool:
        """True if no checkpoint follows the checkpoint of a step."""
        marked_step = self._marked_step()
        if marked_step is not None:
            return step == marked_step
        return self._has_all_steps(step) and (self._is_certain or self._is_idle())

    def _marked_step(self) -> Optional[int]:
        mark = _read_mark(self._model_dir)
        if mark is None:
            return None
        step = int(mark["step"])
        if mark == self._earlier:
            is_end = self._has_all_steps(step) if self._is_certain else self._is_idle()
            return step if is_end else None
        return step

    def _has_all_steps(self, step: int) -> bool:
        return self._num_steps is not None and step >= self._num_steps

    def _is_idle(self) -> bool:
        """True if no process trains in the folder."""
        return not lock.is_held(self._model_dir)
