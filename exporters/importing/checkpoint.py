"""Reads checkpoints, of which only the model's variables are taken."""

from __future__ import annotations

from estimator_det.compat import tf1
from exporters.importing.published import FORMATS, NO_STRUCTURE, Published
from model_fn.checkpoints.find import find_checkpoint
from model_fn.checkpoints.repair import require_whole
from model_fn.checkpoints.variables import num_neutral_layers


@FORMATS.register("checkpoint")
def read_checkpoint(path: str) -> Published:
    """The variables of a checkpoint, given as a prefix, one of its files, or a folder."""
    prefix = find_checkpoint(path)
    require_whole(prefix)
    reader = tf1.train.NewCheckpointReader(prefix)
    arrays = {
        name: reader.get_tensor(name)
        for name, kind in reader.get_variable_to_dtype_map().items()
        if kind.is_floating
    }
    return Published(arrays, NO_STRUCTURE, has_names=True, num_neutral=num_neutral_layers(prefix))
