"""Simulated quantization: in training, tensors are rounded to the values that integers can have.

Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference", 2018. Semantics, and names of operations and variables, are as in the rewriter that
the Object Detection API calls (TensorFlow 1.15, `contrib.quantize`), so its checkpoints can be
restored. The rewriter changes a complete graph; here the layers of `nets.layers` call the open
`Quantizer`.

A scope S has the operation `S/FakeQuantWithMinMaxVars` and the variables `S/min` and `S/max`.
Training also has, for activations, the moving averages `S/S/min/biased` and their number of
updates `S/S/min/local_step`, the same for `max`, and `fake_quantization_step`, which counts steps
until the delay is over. All updates are in the UPDATE_OPS collection.
"""

from __future__ import annotations

import contextlib
import contextvars
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.field_rules import no_effect
from estimator_det.config.rules import Tpu, rules
from estimator_det.errors import Problem, warning
from estimator_det.protos import graph_rewriter_pb2, pipeline_pb2

FEWEST_BITS, MOST_BITS = 2, 16  # limits of the operation
INTEGER_BITS = 8  # bits of the integers that TFLite computes with

STEP_VARIABLE = "fake_quantization_step"
WEIGHTS, ACTIVATION = "weights_quant", "act_quant"
BEFORE_ACTIVATION = "conv_quant"
RESIDUAL_SUM = "post_activation_bypass_quant"
PRODUCT, MEAN = "mul/activation_Mul_quant", "Mean/activation_Mean_quant"

DECAY = 0.999  # decay of activations' ranges
INITIAL_LIMIT = 6.0  # ranges start at -6..6, or at 0..6 for activations of layers


_ROUND = "FakeQuantWithMinMaxVars"  # type and name of the operation
_RANGE = re.compile(r"_quant/(min|max)(/biased|/local_step)?$")


def is_range(name: str) -> bool:
    """True if a variable of this name belongs to a range."""
    return _RANGE.search(name) is not None


def quantized_scopes(operations: Iterable[Any]) -> List[str]:
    """Scopes of the ranges among the operations of a graph, in order of construction."""
    return [
        operation.name.rpartition("/")[0] for operation in operations if operation.type == _ROUND
    ]


@dataclass(frozen=True)
class Quantization:
    """Options of a `Quantization` message."""

    # Training steps before tensors are rounded; ranges are learned from the first step.
    delay: int = 500000
    weight_bits: int = 8  # bits of weights
    activation_bits: int = 8  # bits of activations
    symmetric: bool = False  # True if zero is in the middle of ranges


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_quantization(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    """Warnings for a `graph_rewriter` that changes nothing, or not what it seems to."""
    if not config.HasField("graph_rewriter"):
        return
    path = "graph_rewriter.quantization"
    options = config.graph_rewriter.quantization
    if not config.graph_rewriter.HasField("quantization"):
        yield no_effect("graph_rewriter", "quantization is not set")
        return
    num_steps = config.train_config.num_steps
    if 0 < num_steps <= options.delay:
        yield warning(
            f"{path}.delay",
            f"is {options.delay}: training ends at step {num_steps}, before tensors are rounded, "
            "and only ranges are learned",
            "set it to a step before the end",
        )
    for field in ("weight_bits", "activation_bits"):
        bits = getattr(options, field)
        if bits != INTEGER_BITS:
            yield warning(
                f"{path}.{field}",
                f"is {bits}: TFLite computes with {INTEGER_BITS} bits",
                f"set it to {INTEGER_BITS}, unless this is an experiment",
            )


@rules(graph_rewriter_pb2.GraphRewriter, target="tpu")
def _check_device(_config: graph_rewriter_pb2.GraphRewriter, at: str, _: Tpu) -> Iterator[Problem]:
    yield Problem(
        "error",
        at,
        "asks for simulated quantization, which is not supported yet on a TPU",
        "the model then trains in float; or train on CPU or GPU",
        (f"{at}=null",),
    )


def make_quantization(config: graph_rewriter_pb2.GraphRewriter) -> Optional[Quantization]:
    """Reads the options of a `GraphRewriter` message; None without a `quantization`."""
    if not config.HasField("quantization"):
        return None
    message = config.quantization
    return Quantization(
        message.delay, message.weight_bits, message.activation_bits, message.symmetric
    )


class QuantizedTensor(NamedTuple):
    """A tensor of the network with simulated quantization."""

    scope: str  # scope of its range variables
    values: tf.Tensor  # before it is rounded
    least: tf.Tensor  # float32 scalar, the range
    most: tf.Tensor
    is_weight: bool


class Quantizer:
    """Simulated quantization of one network, while it is built.

    Names of ranges follow the variable scope that was open when this object was created. The API
    uses name scopes, which differ from variable scopes in some networks; there,
    `renamed` corrects them.

    Args:
        options: options of the configuration.
        is_training: True if ranges are learned.

    Attributes:
        tensors: quantized tensors, in order of construction.
    """

    def __init__(self, options: Quantization, is_training: bool) -> None:
        self.tensors: List[QuantizedTensor] = []
        self._options = options
        self._is_training = is_training
        self._root = tf1.get_variable_scope()
        name_scope = tf1.get_default_graph().get_name_scope()
        self._name_prefix = f"{name_scope}/" if name_scope else ""
        self._renamed: List[Tuple[str, str]] = []
        self._weights: Dict[str, tf.Tensor] = {}
        self._is_active: Optional[tf.Tensor] = None

    def scope(self) -> str:
        """Scope of ranges in the open variable scope, as the API names it."""
        name = str(tf1.get_variable_scope().name)
        for prefix, replacement in reversed(self._renamed):
            if f"{name}/".startswith(f"{prefix}/"):
                name = replacement + name[len(prefix) :]
                break
        return name[len(self._root.name) :].lstrip("/")

    @contextlib.contextmanager
    def renamed(self, new_scope: str) -> Iterator[None]:
        """Context manager: names ranges of the open variable scope as if it were `new_scope`."""
        self._renamed.append((str(tf1.get_variable_scope().name), new_scope))
        try:
            yield
        finally:
            self._renamed.pop()

    def weights(self, scope: str, kernel: tf.Tensor) -> tf.Tensor:
        """Quantizes a kernel; in training, its smallest and largest values set the range.

        The range has the scope `scope/weights_quant`. A kernel includes batch norm if that follows.
        """
        scope = f"{scope}/{WEIGHTS}"
        with tf1.name_scope(f"{self._name_prefix}{scope}/"):
            ends = self._range_variables(scope, -INITIAL_LIMIT)
            least, most = ends
            if self._is_training:
                # The most negative level is unused, so that levels are symmetric anyway.
                ratio = 1.0 if self._options.symmetric else None
                least, most = _extremes(kernel, ratio)
                for end, value in zip(ends, (least, most)):
                    _add_update(end, value)
            return self._fake_quantize(scope, kernel, least, most, is_weight=True)

    def variable(self, scope: str, kernel: tf.Variable) -> Tuple[tf.Tensor, bool]:
        """Quantizes the kernel in a variable; also returns True at its first use.

        Layers that share the variable share the range of the first layer.
        """
        is_first = kernel.name not in self._weights
        if is_first:
            self._weights[kernel.name] = self.weights(scope, tf.identity(kernel))
        return self._weights[kernel.name], is_first

    def activation(self, scope: str, values: tf.Tensor, least: float = -INITIAL_LIMIT) -> tf.Tensor:
        """Quantizes values; the range, from `least` on, is a moving average of their extremes."""
        with tf1.name_scope(f"{self._name_prefix}{scope}/"):
            ends = self._range_variables(scope, least)
            if self._is_training:
                levels = 2**self._options.activation_bits
                # One more negative than positive level.
                ratio = (levels - 2) / levels if self._options.symmetric else None
                now = _extremes(values, ratio)
                ends = tuple(
                    self._average(f"{scope}/{scope}/{end}", variable, value)
                    for end, variable, value in zip(("min", "max"), ends, now)
                )
            return self._fake_quantize(scope, values, *ends, is_weight=False)

    def _range_variables(self, scope: str, least: float) -> Tuple[tf.Variable, tf.Variable]:
        if any(tensor.scope == scope for tensor in self.tensors):
            raise ValueError(f"two tensors have the quantization scope {scope!r}")
        return (
            range_variable(self._root, f"{scope}/min", least),
            range_variable(self._root, f"{scope}/max", INITIAL_LIMIT),
        )

    def _average(self, name: str, variable: tf.Variable, value: tf.Tensor) -> tf.Tensor:
        average, updates = update_average(self._root, name, variable, value)
        tf1.get_collection_ref(tf1.GraphKeys.UPDATE_OPS).extend(updates)
        return average

    def _fake_quantize(
        self, scope: str, values: tf.Tensor, least: tf.Tensor, most: tf.Tensor, *, is_weight: bool
    ) -> tf.Tensor:
        options = self._options
        least, most = tf.convert_to_tensor(least), tf.convert_to_tensor(most)
        self.tensors.append(QuantizedTensor(scope, values, least, most, is_weight))
        rounded = tf.quantization.fake_quant_with_min_max_vars(
            tf.cast(values, tf.float32),
            least,
            most,
            num_bits=options.weight_bits if is_weight else options.activation_bits,
            narrow_range=is_weight,
            name=_ROUND,
        )
        rounded = tf.cast(rounded, values.dtype)
        if not self._is_training or options.delay == 0:
            return rounded
        # A select costs one copy; control flow would cost a function for each tensor.
        return tf.raw_ops.Select(condition=self._active(), x=rounded, y=values)

    def _active(self) -> tf.Tensor:
        """Scalar, True if this step, counted from 1, has reached the delay."""
        if self._is_active is None:
            with tf1.name_scope(f"{self._name_prefix}{STEP_VARIABLE}/"):
                step = range_variable(self._root, STEP_VARIABLE, 0, tf.int64)
                now = step + tf.constant(1, tf.int64)
                _add_update(step, now)
                self._is_active = now >= self._options.delay
        return self._is_active


def update_average(
    root: Any, name: str, variable: tf.Variable, value: tf.Tensor
) -> Tuple[tf.Tensor, List[tf.Operation]]:
    """Moves a moving average, corrected for its start at zero, by a step.

    Returns the average and the updates of the variables; two of them are below `name` in the
    variable scope `root`.
    """
    biased = range_variable(root, f"{name}/biased", 0.0)
    count = range_variable(root, f"{name}/local_step", 0.0)
    change = tf.constant(1.0 - DECAY)
    new_biased = biased + (value - biased) * change
    new_count = count + 1.0
    average = new_biased / (1.0 - tf.pow(1.0 - change, new_count))
    updates = [
        target.assign(new, read_value=False)
        for target, new in ((biased, new_biased), (count, new_count), (variable, average))
    ]
    return average, updates


def range_variable(
    root: Any, name: str, start: float, dtype: Any = tf.float32, collections: Sequence[str] = ()
) -> tf.Variable:
    """A scalar in the variable scope `root`, which training updates but no gradient changes."""
    aggregation = tf1.VariableAggregation
    with tf1.variable_scope(root, reuse=tf1.AUTO_REUSE, auxiliary_name_scope=False):
        return tf1.get_variable(
            name,
            [],
            dtype,
            initializer=tf1.constant_initializer(start),
            trainable=False,
            collections=[tf1.GraphKeys.GLOBAL_VARIABLES, *collections],
            use_resource=True,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=aggregation.MEAN if dtype.is_floating else aggregation.ONLY_FIRST_REPLICA,
        )


def _extremes(values: tf.Tensor, ratio: Optional[float]) -> Tuple[tf.Tensor, tf.Tensor]:
    """Smallest and largest value, zero included, as float32 scalars without a gradient.

    With a ratio, the range is widened until the largest is the smallest times -ratio.
    """
    values = tf.cast(tf.stop_gradient(values), tf.float32)
    least, most = tf.reduce_min(values), tf.reduce_max(values)
    if ratio is not None:
        return tf.minimum(least, -most / ratio), tf.maximum(most, -least * ratio)
    return tf.minimum(least, 0.0), tf.maximum(most, 0.0)


def _add_update(variable: tf.Variable, value: tf.Tensor) -> None:
    update = variable.assign(value, read_value=False)
    tf1.add_to_collection(tf1.GraphKeys.UPDATE_OPS, update)


# A strategy builds each replica in a separate thread, which sees its value of this variable only.
_OPEN: contextvars.ContextVar[Optional[Quantizer]] = contextvars.ContextVar("open", default=None)


def open_quantizer() -> Optional[Quantizer]:
    """Returns the quantizer of the network that is being built; None for a float network."""
    return _OPEN.get()


@contextlib.contextmanager
def quantized_by(quantizer: Optional[Quantizer]) -> Iterator[None]:
    """Context manager: quantizes the layers that are built inside; None builds float layers."""
    token = _OPEN.set(quantizer)
    try:
        yield
    finally:
        _OPEN.reset(token)
