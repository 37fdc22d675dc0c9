"""Exports of a run: SavedModels of its last checkpoint, and of the best."""

from __future__ import annotations

import os
from typing import Any, Optional

from estimator_det.detectors.base import build_preprocessor
from inputs import serving
from model_fn.checkpoints.find import find_checkpoint
from model_fn.evaluation import score_thresholds
from model_fn.runs.context import RunContext
from model_fn.serving import saved_model, versions

FINAL, BEST = "Servo", "best"  # folders below model_dir/export


def export_best(context: RunContext, estimator: Any, checkpoint: str) -> None:
    """Exports a checkpoint to export/best, and deletes old versions and interrupted ones there."""
    versions.delete_old(os.path.dirname(export(context, estimator, BEST, checkpoint)))


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
