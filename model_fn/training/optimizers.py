"""Optimizers from their configuration."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.registry import Registry
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, error
from estimator_det.protos import optimizer_pb2, pipeline_pb2, train_pb2
from model_fn.checkpoints.variables import AVERAGE_SUFFIX
from model_fn.training.schedules import check_schedule, make_learning_rate

OPTIMIZERS: Registry[Callable[[Any, Any], Any]] = Registry(
    "optimizer", chosen_by="Optimizer.optimizer"
)


@OPTIMIZERS.register("rms_prop_optimizer")
def _make_rms_prop(config: optimizer_pb2.RMSPropOptimizer, learning_rate: Any) -> Any:
    return tf1.train.RMSPropOptimizer(
        learning_rate,
        decay=config.decay,
        momentum=config.momentum_optimizer_value,
        epsilon=config.epsilon,
    )


@OPTIMIZERS.register("momentum_optimizer")
def _make_momentum(config: optimizer_pb2.MomentumOptimizer, learning_rate: Any) -> Any:
    return tf1.train.MomentumOptimizer(learning_rate, momentum=config.momentum_optimizer_value)


@OPTIMIZERS.register("adam_optimizer")
def _make_adam(config: optimizer_pb2.AdamOptimizer, learning_rate: Any) -> Any:
    return tf1.train.AdamOptimizer(learning_rate, epsilon=config.epsilon)


class OptimizerWrapper(tf1.train.Optimizer):
    """Forwards gradients to another optimizer; base of optimizers that add to one."""

    def __init__(self, optimizer: Any, name: str) -> None:
        super().__init__(use_locking=False, name=name)
        self._optimizer = optimizer

    def compute_gradients(self, *args: Any, **kwargs: Any) -> List[Tuple[Any, Any]]:
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> tf.Operation:
        return self._optimizer.apply_gradients(grads_and_vars, *args, **kwargs)


class MovingAverageOptimizer(OptimizerWrapper):
    """Keeps exponential moving averages of the variables that another optimizer trains.

    Averages start at the variables' initial values and are saved as
    `<variable>/ExponentialMovingAverage`. Frozen variables have one too, so that an evaluation
    finds them all; moving statistics of batch norm have none.
    """

    def __init__(self, optimizer: Any, decay: float) -> None:
        super().__init__(optimizer, "MovingAverage")
        self._decay = decay

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> tf.Operation:
        applied = super().apply_gradients(grads_and_vars, *args, **kwargs)
        pairs = [(_make_average(variable), variable) for variable in tf1.trainable_variables()]
        with tf.control_dependencies([applied]), tf1.name_scope("moving_averages"):
            rest = tf.constant(1 - self._decay)
            return tf.group(*(approach(*pair, rest) for pair in pairs))


def approach(average: tf.Variable, variable: tf.Variable, share: Any) -> Any:
    """Moves an average by a share of its distance to the variable, in graphs and in loops."""
    return average.assign_sub((average - variable) * share, read_value=False)


def _make_average(variable: tf.Variable) -> tf.Variable:
    """Variable that starts at another one's initial value, beside it.

    `tf.train.ExponentialMovingAverage` adds a condition to the graph for each variable: a sixth of
    the time until the first step of an SSD.
    """
    beside = tf.distribute.get_strategy().extended.colocate_vars_with(variable)
    with tf.init_scope(), beside:
        return tf1.get_variable(
            f"{variable.op.name}{AVERAGE_SUFFIX}",
            initializer=variable.initial_value,
            trainable=False,
        )


def make_optimizer(
    config: optimizer_pb2.Optimizer, global_step: tf.Tensor
) -> Tuple[Any, tf.Tensor]:
    """The optimizer of an `Optimizer` proto and its learning rate.

    With `use_moving_average` the optimizer is wrapped in `MovingAverageOptimizer`.
    """
    kind, options = _chosen(config)
    learning_rate = make_learning_rate(options.learning_rate, global_step)
    optimizer = OPTIMIZERS.get(kind)(options, learning_rate)
    if config.use_moving_average:
        optimizer = MovingAverageOptimizer(optimizer, config.moving_average_decay)
    return optimizer, learning_rate


def make_loop_optimizer(
    config: optimizer_pb2.Optimizer, global_step: tf.Variable
) -> Tuple[Any, Callable[[], tf.Tensor]]:
    """Like `make_optimizer`, for a TF2 loop: each function computes the rate again.

    A loop keeps moving averages itself, so the optimizer is never wrapped.
    """
    kind, options = _chosen(config)

    def learning_rate() -> tf.Tensor:
        return make_learning_rate(options.learning_rate, global_step)

    return OPTIMIZERS.get(kind)(options, learning_rate), learning_rate


def state_names(config: optimizer_pb2.Optimizer) -> Tuple[Dict[str, str], List[str]]:
    """Names of an optimizer's variables in a graph, without moving averages.

    Returns the suffix of a variable's name by slot, such as "/Momentum" for "momentum", and the
    names of variables that exist once, such as "beta1_power". In a TF2 loop, slots share a name.
    """
    with tf.Graph().as_default():
        variable = tf1.get_variable("v", [], use_resource=True)
        optimizer, _ = make_loop_optimizer(config, tf1.train.create_global_step())
        optimizer.apply_gradients([(tf.constant(0.0), variable)])
        suffixes = {
            slot: optimizer.get_slot(variable, slot).op.name[len("v") :]
            for slot in optimizer.get_slot_names()
        }
        names = [each.op.name for each in optimizer.variables()]
    return suffixes, [name for name in names if not name.startswith("v/")]


def _chosen(config: optimizer_pb2.Optimizer) -> Tuple[str, Any]:
    """The kind of an optimizer and its message."""
    kind = str(config.WhichOneof("optimizer"))
    return kind, getattr(config, kind)


@rules(train_pb2.TrainConfig)
def _check_optimizer(config: train_pb2.TrainConfig, at: str) -> Iterator[Problem]:
    at, kind = f"{at}.optimizer", config.optimizer.WhichOneof("optimizer")
    if kind is None:
        remedy = "add rms_prop_optimizer, momentum_optimizer or adam_optimizer"
        yield error(at, "no optimizer is chosen", remedy)
        return
    rate: optimizer_pb2.LearningRate = getattr(config.optimizer, kind).learning_rate
    at = f"{at}.{kind}.learning_rate"
    if rate.WhichOneof("learning_rate") is None:
        remedy = f"for example --set {at}.constant_learning_rate.learning_rate=0.002"
        yield error(at, "no learning rate schedule is chosen", remedy)
    yield from check_schedule(rate, at, config.num_steps)


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_averages(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    is_averaged = config.train_config.optimizer.use_moving_average
    if config.eval_config.use_moving_averages and not is_averaged:
        yield error(
            "eval_config.use_moving_averages",
            "is true, but training keeps no moving averages",
            "set train_config.optimizer.use_moving_average=true, or this to false",
        )
