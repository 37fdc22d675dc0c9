"""Summary of a training step for TensorBoard, as one tensor that is fetched at every step."""

from __future__ import annotations

from typing import Callable, Dict, List, NamedTuple

from estimator_det.compat import tf, tf1


class StepSummary(NamedTuple):
    """A summary that is made in some steps only.

    Fetched at every step, because TensorFlow optimizes a graph for each set of fetches, which takes
    seconds for a large network.
    """

    serialized: tf.Tensor  # string scalar, a Summary proto; empty where it is not due
    is_due: tf.Tensor  # bool scalar, to be fed; True where it is not


def make_summary(
    scalars: Dict[str, tf.Tensor], make_others: Callable[[], List[tf.Tensor]]
) -> StepSummary:
    """Makes the summary of a step.

    Args:
        scalars: By tag.
        make_others: Makes serialized summaries of what is costly: pictures, histograms.
    """
    is_due = tf1.placeholder_with_default(True, [], name="summary_is_due")

    def serialize() -> tf.Tensor:
        numbers = tf.raw_ops.ScalarSummary(
            tags=list(scalars), values=tf.stack(list(scalars.values()))
        )
        return tf1.summary.merge([numbers, *make_others()], collections=[])

    serialized = tf.cond(is_due, serialize, lambda: tf.constant(b""), name="summary")
    return StepSummary(serialized, is_due)
