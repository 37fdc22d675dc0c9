"""From a loss to the train op: which variables are trained, and how gradients are treated."""

from __future__ import annotations

import logging
import re
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.compat.private import add_control_input
from estimator_det.config.field_rules import no_effect, non_default_fields
from estimator_det.config.rules import rules
from estimator_det.console.printing import quoted
from estimator_det.errors import ConfigError, Problem, error, warning
from estimator_det.protos import pipeline_pb2, train_pb2
from model_fn.training.finite_gate import RejectedBatch, guarded, nan_unless_finite, written_values
from model_fn.training.recompute import recomputing

_LOG = logging.getLogger(__name__)

# Fields of train_config without effect outside a cluster.
FOR_CLUSTER = ("replicas_to_aggregate", "startup_delay_steps", "sync_replicas")
MOVING_AVERAGES = "moving_averages"
APPLIED_NORM = "learning_rate * gradient_norm"

GradientsAndVariables = List[Tuple[tf.Tensor, tf.Variable]]


class TrainOp(NamedTuple):
    """One optimizer step."""

    op: tf.Tensor  # float32 scalar, the loss before the step; running it takes the step
    gradient_norm: tf.Tensor  # float32 scalar before clipping
    gradients: Dict[str, tf.Tensor]  # by variable, as applied but for clipping
    checks: Dict[str, tf.Tensor]  # more float32 scalars that must be finite for a step to be taken
    written: Sequence[tf.Tensor]  # variables that the updates write


def name_of(variable: tf.Variable) -> str:
    """A variable's name in checkpoints; unlike `variable.op.name` it is known to TF2 loops too."""
    return str(variable.name).rpartition(":")[0]


def _matches(pattern: str, variable: tf.Variable) -> bool:
    # With and without ":0": the Object Detection API searches the full name, people write the short
    # one.
    return any(re.search(pattern, name) for name in (name_of(variable), variable.name))


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_presence(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    train = config.train_config
    if not config.HasField("train_config"):
        yield error("train_config", "is missing", "add train_config { batch_size, optimizer, … }")
    elif train.num_steps == 0 and not config.train_input_reader.num_epochs:
        yield warning(
            "train_config.num_steps",
            "is 0, and train_input_reader.num_epochs is not set: training never ends",
            "set one of them, or stop the run yourself",
        )


@rules(train_pb2.TrainConfig)
def _check_train_config(config: train_pb2.TrainConfig, at: str) -> Iterator[Problem]:
    if config.use_bfloat16:
        yield no_effect(f"{at}.use_bfloat16", "only a TPU computes in bfloat16")
    for name in non_default_fields(config, FOR_CLUSTER):
        yield no_effect(f"{at}.{name}", "it is for a cluster with parameter servers")
    for name in ("freeze_variables", "update_trainable_variables"):
        for index, pattern in enumerate(getattr(config, name)):
            try:
                re.compile(pattern)
            except re.error as failure:
                yield error(
                    f"{at}.{name}[{index}]",
                    f"{quoted(pattern)} is not a regular expression: {failure}",
                    "variable names are matched with Python's re; escape special characters",
                )


def variables_to_train(
    train_config: train_pb2.TrainConfig, trainable: Sequence[tf.Variable]
) -> List[tf.Variable]:
    """Variables that match `update_trainable_variables`, if set, and not `freeze_variables`.

    Patterns are regular expressions, searched anywhere in the variable's name. A pattern that
    matches no variable is logged as a warning.
    """
    update, freeze = train_config.update_trainable_variables, train_config.freeze_variables
    for field, patterns in (("update_trainable_variables", update), ("freeze_variables", freeze)):
        for pattern in patterns:
            if not any(_matches(pattern, variable) for variable in trainable):
                _LOG.warning("train_config.%s: %r matches no variable", field, pattern)
    chosen = [
        variable
        for variable in trainable
        if (not update or any(_matches(pattern, variable) for pattern in update))
        and not any(_matches(pattern, variable) for pattern in freeze)
    ]
    if not chosen:
        raise ConfigError.at(
            "train_config.freeze_variables",
            "update_trainable_variables and freeze_variables leave no variable to "
            f"train. update: {list(update)}, freeze: {list(freeze)}; trainable "
            f"variables: {[name_of(variable) for variable in trainable[:5]]}, …",
            "remove some of these patterns",
        )
    return chosen


def clip_gradients(
    gradients: Sequence[tf.Tensor], train_config: train_pb2.TrainConfig
) -> Tuple[List[tf.Tensor], tf.Tensor]:
    """Gradients of a whole batch, clipped, and their global norm before.

    All are scaled by one factor so that their global norm stays within `gradient_clipping_by_norm`;
    0 clips nothing. The API's Estimator does so, too; its older trainer clipped each gradient
    by itself.
    """
    norm, max_norm = tf.linalg.global_norm(gradients), train_config.gradient_clipping_by_norm
    if max_norm <= 0:
        return list(gradients), norm
    clipped, _ = tf.clip_by_global_norm(list(gradients), max_norm, use_norm=norm)
    return list(clipped), norm


def scalar_summary(values: Dict[str, tf.Tensor]) -> tf.Tensor:
    """Scalars by tag as a serialized summary."""
    return tf.raw_ops.ScalarSummary(tags=list(values), values=tf.stack(list(values.values())))


def gradient_summaries(gradients: Dict[str, tf.Tensor]) -> List[tf.Tensor]:
    """Histogram and norm of each gradient, and the global norm, as serialized summaries."""
    norms = {f"gradient_norm/{name}": tf.norm(gradient) for name, gradient in gradients.items()}
    norms["global_norm/gradient_norm"] = tf.linalg.global_norm(list(gradients.values()))
    histograms = [
        tf.raw_ops.HistogramSummary(tag=f"gradients/{name}", values=gradient)
        for name, gradient in gradients.items()
    ]
    return [*histograms, scalar_summary(norms)]


def compute_gradients(
    loss: tf.Tensor, optimizer: Any, train_config: train_pb2.TrainConfig
) -> GradientsAndVariables:
    """`gradients_of` this graph's variables to train; ConfigError if the loss reaches none."""
    variables = variables_to_train(train_config, tf1.trainable_variables())
    pairs = gradients_of(loss, optimizer, train_config, variables)
    check_reached(pairs, variables)
    return pairs


def check_reached(gradients: Sequence[Any], variables: Sequence[tf.Variable]) -> None:
    """Raises ConfigError if no gradient was found for the variables to train."""
    if not gradients:
        raise ConfigError.at(
            "train_config.freeze_variables",
            "the loss depends on none of the variables to train: "
            f"{[name_of(variable) for variable in variables[:5]]}, …",
            "let others train, here or in update_trainable_variables",
        )


def gradients_of(
    loss: tf.Tensor,
    optimizer: Any,
    train_config: train_pb2.TrainConfig,
    variables: Sequence[tf.Variable],
) -> GradientsAndVariables:
    """Gradients of variables that the loss reaches; gradients of biases are multiplied."""
    # Gates protect what reads a variable in place; resource variables are read by value.
    computed = optimizer.compute_gradients(
        loss, list(variables), gate_gradients=tf1.train.Optimizer.GATE_NONE
    )
    pairs = [(gradient, variable) for gradient, variable in computed if gradient is not None]
    for gradient, _ in pairs:
        _delay_penalty(gradient)
    factor = train_config.bias_grad_multiplier or 1.0

    def scaled(gradient: Any, variable: tf.Variable) -> Any:
        is_bias = factor != 1.0 and re.match(".*/biases", name_of(variable))
        return gradient * factor if is_bias else gradient

    return [(scaled(*pair), pair[1]) for pair in pairs]


def _delay_penalty(gradient: Any) -> None:
    """Lets the gradient of a penalty, a variable times a number, wait for the loss's gradient.

    Else TensorFlow computes it when a step begins, and keeps as many bytes as the weights have.
    """
    if not isinstance(gradient, tf.Tensor) or gradient.op.type != "AddN":
        return
    terms = [term.op for term in gradient.op.inputs]
    penalties = [op for op in terms if op.type == "Mul" and any(x.shape == [] for x in op.inputs)]
    for penalty in penalties:
        for term in set(terms).difference(penalties):
            add_control_input(penalty, term)


def make_train_op(
    loss: tf.Tensor,
    optimizer: Any,
    global_step: tf.Variable,
    train_config: train_pb2.TrainConfig,
    updates: Sequence[tf.Operation],
    *,
    learning_rate: tf.Tensor,
    batch: RejectedBatch,
) -> TrainOp:
    """One optimizer step that changes variables only where its numbers are finite.

    If the loss, the norm of the gradients, the learning rate, their product or the values that
    updates write are not, all variables stay as they are, the global step too, and `batch` gets the
    batch. The constants of the optimizer are finite: the rules of its fields check them.

    Args:
        updates: Further assignments of a step, for example to moving averages of batch norm.
    """
    with recomputing(train_config.recompute):
        pairs = compute_gradients(loss, optimizer, train_config)
    gradients, variables = zip(*pairs)
    written = written_values(updates)
    clipped, norm = clip_gradients(gradients, train_config)
    checks = {APPLIED_NORM: learning_rate * norm}
    if written:
        checks[MOVING_AVERAGES] = nan_unless_finite(written)
    done = guarded(
        [loss, norm, learning_rate, *checks.values()],
        updates,
        lambda: optimizer.apply_gradients(list(zip(clipped, variables)), global_step=global_step),
        batch,
    )
    named = {
        name_of(variable): gradient
        for gradient, variable in pairs
        if isinstance(gradient, tf.Tensor)
    }
    with tf.control_dependencies([done]):
        return TrainOp(tf.identity(loss, name="train_op"), norm, named, checks, written)
