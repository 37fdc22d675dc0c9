"""Layer hyperparameters, read from a `Hyperparams` message into a tf-slim argument scope.

Each use opens the scope again, inside the scopes that are open at that moment: the detector's
batch-norm mode applies unless the message has a narrower one.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, ContextManager, Dict, Iterator, List, NamedTuple, Optional, Tuple

from estimator_det.compat import keras_initializer, slim, tf, tf1
from estimator_det.config.rules import rules
from estimator_det.errors import ConfigError, Problem, error
from estimator_det.nets.normalization import BATCH_NORMS, batch_norm, sync_batch_norm
from estimator_det.protos import hyperparams_pb2

ArgScope = Callable[[], ContextManager[None]]
Normalizer = Callable[..., tf.Tensor]
Regularizer = Callable[[tf.Tensor], Optional[tf.Tensor]]

_PROTO = hyperparams_pb2.Hyperparams
_SCALING = hyperparams_pb2.VarianceScalingInitializer
_GROUPS = 32  # the Object Detection API normalizes in 32 groups of channels


@tf.custom_gradient
def swish(inputs: tf.Tensor) -> Tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """Maps x to x * sigmoid(x), and keeps x alone for the gradient.

    `tf.nn.swish` multiplies x by the constant 1, too, and keeps the product: an eighth of the
    memory of a training of EfficientDet-D0.
    """

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        # Computed again; without the dependency the optimizer of graphs would keep the first one.
        with tf.control_dependencies([upstream]):
            gate = tf.sigmoid(inputs)
        return upstream * gate * (1.0 + inputs * (1.0 - gate))

    return inputs * tf.sigmoid(inputs), gradient


ACTIVATIONS: Dict[int, Optional[Callable[[tf.Tensor], tf.Tensor]]] = {
    _PROTO.NONE: None,
    _PROTO.RELU: tf.nn.relu,
    _PROTO.RELU_6: tf.nn.relu6,
    _PROTO.SWISH: swish,
}


no_scope: ArgScope = contextlib.nullcontext
"""Argument scope that changes nothing."""


def open_activation() -> Callable[[tf.Tensor], tf.Tensor]:
    """The activation of convolutions in the open argument scopes."""
    settings = slim.current_arg_scope()[slim.arg_scope_func_key(slim.conv2d)]
    return settings["activation_fn"] or tf.identity


# Normal initializers with four graph nodes; TensorFlow's have six.
Initializer = Callable[..., tf.Tensor]


def _scaled(draw: Callable[..., tf.Tensor], mean: float, stddev: float) -> Initializer:
    def initialize(shape: Any, dtype: Any = tf.float32) -> tf.Tensor:
        seed, seed2 = tf1.get_seed(None)
        # To the kernels, two zeros mean that there is no seed.
        values = draw(shape=shape, dtype=dtype, seed=seed or 0, seed2=seed2 or 0) * stddev
        return values + mean if mean else values

    return initialize


def truncated_normal(stddev: float, mean: float = 0.0) -> Initializer:
    """Normal initializer without values beyond two deviations; uses the graph's seed."""
    return _scaled(tf.raw_ops.TruncatedNormal, mean, stddev)


def random_normal(stddev: float, mean: float = 0.0) -> Initializer:
    """Normal initializer; uses the graph's seed."""
    return _scaled(tf.raw_ops.RandomStandardNormal, mean, stddev)


def make_regularizer(config: hyperparams_pb2.Regularizer) -> Optional[Regularizer]:
    """Penalty of a `Regularizer` message: weight * sum|w| or weight * sum(w^2) / 2.

    None for an empty message. With weight 0 there is no loss term.
    """
    kind = config.WhichOneof("regularizer_oneof")
    if kind is None:
        return None
    make = slim.l1_regularizer if kind == "l1_regularizer" else slim.l2_regularizer
    return make(scale=getattr(config, kind).weight)


def make_initializer(config: hyperparams_pb2.Initializer) -> Optional[Any]:
    """Builds the variable initializer of an `Initializer` message; None for an empty message."""
    kind = config.WhichOneof("initializer_oneof")
    if kind is None:
        return None
    settings = getattr(config, kind)
    if kind == "truncated_normal_initializer":
        return truncated_normal(settings.stddev, settings.mean)
    if kind == "random_normal_initializer":
        return random_normal(settings.stddev, settings.mean)
    if kind == "variance_scaling_initializer":
        mode = _SCALING.Mode.Name(settings.mode)
        return slim.variance_scaling_initializer(settings.factor, mode, settings.uniform)
    return keras_initializer(settings)


@rules(hyperparams_pb2.Initializer)
def _check_name(config: hyperparams_pb2.Initializer, at: str) -> Iterator[Problem]:
    if not config.HasField("keras_initializer_by_name"):
        return
    try:
        keras_initializer(config.keras_initializer_by_name)
    except ValueError:
        yield error(
            f"{at}.keras_initializer_by_name",
            f"Keras has no initializer {config.keras_initializer_by_name!r}",
            'use one of its names, for example "glorot_uniform", "he_normal" or "zeros"',
        )


def with_bias(normalizer: Normalizer) -> Normalizer:
    """Puts a bias before `normalizer`, for `force_use_bias`; tf-slim omits the bias."""

    def biased(inputs: tf.Tensor, **settings: Any) -> tf.Tensor:
        shape, initializer = inputs.shape[-1:], tf1.zeros_initializer()
        bias = slim.model_variable("biases", shape, inputs.dtype, initializer)
        return normalizer(tf.nn.bias_add(inputs, bias), **settings)

    return biased


def group_norm(inputs: tf.Tensor, **settings: Any) -> tf.Tensor:
    """Normalizes groups of channels; tf-slim needs the sides of feature maps when it is built."""
    layer = tf1.get_variable_scope().name
    if inputs.shape[-1] % _GROUPS:
        raise ConfigError.at(
            "group_norm",
            f"divides channels into {_GROUPS} groups, and {layer} has {inputs.shape[-1]} channels",
            "use batch_norm for this layer, or a number of channels that 32 divides",
        )
    if None in inputs.shape[1:]:
        raise ConfigError.at(
            "group_norm",
            f"needs images of one size, and the sides of {layer} depend on the image",
            "use fixed_shape_resizer or pad_to_max_dimension, or batch_norm for this layer",
        )
    return slim.group_norm(inputs, _GROUPS, **settings)


NORMALIZERS: Dict[str, Normalizer] = {
    "batch_norm": batch_norm,
    "sync_batch_norm": sync_batch_norm,
    "group_norm": group_norm,
}


def _batch_norm_settings(
    config: hyperparams_pb2.Hyperparams, is_training: bool, *, tf2_line: bool
) -> Dict[str, Any]:
    """Arguments of batch norm layers; empty if the message has no batch norm."""
    kind = config.WhichOneof("normalizer_oneof")
    if kind not in ("batch_norm", "sync_batch_norm"):
        return {}
    norm = getattr(config, kind)
    settings = {name: getattr(norm, name) for name in ("decay", "center", "scale", "epsilon")}
    return {**settings, "is_training": is_training and (norm.train or tf2_line)}


class DepthwisePenalty(NamedTuple):
    """Penalty of the depthwise half of separable convolutions; the pointwise half has none."""

    penalty: Regularizer

    def __call__(self, kernel: Any) -> Optional[tf.Tensor]:
        is_pointwise = kernel.name.partition(":")[0].endswith("pointwise_weights")
        return None if is_pointwise else self.penalty(kernel)


def keras_defaults() -> ContextManager[None]:
    """Argument scope of separable convolutions that use no hyperparameters of their kernels."""
    uniform = slim.xavier_initializer()
    return slim.arg_scope(
        [slim.separable_conv2d],
        weights_initializer=uniform,
        pointwise_initializer=uniform,
        weights_regularizer=None,
    )


def make_arg_scope(
    config: hyperparams_pb2.Hyperparams,
    is_training: bool,
    *,
    tf2_line: bool = False,
    is_backbone: bool = False,
    covers_pointwise: bool = True,
) -> ArgScope:
    """Builds the argument scope of a `Hyperparams` message.

    Depthwise kernels are regularized like all others, unless the message has an explicit
    `regularize_depthwise: false`.
    Batch norm learns with `is_training`, unless the message has `train: false`.

    In the TF2 line `train` has no effect, and a batch norm without offset leaves the convolution
    its bias, except `is_backbone`. If not `covers_pointwise`, initializer and penalty apply to the
    depthwise half of separable convolutions only.
    """
    dense = config.op == _PROTO.FC
    convolutions = [slim.conv2d, slim.separable_conv2d, slim.conv2d_transpose]
    layers: List[Any] = [slim.fully_connected] if dense else convolutions
    settings: Dict[str, Any] = {
        "weights_regularizer": make_regularizer(config.regularizer),
        "activation_fn": ACTIVATIONS[config.activation],
    }
    initializer = make_initializer(config.initializer)
    if initializer is not None:
        settings["weights_initializer"] = initializer

    kind = config.WhichOneof("normalizer_oneof")
    normalizer = NORMALIZERS[kind] if kind else None
    if kind == "group_norm":
        settings["normalizer_params"] = {}  # an outer scope may have parameters of batch norm
    has_bias = config.force_use_bias
    if tf2_line:
        norm = getattr(config, kind) if kind in ("batch_norm", "sync_batch_norm") else None
        has_bias = not is_backbone and (has_bias or (norm is not None and not norm.center))
    settings["normalizer_fn"] = with_bias(normalizer) if normalizer and has_bias else normalizer
    norm_settings = _batch_norm_settings(config, is_training, tf2_line=tf2_line)
    depthwise_settings: Dict[str, Any] = {}
    if not dense and config.HasField("regularize_depthwise") and not config.regularize_depthwise:
        depthwise_settings["weights_regularizer"] = None
    elif not covers_pointwise and settings["weights_regularizer"] is not None:
        depthwise_settings["weights_regularizer"] = DepthwisePenalty(
            settings["weights_regularizer"]
        )
    if not covers_pointwise:
        depthwise_settings["pointwise_initializer"] = slim.xavier_initializer()

    @contextlib.contextmanager
    def scope() -> Iterator[None]:
        with (
            slim.arg_scope(list(BATCH_NORMS), **norm_settings),
            slim.arg_scope(layers, **settings),
            slim.arg_scope([slim.separable_conv2d], **depthwise_settings),
        ):
            yield

    return scope
