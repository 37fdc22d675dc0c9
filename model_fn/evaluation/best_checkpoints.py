"""The best checkpoints of a run, copied to a folder of their own.

A kill loses none of them: a checkpoint is copied, exported, listed in best.json, and only then its
evaluation is recorded. A resumed run repeats an evaluation without a record.
"""

from __future__ import annotations

import json
import logging
import math
import os
from typing import Any, Callable, Dict, List

from estimator_det.compat import tf
from estimator_det.files import atomic
from model_fn.checkpoints import repair
from model_fn.evaluation.history import Evaluation, is_better

_LOG = logging.getLogger(__name__)

BEST_FOLDER = "best"
BEST_FILE = "best.json"
_ENTRY = ("step", "value", "checkpoint")


class BestCheckpoints:
    """Keeps copies of the checkpoints that did best in one metric.

    `keep_checkpoint_max` does not delete these.
    """

    def __init__(
        self, model_dir: str, metric: str, keep: int, *, lower_is_better: bool = False
    ) -> None:
        self._folder = os.path.join(model_dir, BEST_FOLDER)
        self._metric, self._keep, self._lower_is_better = metric, keep, lower_is_better

    def kept(self) -> List[Dict[str, Any]]:
        """The best first: dictionaries with "step", "value" and "checkpoint"."""
        path = os.path.join(self._folder, BEST_FILE)
        if not tf.io.gfile.exists(path):
            return []
        try:
            with tf.io.gfile.GFile(path) as file:
                state = json.loads(file.read())
            kept = [{key: entry[key] for key in _ENTRY} for entry in state["kept"]]
            metric = state["metric"]
        except (KeyError, TypeError, ValueError) as error:
            _LOG.warning(
                "%s cannot be read (%r): the best checkpoint so far is not known, and the next "
                "evaluation counts as the best. Checkpoints in %s are not deleted",
                path, error, self._folder,
            )  # fmt: skip
            return []
        return kept if metric == self._metric else []  # Others cannot be compared.

    def offer(self, evaluation: Evaluation, checkpoint: str, export: Callable[[str], None]) -> None:
        """Keeps a checkpoint that is good enough; the very best is exported before it is listed.

        Args:
            export: Is given the copy, since training may delete the checkpoint at any time.

        Raises CheckpointGoneError if training has deleted it already.
        """
        value = evaluation.value(self._metric)
        before = [entry for entry in self.kept() if entry["step"] != evaluation.step]
        better = [
            entry
            for entry in before
            if not is_better(value, entry["value"], lower_is_better=self._lower_is_better)
        ]
        if math.isnan(value) or len(better) >= self._keep:
            return
        name = os.path.basename(checkpoint)
        self._copy(checkpoint, name)
        if not better:
            export(os.path.join(self._folder, name))
        entry = {"step": evaluation.step, "value": value, "checkpoint": name}
        kept = [*better, entry, *before[len(better) :]]
        self._write(kept[: self._keep])
        for old in kept[self._keep :]:
            for path in tf.io.gfile.glob(os.path.join(self._folder, f"{old['checkpoint']}.*")):
                tf.io.gfile.remove(path)

    def _copy(self, checkpoint: str, name: str) -> None:
        tf.io.gfile.makedirs(self._folder)
        paths = tf.io.gfile.glob(f"{checkpoint}.*")
        # The index last: without it, what an interrupted copy leaves is no checkpoint.
        paths = [*(path for path in paths if not path.endswith(".index")), f"{checkpoint}.index"]
        with repair.restoring(checkpoint):
            for path in paths:
                suffix = path[path.rindex(name) + len(name) :]
                tf.io.gfile.copy(path, os.path.join(self._folder, name + suffix), overwrite=True)

    def _write(self, kept: List[Dict[str, Any]]) -> None:
        # The folder itself then names its best checkpoint, wherever a checkpoint is asked for.
        repair.write_state(self._folder, [kept[0]["checkpoint"]])
        path = os.path.join(self._folder, BEST_FILE)
        atomic.write(path, json.dumps({"metric": self._metric, "kept": kept}, indent=1) + "\n")
