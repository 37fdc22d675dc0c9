"""From a loss to the train op: which variables are trained, and how gradients are treated."""

from __future__ import annotations

import logging
import math
import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.text import ConfigError
from model_fn.training.finite_gate import (
    RejectedBatch,
    guarded,
    nan_unless_finite,
    written_values,
)

_LOG = logging.getLogger(__name__)

MOVING_AVERAGES = "moving_averages"
APPLIED_NORM = "learning_rate * gradient_norm"

GradientsAndVariables = List[Tuple[tf.Tensor, tf.Variable]]


class TrainOp(NamedTuple):
    """One optimizer step."""

    op: tf.Tensor  # float32 scalar, the loss before the step; running it takes the step
    gradient_norm: Optional[tf.Tensor]  # float32 scalar before clipping; None where not guarded
    gradients: Dict[str, tf.Tensor]  # by variable, as applied but for clipping
    checks: Dict[str, tf.Tensor]  # more float32 scalars that must be finite for a step to be taken
    written: Sequence[tf.Tensor]  # variables that the updates write


def name_of(variable: tf.Variable) -> str:
    """A variable's name in checkpoints; unlike `variable.op.name` it is known to TF2 loops too."""
    return str(variable.name).rpartition(":")[0]


def _matches(pattern: str, variable: tf.Variable) -> bool:
    # With and without ":0": the reference searches the full name, people write the short one.
    return any(re.search(pattern, name) for name in (name_of(variable), variable.name))


def select_variables(
    variables: Sequence[tf.Variable], update: Sequence[str], freeze: Sequence[str]
) -> List[tf.Variable]:
    """Variables that match some `update` pattern (without any: all) and no `freeze` pattern.

    Patterns are regular expressions, searched anywhere in the variable's name. A pattern that
    matches no variable is logged as a warning.
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
            "train_config",
            "update_trainable_variables and freeze_variables leave no variable to "
            f"train. update: {list(update)}, freeze: {list(freeze)}; trainable "
            f"variables: {[name_of(variable) for variable in variables[:5]]}, …",
        )
    return chosen


def multiply_bias_gradients(pairs: GradientsAndVariables, factor: float) -> GradientsAndVariables:
    """Multiplies the gradients of variables whose name matches `.*/biases`."""
    return [
        (gradient * factor if re.match(".*/biases", name_of(variable)) else gradient, variable)
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


def gradient_summaries(gradients: Dict[str, tf.Tensor]) -> List[tf.Tensor]:
    """Histogram and norm of each gradient, and the global norm, as serialized summaries."""
    norms = {f"gradient_norm/{name}": tf.norm(gradient) for name, gradient in gradients.items()}
    norms["global_norm/gradient_norm"] = tf.linalg.global_norm(list(gradients.values()))
    histograms = [
        tf.raw_ops.HistogramSummary(tag=f"gradients/{name}", values=gradient)
        for name, gradient in gradients.items()
    ]
    scalars = tf.raw_ops.ScalarSummary(tags=list(norms), values=tf.stack(list(norms.values())))
    return [*histograms, scalars]


def compute_gradients(
    loss: tf.Tensor, optimizer: Any, train_config: Any, trainable: Sequence[tf.Variable]
) -> GradientsAndVariables:
    """Gradients of the variables to train, those of biases multiplied as configured.

    Variables that the loss does not reach are left out.
    """
    variables = variables_to_train(train_config, trainable)
    pairs = gradients_of(loss, optimizer, train_config, variables)
    check_reached(pairs, variables)
    return pairs


def variables_to_train(train_config: Any, trainable: Sequence[tf.Variable]) -> List[tf.Variable]:
    """Variables that `train_config` does not freeze."""
    for field in ("gradient_clipping_by_norm", "bias_grad_multiplier"):
        value = getattr(train_config, field)
        if not math.isfinite(value):
            raise ConfigError(
                f"train_config.{field}",
                f"{value} is not finite",
                "Give a number, or remove the field",
            )
    return select_variables(
        trainable,
        train_config.update_trainable_variables,
        train_config.freeze_variables,
    )


def check_reached(gradients: Sequence[Any], variables: Sequence[tf.Variable]) -> None:
    """Raises ConfigError if no gradient was found for the variables to train."""
    if not gradients:
        raise ConfigError(
            "train_config",
            "the loss depends on none of the variables to train: "
            f"{[name_of(variable) for variable in variables[:5]]}, …",
        )


def gradients_of(
    loss: tf.Tensor, optimizer: Any, train_config: Any, variables: Sequence[tf.Variable]
) -> GradientsAndVariables:
    """Gradients of variables that the loss reaches, those of biases multiplied as configured."""
    # Gates protect what reads a variable in place; resource variables are read by value.
    computed = optimizer.compute_gradients(
        loss, list(variables), gate_gradients=tf1.train.Optimizer.GATE_NONE
    )
    pairs = [(gradient, variable) for gradient, variable in computed if gradient is not None]
    if train_config.bias_grad_multiplier:
        pairs = multiply_bias_gradients(pairs, train_config.bias_grad_multiplier)
    return pairs


def make_train_op(
    loss: tf.Tensor,
    optimizer: Any,
    global_step: tf.Variable,
    train_config: Any,
    updates: Sequence[tf.Operation],
    *,
    learning_rate: Optional[tf.Tensor] = None,
    batch: Optional[RejectedBatch] = None,
) -> TrainOp:
    """One optimizer step that changes variables only where its numbers are finite.

    Where the loss, the norm of the gradients, the learning rate, their product or what the updates
    write is not, all variables stay as they are, the global step too. The constants of the
    optimizer are finite: `make_optimizer` checks them.

    Args:
        updates: Further assignments of a step, for example to moving averages of batch norm.
        batch: Gets the batch of a rejected step.
    """
    pairs = compute_gradients(loss, optimizer, train_config, tf1.trainable_variables())
    gradients = _by_name(pairs)
    written = written_values(updates)
    norm = tf.linalg.global_norm([gradient for gradient, _ in pairs])
    if train_config.gradient_clipping_by_norm > 0:
        pairs = clip_gradients(pairs, train_config.gradient_clipping_by_norm, norm)
    checks = {}
    if learning_rate is not None:
        checks[APPLIED_NORM] = learning_rate * norm
    if written:
        checks[MOVING_AVERAGES] = nan_unless_finite(written)
    done = guarded(
        [loss, norm, *([] if learning_rate is None else [learning_rate]), *checks.values()],
        updates,
        lambda: optimizer.apply_gradients(pairs, global_step=global_step),
        batch,
    )
    with tf.control_dependencies([done]):
        return TrainOp(tf.identity(loss, name="train_op"), norm, gradients, checks, written)


def make_unguarded_train_op(
    loss: tf.Tensor,
    optimizer: Any,
    global_step: tf.Variable,
    train_config: Any,
    updates: Sequence[tf.Operation],
) -> TrainOp:
    """Like `make_train_op`, for a step that is always taken: on a TPU core or in a replica.

    One replica cannot hold back the others. Gradients are clipped as they are, before replicas
    sum them.
    """
    if updates:
        with tf.control_dependencies(list(updates)):
            loss = tf.identity(loss)
    pairs = compute_gradients(loss, optimizer, train_config, tf1.trainable_variables())
    gradients = _by_name(pairs)
    if train_config.gradient_clipping_by_norm > 0:
        pairs = clip_gradients(pairs, train_config.gradient_clipping_by_norm)
    # A gradient may be known before the loss that is reported has read its variables.
    with tf.control_dependencies([loss]):
        step = optimizer.apply_gradients(pairs, global_step=global_step)
    with tf.control_dependencies([step] if step is not None else []):
        return TrainOp(tf.identity(loss, name="train_op"), None, gradients, {}, [])


def _by_name(pairs: GradientsAndVariables) -> Dict[str, tf.Tensor]:
    return {
        name_of(variable): gradient
        for gradient, variable in pairs
        if isinstance(gradient, tf.Tensor)
    }
