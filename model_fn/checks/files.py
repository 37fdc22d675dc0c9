"""Whether the files that a configuration names can be read."""

from __future__ import annotations

import concurrent.futures
import os
from typing import Any, List, Optional

from estimator_det.compat import tf
from estimator_det.config.check import named_paths
from estimator_det.config.files import is_remote, special_kind
from estimator_det.config.problem import Problem, error
from model_fn.checks import data_problems

LABEL_MAP = ".label_map_path"
_FILES_AT_ONCE = 16


def check_files(pipeline_config: Any) -> List[Problem]:
    """Errors for files that cannot be read, remote ones (gs://…) included, and bad label maps.

    Missing local files are left to `config.check`.
    """
    problems = []
    for field, pattern in named_paths(pipeline_config):
        if field == "train_config.fine_tune_checkpoint":  # a prefix
            if not is_remote(pattern):
                continue
            pattern += "*"
        found = _unreadable(field, pattern)
        there = is_remote(pattern) or os.path.exists(pattern)
        if there and not found and field.endswith(LABEL_MAP):
            found = data_problems.read_map(field[: -len(LABEL_MAP)], pattern)[1]
        problems += found
    return problems


def _unreadable(field: str, pattern: str) -> List[Problem]:
    try:
        paths = tf.io.gfile.glob(pattern)
    except tf.errors.OpError as reason:
        return [_no_access(field, pattern, reason)]
    if not paths and special_kind(pattern):  # a loop of links, which no glob reports
        paths = [pattern]
    if not paths and is_remote(pattern):
        return [error(field, f"no file matches {pattern!r}", "correct the path")]

    def refusal(path: str) -> Optional[Problem]:
        if kind := special_kind(path):
            return error(field, f"{path!r} cannot be read: it is {kind}", "give a regular file")
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                file.read(1)
        except tf.errors.OpError as reason:
            return _no_access(field, path, reason)
        return None

    # Each remote file takes its time, however short it is.
    with concurrent.futures.ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        return [problem for problem in pool.map(refusal, paths) if problem is not None]


def _no_access(field: str, path: str, reason: tf.errors.OpError) -> Problem:
    remedy = "check the path, and the rights and credentials of this process"
    return error(field, f"{path!r} cannot be read: {reason.message}", remedy)
