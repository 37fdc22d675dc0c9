"""Versions of a served model: folders named by numbers. A server loads the highest."""

from __future__ import annotations

import os
import tempfile
from typing import Any, Callable, Dict, List, Optional

from estimator_det.compat import tf
from model_fn.serving import saved_model

_KEPT = 2  # A server may still load the version before the newest.


def add(
    folder: str,
    estimator: Any,
    make_receiver: Callable[[], Any],
    checkpoint: Optional[str] = None,
    *,
    label_map: Optional[str] = None,
    assets: Optional[Dict[str, str]] = None,
    num_additional_channels: int = 0,
) -> str:
    """Exports a checkpoint of an Estimator as constants; returns the folder of the new version.

    The number of a version is the time in seconds.

    Args:
        checkpoint: By default the Estimator's last one.
        assets: Paths of more files, by their names in the version.
    """

    def receiver() -> Any:
        # Called within the graph that is exported, which is where assets are entered.
        if label_map is not None:
            saved_model.add_label_map(label_map)
        return make_receiver()

    with tempfile.TemporaryDirectory() as with_variables:
        exported = tf.compat.as_str(
            estimator.export_saved_model(
                with_variables, receiver, checkpoint_path=checkpoint, assets_extra=assets
            )
        )
        seconds = int(os.path.basename(exported.rstrip("/")))
        # An export in the second of another one follows it.
        version = max([seconds, *(number + 1 for number in _numbers(folder))])
        path = os.path.join(folder, str(version))
        saved_model.rewrite_as_constants(exported, path, label_map, num_additional_channels)
    return path


def delete_old(folder: str) -> None:
    """Deletes all but the newest versions, and those whose export was interrupted."""
    old = {str(number) for number in _numbers(folder)[:-_KEPT]}
    for name in _names(folder):
        if name in old or name.startswith(saved_model.UNFINISHED):
            tf.io.gfile.rmtree(os.path.join(folder, name))


def _numbers(folder: str) -> List[int]:
    return sorted(int(name) for name in _names(folder) if name.isdecimal())


def _names(folder: str) -> List[str]:
    names = tf.io.gfile.listdir(folder) if tf.io.gfile.isdir(folder) else []
    return [name.rstrip("/") for name in names]
