"""Scalars that steps on a TPU send to their host, for TensorBoard and for hooks.

A TPU returns to the host once in many steps, and cannot write. The scalars of each step leave it
through the outfeed; the host writes some of them, and keeps the last in a variable of its own.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from estimator_det.compat import tf, tf1

HostCall = Tuple[Callable[..., Any], Dict[str, tf.Tensor]]

STEP = "global_step"
FILE_SUFFIX = ".tpu"
_NOTHING_YET = -1.0


class StepScalars(NamedTuple):
    """Scalars of a step, averaged over the TPU's cores."""

    step: int  # counted from 1; 0 before the first one
    values: Dict[str, float]


class HostValues:
    """The scalars of the last step that arrived at the host."""

    def __init__(self) -> None:
        self._names: List[str] = []
        self._variable: Any = None  # float64 [1 + names]: the step, then the scalars

    def store(self, names: List[str], values: tf.Tensor) -> tf.Operation:
        """Stores the step and its scalars, float64 [1 + names], in a variable of the host."""
        with tf1.variable_scope("host_call", reuse=tf1.AUTO_REUSE):
            self._variable = tf1.get_variable(
                "last_figures",
                [1 + len(names)],
                tf.float64,
                initializer=tf1.constant_initializer(_NOTHING_YET),
                trainable=False,
                collections=[tf1.GraphKeys.LOCAL_VARIABLES],
                use_resource=True,
            )
        self._names = names
        return self._variable.assign(values, read_value=False)

    def prepare(self) -> None:
        """To be called before the graph is finalized."""
        if self._variable is None:
            raise ValueError("this graph stores no scalars: it was built without a host call")
        self._value = self._variable.read_value()

    def read(self, session: Any) -> StepScalars:
        """Scalars of the last step that has arrived."""
        step, *values = (float(value) for value in session.run(self._value))
        if step == _NOTHING_YET:
            return StepScalars(0, {})
        return StepScalars(int(step), dict(zip(self._names, values)))


def make_host_call(
    model_dir: str,
    scalars: Dict[str, tf.Tensor],
    step: tf.Tensor,
    every_steps: int,
    last: HostValues,
) -> HostCall:
    """The `host_call` of a `TPUEstimatorSpec`.

    Args:
        model_dir: Gets an event file of its own.
        step: Global step after the step of the scalars.
        last: Gets the scalars of each step.

    Returns:
        A function for the host, and what the core sends it: everything as [1], because the
        host gets the values of all cores in one tensor.
    """
    names = list(scalars)

    def write(**sent: tf.Tensor) -> List[Any]:
        now = sent[STEP][0]
        means = {name: tf.reduce_mean(sent[name]) for name in names}
        writer = tf.summary.create_file_writer(model_dir, filename_suffix=FILE_SUFFIX)
        is_time = tf.equal(tf.math.floormod(now, every_steps), 0)
        # Tags are names as they are, wherever the host function is called.
        with tf1.name_scope(None), writer.as_default(), tf.summary.record_if(is_time):
            written = [
                tf.summary.scalar(name, value, step=now, description=None)
                for name, value in means.items()
            ]
        values = [tf.cast(value, tf.float64) for value in (now, *means.values())]
        return [*written, last.store(names, tf.stack(values))]

    tensors = {name: tf.reshape(tf.cast(value, tf.float32), [1]) for name, value in scalars.items()}
    tensors[STEP] = tf.reshape(step, [1])
    return write, tensors
