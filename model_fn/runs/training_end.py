"""The end of a training, which training_over.json marks for other processes."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict, Optional

from estimator_det.compat import tf
from estimator_det.files import atomic, json_lines
from model_fn.runs import lock

OVER_FILE = "training_over.json"


def mark_over(model_dir: str, step: int, reason: str) -> None:
    """Marks for other processes that no step and no checkpoint will follow."""
    mark = {"step": step, "reason": reason, "time": time.time()}
    path = os.path.join(model_dir, OVER_FILE)
    atomic.write(path, json.dumps(mark) + "\n")


def clear_over(model_dir: str) -> None:
    """Undoes `mark_over`: training begins or resumes."""
    path = os.path.join(model_dir, OVER_FILE)
    if tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)


def last_step(model_dir: str) -> Optional[int]:
    """The step at which training ended; None while it may continue."""
    mark = _read_mark(model_dir)
    return None if mark is None else int(mark["step"])


def _read_mark(model_dir: str) -> Optional[Dict[str, Any]]:
    path = os.path.join(model_dir, OVER_FILE)
    marks = json_lines.read(path, ("step",))
    return marks[-1] if marks else None


class TrainingEnd:
    """The end of a training as another process sees it.

    A mark from before this object may be the mark of an earlier run, which training resumes. It
    counts if that run got to `num_steps`, or, if that number is not certain, while no process
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
