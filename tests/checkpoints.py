"""Checkpoints of tests."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional, Union

import numpy as np

from estimator_det.compat import tf, tf1
from model_fn.checkpoints import repair


def trained_steps(model_dir: Union[str, os.PathLike]) -> int:
    """The global step of the last checkpoint in a folder; 0 without one."""
    checkpoint = tf1.train.latest_checkpoint(str(model_dir))
    return repair.step_of(checkpoint) if checkpoint else 0


def save(
    folder: Union[str, os.PathLike], values: Dict[str, Any], step: Optional[int] = None
) -> str:
    """Saves float32 variables, or float16 ones, by name as model.ckpt or model.ckpt-STEP.

    Returns the prefix.
    """
    with tf.Graph().as_default(), tf1.Session() as session:
        for name, value in values.items():
            is_half = np.asarray(value).dtype == np.float16
            tf1.get_variable(name, initializer=value if is_half else np.float32(value))
        session.run(tf1.global_variables_initializer())
        path = os.path.join(folder, "model.ckpt")
        return str(tf1.train.Saver().save(session, path, global_step=step))


def stored(prefix: Union[str, os.PathLike]) -> Dict[str, np.ndarray]:
    """The variables of a checkpoint."""
    reader = tf1.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
