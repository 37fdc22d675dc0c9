"""Reads checkpoints, of which only the model's variables are taken."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np

from estimator_det.compat import tf1
from exporters.importing.published import NO_STRUCTURE, Published, as_float32
from model_fn.checkpoints.find import find_checkpoint
from model_fn.checkpoints.repair import require_whole
from model_fn.checkpoints.variables import num_neutral_layers


def read_checkpoint(path: str) -> Published:
    """The variables of a checkpoint, given as a prefix, one of its files, or a folder."""
    prefix = find_checkpoint(path)
    arrays = float_variables(prefix)
    return Published(arrays, NO_STRUCTURE, has_names=True, num_neutral=num_neutral_layers(prefix))


def checkpoint_reader(prefix: str) -> Any:
    """A reader of a checkpoint whose files are whole; RunError names what is missing."""
    require_whole(prefix)
    return tf1.train.NewCheckpointReader(prefix)


def float_variables(prefix: str) -> Dict[str, np.ndarray]:
    """The floating-point variables by name, half precision as float32."""
    reader = checkpoint_reader(prefix)
    kinds = reader.get_variable_to_dtype_map()
    names = [name for name, kind in kinds.items() if kind.is_floating]
    return {name: as_float32(reader.get_tensor(name)) for name in names}
