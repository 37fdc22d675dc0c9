"""The part of a replica in a training step: losses and gradients of its share of the batch.

The loss of a batch follows from the losses of its parts, and so do its gradients: see
`detectors.base.Losses`. So two replicas with four images each, or eight parts with one image that
are taken one after the other, take the step that one machine takes with all eight.

Letters: R replicas, N parts of a replica's share, taken one after the other.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from estimator_det.compat import tf, track_tf1_style_variables
from estimator_det.detectors.base import build_detector
from estimator_det.protos import pipeline_pb2
from model_fn.training import step
from model_fn.training.finite_gate import nan_unless_finite
from model_fn.training.recompute import recomputing
from model_fn.training.step import Tensors
from model_fn.training.train_op import (
    check_reached,
    clip_gradients,
    gradients_of,
    name_of,
    variables_to_train,
)


class Sums(NamedTuple):
    """Losses of a part of the batch, in a form that can be summed over parts.

    Terms with the same divisor form a group. Terms without a divisor are the last group, with a
    divisor of 1.
    """

    terms: Tensors  # float32 scalars: terms times their divisors
    counts: Tensors  # float32 scalars
    divisors: List[tf.Tensor]  # float32 scalar for each group
    # For each group, gradients of the sum of its terms by the variables that it reaches.
    gradients: List[Tensors]


class Reduced(NamedTuple):
    """Results of a replica for the step; equal on all replicas except `statistics`."""

    losses: Tensors  # float32 scalars of the whole batch: terms and TOTAL_LOSS
    counts: Tensors  # float32 scalars, averaged over parts
    norm: tf.Tensor  # float32 scalar, global norm of the gradients before clipping
    is_moved_finite: tf.Tensor  # float32 scalar: 0, or NaN where a moving average is not finite
    stops: tf.Tensor  # bool [2]: a worker wants to stop; a worker got a signal
    gradients: Tensors  # gradients of the whole batch by variable, clipped
    unclipped: Tensors  # the same before clipping, where `summarize_gradients` is set
    statistics: List[tf.Tensor]  # values of the moving averages of batch norm before the step


def _groups(forward: step.Forward) -> List[Tuple[List[str], Optional[tf.Tensor]]]:
    """Names of the terms with each divisor; terms without a divisor come last."""
    groups: Dict[int, Tuple[List[str], Optional[tf.Tensor]]] = {}
    for name in forward.losses:
        if name != step.TOTAL_LOSS:
            divisor = forward.divisors.get(name)
            groups.setdefault(id(divisor), ([], divisor))[0].append(name)
    return sorted(groups.values(), key=lambda group: group[1] is None)


class Replica(tf.Module):
    """Network and loss of the model_fn, and what one replica adds to a step.

    Args:
        num_parts: N; a replica's share of the batch must be divisible by it.
        types: What the network computes in.

    Attributes:
        trained: The variables whose gradients are computed.
    """

    def __init__(
        self,
        pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
        optimizer: Any,
        *,
        num_parts: int = 1,
        types: step.NetworkTypes = step.FLOAT32,
        jit_compile: bool = False,
    ) -> None:
        super().__init__()
        self.detector = build_detector(pipeline_config.model, is_training=True)
        self._train_config, self._optimizer = pipeline_config.train_config, optimizer
        self._types = types
        self._num_parts = num_parts
        self._compute_sums: Callable[..., Sums] = self._sums
        if jit_compile:
            self._compute_sums = tf.function(self._sums, autograph=False, jit_compile=True)
        self._groups: List[List[str]] = []  # names of their terms
        self._names: List[str] = []  # names of all terms, in order
        self._counts: List[str] = []
        self._reached: List[List[str]] = []  # variables by group
        self.trained: List[tf.Variable] = []

    @track_tf1_style_variables
    def _forward(self, features: Tensors, labels: Tensors) -> step.Forward:
        return step.forward(
            self.detector,
            features,
            labels,
            add_regularization=self._train_config.add_regularization_loss,
            types=self._types,
        )

    def build(self, features: Tensors, labels: Tensors) -> None:
        """Creates the variables of the network; to be traced in every replica before `compute`."""
        forward = self._forward(*self._part((features, labels), tf.constant(0)))
        self._groups = [names for names, _ in _groups(forward)]
        self._names = [name for name in forward.losses if name != step.TOTAL_LOSS]
        self._counts = list(forward.counts)

    def choose_variables(self) -> None:
        """Sets `trained`, once the network is built."""
        self.trained = variables_to_train(self._train_config, self.trainable_variables)

    def compute(
        self, features: Tensors, labels: Tensors, scale: tf.Tensor, stops: tf.Tensor
    ) -> Reduced:
        """Forward and backward pass of this replica's share, and the sums over all replicas.

        Args:
            features, labels: This replica's images, by keys of `inputs.schema`.
            scale: float32 scalar, factor of the loss in the backward pass alone.
            stops: float32 [2], 1 if this worker wants to stop, and 1 if it got a signal.
        """
        context = tf.distribute.get_replica_context()
        statistics = self.non_trainable_variables
        before = [variable.read_value() for variable in statistics]
        sums = self._sums_of_parts(features, labels, scale)
        moved = nan_unless_finite([each.read_value() for each in statistics] or [scale])
        summed = _all_reduce(context, (sums.terms, sums.counts, sums.divisors, moved, stops))
        terms, counts, divisors, moved, stops = summed
        divisors = [tf.maximum(divisor, 1.0) for divisor in divisors]
        losses = {
            name: terms[name] / divisor
            for names, divisor in zip(self._groups, divisors)
            for name in names
        }
        losses = {name: losses[name] for name in self._names}
        losses[step.TOTAL_LOSS] = tf.add_n(list(losses.values()))
        num_shares = float(context.num_replicas_in_sync * self._num_parts)
        local = {}
        for name in map(name_of, self.trained):
            shares = [
                group[name] / (divisor * scale)
                for group, divisor in zip(sums.gradients, divisors)
                if name in group
            ]
            if shares:
                local[name] = tf.add_n(shares)
        check_reached(list(local), self.trained)
        gradients = _all_reduce(context, local)
        clipped, norm = clip_gradients(list(gradients.values()), self._train_config)
        return Reduced(
            losses=losses,
            counts={name: count / num_shares for name, count in counts.items()},
            norm=norm,
            is_moved_finite=moved,
            stops=stops > 0.0,
            gradients=dict(zip(gradients, clipped)),
            unclipped=gradients if self._train_config.summarize_gradients else {},
            statistics=before,
        )

    def put_back(self, statistics: List[tf.Tensor]) -> None:
        """Restores the moving averages of batch norm from `Reduced.statistics`."""
        for variable, value in zip(self.non_trainable_variables, statistics):
            variable.assign(value)

    def _sums_of_parts(self, features: Tensors, labels: Tensors, scale: tf.Tensor) -> Sums:
        share = (features, labels)
        if self._num_parts == 1:
            return self._compute_sums(*share, scale)

        def add(number: tf.Tensor, so_far: Sums) -> Tuple[tf.Tensor, Sums]:
            sums = self._compute_sums(*self._part(share, number), scale)
            gradients = [
                {name: group.get(name, tf.zeros_like(old)) for name, old in total.items()}
                for group, total in zip(sums.gradients, so_far.gradients)
            ]
            sums = sums._replace(gradients=gradients)
            return number + 1, tf.nest.map_structure(tf.add, so_far, sums)

        zero = tf.constant(0.0)
        start = Sums(
            terms=dict.fromkeys(self._names, zero),
            counts=dict.fromkeys(self._counts, zero),
            divisors=[zero for _ in self._groups],
            gradients=[
                {name_of(each): tf.zeros(each.shape) for each in self.trained} for _ in self._groups
            ],
        )
        _, sums = tf.while_loop(
            lambda number, _: number < self._num_parts,
            add,
            (tf.constant(0), start),
            parallel_iterations=1,
        )
        gradients = [
            {name: group[name] for name in reached}
            for group, reached in zip(sums.gradients, self._reached)
        ]
        return sums._replace(gradients=gradients)

    def _sums(self, features: Tensors, labels: Tensors, scale: tf.Tensor) -> Sums:
        """Sums of one part; gradients are of the loss times `scale`."""
        forward = self._forward(features, labels)
        terms: Tensors = {}
        divisors: List[tf.Tensor] = []
        gradients: List[Tensors] = []
        with recomputing(self._train_config.recompute):
            for names, divisor in _groups(forward):
                divisor = tf.constant(1.0) if divisor is None else divisor
                factor = tf.maximum(divisor, 1.0)
                group = {name: forward.losses[name] * factor for name in names}
                total = tf.add_n(list(group.values())) * scale
                pairs = gradients_of(total, self._optimizer, self._train_config, self.trained)
                terms.update(group)
                divisors.append(divisor)
                gradients.append(
                    {name_of(each): tf.convert_to_tensor(value) for value, each in pairs}
                )
        self._reached = [list(group) for group in gradients]
        return Sums(terms, forward.counts, divisors, gradients)

    def _part(self, share: Any, number: tf.Tensor) -> Any:
        """Images of a part; the first axis of every tensor is the image."""

        def cut(tensor: tf.Tensor) -> tf.Tensor:
            size = tensor.shape[0] // self._num_parts
            return tf.ensure_shape(
                tensor[number * size : (number + 1) * size], [size, *tensor.shape[1:]]
            )

        return share if self._num_parts == 1 else tf.nest.map_structure(cut, share)


def _all_reduce(context: Any, tensors: Any) -> Any:
    # Values that replicas share are on no device of theirs.
    flat = [tf.identity(tensor) for tensor in tf.nest.flatten(tensors)]
    return tf.nest.pack_sequence_as(tensors, context.all_reduce(tf.distribute.ReduceOp.SUM, flat))
