"""Hooks that follow the position of a training in its data.

Each worker of a cluster has a file of positions of its own. The chief saves without asking workers,
so a worker writes its position once it sees a new checkpoint: the position after its last step
before that checkpoint.
"""

from __future__ import annotations

import logging
import math
import os
import time
from typing import List, Tuple

from inputs.records.cursor import CursorState, DataCursor
from inputs.records.sharding import WorkerParts
from model_fn.checkpoints import positions
from model_fn.checkpoints.find import newest_step
from model_fn.events import append_progress
from model_fn.runs.cluster import Cluster, Task
from model_fn.runs.context import Hook, RunContext, StepResult
from model_fn.training.step import POSITION

_LOG = logging.getLogger(__name__)

_LOOK_SECS = 1.0  # between two searches of a worker for a new checkpoint


def worker_file(task: Task) -> str:
    """The file of one worker of a cluster."""
    return f"data_position-{task.type}-{task.number}.json"


def position_file(cluster: Cluster) -> str:
    """The file of this process."""
    return positions.POSITION_FILE if cluster.is_chief else worker_file(cluster.task)


class DataCursorHook(Hook):
    """Moves a cursor past each batch that a step has used; stands before the hook that saves."""

    def __init__(self, cursor: DataCursor, reader: int) -> None:
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
        self._model_dir, self._cursor = model_dir, cursor
        self._path = os.path.join(model_dir, file)
        self._taken: List[Tuple[int, CursorState]] = []  # steps since a checkpoint
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
            positions.write(self._path, last, state, is_last=True)

    def _save(self, checkpoint_step: int) -> None:
        before = [position for step, position in self._taken if step <= checkpoint_step]
        if before:
            positions.write(self._path, checkpoint_step, before[-1])
            self._taken = self._taken[len(before) :] or self._taken[-1:]


def report_split(model_dir: str, cluster: Cluster, first_step: int, split: WorkerParts) -> None:
    """Logs the part of this process; the chief adds all parts to progress.jsonl."""
    readers = cluster.readers
    _LOG.info("%s: %s", cluster.task, split.describe(readers.index(cluster.task)))
    if cluster.is_chief:
        workers = [str(task) for task in readers]
        append_progress(model_dir, {"step": first_step, "workers": workers, **split.to_json()})
