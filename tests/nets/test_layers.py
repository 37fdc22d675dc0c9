"""Quantized layers: before the delay they are tf-slim's, after it their parts are rounded."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

import numpy as np
import pytest

from estimator_det.compat import slim, tf, tf1
from estimator_det.config.text import ConfigError
from estimator_det.nets import layers
from estimator_det.nets.normalization import BATCH_NORMS, batch_norm, sync_batch_norm
from estimator_det.nets.quantization import Quantization, Quantizer, quantized_by

PIXELS = np.random.default_rng(0).standard_normal((2, 7, 6, 4)).astype(np.float32)
NEVER = Quantization(delay=1000)

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
    build: Layer, options: Optional[Quantization], is_training: bool, in_place: bool = False
) -> Dict[str, Any]:
    """Outputs, gradients and penalty of a layer, and its variables after a step."""
    updates = None if in_place else tf1.GraphKeys.UPDATE_OPS
    with (
        tf.Graph().as_default(),
        tf1.Session() as session,
        slim.arg_scope(
            list(BATCH_NORMS), is_training=is_training, scale=True, decay=0.9,
            updates_collections=updates,
        ),
        slim.arg_scope(
            [slim.conv2d, slim.separable_conv2d],
            normalizer_fn=batch_norm,
            weights_regularizer=slim.l2_regularizer(0.1),
        ),
        quantized_by(options and Quantizer(options, is_training)),
    ):  # fmt: skip
        pixels = tf.constant(PIXELS)
        outputs = build(pixels)
        trained = tf1.trainable_variables()
        # Unequal weights: the sum of normalized values has no gradient.
        loss = tf.reduce_sum(outputs * tf.sin(tf.range(tf.size(outputs), dtype=tf.float32) + 1)
                             [: tf.size(outputs)] if outputs.shape.rank == 1 else
                             outputs * tf.reshape(
                                 tf.sin(tf.cast(tf.range(tf.size(outputs)), tf.float32) + 1),
                                 tf.shape(outputs)))
        gradients = dict(zip([v.op.name for v in trained], tf1.gradients(loss, trained)))
        gradients["pixels"] = tf1.gradients(loss, pixels)[0]
        penalty = tf.add_n(tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES))
        model = [v for v in tf1.global_variables() if "_quant" not in v.op.name]
        session.run(tf1.global_variables_initializer())
        for variable in model:
            if variable.dtype.is_floating:
                variable.load(_value(variable), session)
        found = session.run({"outputs": outputs, "gradients": gradients, "penalty": penalty})
        session.run([outputs, *tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)])
        after = session.run({v.op.name: v for v in model if v.dtype.is_floating})
        return {**found, "after": after}


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_before_the_delay_layers_are_those_of_slim(name: str, is_training: bool) -> None:
    """In inference there is no delay: 16 bits round hardly anything."""
    options = NEVER if is_training else Quantization(weight_bits=16, activation_bits=16)
    ours = _run(_wide(LAYERS[name]), options, is_training)
    theirs = _run(LAYERS[name], None, is_training)
    tolerance = {"rtol": 1e-4, "atol": 1e-4 if is_training else 5e-2}
    assert ours["after"].keys() == theirs["after"].keys()
    for key in ("outputs", "penalty"):
        np.testing.assert_allclose(ours[key], theirs[key], err_msg=key, **tolerance)
    for key in ("gradients", "after") if is_training else ("after",):
        for variable, expected in theirs[key].items():
            scale = max(1.0, float(np.max(np.abs(expected))))
            np.testing.assert_allclose(
                ours[key][variable] / scale, expected / scale, err_msg=variable, **tolerance
            )


def _wide(build: Layer) -> Layer:
    return build
