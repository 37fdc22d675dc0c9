"""The position of a training in its data, saved beside its checkpoints.

One small file of model_dir has an entry for the step of each checkpoint. It is written before the
checkpoint, so that no checkpoint lacks its entry; without one, a run begins a new epoch.

Each worker of a cluster has a file of its own. The chief saves without asking workers, so a worker
writes its position once it sees a new checkpoint: the position after its last step before that
checkpoint.
"""

from __future__ import annotations

import collections
import json
import logging
import math
import os
import time
from typing import Any, Deque, Dict, Optional, Tuple

from estimator_det.compat import tf
from estimator_det.files import atomic
from inputs.records.cursor import CursorState, DataCursor
from inputs.records.sharding import WorkerParts
from model_fn.checkpoints.find import newest_step
from model_fn.events import append_progress
from model_fn.runs.cluster import Cluster, Task
from model_fn.runs.context import Hook, RunContext, StepResult
from model_fn.training.step import POSITION

_LOG = logging.getLogger(__name__)

POSITION_FILE = "data_position.json"

_IS_LAST = "is_last"  # marks an entry after which the worker took no step
_LOOK_SECS = 1.0  # between two searches of a worker for a new checkpoint
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError)  # errors for any other content


def read_cursor_state(
    model_dir: str, step: Optional[int], file: str = POSITION_FILE, *, is_exact: bool = True
) -> Optional[CursorState]:
    """Position at the checkpoint of a step; None, which is logged, without one.

    Args:
        step: In the name of the checkpoint that training resumes from; None if there is none.
        is_exact: False takes the last position up to the step, as a worker of a cluster saves it.
    """
    if step is None:
        return None
    path = os.path.join(model_dir, file)
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


def worker_file(task: Task) -> str:
    """The file of one worker of a cluster."""
    return f"data_position-{task.type}-{task.number}.json"


def position_file(cluster: Cluster) -> str:
    """The file of this process."""
    return POSITION_FILE if cluster.is_chief else worker_file(cluster.task)


def write_cursor_state(
    model_dir: str,
    step: int,
    position: CursorState,
    file: str = POSITION_FILE,
    *,
    is_last: bool = False,
) -> None:
    """Saves a position for the checkpoint of a step; drops entries of deleted checkpoints."""
    path = os.path.join(model_dir, file)
    try:
        entries = _entries(path)
    except (tf.errors.NotFoundError, *_MALFORMED):
        entries = {}
    entries = {
        old: entry
        for old, entry in entries.items()
        if tf.io.gfile.exists(os.path.join(model_dir, f"model.ckpt-{old}.index"))
    }
    entries[str(step)] = {**position.to_json(), **({_IS_LAST: True} if is_last else {})}
    atomic.write(path, json.dumps(entries, indent=1) + "\n")


def _entries(path: str) -> Dict[str, Any]:
    with tf.io.gfile.GFile(path) as file:
        return dict(json.loads(file.read()))


class DataCursorHook(Hook):
    """Moves a cursor past each batch that a step has used; stands before the hook that saves."""

    def __init__(self, cursor: DataCursor, reader: int = 0) -> None:
        self._cursor, self._reader = cursor, reader

    def begin(self, context: RunContext, step: int) -> None:
        del context, step
        if self._cursor.is_rejected:
            _LOG.warning(
                "The saved position in the data cannot be used: files, their sizes, the seed, "
                "settings of the reader or the number of workers have changed. The data begin with "
                "a new epoch, in a new order"
            )

    def after_step(self, result: StepResult) -> None:
        stream_indices, seeds = (result.positions[self._reader][key] for key in POSITION)
        if len(seeds):  # A worker that takes steps when it is free may have taken none.
            self._cursor.advance(stream_indices, seeds)


class WorkerPositionHook(Hook):
    """Saves the position of a worker for the checkpoints of its chief; after `DataCursorHook`."""

    def __init__(self, model_dir: str, cursor: DataCursor, file: str) -> None:
        self._model_dir, self._cursor, self._file = model_dir, cursor, file
        self._taken: Deque[Tuple[int, CursorState]] = collections.deque()  # since a checkpoint
        self._saved_step, self._looked_at = -1, -math.inf

    def after_step(self, result: StepResult) -> None:
        assert self._cursor.state is not None
        self._taken.append((result.step, self._cursor.state))
        if time.monotonic() - self._looked_at < _LOOK_SECS:
            return
        self._looked_at = time.monotonic()
        newest = newest_step(self._model_dir)
        if newest is not None and newest > self._saved_step:
            self._saved_step = newest
            self._save(newest)

    def end(self, step: int) -> None:
        del step
        if self._taken:
            last, state = self._taken[-1]
            write_cursor_state(self._model_dir, last, state, self._file, is_last=True)

    def _save(self, checkpoint_step: int) -> None:
        position = None
        while len(self._taken) > 1 and self._taken[0][0] <= checkpoint_step:
            position = self._taken.popleft()[1]
        if self._taken[0][0] <= checkpoint_step:
            position = self._taken[0][1]
        if position is not None:
            write_cursor_state(self._model_dir, checkpoint_step, position, self._file)


def report_split(model_dir: str, cluster: Cluster, first_step: int, split: WorkerParts) -> None:
    """Logs the part of this process; the chief adds all parts to progress.jsonl."""
    readers = cluster.readers
    _LOG.info("%s is %s", cluster.task, split.describe(readers.index(cluster.task)))
    if cluster.is_chief:
        workers = [str(task) for task in readers]
        append_progress(model_dir, {"step": first_step, "workers": workers, **split.to_json()})
