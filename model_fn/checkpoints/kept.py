"""The checkpoints that a training keeps."""

from __future__ import annotations

import os
import time

from estimator_det.compat import tf1
from model_fn.checkpoints import repair


class KeptCheckpoints:
    """The checkpoints that a model_dir keeps, and its `checkpoint` file, which lists them."""

    def __init__(self, model_dir: str, keep_max: int, keep_every_n_hours: float) -> None:
        self._model_dir, self._keep_max = model_dir, keep_max
        self._keep_secs = keep_every_n_hours * 3600
        self._next_kept = time.time() + self._keep_secs
        state = tf1.train.get_checkpoint_state(model_dir)
        paths = list(state.all_model_checkpoint_paths) if state is not None else []
        present = [path for path in paths if tf1.train.checkpoint_exists(path)]
        times = tf1.train.get_checkpoint_mtimes(present)
        # Names are relative to the folder; a run may continue a checkpoint of another folder.
        self._listed = [
            (os.path.basename(path), saved)
            for path, saved in zip(present, times)
            if os.path.dirname(path) == model_dir.rstrip("/")
        ]

    def add(self, name: str) -> None:
        """Lists a checkpoint as the newest, and deletes old ones beyond `keep_max`."""
        kept = [entry for entry in self._listed if entry[0] != name] + [(name, time.time())]
        first = max(len(kept) - self._keep_max, 0) if self._keep_max else 0
        self._listed = kept[first:]
        repair.write_state(self._model_dir, [name for name, _ in self._listed])
        for old, saved in kept[:first]:
            # One checkpoint in `keep_every_n_hours` is never deleted.
            if saved > self._next_kept:
                self._next_kept += self._keep_secs
            else:
                tf1.train.remove_checkpoint(os.path.join(self._model_dir, old))
