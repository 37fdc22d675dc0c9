"""Training steps of a TF2 loop: what replicas compute is summed, checked and applied.

A step changes variables only where its numbers are finite, as `train_op.make_train_op` does in a
graph: otherwise weights, slots and the global step stay as they are, and moving averages of batch
norm are restored.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from estimator_det.compat import apply_summed, make_slots, tf
from estimator_det.protos import pipeline_pb2
from inputs import schema
from inputs.label_map import LabelMap
from model_fn.checkpoints.variables import AVERAGE_SUFFIX
from model_fn.training import input_images, step
from model_fn.training.loop_state import LoopState, optimizer_variables
from model_fn.training.loss_scale import LossScale
from model_fn.training.optimizers import approach, make_loop_optimizer
from model_fn.training.replica import Reduced, Replica
from model_fn.training.step import Tensors
from model_fn.training.train_op import APPLIED_NORM, MOVING_AVERAGES, name_of

GLOBAL_STEP = "global_step"

# Features and labels that the network and its loss read.
_READ = (
    *(key for key, spec in schema.FEATURES.items() if spec.in_train_step),
    *(key for key, spec in schema.LABELS.items() if spec.field),
    schema.NUM_BOXES,
)

# `stops` of `LoopStep.function`: no hook wants to stop, and no signal has arrived.
NO_STOP = (0.0, 0.0)


class Outcome(NamedTuple):
    """Result of a call of the loop's function, for its last step.

    Replicas do not know the last three, and return them empty.
    """

    num_taken: tf.Tensor  # int32 scalar, steps that changed the variables
    is_finite: tf.Tensor  # bool scalar, True if the last step changed them
    stops: tf.Tensor  # bool [2]: a worker wants to stop; a worker got a signal
    scalars: Tensors  # losses, LEARNING_RATE, GRADIENT_NORM
    counts: Tensors  # counts of `Forward`
    gradients: Tensors  # by variable, before clipping, where `summarize_gradients` is set
    checks: Tensors  # more float32 scalars that must be finite
    batches: Tuple[Any, ...] = ()  # (features, labels) of each replica of this process
    input_wait: Any = ()  # float64 scalar, seconds that all steps waited for their batches
    positions: Tuple[Tensors, ...] = ()  # `step.POSITION` of all images of each reader


class LoopStep:
    """Network, optimizer and their variables under a strategy.

    Args:
        types: What the network computes in; float16 has a dynamic scale of the loss.
        **options: More arguments of `Replica`.
    """

    def __init__(
        self,
        strategy: Any,
        pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
        types: step.NetworkTypes = step.FLOAT32,
        **options: Any,
    ) -> None:
        self._strategy = strategy
        self._is_on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
        self._config = pipeline_config.train_config.optimizer
        with strategy.scope():
            self.global_step = tf.Variable(
                0,
                dtype=tf.int64,
                trainable=False,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                name=GLOBAL_STEP,
            )
            self._loss_scale = LossScale() if types.tensors == tf.float16 else None
        self._optimizer, self._learning_rate = make_loop_optimizer(self._config, self.global_step)
        self._replica = Replica(pipeline_config, self._optimizer, types=types, **options)
        self.preprocess = self._replica.detector.preprocess
        self._averages: Dict[str, Any] = {}  # by the names of variables

    def build(self, batch_spec: Any) -> None:
        """Creates the variables of the network, and their moving averages."""
        strategy = self._strategy

        @tf.function(autograph=False, input_signature=[batch_spec])
        def forward(batch: Any) -> None:
            # TensorFlow traces again what has created variables, and this is never called.
            if not self._replica.variables:
                strategy.run(self._replica.build, _used(batch))

        with strategy.scope():
            forward.get_concrete_function()
            self._replica.choose_variables()
            make_slots(self._optimizer, self._replica.trained)
            if self._config.use_moving_average:
                self._averages = {
                    name_of(variable): tf.Variable(
                        tf.zeros(variable.shape), trainable=False, name=name_of(variable)
                    )
                    for variable in self._replica.trainable_variables
                }

    def function(self, iterator_spec: Any, *, loops: bool) -> Any:
        """Traces the function of a call, of one step unless it `loops`; creates slots.

        The function takes an iterator, num_steps int32, and stops float32 [2] as in
        `Replica.compute`.
        """
        signature = [iterator_spec, tf.TensorSpec([], tf.int32), tf.TensorSpec([2])]

        @tf.function(autograph=False, input_signature=signature)
        def call(iterator: Any, num_steps: tf.Tensor, stops: tf.Tensor) -> Outcome:
            take = functools.partial(self._take, iterator, stops)
            return _repeated(take, num_steps) if loops else take()

        return self._traced(call)

    def function_of_worker(self, iterator_spec: Any) -> Tuple[Any, Outcome]:
        """Traces one step of a worker that shares the variables with others, but not its steps.

        It takes an iterator, worker int32 and wants_batch bool, and returns a string vector for
        `unpacked`, since each tensor is a message between machines. The second result is an example
        of the outcome in it, whose `batches` are empty unless they are wanted or the step was not
        finite.
        """
        signature = [iterator_spec, tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.bool)]
        example: List[Outcome] = []

        @tf.function(autograph=False, input_signature=signature)
        def call(iterator: Any, worker: tf.Tensor, wants_batch: tf.Tensor) -> tf.Tensor:
            outcome = self._take(iterator, tf.constant(NO_STOP))
            # Images are many bytes for a network.
            is_kept = wants_batch | tf.logical_not(outcome.is_finite)
            batches = tf.nest.map_structure(
                lambda tensor: tensor[: tf.where(is_kept, tf.shape(tensor)[0], 0)], outcome.batches
            )
            example.append(outcome._replace(batches=batches))
            tensors = [worker, *tf.nest.flatten(example[-1])]
            return tf.stack([tf.io.serialize_tensor(tensor) for tensor in tensors])

        return self._traced(call), example[-1]

    def _traced(self, call: Any) -> Any:
        with self._strategy.scope():
            return call.get_concrete_function()

    @functools.cached_property
    def state(self) -> LoopState:
        """The variables, once a function is traced; not to be read first inside of a graph."""
        extra = {} if self._loss_scale is None else self._loss_scale.variables()
        trained = self._replica.trained
        variables = {
            **{name_of(variable): variable for variable in self._replica.variables},
            **optimizer_variables(self._optimizer, self._config, trained),
            **{name + AVERAGE_SUFFIX: each for name, each in self._averages.items()},
            GLOBAL_STEP: self.global_step,
        }
        names = [name_of(variable) for variable in trained]
        return LoopState(self._strategy, variables, extra, names)

    def _take(self, iterator: Any, stops: tf.Tensor) -> Outcome:
        """One step, outside of replicas."""
        batch = next(iterator)
        take = self._take_on_tpu if self._is_on_tpu else self._take_over_replicas
        outcome = take(_used(batch), stops)
        batches = _local(self._strategy, batch)
        return outcome._replace(
            batches=batches,
            input_wait=step.measure_input_wait(tf.nest.flatten(batches)),
            positions=(_position(batches),),
        )

    def _take_over_replicas(self, share: Tuple[Any, ...], stops: tf.Tensor) -> Outcome:
        """Replicas compute, and their sums are applied outside of them."""

        def compute(scale: tf.Tensor) -> Any:
            return self._strategy.run(self._replica.compute, (*share, scale, stops))

        def first(values: Any) -> Any:
            return _local(self._strategy, values)[0]

        if self._loss_scale is None:
            reduced = compute(tf.constant(1.0))
        else:
            reduced = self._loss_scale.compute(compute, self._put_back, first)
        return _applied_if_finite(
            first(reduced),
            self._learning_rate(),
            lambda: self._apply(reduced),
            lambda: self._put_back(reduced),
        )

    def _take_on_tpu(self, share: Tuple[Any, ...], stops: tf.Tensor) -> Outcome:
        """The whole step in one computation of the cores: each computation passes the host."""

        def take(features: Tensors, labels: Tensors, stops: tf.Tensor) -> Outcome:
            reduced = self._replica.compute(features, labels, tf.constant(1.0), stops)
            context = tf.distribute.get_replica_context()
            return _applied_if_finite(
                reduced,
                self._learning_rate(),
                lambda: context.merge_call(lambda _: self._apply(reduced)),
                lambda: self._replica.put_back(reduced.statistics),
            )

        return _local(self._strategy, self._strategy.run(take, (*share, stops)))[0]

    def _apply(self, reduced: Reduced) -> None:
        pairs = [
            (reduced.gradients[name_of(variable)], variable)
            for variable in self._replica.trained
            if name_of(variable) in reduced.gradients
        ]
        apply_summed(self._optimizer, self._strategy, pairs)
        self.global_step.assign_add(1)
        if self._loss_scale is not None:
            self._loss_scale.count_step()

        def update(average: tf.Variable, variable: tf.Variable) -> None:
            approach(average, variable, 1.0 - self._config.moving_average_decay)

        for variable in self._replica.trainable_variables if self._averages else []:
            average = self._averages[name_of(variable)]
            self._strategy.extended.update(average, update, args=(variable,))

    def _put_back(self, reduced: Reduced) -> None:
        self._strategy.run(self._replica.put_back, (reduced.statistics,))


def _applied_if_finite(
    reduced: Reduced, rate: tf.Tensor, apply: Callable[[], None], reject: Callable[[], None]
) -> Outcome:
    """Applies a step whose numbers are finite, and rejects any other."""
    checks = {APPLIED_NORM: rate * reduced.norm, MOVING_AVERAGES: reduced.is_moved_finite}
    values = [reduced.losses[step.TOTAL_LOSS], reduced.norm, rate, *checks.values()]
    is_finite = tf.reduce_all(tf.math.is_finite(tf.stack(values)))

    tf.cond(is_finite, apply, reject)
    return Outcome(
        num_taken=tf.cast(is_finite, tf.int32),
        is_finite=is_finite,
        stops=reduced.stops,
        scalars=step.reported_scalars(reduced.losses, rate, reduced.norm),
        counts=reduced.counts,
        gradients=reduced.unclipped,
        checks=checks,
    )


def _repeated(take: Callable[[], Outcome], num_steps: tf.Tensor) -> Outcome:
    """Up to `num_steps` steps; ends early if a step is not finite, or wants to stop."""

    def should_continue(before: Outcome) -> tf.Tensor:
        ends = tf.reduce_any(before.stops) | tf.logical_not(before.is_finite)
        return (before.num_taken < num_steps) & tf.logical_not(ends)

    # A function of its own, so that the step is traced once, and its results are known before.
    step_once = tf.function(take, autograph=False).get_concrete_function()

    def take_next(before: Outcome) -> Tuple[Outcome]:
        outcome = step_once()
        position = {
            key: tf.concat([value, outcome.positions[0][key]], 0)
            for key, value in before.positions[0].items()
        }
        outcome = outcome._replace(
            num_taken=before.num_taken + outcome.num_taken,
            input_wait=before.input_wait + outcome.input_wait,
            positions=(position,),
        )
        return (outcome,)

    results = step_once.structured_outputs
    growing = {
        key: tf.TensorSpec([None, *value.shape[1:]], value.dtype)
        for key, value in results.positions[0].items()
    }
    results = results._replace(positions=(growing,))
    shapes = tf.nest.map_structure(lambda result: result.shape, results)
    start = tf.nest.map_structure(
        lambda result: tf.zeros([size or 0 for size in result.shape], result.dtype), results
    )._replace(is_finite=tf.constant(True))
    (last,) = tf.while_loop(should_continue, take_next, (start,), (shapes,), parallel_iterations=1)
    return last


def unpacked(packed: tf.Tensor, example: Outcome) -> Tuple[int, Outcome]:
    """The worker and the outcome that a function of `LoopStep.function_of_worker` returned."""
    worker, *tensors = tf.unstack(packed)
    parsed = [
        tf.io.parse_tensor(tensor, like.dtype)
        for tensor, like in zip(tensors, tf.nest.flatten(example))
    ]
    return int(tf.io.parse_tensor(worker, tf.int32)), tf.nest.pack_sequence_as(example, parsed)


def used_by_step(named: Mapping[str, Any]) -> Dict[str, Any]:
    """The features or labels that network and loss read."""
    return {key: value for key, value in named.items() if key in _READ}


def _used(batch: Any) -> Tuple[Any, ...]:
    return tuple(map(used_by_step, batch))


def _local(strategy: Any, values: Any) -> Tuple[Any, ...]:
    """The values of each replica of this process."""
    flat = [strategy.experimental_local_results(each) for each in tf.nest.flatten(values)]
    return tuple(tf.nest.pack_sequence_as(values, list(each)) for each in zip(*flat))


def _position(batches: Tuple[Any, ...]) -> Tensors:
    """Values of the images of all replicas, in their order in the data."""
    features = [each for each, _ in batches]
    return {
        key: tf.concat([each[key] for each in features], 0)
        for key in step.POSITION
        if key in features[0]
    }


class LoopSummary:
    """Losses, counts, pictures of the batch, and gradients where configured."""

    def __init__(self, label_map: Optional[LabelMap], loop_step: LoopStep) -> None:
        self._preprocess, self._label_map = loop_step.preprocess, label_map
        # Lengths of a batch may change.
        self._serialize = tf.function(self._merged, autograph=False, reduce_retracing=True)

    def __call__(self, outcome: Outcome) -> bytes:
        """The serialized Summary of a call's last step."""
        figures = {**outcome.scalars, **outcome.counts, "loss": outcome.scalars[step.TOTAL_LOSS]}
        features, labels = outcome.batches[0]
        labels = {key: value for key, value in labels.items() if key in schema.LABELS}
        images = features[schema.IMAGE]
        return bytes(self._serialize(figures, images, labels, outcome.gradients).numpy())

    def _merged(
        self, figures: Tensors, images: tf.Tensor, labels: Tensors, gradients: Tensors
    ) -> tf.Tensor:
        with tf.device("/cpu:0"):
            groundtruth = step.groundtruth_from_labels(labels)
            pictures = input_images.summary(
                {schema.IMAGE: images}, groundtruth, self._preprocess, self._label_map
            )
            return step.summary(figures, pictures, gradients)
