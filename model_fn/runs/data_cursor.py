"""Where a training was in its data, kept beside its checkpoints.

One small file of model_dir has an entry for the step of each checkpoint. It is written before the
checkpoint is, so that none is there without its entry; without one, a run begins an epoch anew.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any, Dict, Optional

from estimator_det.compat import tf, tf1
from inputs import schema
from inputs.records.cursor import CursorState, DataCursor
from model_fn.training import train_graph

_LOG = logging.getLogger(__name__)

POSITION_FILE = "data_position.json"

_NO_ENTRIES = (TypeError, ValueError, AttributeError)  # what reading something else ends in


def read_cursor_state(model_dir: str, step: int) -> Optional[CursorState]:
    """Of the checkpoint of a step; None, which is told, where there is none."""
    path = os.path.join(model_dir, POSITION_FILE)
    try:
        return CursorState.from_json(_entries(path)[str(step)])
    except (tf.errors.NotFoundError, KeyError):
        reason = f"{path} says nothing of step {step}"
    except _NO_ENTRIES as error:
        reason = f"{path} cannot be read ({error})"
    _LOG.warning("%s: the data begin with a new epoch, in another order", reason)
    return None


def write_cursor_state(model_dir: str, step: int, position: CursorState) -> None:
    """Enters it for the checkpoint of a step, and drops what belongs to deleted checkpoints.

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
    """Tells a cursor of each batch that a step has used. It must come before what saves."""

    def __init__(self, cursor: DataCursor) -> None:
        self._cursor = cursor
        self._fetches: Any = None

    def begin(self) -> None:
        """Finds the tensors."""
        if self._cursor.is_rejected:
            _LOG.warning(
                "The position in the data was not kept: files, their sizes, the seed or settings "
                "of the reader have changed. The data begin with a new epoch, in another order"
            )
        names = train_graph.anatomy().inputs
        keys = (schema.STREAM_INDEX, schema.AUGMENTATION_SEED)
        graph = tf1.get_default_graph()
        self._fetches = [graph.get_tensor_by_name(names[f"features/{key}"]) for key in keys]

    def before_run(self, run_context: Any) -> Any:
        """Asks for them."""
        return tf1.train.SessionRunArgs(self._fetches)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Tells."""
        self._cursor.advance(*run_values.results)
