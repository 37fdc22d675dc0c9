"""Quantized layers: before the delay they are tf-slim's, after it their parts are rounded."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import numpy as np
import pytest

from estimator_det.compat import slim, tf, tf1
from estimator_det.errors import ConfigError
from estimator_det.nets import layers
from estimator_det.nets.hyperparams import with_bias
from estimator_det.nets.normalization import BATCH_NORMS, batch_norm, sync_batch_norm
from estimator_det.nets.quantization import Quantization, Quantizer, is_range, quantized_by

PIXELS = np.random.default_rng(0).standard_normal((2, 7, 6, 4)).astype(np.float32)

Layer = Callable[..., tf.Tensor]


def _conv(name: str, *arguments: Any, **settings: Any) -> Layer:
    def build(inputs: tf.Tensor) -> tf.Tensor:
        return getattr(layers, name)(inputs, *arguments, scope="conv", **settings)

    return build


LAYERS: Dict[str, Layer] = {
    "plain": _conv("conv2d", 5, 3),
    "strided": _conv("conv2d", 5, [3, 1], stride=2, padding="VALID", activation_fn=None),
    "dilated": _conv("conv2d", 5, 3, rate=2, activation_fn=tf.nn.relu6),
    "synchronized": _conv("conv2d", 5, 1, normalizer_fn=sync_batch_norm),
    "bias": _conv("conv2d", 5, 3, normalizer_fn=None, activation_fn=tf.nn.swish),
    "depthwise": _conv("separable_conv2d", None, 3, depth_multiplier=2, stride=2),
    "separable": _conv("separable_conv2d", 5, 3, stride=2),
    "separable bias": _conv("separable_conv2d", 5, 3, normalizer_fn=None),
}


def _value(variable: Any) -> np.ndarray:
    random = np.random.default_rng(sum(variable.op.name.encode()))
    return 1 + 0.3 * random.random(variable.shape.as_list(), np.float32)


def _run(
    build: Layer,
    options: Optional[Quantization],
    *,
    is_training: bool = True,
    in_place: bool = False,
) -> Dict[str, Any]:
    """Outputs, gradients and penalty of a layer, and its variables after a step."""
    updates = None if in_place else tf1.GraphKeys.UPDATE_OPS
    norms = {"is_training": is_training, "scale": True, "decay": 0.9}
    penalized = {"normalizer_fn": batch_norm, "weights_regularizer": slim.l2_regularizer(0.1)}
    with (
        tf.Graph().as_default(),
        tf1.Session() as session,
        slim.arg_scope(list(BATCH_NORMS), updates_collections=updates, **norms),
        slim.arg_scope([slim.conv2d, slim.separable_conv2d], **penalized),
        quantized_by(options and Quantizer(options, is_training)),
    ):
        pixels = tf.constant(PIXELS)
        outputs = build(pixels)
        # Unequal factors: the plain sum of normalized values has no gradient.
        factors = np.sin(np.arange(outputs.shape.num_elements(), dtype=np.float32) + 1)
        loss = tf.reduce_sum(outputs * factors.reshape(outputs.shape.as_list()))
        trained = {v.op.name: v for v in tf1.trainable_variables()}
        gradients = dict(zip(trained, tf1.gradients(loss, list(trained.values()))))
        gradients["pixels"] = tf1.gradients(loss, pixels)[0]
        penalty = tf.add_n(tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES))
        model = {
            v.op.name: v
            for v in tf1.global_variables()
            if not is_range(v.op.name) and v.dtype.is_floating
        }
        session.run(tf1.global_variables_initializer())
        for variable in model.values():
            variable.load(_value(variable), session)
        found = session.run({"outputs": outputs, "gradients": gradients, "penalty": penalty})
        session.run([outputs, *tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)])
        return {**found, "after": session.run(model)}


def _agree(ours: Dict[str, Any], theirs: Dict[str, Any], tolerance: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        scale = max(1.0, float(np.max(np.abs(expected))))
        difference = np.max(np.abs(ours[name] - expected))
        assert difference <= tolerance * scale, f"{name}: {difference} of {scale}"


@pytest.mark.parametrize(
    ("name", "in_place"),
    [*((name, False) for name in LAYERS), *((name, True) for name in ("plain", "depthwise"))],
)
def test_before_the_delay_a_layer_is_that_of_slim(name, in_place):
    ours, theirs = (
        _run(LAYERS[name], options, in_place=in_place) for options in (Quantization(), None)
    )
    for part in ("gradients", "after"):
        _agree(ours.pop(part), theirs.pop(part), 1e-4)
    _agree(ours, theirs, 1e-5)


@pytest.mark.parametrize("name", ["plain", "synchronized", "depthwise"])
def test_an_inference_folds_batch_norm_into_what_it_rounds(name):
    """Sixteen bits leave steps of 12 / 65535 in kernels, of 6 / 65535 in outputs."""
    fine = Quantization(weight_bits=16, activation_bits=16)
    ours, theirs = (_run(LAYERS[name], options, is_training=False) for options in (fine, None))
    within = np.clip(theirs["outputs"], 0, 6)
    assert np.max(within) > 2
    np.testing.assert_allclose(ours["outputs"], within, atol=5e-3)
    assert ours["penalty"] == pytest.approx(theirs["penalty"])  # of the kernel as it is


@pytest.mark.parametrize("name", ["plain", "strided", "depthwise", "synchronized"])
def test_a_training_step_computes_what_the_formulas_of_the_object_detection_api_give(name):
    """Outputs and gradients of the folded layer, in the order in which the rewriter computes."""
    with tf.Graph().as_default(), tf1.Session() as session:
        pixels = tf.constant(PIXELS)
        quantizer = Quantizer(Quantization(delay=0), is_training=True)
        with (
            quantized_by(quantizer),
            slim.arg_scope(list(BATCH_NORMS), is_training=True, scale=True),
            slim.arg_scope([slim.conv2d, slim.separable_conv2d], normalizer_fn=batch_norm),
        ):
            LAYERS[name](pixels)
        _, ours = quantizer.tensors  # the kernel, and the outputs before they are rounded
        found = {v.op.name.rpartition("/")[2]: v for v in tf1.global_variables()}
        kernel = found["depthwise_weights" if name == "depthwise" else "weights"]

        def convolve(weights: tf.Tensor) -> tf.Tensor:
            if name == "depthwise":
                return tf.nn.depthwise_conv2d(pixels, weights, (1, 2, 2, 1), "SAME")
            stride, padding = (2, "VALID") if name == "strided" else (1, "SAME")
            return tf.nn.conv2d(pixels, weights, stride, padding)

        def penalty(factor: tf.Tensor) -> tf.Tensor:
            return tf.reshape(factor, kernel.shape[2:]) if name == "depthwise" else factor

        mean, variance = tf.nn.moments(convolve(kernel), [0, 1, 2])
        factor = found["gamma"] * tf1.rsqrt(variance + 1e-3)
        correction = tf1.rsqrt(found["moving_variance"] + 1e-3) / tf1.rsqrt(variance + 1e-3)
        folded = (penalty(correction) * kernel) * penalty(factor)
        ends = tf.stop_gradient([tf.reduce_min(folded), tf.reduce_max(folded)])
        folded = tf.quantization.fake_quant_with_min_max_vars(
            folded, ends[0], ends[1], narrow_range=True
        )
        theirs = convolve(folded) / correction + (found["beta"] - mean * factor)
        theirs = theirs if name == "strided" else tf.nn.relu(theirs)

        trained = [pixels, kernel, found["gamma"], found["beta"]]
        slope = np.sin(np.arange(theirs.shape.num_elements(), dtype=np.float32) + 1)
        slope = slope.reshape(theirs.shape.as_list())
        values = [
            [outputs, *tf1.gradients(outputs * slope, trained)] for outputs in (ours.values, theirs)
        ]
        session.run(tf1.global_variables_initializer())
        random = np.random.default_rng(5)
        kernel.load(random.standard_normal(kernel.shape.as_list()), session)
        for part in ("gamma", "beta", "moving_variance"):
            found[part].load(random.uniform(0.5, 2.0, found[part].shape.as_list()), session)
        for mine, expected in zip(*session.run(values)):
            np.testing.assert_allclose(mine, expected, atol=2e-5 * np.max(np.abs(expected)))


@pytest.mark.parametrize("options", [None, Quantization()])
def test_halves_of_a_separable_layer_have_initial_values_of_their_own(options):
    with tf.Graph().as_default(), tf1.Session() as session:
        with quantized_by(options and Quantizer(options, is_training=True)):
            names = ("weights_initializer", "pointwise_initializer")
            values = map(tf1.constant_initializer, (2.0, 3.0))
            layers.separable_conv2d(tf.constant(PIXELS), 5, 3, **dict(zip(names, values)))
        session.run(tf1.global_variables_initializer())
        kernels = session.run([v for v in tf1.trainable_variables() if v.shape.rank == 4])
    assert [set(kernel.ravel()) for kernel in kernels] == [{2.0}, {3.0}]


@pytest.mark.parametrize("options", [None, Quantization()])
def test_penalties_of_kernel_and_bias(options):
    penalty = slim.l2_regularizer(0.1)
    with tf.Graph().as_default():
        with quantized_by(options and Quantizer(options, is_training=True)):
            settings = {"weights_regularizer": penalty, "biases_regularizer": penalty}
            layers.conv2d(tf.constant(PIXELS), 5, 3, **settings)
        assert len(tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)) == 2


def _scopes(build: Layer, *, is_training: bool = True) -> Any:
    with tf.Graph().as_default():
        quantizer = Quantizer(Quantization(), is_training)
        norms = slim.arg_scope([slim.conv2d, slim.separable_conv2d], normalizer_fn=batch_norm)
        with quantized_by(quantizer), tf1.variable_scope("net"), norms:
            build(tf.constant(PIXELS))
        return [each.scope for each in quantizer.tensors]


def test_names_of_ranges():
    assert _scopes(LAYERS["plain"]) == ["net/conv/weights_quant", "net/conv/act_quant"]
    assert _scopes(LAYERS["separable"]) == [
        "net/conv/separable_conv2d/weights_quant",
        "net/conv/separable_conv2d/act_quant",
        "net/conv/weights_quant",
        "net/conv/act_quant",
    ]
    # Integer kernels do not apply swish while they write: its input needs a range too.
    assert "net/conv/conv_quant" in _scopes(LAYERS["bias"])
    assert _scopes(lambda net: layers.residual_sum(net, net)) == [
        "net/post_activation_bypass_quant"
    ]

    def twice(net: tf.Tensor) -> tf.Tensor:
        with layers.repeat_scope_in_range_names():
            return layers.quantized(net, "sum")

    assert _scopes(twice) == ["net/net/sum"]


def test_a_penalty_of_a_kernel_without_batch_norm_is_of_the_rounded_one():
    coarse = Quantization(delay=0, weight_bits=2)
    ours, theirs = (_run(LAYERS["bias"], options) for options in (coarse, None))
    assert abs(ours["penalty"] / theirs["penalty"] - 1) > 0.01


def test_normalization_that_cannot_be_folded_is_refused():
    with pytest.raises(ConfigError, match="group_norm of net/conv cannot become part"):
        _scopes(_conv("conv2d", 4, 1, normalizer_fn=slim.group_norm))
    with pytest.raises(ConfigError, match="force_use_bias"):
        _scopes(_conv("conv2d", 4, 1, normalizer_fn=with_bias(batch_norm)))


def test_gradient_of_a_strided_kernel_on_one_pixel_in_bfloat16():
    generator = np.random.default_rng(0)
    pixels = generator.normal(size=[16, 1, 1, 128]).astype(np.float32)

    def gradient(dtype: tf.DType) -> tf.Tensor:
        with tf.Graph().as_default(), tf1.Session() as session:
            inputs = tf.cast(tf.constant(pixels), dtype)
            ones = tf1.ones_initializer()
            outputs = layers.conv2d(inputs, 256, 3, stride=2, weights_initializer=ones)
            (kernel,) = (v for v in tf1.trainable_variables() if v.shape.rank == 4)
            session.run(tf1.global_variables_initializer())
            (gradients,) = tf1.gradients(tf.reduce_sum(tf.cast(outputs, tf.float32)), [kernel])
            return session.run(tf.cast(gradients, tf.float32))

    exact = gradient(tf.float32)
    for _ in range(5):
        np.testing.assert_allclose(gradient(tf.bfloat16), exact, atol=0.02 * np.abs(exact).max())
