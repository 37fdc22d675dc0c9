"""Classification losses, which compare class logits with their targets.

Letters: B images, A anchors, C class columns. Weights are [B, A, C], or [B, A, 1] or [B, A] if all
classes of an anchor have the same weight.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable, Iterator, Mapping, Optional, Tuple, Union

from estimator_det.boxes.geometry import sizes
from estimator_det.compat import tf
from estimator_det.config.registry import Registry
from estimator_det.config.rules import rules
from estimator_det.errors import Problem, UsageError, error
from estimator_det.protos import losses_pb2


def zero_images(rows: tf.Tensor, keep: tf.Tensor) -> tf.Tensor:
    """Replaces rows [B, ...] by zeros for images whose `keep` (bool [B]) is False."""
    # Not a product, which would keep NaN and infinity of those images.
    per_image = tf.reshape(keep, [-1] + [1] * (rows.shape.rank - 1))
    return tf.where(per_image, rows, tf.zeros([], rows.dtype))


def require_losses(
    name: str,
    losses: tf.Tensor,
    inputs: Mapping[str, tf.Tensor],
    *allowed: tf.TensorShape,
) -> tf.Tensor:
    """The losses of a plug-in; UsageError if they do not depend on all inputs.

    Their type must be the type of the inputs, their static shape one of `allowed`.
    """
    if not tf.is_tensor(losses):
        raise UsageError(f"custom loss {name!r} returns {type(losses).__name__}, not a tensor")
    if not any(shape.is_compatible_with(losses.shape) for shape in allowed):
        expected = " or ".join(str(shape.as_list()) for shape in allowed)
        raise UsageError(
            f"custom loss {name!r} returns the shape {losses.shape}, not {expected}: return a "
            "weighted loss of each anchor, and no sum"
        )
    (dtype,) = {tensor.dtype for tensor in inputs.values()}
    if losses.dtype != dtype:
        raise UsageError(
            f"custom loss {name!r} returns {losses.dtype.name}, not {dtype.name}: return it by "
            f"tf.cast(loss, {dtype.name!r})"
        )
    for what, tensor in inputs.items():
        if not tf.executing_eagerly() and not _depends_on(losses.op, tensor.op):
            raise UsageError(
                f"custom loss {name!r} ignores the {what}: its result must depend on them"
            )
    return losses


def _depends_on(operation: tf.Operation, source: tf.Operation) -> bool:
    """True if an operation has another one of its graph among its inputs, or their inputs."""
    operations, waiting = set(), [operation]
    while waiting and source not in operations:
        operation = waiting.pop()
        if operation not in operations:
            operations.add(operation)
            waiting += [tensor.op for tensor in operation.inputs]
    return source in operations


_LossFunction = Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


class ClassificationLoss:
    """A loss of class logits, with a function of (logits, targets, weights [B, A, C or 1])."""

    def __init__(self, function: _LossFunction) -> None:
        self._function = function

    def __call__(
        self,
        predictions: tf.Tensor,  # float32 [B, A, C], logits
        targets: tf.Tensor,  # float32 [B, A, C]; their meaning depends on the loss
        weights: tf.Tensor,  # float32 [B, A, C], [B, A, 1] or [B, A]
        *,
        losses_mask: Optional[tf.Tensor] = None,  # bool [B]; images with False have no loss
    ) -> tf.Tensor:
        """Computes weighted losses, float32 [B, A, C].

        Softmax losses have one number for all classes, [B, A], dice one for all anchors, [B, C].
        """
        if weights.shape.rank == predictions.shape.rank - 1:
            weights = weights[..., None]
        if losses_mask is None:
            return self._function(predictions, targets, weights)
        predictions, targets, weights = (
            zero_images(rows, losses_mask) for rows in (predictions, targets, weights)
        )
        # Masked twice: clean inputs keep gradients finite, clean results drop the masked images'
        # loss.
        return zero_images(self._function(predictions, targets, weights), losses_mask)


def sum_by_image(
    loss_of_image: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], logits: tf.Tensor
) -> tf.Tensor:
    """Sums of losses: logits [B, A, C] -> [B], with gradients of logits alone.

    Images follow each other. Only logits and their gradient exist for all of them at once; what the
    loss computes on the way exists for one.

    Args:
        loss_of_image: From the number of an image, int32 [], and its logits [1, A, C] to losses.
    """
    slopes_spec = tf.TensorSpec(logits.shape[1:], logits.dtype)

    def sums(logits: tf.Tensor) -> Any:
        def sum_and_slopes(number: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
            rows = logits[number][tf.newaxis]  # XLA knows its shape; a slice of one it does not
            with tf.GradientTape() as tape:
                tape.watch(rows)
                total = tf.reduce_sum(loss_of_image(number, rows))
            return total, tape.gradient(total, rows)[0]

        with tf.control_dependencies([logits]):  # or targets of the first image would be early
            totals, slopes = tf.map_fn(
                sum_and_slopes,
                tf.range(sizes(logits)[0]),
                fn_output_signature=(tf.TensorSpec([], logits.dtype), slopes_spec),
                parallel_iterations=1,
            )
        return totals, lambda upstream: upstream[:, None, None] * slopes

    return tf.custom_gradient(sums)(logits)


CLASSIFICATION_LOSSES: Registry[Callable[[Any], _LossFunction]] = Registry(
    "classification loss",
    tpu="use weighted_sigmoid_focal, or weighted_softmax in a second stage",
    chosen_by="ClassificationLoss.classification_loss",
    arguments=("logits", "targets", "weights"),
)


def _binary_entropy(
    logits: tf.Tensor, targets: tf.Tensor
) -> Tuple[tf.Tensor, Callable[[tf.Tensor], Tuple[tf.Tensor, tf.Tensor]]]:
    """Cross entropy of each class, and its gradients.

    TensorFlow's gradient keeps five tensors of all logits, and passes over them ten times.
    """
    entropy = tf.nn.softplus(logits) - targets * logits
    return entropy, lambda upstream: (
        upstream * (tf.sigmoid(logits) - targets),
        upstream * -logits,
    )


def sigmoid_cross_entropy(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Cross entropy of each class: [B, A, C] -> [B, A, C]; targets within 0..1."""
    return weights * tf.custom_gradient(_binary_entropy)(logits, targets)


def _power(base: tf.Tensor, exponent: float) -> tf.Tensor:
    """Raises numbers of at least 0 to a power, with a finite gradient at 0."""
    if exponent == 1.0:
        return base
    if exponent == 2.0:
        return tf.square(base)
    # Below exponent 1 the slope at 0 is infinite, hence the lower bound of the base.
    return tf.pow(tf.maximum(base, 1e-12) if exponent < 1.0 else base, exponent)


def sigmoid_focal(
    logits: tf.Tensor,
    targets: tf.Tensor,
    weights: tf.Tensor,
    *,
    gamma: float = 2.0,
    alpha: Optional[float] = None,
) -> tf.Tensor:
    """Focal loss (https://arxiv.org/abs/1708.02002): [B, A, C] -> [B, A, C].

    Cross entropy times (1 - p_t)^gamma, where p_t is the probability of the target. With `alpha`,
    positives have weight alpha and negatives 1 - alpha. Only logits have a gradient.
    """
    if alpha is not None:
        weights *= (2.0 * alpha - 1.0) * targets + (1.0 - alpha)

    def focal(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> Any:
        # One tensor of the logits of EfficientDet D0 has 70 MB at batch 4. TensorFlow's gradient
        # keeps twice as many of them.
        probabilities = tf.sigmoid(logits)
        entropy = tf.nn.softplus(logits) - targets * logits
        signed = (1.0 - 2.0 * targets) * probabilities
        misses = targets + signed  # 1 - p_t; its slope is signed * (1 - p)
        # Logarithms, for the power of EfficientDet, would take longer than the rest of the loss.
        factor = weights * (tf.sqrt(misses) if gamma == 1.5 else _power(misses, gamma - 1.0))
        slope = misses * (probabilities - targets)
        slope += gamma * signed * (1.0 - probabilities) * entropy
        slope *= factor
        return factor * misses * entropy, lambda upstream: (upstream * slope, None, None)

    return tf.custom_gradient(focal)(logits, targets, weights)


def softmax_cross_entropy(
    logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, *, logit_scale: float = 1.0
) -> tf.Tensor:
    """Cross entropy of all classes together with a distribution: [B, A, C] -> [B, A].

    An anchor's weight is the mean of its class weights. A high `logit_scale` flattens the
    prediction.
    """
    entropy = tf.nn.softmax_cross_entropy_with_logits(labels=targets, logits=logits / logit_scale)
    return entropy * tf.reduce_mean(weights, axis=-1)


def softmax_against_logits(
    logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, *, logit_scale: float = 1.0
) -> tf.Tensor:
    """`softmax_cross_entropy` with the softmax of target *logits*, which are scaled, too."""
    distribution = tf.nn.softmax(targets / logit_scale)
    return softmax_cross_entropy(logits, distribution, weights, logit_scale=logit_scale)


def bootstrapped_sigmoid(
    logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, *, alpha: float, hard: bool = False
) -> tf.Tensor:
    """Sigmoid cross entropy with a mix of label and prediction: [B, A, C] -> [B, A, C].

    The target is alpha * label + (1 - alpha) * predicted probability (or, with `hard`, predicted
    class), for noisy labels (https://arxiv.org/abs/1412.6596).
    """
    belief = tf.cast(logits > 0.0, logits.dtype) if hard else tf.sigmoid(logits)
    return sigmoid_cross_entropy(logits, alpha * targets + (1.0 - alpha) * belief, weights)


LEAST_PROBABILITY = 1e-4  # limit of the focal loss of heat maps in the API
_MOST_LOGIT = math.log((1.0 - LEAST_PROBABILITY) / LEAST_PROBABILITY)


def penalty_reduced_focal(
    logits: tf.Tensor,
    targets: tf.Tensor,
    weights: tf.Tensor,
    *,
    alpha: float = 2.0,
    beta: float = 4.0,
) -> tf.Tensor:
    """Focal loss for heat maps: [B, A, C] -> [B, A, C] (https://arxiv.org/abs/1904.07850, eq. 1).

    Targets of exactly 1 are positives. All others are negatives, whose penalty is multiplied by
    (1 - target)^beta. Probabilities are cut to `LEAST_PROBABILITY` and 1 minus that,
    so that pixels beyond have no gradient.
    """
    logits = tf.clip_by_value(logits, -_MOST_LOGIT, _MOST_LOGIT)
    positive = -tf.math.log_sigmoid(logits)
    negative = -tf.math.log_sigmoid(-logits)
    if alpha:
        positive *= _power(tf.sigmoid(-logits), alpha)
        negative *= _power(tf.sigmoid(logits), alpha)
    if beta:
        negative *= _power(1.0 - targets, beta)
    return weights * tf.where(tf.equal(targets, 1.0), positive, negative)


def dice(
    logits: tf.Tensor,
    targets: tf.Tensor,
    weights: tf.Tensor,
    *,
    squared_normalization: bool = False,
    from_probabilities: bool = False,
) -> tf.Tensor:
    """1 - dice coefficient of each class over all anchors (pixels): [B, A, C] -> [B, C].

    It is 1 if neither predictions nor targets have a positive pixel. Weights multiply both. With
    `squared_normalization` the divisor is the sum of squares (https://arxiv.org/abs/1606.04797).
    """
    weighted_predictions = weights * (logits if from_probabilities else tf.sigmoid(logits))
    weighted_targets = weights * targets
    common = tf.reduce_sum(weighted_predictions * weighted_targets, axis=1)
    if squared_normalization:
        weighted_predictions = tf.square(weighted_predictions)
        weighted_targets = tf.square(weighted_targets)
    total = tf.reduce_sum(weighted_predictions + weighted_targets, axis=1)
    return 1.0 - tf.math.divide_no_nan(2.0 * common, total)


def make_classification_loss(config: losses_pb2.ClassificationLoss) -> ClassificationLoss:
    """Builds the loss of a `ClassificationLoss` message."""
    if config.HasField("custom"):
        function = CLASSIFICATION_LOSSES.custom_function(config.custom)

        def entries(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
            losses = function(logits, targets, weights)
            inputs = {"logits": logits, "targets": targets, "weights": weights}
            allowed = (logits.shape, logits.shape[:-1])
            return require_losses(config.custom.name, losses, inputs, *allowed)

        return ClassificationLoss(entries)
    return ClassificationLoss(CLASSIFICATION_LOSSES.make_chosen(config))


def check_per_anchor(
    config: losses_pb2.ClassificationLoss, at: str, user: str
) -> Iterator[Problem]:
    """An error for a loss without a value for each anchor, which its `user` needs."""
    if config.HasField("weighted_dice_classification_loss"):
        yield error(
            f"{at}.weighted_dice_classification_loss",
            f"has no value for each anchor or region, which {user} needs",
            "use another loss",
        )


_SoftmaxMessage = Union[
    losses_pb2.WeightedSoftmaxClassificationLoss,
    losses_pb2.WeightedSoftmaxClassificationAgainstLogitsLoss,
]


@rules(
    losses_pb2.WeightedSoftmaxClassificationLoss,
    losses_pb2.WeightedSoftmaxClassificationAgainstLogitsLoss,
)
def _check_scale(config: _SoftmaxMessage, at: str) -> Iterator[Problem]:
    if config.logit_scale == 0.0:
        yield error(f"{at}.logit_scale", "divides the logits and must not be 0", "set it to 1")


def _softmax_loss(config: _SoftmaxMessage, loss: Callable[..., tf.Tensor]) -> _LossFunction:
    return functools.partial(loss, logit_scale=config.logit_scale)


@CLASSIFICATION_LOSSES.register("weighted_sigmoid_focal")
def _make_focal(config: losses_pb2.SigmoidFocalClassificationLoss) -> _LossFunction:
    alpha = config.alpha if config.HasField("alpha") else None
    return functools.partial(sigmoid_focal, gamma=config.gamma, alpha=alpha)


@CLASSIFICATION_LOSSES.register("weighted_dice_classification_loss")
def _make_dice(config: losses_pb2.WeightedDiceClassificationLoss) -> _LossFunction:
    return functools.partial(
        dice,
        squared_normalization=config.squared_normalization,
        from_probabilities=config.is_prediction_probability,
    )


CLASSIFICATION_LOSSES.register("weighted_sigmoid")(lambda _: sigmoid_cross_entropy)
CLASSIFICATION_LOSSES.register("weighted_softmax")(
    lambda config: _softmax_loss(config, softmax_cross_entropy)
)
CLASSIFICATION_LOSSES.register("weighted_logits_softmax")(
    lambda config: _softmax_loss(config, softmax_against_logits)
)
CLASSIFICATION_LOSSES.register("bootstrapped_sigmoid")(
    lambda config: functools.partial(
        bootstrapped_sigmoid, alpha=config.alpha, hard=config.hard_bootstrap
    )
)
CLASSIFICATION_LOSSES.register("penalty_reduced_logistic_focal_loss")(
    lambda config: functools.partial(penalty_reduced_focal, alpha=config.alpha, beta=config.beta)
)
