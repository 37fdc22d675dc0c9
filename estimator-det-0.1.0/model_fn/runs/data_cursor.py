"""The position of a training in its data, saved beside its checkpoints.

One small file of model_dir has an entry for the step of each checkpoint. It is written before the
checkpoint, so that no checkpoint lacks its entry; without one, a run begins a new epoch.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any, Dict, Optional

from estimator_det.compat import tf, tf1
from inputs import schema
from inputs.records.cursor import CursorState, DataCursor
from model_fn.training.step import TrainGraph

_LOG = logging.getLogger(__name__)

POSITION_FILE = "data_position.json"

_NO_ENTRIES = (TypeError, ValueError, AttributeError)  # what reading something else ends in


def read_cursor_state(model_dir: str, step: int) -> Optional[CursorState]:
    """Of the checkpoint of a step; None, which is logged, where there is none."""
    path = os.path.join(model_dir, POSITION_FILE)
    try:
        return CursorState.from_json(_entries(path)[str(step)])
    except (tf.errors.NotFoundError, KeyError):
        reason = f"{path} has no entry for step {step}"
    except _NO_ENTRIES as error:
        reason = f"{path} cannot be read ({error})"
    _LOG.warning("%s: the data begin with a new epoch, in a new order", reason)
    return None


def write_cursor_state(model_dir: str, step: int, position: CursorState) -> None:
    """Saves it for the checkpoint of a step, and drops entries of deleted checkpoints.

    Raises:
        OpError: if it cannot be written.
    """
    path = os.path.join(model_dir, POSITION_FILE)
    try:
        entries = _entries(path)
    except (tf.errors.NotFoundError, *_NO_ENTRIES):
        entries = {}
    entries = {
        old: entry
        for old, entry in entries.items()
        if tf.io.gfile.exists(os.path.join(model_dir, f"model.ckpt-{old}.index"))
    }
    entries[str(step)] = position.to_json()
    temporary = f"{path}.tmp"
    with tf.io.gfile.GFile(temporary, "w") as file:
        file.write(json.dumps(entries, indent=1) + "\n")
    tf.io.gfile.rename(temporary, path, overwrite=True)


def _entries(path: str) -> Dict[str, Any]:
    with tf.io.gfile.GFile(path) as file:
        return dict(json.loads(file.read()))


class DataCursorHook(tf1.train.SessionRunHook):
    """Moves a cursor past each batch that a step has used; to be placed before what saves.

    Args:
        cursor: Given to the input function, too.
        graph: Of the training.
    """

    def __init__(self, cursor: DataCursor, graph: TrainGraph) -> None:
        self._cursor, self._graph = cursor, graph
        self._fetches: Any = None

    def begin(self) -> None:
        if self._cursor.is_rejected:
            _LOG.warning(
                "The saved position in the data cannot be used: files, their sizes, the seed or "
                "settings of the reader have changed. The data begin with a new epoch, in a new "
                "order"
            )
        inputs = self._graph.step.inputs
        keys = (schema.STREAM_INDEX, schema.AUGMENTATION_SEED)
        self._fetches = [inputs[f"features/{key}"] for key in keys]

    def before_run(self, run_context: Any) -> Any:
        return tf1.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._cursor.advance(*run_values.results)
