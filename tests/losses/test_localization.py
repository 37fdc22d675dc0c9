from __future__ import annotations

import contextlib

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import tf, tf1
from estimator_det.config.registry import Registry
from estimator_det.errors import UsageError
from estimator_det.losses import classification, localization
from estimator_det.protos import custom_pb2, losses_pb2


def make(text: str) -> localization.LocalizationLoss:
    return localization.make_localization_loss(
        text_format.Parse(text, losses_pb2.LocalizationLoss())
    )


@pytest.mark.parametrize(
    ("losses", "shape", "message"),
    [
        (localization, (1, 2), ""),
        (localization, (), r"loss 'mine' returns the shape \(\), not \[1, 2\] or \[1, 2, 3\]"),
        (classification, (1, 2), ""),
        (classification, (1, 2, 3), ""),
        (classification, None, r"'mine' returns NoneType, not a tensor"),
        (classification, (2,), r"returns the shape \(2,\), not \[1, 2, 3\] or \[1, 2\]"),
    ],
)
def test_shapes_of_plug_ins(monkeypatch, losses, shape, message):
    kind = losses.__name__.rpartition(".")[2]
    registry = Registry(kind)
    registry.custom("mine")(lambda *_: None if shape is None else tf.zeros(shape))
    monkeypatch.setattr(losses, f"{kind.upper()}_LOSSES", registry)
    config = getattr(losses_pb2, f"{kind.title()}Loss")(custom=custom_pb2.Custom(name="mine"))
    loss = getattr(losses, f"make_{kind}_loss")(config)
    arguments = tf.zeros([1, 2, 3]), tf.zeros([1, 2, 3]), tf.zeros([1, 2])
    with pytest.raises(UsageError, match=message) if message else contextlib.nullcontext():
        assert loss(*arguments).shape == shape


def test_plug_ins_must_use_all_that_they_get(monkeypatch):
    registry = Registry("localization")
    monkeypatch.setattr(localization, "LOCALIZATION_LOSSES", registry)
    registry.custom("whole")(localization.absolute_error)
    registry.custom("unweighted")(lambda boxes, targets, _: tf.abs(boxes - targets))
    registry.custom("double")(lambda *rows: tf.cast(localization.absolute_error(*rows), "float64"))
    registry.custom("constant")(lambda boxes, targets, weights: tf.ones_like(weights))
    for name, message in {
        "whole": "",
        "unweighted": "'unweighted' ignores the weights",
        "constant": "'constant' ignores the predictions",
        "double": "'double' returns float64, not float32",
    }.items():
        loss = make(f'custom {{ name: "{name}" }}')
        refused = pytest.raises(UsageError, match=message) if message else contextlib.nullcontext()
        with tf.Graph().as_default(), refused:
            loss(*(tf1.placeholder(tf.float32, shape) for shape in ([1, 2, 4], [1, 2, 4], [1, 2])))


def test_l1_sums_the_code_of_a_box_and_weights_the_entries_of_a_map():
    loss = make("l1_localization_loss {}")
    codes = tf.constant([[[1.0, 2.0], [0.0, 0.25]]])
    found = loss(codes, tf.zeros([1, 2, 2]), tf.constant([[2.0, 4.0]]))
    np.testing.assert_array_equal(found, [[2 * 3.0, 4 * 0.25]])
    entries = tf.constant([[1.0, -2.0]]), tf.constant([[0.0, 1.0]]), tf.constant([[1.0, 0.5]])
    np.testing.assert_array_equal(loss(*entries), [[1.0, 1.5]])


def test_nan_targets_lose_nothing_where_asked_for_alone():
    loss = make("weighted_smooth_l1 {}")
    arguments = (tf.ones([1, 1, 2]), tf.constant([[[np.nan, 0.5]]]), tf.ones([1, 1]))
    np.testing.assert_allclose(loss(*arguments, ignore_nan_targets=True), [[0.125]])
    assert np.isnan(loss(*arguments)).all()


@pytest.mark.parametrize("kind", sorted(localization.LOCALIZATION_LOSSES))
def test_finite_and_without_gradient_where_nothing_counts(kind):
    predictions = tf.constant(
        [[[0.0] * 4, [1e6, 1e6, 2e6, 2e6], [0.5] * 4], [[np.nan] * 4, [np.inf] * 4, [0.0] * 4]]
    )
    targets = tf.constant([[[0.0] * 4, [0.0, 0.0, 1.0, 1.0], [np.nan] * 4], [[0.0] * 4] * 3])
    weights = tf.constant([[0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    with tf.GradientTape() as tape:
        tape.watch(predictions)
        options = {"losses_mask": tf.constant([True, False]), "ignore_nan_targets": True}
        got = make(f"{kind} {{}}")(predictions, targets, weights, **options)
    gradient = tape.gradient(got, predictions).numpy()
    assert np.isfinite(got).all() and np.isfinite(gradient).all()
    assert not got[1].numpy().any() and got[0, 0] == 0.0
    assert not gradient[1].any() and not gradient[0, 0].any()
