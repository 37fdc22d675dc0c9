"""What tests ask of checkpoints."""

from __future__ import annotations

import os
from typing import Dict, Union

import numpy as np

from estimator_det.compat import tf1
from model_fn.checkpoints import repair


def trained_steps(model_dir: Union[str, os.PathLike]) -> int:
    """The global step of the last checkpoint in a folder; 0 without one."""
    checkpoint = tf1.train.latest_checkpoint(str(model_dir))
    return repair.step_of(checkpoint) if checkpoint else 0


def stored(prefix: Union[str, os.PathLike]) -> Dict[str, np.ndarray]:
    """The variables of a checkpoint."""
    reader = tf1.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
