"""Savers and scaffolds: what of a graph is saved, and what is restored into it."""

from __future__ import annotations

from typing import Any, Optional

from estimator_det.compat import tf, tf1
from model_fn.checkpoints.repair import gone_explained
from model_fn.checkpoints.variables import inference_variables


class Saver(tf1.train.Saver):
    """A saver that says so where the checkpoint to restore was deleted meanwhile."""

    def restore(self, sess: tf1.Session, save_path: str) -> None:
        """As that of TensorFlow.

        Raises:
            CheckpointGoneError: if there is no such checkpoint.
        """
        with gone_explained(save_path):
            super().restore(sess, save_path)


def make_saver(train_config: Any, keep_checkpoint_max: Optional[int] = 5) -> tf1.train.Saver:
    """The saver of training: sharded, with relative paths, so that a model_dir can be moved."""
    return Saver(
        sharded=True,
        max_to_keep=keep_checkpoint_max,
        keep_checkpoint_every_n_hours=train_config.keep_checkpoint_every_n_hours,
        save_relative_paths=True,
    )


def moving_average_saver() -> tf1.train.Saver:
    """A saver that fills each trainable variable from its moving average in the checkpoint.

    Other variables, such as the statistics of batch norm, are restored as they are.
    """
    return Saver(inference_variables(use_moving_averages=True), sharded=True)


def evaluation_saver() -> tf1.train.Saver:
    """A saver of all variables, as a scaffold has by default."""
    return Saver(sharded=True, allow_empty=True)


def make_scaffold(
    saver: Optional[tf1.train.Saver],
    config: Optional[Any],
    summary_op: Optional[tf.Tensor] = None,
) -> Any:
    """A scaffold that, in a run of one process, does not ask whether variables are initialized.

    Such a run has just restored or initialized them all; the question would cost two operations
    for each variable, and is left to the workers of a cluster.

    Args:
        saver: None for one of all variables.
        config: The `RunConfig`.
        summary_op: None for all that is in the SUMMARIES collection.
    """
    if config is not None and config.num_worker_replicas > 1:
        return tf1.train.Scaffold(saver=saver, summary_op=summary_op)
    nothing_missing = tf.zeros([0], tf.string)
    return tf1.train.Scaffold(
        saver=saver,
        summary_op=summary_op,
        ready_op=nothing_missing,
        ready_for_local_init_op=nothing_missing,
    )
