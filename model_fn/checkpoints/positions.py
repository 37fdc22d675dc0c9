"""Positions of a training in its data, one for each checkpoint.

A small file has an entry for the step of each checkpoint beside it. It is written before the
checkpoint, so that no checkpoint lacks its entry; without one, a run begins a new epoch.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any, Dict, Optional

from estimator_det.compat import tf
from estimator_det.files import atomic
from inputs.records.cursor import CursorState

_LOG = logging.getLogger(__name__)

POSITION_FILE = "data_position.json"

_IS_LAST = "is_last"  # marks an entry after which the worker took no step
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError)  # errors for any other content


def read(path: str, step: Optional[int], *, is_exact: bool = True) -> Optional[CursorState]:
    """Position at the checkpoint of a step; None, which is logged, without one.

    Args:
        step: In the name of the checkpoint that training resumes from; None if there is none.
        is_exact: False takes the last position up to the step, as a worker of a cluster saves it.
    """
    if step is None:
        return None
    reason = f"{path} has no entry {'for' if is_exact else 'up to'} step {step}"
    try:
        entries = {int(number): entry for number, entry in _entries(path).items()}
        last = max((number for number in entries if number <= step), default=-1)
        if last == step or (last >= 0 and not is_exact):
            state = CursorState.from_json(entries[last])
            if last != step and not entries[last].get(_IS_LAST):
                _LOG.warning(
                    "%s has no entry for step %d: the records of this worker since step %d come "
                    "again", path, step, last,
                )  # fmt: skip
            return state
    except tf.errors.NotFoundError:
        pass
    except _MALFORMED as error:
        reason = f"{path} cannot be read ({error!r})"
    whose = "" if is_exact else " of this worker"
    _LOG.warning("%s: the data%s begin with a new epoch, in a new order", reason, whose)
    return None


def write(path: str, step: int, position: CursorState, *, is_last: bool = False) -> None:
    """Saves a position for the checkpoint of a step; drops entries of deleted checkpoints."""
    try:
        entries = _entries(path)
    except (tf.errors.NotFoundError, *_MALFORMED):
        entries = {}
    folder = os.path.dirname(path)
    entries = {
        old: entry
        for old, entry in entries.items()
        if tf.io.gfile.exists(os.path.join(folder, f"model.ckpt-{old}.index"))
    }
    entries[str(step)] = {**position.to_json(), **({_IS_LAST: True} if is_last else {})}
    atomic.write(path, json.dumps(entries, indent=1) + "\n")


def _entries(path: str) -> Dict[str, Any]:
    with tf.io.gfile.GFile(path) as file:
        return dict(json.loads(file.read()))
