"""From loss terms to the train op: what is trained, how gradients are treated, what is reported."""

from __future__ import annotations

import logging
import re
from typing import Any, Dict, List, Optional, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.advice import TpuAdvice
from estimator_det.config.text import ConfigError
from estimator_det.detectors import assignment_counts
from estimator_det.detectors.base import Detector
from model_fn.training import train_graph

TPU = TpuAdvice(
    "train_config", "switch off what the operation's name says, for example summarize_gradients"
)

_LOG = logging.getLogger(__name__)

REGULARIZATION_LOSS = "Loss/regularization_loss"
TOTAL_LOSS = "Loss/total_loss"

GradientsAndVariables = List[Tuple[tf.Tensor, tf.Variable]]


def with_total(
    losses: Dict[str, tf.Tensor], detector: Detector, add_regularization: bool
) -> Dict[str, tf.Tensor]:
    """The loss terms with the regularization loss, where there is one, and their sum."""
    terms = dict(losses)
    penalties = detector.regularization_losses() if add_regularization else []
    if penalties:
        penalties = [tf.cast(penalty, tf.float32) for penalty in penalties]
        terms[REGULARIZATION_LOSS] = tf.add_n(penalties, name="regularization_loss")
    terms[TOTAL_LOSS] = tf.add_n(list(terms.values()), name="total_loss")
    return terms


def _matches(pattern: str, variable: tf.Variable) -> bool:
    # With and without ":0": the reference searches the full name, people write the short one.
    return any(re.search(pattern, name) for name in (variable.op.name, variable.name))


def select_variables(
    variables: Sequence[tf.Variable], update: Sequence[str], freeze: Sequence[str]
) -> List[tf.Variable]:
    """The variables that some `update` pattern (all, if none is given) and no `freeze` one finds.

    Patterns are regular expressions, found anywhere in the variable's name. One that finds no
    variable is warned of.

    Raises:
        ConfigError: if nothing is left to train.
    """
    for field, patterns in (("update_trainable_variables", update), ("freeze_variables", freeze)):
        for pattern in patterns:
            if not any(_matches(pattern, variable) for variable in variables):
                _LOG.warning("train_config.%s: %r matches no variable", field, pattern)
    chosen = [
        variable
        for variable in variables
        if (not update or any(_matches(pattern, variable) for pattern in update))
        and not any(_matches(pattern, variable) for pattern in freeze)
    ]
    if not chosen:
        raise ConfigError(
            "train_config: update_trainable_variables and freeze_variables leave no variable to "
            f"train. update: {list(update)}, freeze: {list(freeze)}; trainable variables: "
            f"{[variable.op.name for variable in variables[:5]]}, …"
        )
    return chosen


def multiply_bias_gradients(pairs: GradientsAndVariables, factor: float) -> GradientsAndVariables:
    """Multiplies the gradients of variables whose name matches `.*/biases`."""
    return [
        (gradient * factor if re.match(".*/biases", variable.op.name) else gradient, variable)
        for gradient, variable in pairs
    ]


def clip_gradients(
    pairs: GradientsAndVariables, max_norm: float, norm: Optional[tf.Tensor] = None
) -> GradientsAndVariables:
    """Scales all gradients by one factor so that their global norm stays within `max_norm`.

    This is how the reference's Estimator reads `gradient_clipping_by_norm`; its older trainer
    clipped each gradient by itself. `norm` is the global norm, where it is known already.
    """
    gradients, variables = zip(*pairs)
    clipped, _ = tf.clip_by_global_norm(gradients, max_norm, use_norm=norm)
    return list(zip(clipped, variables))


def _summarize_gradients(pairs: GradientsAndVariables) -> None:
    for gradient, variable in pairs:
        name = variable.op.name
        tf1.summary.histogram(f"gradients/{name}", gradient)
        tf1.summary.scalar(f"gradient_norm/{name}", tf.norm(gradient))
    tf1.summary.scalar("global_norm/gradient_norm", tf.linalg.global_norm([g for g, _ in pairs]))


def make_train_op(
    loss: tf.Tensor,
    optimizer: Any,
    global_step: tf.Variable,
    train_config: Any,
    updates: Sequence[tf.Operation],
    *,
    guarded: bool = True,
) -> tf.Tensor:
    """One optimizer step as a tensor: the loss before the step.

    Gradients of the variables chosen by freeze and update patterns, bias multiplier, clipping,
    application, besides `updates`. Variables that the loss does not reach are left as they are.

    Args:
        loss: Scalar.
        optimizer: Computes and applies gradients.
        global_step: Counts the steps that were applied.
        train_config: `TrainConfig` proto.
        updates: What else moves with a step, such as the statistics of batch norm.
        guarded: Leave all variables as they are, the global step too, where the loss or the norm of
            the gradients is not finite; the norm is watched. Has no effect within a distribution
            strategy, for one replica cannot hold back the others.

    Raises:
        ConfigError: if there is nothing to train.
    """
    guarded = guarded and not tf1.distribute.has_strategy()
    variables = select_variables(
        tf1.trainable_variables(),
        train_config.update_trainable_variables,
        train_config.freeze_variables,
    )
    if updates and not guarded:
        with tf.control_dependencies(list(updates)):
            loss = tf.identity(loss)
    pairs = [
        (gradient, variable)
        for gradient, variable in optimizer.compute_gradients(
            # Gates protect what reads a variable in place; resource variables are read by value.
            loss,
            variables,
            gate_gradients=tf1.train.Optimizer.GATE_NONE,
        )
        if gradient is not None
    ]
    if not pairs:
        raise ConfigError(
            "the loss depends on none of the variables to train: "
            f"{[variable.op.name for variable in variables[:5]]}, …"
        )
    if train_config.bias_grad_multiplier:
        pairs = multiply_bias_gradients(pairs, train_config.bias_grad_multiplier)
    norm = tf.linalg.global_norm([gradient for gradient, _ in pairs]) if guarded else None
    if guarded:
        _note_gradients(pairs, norm)
    if train_config.gradient_clipping_by_norm > 0:
        pairs = clip_gradients(pairs, train_config.gradient_clipping_by_norm, norm)
    if train_config.summarize_gradients:
        _summarize_gradients(pairs)
    if not guarded:
        # A gradient may be known before the loss that is reported has read its variables.
        with tf.control_dependencies([loss]):
            step = optimizer.apply_gradients(pairs, global_step=global_step)
        with tf.control_dependencies([step]):
            return tf.identity(loss, name="train_op")
    with tf1.name_scope("guard"):
        gate = train_graph.make_gate(tf.math.is_finite(loss) & tf.math.is_finite(norm))
    train_graph.hold_back(gate, updates)
    with tf.control_dependencies([gate.opened]):
        step = optimizer.apply_gradients(pairs, global_step=global_step)
    with tf1.name_scope("guard"):
        done = train_graph.rejoin(gate, tf.group(step, *updates))
    with tf.control_dependencies([done]):
        return tf.identity(loss, name="train_op")


def _note_gradients(pairs: GradientsAndVariables, norm: tf.Tensor) -> None:
    train_graph.watch(train_graph.GRADIENT_NORM, norm)
    tf1.summary.scalar(train_graph.GRADIENT_NORM, norm)
    train_graph.anatomy().gradients = {
        variable.op.name: gradient.name
        for gradient, variable in pairs
        if isinstance(gradient, tf.Tensor)
    }


def report(losses: Dict[str, tf.Tensor], learning_rate: tf.Tensor) -> None:
    """Hands the figures of a training step to TensorBoard, and its scalars to hooks.

    TensorBoard gets the detector's assignment counts, too.
    """
    for name, value in {**losses, "learning_rate": learning_rate}.items():
        tf1.summary.scalar(name, value)
        train_graph.watch(name, value)
    for name, value in assignment_counts.entered().items():
        tf1.summary.scalar(name, value)


def make_saver(train_config: Any, keep_checkpoint_max: Optional[int] = 5) -> tf1.train.Saver:
    """The saver of training: sharded, with relative paths, so that a model_dir can be moved."""
    saver = tf1.train.Saver(
        sharded=True,
        max_to_keep=keep_checkpoint_max,
        keep_checkpoint_every_n_hours=train_config.keep_checkpoint_every_n_hours,
        save_relative_paths=True,
    )
    tf1.add_to_collection(tf1.GraphKeys.SAVERS, saver)
    return saver


def make_scaffold(saver: Optional[tf1.train.Saver], config: Optional[Any]) -> Any:
    """A scaffold that, in a run of one process, does not ask variables whether they are there.

    Such a run has just restored or initialized them all; the question would cost two operations
    for each variable, and is left to the workers of a cluster.

    Args:
        saver: None for one of all variables.
        config: The `RunConfig`.
    """
    if config is not None and config.num_worker_replicas > 1:
        return tf1.train.Scaffold(saver=saver)
    nothing_missing = tf.zeros([0], tf.string)
    return tf1.train.Scaffold(
        saver=saver, ready_op=nothing_missing, ready_for_local_init_op=nothing_missing
    )


def moving_average_saver() -> tf1.train.Saver:
    """A saver that fills each trainable variable from its moving average in the checkpoint.

    Other variables, such as the statistics of batch norm, come from where they are.
    """
    averages = tf1.train.ExponentialMovingAverage(0.0)
    return tf1.train.Saver(averages.variables_to_restore(), sharded=True)
