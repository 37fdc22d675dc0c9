"""The best checkpoints of a run: copied to a folder of their own, and exported.

A kill loses none of them: a checkpoint is copied, exported, listed in best.json, and only then its
evaluation is recorded. A resumed run repeats an evaluation without a record.
"""

from __future__ import annotations

import json
import logging
import math
import os
from typing import Any, Callable, Dict, List, Optional

from estimator_det.compat import tf
from estimator_det.detectors.base import build_preprocessor
from estimator_det.files import atomic
from inputs import serving
from model_fn.checkpoints import repair
from model_fn.checkpoints.find import find_checkpoint
from model_fn.evaluation import score_thresholds
from model_fn.evaluation.history import Evaluation, is_better
from model_fn.runs.context import RunContext
from model_fn.serving import saved_model, versions

_LOG = logging.getLogger(__name__)

BEST_FOLDER = "best"
BEST_FILE = "best.json"
BEST_EXPORT = "best"
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

    def offer(self, evaluation: Evaluation, checkpoint: str, export: Callable[[], None]) -> None:
        """Keeps a checkpoint that is good enough; the very best is exported before it is listed."""
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
            export()
        entry = {"step": evaluation.step, "value": value, "checkpoint": name}
        kept = [*better, entry, *before[len(better) :]]
        self._write(kept[: self._keep])
        for old in kept[self._keep :]:
            for path in tf.io.gfile.glob(os.path.join(self._folder, f"{old['checkpoint']}.*")):
                tf.io.gfile.remove(path)

    def _copy(self, checkpoint: str, name: str) -> None:
        tf.io.gfile.makedirs(self._folder)
        # The index last: without it, what an interrupted copy leaves is no checkpoint.
        files = sorted(tf.io.gfile.glob(f"{checkpoint}.*"), key=lambda path: path.endswith("index"))
        for path in files:
            suffix = path[path.rindex(name) + len(name) :]
            tf.io.gfile.copy(path, os.path.join(self._folder, name + suffix), overwrite=True)

    def _write(self, kept: List[Dict[str, Any]]) -> None:
        # So that the folder means its best checkpoint wherever a checkpoint is asked for.
        repair.write_state(self._folder, [kept[0]["checkpoint"]])
        path = os.path.join(self._folder, BEST_FILE)
        atomic.write(path, json.dumps({"metric": self._metric, "kept": kept}, indent=1) + "\n")


def export_best(context: RunContext, estimator: Any, checkpoint: str) -> None:
    """Exports a checkpoint to export/best, and deletes old versions and interrupted ones there."""
    versions.delete_old(os.path.dirname(export(context, estimator, BEST_EXPORT, checkpoint)))


def export(context: RunContext, estimator: Any, name: str, checkpoint: Optional[str] = None) -> str:
    """Writes a SavedModel of constants to a new folder under export/<name>; its name is the time.

    Label map and thresholds of the checkpoint's evaluation are added if they can be read.

    Args:
        estimator: An Estimator of the run.
        checkpoint: By default the last one of the run.
    """
    config, model_dir = context.config, context.model_dir
    prefix = checkpoint or find_checkpoint(model_dir)
    thresholds = score_thresholds.find_usable(config, prefix, model_dir)
    return versions.add(
        os.path.join(model_dir, "export", name),
        estimator,
        serving.create_predict_input_fn(config, build_preprocessor(config.model)),
        checkpoint,
        label_map=saved_model.find_readable_label_map(config, context.label_map),
        assets={os.path.basename(score_thresholds.IN_EXPORTS): thresholds} if thresholds else None,
        num_additional_channels=serving.additional_channels(config),
    )
