"""The mark of imported checkpoints whose batch norm has neutral statistics."""

from __future__ import annotations

from estimator_det.compat import tf1

# An int64 scalar in the checkpoint: how many layers have mean 0 and variance 1 because the file
# they were imported from had them folded into convolutions.
NEUTRAL_STATISTICS = "imported/neutral_batch_norm"


def num_neutral_layers(checkpoint: str) -> int:
    """Layers of a checkpoint with neutral statistics; 0 without the mark."""
    reader = tf1.train.NewCheckpointReader(checkpoint)
    if not reader.has_tensor(NEUTRAL_STATISTICS):
        return 0
    return int(reader.get_tensor(NEUTRAL_STATISTICS))
