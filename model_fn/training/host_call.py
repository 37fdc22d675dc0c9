"""What the steps on a TPU tell their host: figures for TensorBoard, and the last ones for hooks.

A TPU returns to the host once in many steps, and cannot write. The figures of each step leave it
through the outfeed; the host writes some of them, and keeps the last in a variable of its own.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from estimator_det.compat import tf, tf1

HostCall = Tuple[Callable[..., Any], Dict[str, tf.Tensor]]

STEP = "global_step"
FILE_SUFFIX = ".tpu"
_NOTHING_YET = -1.0


class _Kept(NamedTuple):
    names: List[str]
    variable: Any  # float64 [1 + names]: the step, then the figures


# Not in a collection of the graph, for those go into every checkpoint.
_KEPT: weakref.WeakKeyDictionary[tf.Graph, _Kept] = weakref.WeakKeyDictionary()


class Figures(NamedTuple):
    """Figures of a step, averaged over the TPU's cores."""

    step: int  # counted from 1; 0 before the first one
    values: Dict[str, float]


def make_host_call(
    model_dir: str, figures: Dict[str, tf.Tensor], step: tf.Tensor, every_steps: int
) -> HostCall:
    """The `host_call` of a `TPUEstimatorSpec`.

    Args:
        model_dir: Gets an event file of its own.
        figures: Scalars of a core by their names in TensorBoard.
        step: The global step after the step that the figures are of.
        every_steps: Steps between two entries in the event file.

    Returns:
        A function for the host, and what the core sends it: everything as [1], for the host gets
        the values of all cores in one tensor.
    """
    names = list(figures)

    def tell(**sent: tf.Tensor) -> List[Any]:
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
        return [*written, _keep(names, tf.stack(values))]

    tensors = {name: tf.reshape(tf.cast(value, tf.float32), [1]) for name, value in figures.items()}
    tensors[STEP] = tf.reshape(step, [1])
    return tell, tensors


def _keep(names: List[str], values: tf.Tensor) -> tf.Operation:
    with tf1.variable_scope("host_call", reuse=tf1.AUTO_REUSE):
        variable = tf1.get_variable(
            "last_figures",
            [1 + len(names)],
            tf.float64,
            initializer=tf1.constant_initializer(_NOTHING_YET),
            trainable=False,
            collections=[tf1.GraphKeys.LOCAL_VARIABLES],
            use_resource=True,
        )
    _KEPT[tf1.get_default_graph()] = _Kept(names, variable)
    return variable.assign(values, read_value=False)


class LastFigures:
    """Reads the figures kept last in the default graph; to be made before it is finished.

    Raises:
        ValueError: if the graph has no host call.
    """

    def __init__(self) -> None:
        kept = _KEPT.get(tf1.get_default_graph())
        if kept is None:
            raise ValueError("this graph keeps no figures: it was built without a host call")
        self._names = kept.names
        self._values = kept.variable.read_value()

    def read(self, session: Any) -> Figures:
        """Those of the last step that has arrived at the host."""
        step, *values = (float(value) for value in session.run(self._values))
        if step == _NOTHING_YET:
            return Figures(0, {})
        return Figures(int(step), dict(zip(self._names, values)))
