"""Files with the thresholds of one evaluation: beside its metrics, and in exports.

An export holds them as `assets.extra/thresholds.json` of the SavedModel.
"""

from __future__ import annotations

import json
import logging
import math
import os
from typing import Any, NamedTuple, Optional

from estimator_det.compat import tf
from estimator_det.config import files, json_lines
from estimator_det.config.derived_models import final_scores
from estimator_det.config.printing import plain
from estimator_det.config.text import ConfigError
from model_fn.checkpoints.repair import step_of
from model_fn.evaluation.thresholds import Table

_LOG = logging.getLogger(__name__)

IN_EXPORTS = "assets.extra/thresholds.json"  # under the folder of the SavedModel
EVALUATION_FOLDER = "eval_"  # and the name of the reader
LONGEST_FILE = 64_000_000  # bytes


class Thresholds(NamedTuple):
    """The content of a file."""

    table: Table
    scores: Optional[str]  # `FinalScores.fingerprint` of the evaluated model; None: no model


def path_for(folder: str, step: int) -> str:
    """Path of an evaluation's thresholds, in the folder of its events."""
    return os.path.join(folder, f"thresholds-{step}.json")


def write(folder: str, step: int, reader: str, table: Table, model: Optional[Any] = None) -> str:
    """Writes the thresholds of an evaluation; returns the path.

    Args:
        model: `DetectionModel` proto that made the scores; None if none did.
    """
    scores = None if model is None else final_scores(model)
    path = path_for(folder, step)
    content = {
        "reader": reader,
        "step": step,
        "scores": None if scores is None else scores.fingerprint(),
        **table.to_json(),
    }
    files.write_text(path, json_lines.dumps(content, indent=1, allow_nan=False) + "\n")
    return path


def read(path: str) -> Thresholds:
    """The thresholds in a file of `write`."""
    content = files.read_bytes(path, LONGEST_FILE)
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:  # also of text in no encoding of JSON
        raise _not_thresholds(path, f"it is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise _not_thresholds(path, "it is no JSON object")
    try:
        table, scores = Table.from_json(values), values.get("scores")
    except (KeyError, TypeError) as error:
        raise _not_thresholds(path, f"a value is missing or wrong: {error}") from None
    numbers = [*table.per_class().values(), table.all_classes.threshold]
    if not all(x is None or math.isfinite(x) for x in numbers):
        raise _not_thresholds(path, "a threshold is not finite")
    return Thresholds(table, scores)


def _not_thresholds(path: str, reason: str) -> ConfigError:
    return ConfigError(
        None,
        f"{plain(path)}: is not a file of thresholds as an evaluation writes it; {plain(reason)}",
        "evaluate the checkpoint again, and export it again",
    )


def check(path: str, model: Any) -> None:
    """Refuses thresholds for other scores than those of a `DetectionModel` proto."""
    measured, scores = read(path).scores, final_scores(model)
    if None in (measured, scores) or scores is None or measured == scores.fingerprint():
        return
    raise ConfigError(
        None,
        f"{plain(path)}: its thresholds are for other scores: {scores.path} was "
        "not the same in the evaluation",
        "evaluate the checkpoint with this configuration",
    )


def find_usable(
    pipeline_config: Any, checkpoint: str, model_dir: Optional[str] = None
) -> Optional[str]:
    """Like `find`, but a file that `check` refuses is logged as a warning and left out."""
    path = find(pipeline_config, checkpoint, model_dir)
    try:
        if path is not None:
            check(path, pipeline_config.model)
    except ConfigError as error:
        _LOG.warning("Exporting without thresholds: %s", error)
        return None
    return path


def add_to_export(path: str, saved_model_dir: str) -> None:
    """Copies thresholds into the folder of a SavedModel."""
    target = os.path.join(saved_model_dir, IN_EXPORTS)
    tf.io.gfile.makedirs(os.path.dirname(target))
    tf.io.gfile.copy(path, target, overwrite=True)


def find(pipeline_config: Any, checkpoint: str, model_dir: Optional[str] = None) -> Optional[str]:
    """The thresholds of a checkpoint: of the first evaluation reader; None if there are none.

    They are searched in the checkpoint's folder and in the one above, for `best/` has copies of
    checkpoints; or in `model_dir`.
    """
    readers = pipeline_config.eval_input_reader
    name = readers[0].name if readers and readers[0].name else "0"
    folder = os.path.dirname(checkpoint)
    for place in [folder, os.path.dirname(folder)] if model_dir is None else [model_dir]:
        path = path_for(os.path.join(place, EVALUATION_FOLDER + name), step_of(checkpoint))
        if tf.io.gfile.exists(path):
            return path
    return None
