"""Where a TF2 loop starts: at a checkpoint of any backend, or at random values."""

from __future__ import annotations

from typing import Any, Dict

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.detectors.base import make_detector
from inputs.bad_records.log import FaultLog
from model_fn.checkpoints.repair import restoring
from model_fn.checkpoints.variables import AVERAGE_SUFFIX, check_resumable
from model_fn.runs.backends.estimator import make_train_input_fn
from model_fn.runs.context import RunContext
from model_fn.training import step, warm_start
from model_fn.training.loop_step import LoopStep


def start(loop_step: LoopStep, context: RunContext, *, has_copies: bool) -> None:
    """Gives the variables of a loop their values; in a cluster, those that its chief has.

    Args:
        has_copies: Whether each worker of a cluster has the variables, and calls this.
    """
    # The same assignments in every worker, in the same order: some count as communication.
    values = loop_step.values()
    if context.cluster.is_chief:
        values.update(_values(loop_step, context))
    loop_step.restore(values)
    if has_copies:
        loop_step.agree()


def _values(loop_step: LoopStep, context: RunContext) -> Dict[str, np.ndarray]:
    latest = tf1.train.latest_checkpoint(context.model_dir)
    if latest is not None:
        return _stored(latest, loop_step, context.config.model)
    values = {**loop_step.values(), **_fine_tuned(context)}
    for name in loop_step.variables():
        if name.endswith(AVERAGE_SUFFIX):  # They start where variables do.
            values[name] = values[name[: -len(AVERAGE_SUFFIX)]]
    return values


def _fine_tuned(context: RunContext) -> Dict[str, np.ndarray]:
    """Values of `fine_tune_checkpoint` by variable; empty without one.

    Detectors name what it restores by the variables of a graph, which is built for that.
    """
    model, train_config = context.config.model, context.config.train_config
    if not train_config.fine_tune_checkpoint:
        return {}
    with tf.Graph().as_default():
        dataset = make_train_input_fn(context, None, 0, FaultLog())()
        features, labels = tf1.data.make_initializable_iterator(dataset).get_next()
        detector = make_detector(model, is_training=True)
        step.forward(detector, features, labels, add_regularization=False)
        table = warm_start.plan_warm_start(detector, train_config, None, model)
    assert table is not None
    reader = tf1.train.load_checkpoint(table.path)
    return {variable.op.name: reader.get_tensor(name) for name, variable in table.restored.items()}


def _stored(checkpoint: str, loop_step: LoopStep, model: Any) -> Dict[str, np.ndarray]:
    variables = loop_step.variables()
    with restoring(checkpoint):
        reader = tf1.train.load_checkpoint(checkpoint)
        names = set(reader.get_variable_to_shape_map())
        check_resumable(checkpoint, variables, model)
        wanted = [*variables, *names.intersection(loop_step.own_variables())]
        return {name: reader.get_tensor(name) for name in wanted}
