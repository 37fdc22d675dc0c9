"""A training step as a value: what it computes, what it changes and what it reports.

The model_fn, the step of a TPU core and loops of `tf.distribute` all take what is made here; no
collection of the graph and no table beside it carries anything from one to the other.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.detectors.base import Context, Detector, Groundtruth
from inputs import schema
from model_fn.training import input_images
from model_fn.training.finite_gate import RejectedBatch
from model_fn.training.optimizers import make_optimizer
from model_fn.training.train_op import gradient_summaries, make_train_op

REGULARIZATION_LOSS = "Loss/regularization_loss"
TOTAL_LOSS = "Loss/total_loss"
LEARNING_RATE = "learning_rate"
GRADIENT_NORM = "gradient_norm"

Tensors = Dict[str, tf.Tensor]


class Forward(NamedTuple):
    """Network and loss of a batch."""

    predictions: Any  # of `Detector.predict`, float32
    groundtruth: Groundtruth
    losses: Tensors  # float32 scalars: the terms, then their sum, TOTAL_LOSS
    counts: Tensors  # float32 scalars: figures of the assignment


class TrainStep(NamedTuple):
    """One training step of a graph."""

    train_op: tf.Tensor  # float32 scalar, the loss before the step; running it takes the step
    losses: Tensors  # of `Forward`
    scalars: Tensors  # what reports show: losses, LEARNING_RATE, GRADIENT_NORM
    counts: Tensors  # of `Forward`
    summaries: List[tf.Tensor]  # string scalars, serialized Summary protos: pictures, histograms
    gradients: Tensors  # by variable, as applied but for clipping
    checks: Tensors  # more float32 scalars that must be finite; NaN or infinite ones are reported
    written: Sequence[tf.Tensor]  # what `Detector.updates` write
    inputs: Tensors  # the batch: "features/image", …, "labels/groundtruth_boxes", …
    input_wait: tf.Tensor  # float64 scalar, seconds that the step waited for its batch
    rejected: RejectedBatch  # the batch of the step whose numbers were not finite


def groundtruth_from_labels(labels: Tensors) -> Groundtruth:
    """Labels under the keys of `inputs.schema` as the detector takes them."""
    fields = {
        spec.groundtruth_field: labels.get(key)
        for key, spec in schema.LABELS.items()
        if spec.groundtruth_field
    }
    valid = tf.sequence_mask(labels[schema.NUM_BOXES], tf.shape(labels[schema.BOXES])[1])
    valid.set_shape(labels[schema.BOXES].shape[:2])
    fields["classes"] = tf.cast(labels[schema.CLASSES], tf.float32)
    if fields["weights"] is None:
        fields["weights"] = tf.cast(valid, tf.float32)
    return Groundtruth(valid=valid, **fields)


def context_from_features(features: Tensors) -> Optional[Context]:
    """Context features under the keys of `inputs.schema`; None if the reader loads none."""
    if schema.CONTEXT_FEATURES not in features:
        return None
    return Context(features[schema.CONTEXT_FEATURES], features[schema.VALID_CONTEXT_SIZE])


def predict(
    detector: Detector,
    features: Tensors,
    groundtruth: Optional[Groundtruth] = None,
    *,
    in_bfloat16: bool = False,
) -> Any:
    """Predictions in float32; the network itself computes in bfloat16 where asked for.

    Args:
        detector: Of `make_detector`.
        features: Keys of `inputs.schema`.
        groundtruth: In training, for detectors that choose regions by it.
        in_bfloat16: See above.
    """
    images, true_shapes = features[schema.IMAGE], features[schema.TRUE_IMAGE_SHAPE]
    context = context_from_features(features)
    if not in_bfloat16:
        return detector.predict(images, true_shapes, groundtruth, context)
    with tf1.tpu.bfloat16_scope():
        images = tf.cast(images, tf.bfloat16)
        predictions = detector.predict(images, true_shapes, groundtruth, context)

    def widened(tensor: Any) -> Any:
        is_narrow = tensor is not None and tensor.dtype == tf.bfloat16
        return tf.cast(tensor, tf.float32) if is_narrow else tensor

    return tf.nest.map_structure(widened, predictions)


def forward(
    detector: Detector,
    features: Tensors,
    labels: Tensors,
    *,
    add_regularization: bool,
    in_bfloat16: bool = False,
) -> Forward:
    """Builds network and loss.

    Args:
        detector: Of `make_detector`.
        features: Keys of `inputs.schema`.
        labels: Keys of `inputs.schema`.
        add_regularization: Whether the detector's penalties are part of the loss.
        in_bfloat16: Whether the network computes in bfloat16; losses are float32 all the same.
    """
    groundtruth = groundtruth_from_labels(labels)
    predictions = predict(detector, features, groundtruth, in_bfloat16=in_bfloat16)
    terms, counts = detector.loss(predictions, groundtruth)
    penalties = detector.regularization_losses() if add_regularization else []
    return Forward(predictions, groundtruth, with_total(terms, penalties), counts)


def with_total(terms: Tensors, penalties: Sequence[tf.Tensor] = ()) -> Tensors:
    """The loss terms, the sum of the penalties where there are any, and the sum of all."""
    terms = dict(terms)
    if penalties:
        terms[REGULARIZATION_LOSS] = tf.add_n(
            [tf.cast(penalty, tf.float32) for penalty in penalties], name="regularization_loss"
        )
    terms[TOTAL_LOSS] = tf.add_n(list(terms.values()), name="total_loss")
    return terms


def make_train_step(
    detector: Detector,
    passed: Forward,
    features: Tensors,
    labels: Tensors,
    pipeline_config: Any,
) -> TrainStep:
    """The step that follows a forward pass, with `detector.updates()` among what it runs.

    Initial values of variables must be settled before: moving averages start at them.

    Args:
        detector: Of `make_detector`.
        passed: Of `forward`.
        features: Keys of `inputs.schema`.
        labels: Keys of `inputs.schema`.
        pipeline_config: `TrainEvalPipelineConfig` proto.

    Raises:
        ConfigError: if there is nothing to train.
    """
    train_config = pipeline_config.train_config
    inputs = {
        f"{prefix}/{key}": tensor
        for prefix, tensors in (("features", features), ("labels", labels))
        for key, tensor in tensors.items()
    }
    rejected = RejectedBatch(inputs)
    global_step = tf1.train.get_or_create_global_step()
    optimizer, learning_rate = make_optimizer(train_config.optimizer, global_step)
    taken = make_train_op(
        passed.losses[TOTAL_LOSS],
        optimizer,
        global_step,
        train_config,
        detector.updates(),
        learning_rate=learning_rate,
        batch=rejected,
    )
    images = input_images.summary(
        features, passed.groundtruth, detector.preprocess, pipeline_config.train_input_reader
    )
    histograms = gradient_summaries(taken.gradients) if train_config.summarize_gradients else []
    scalars = {**passed.losses, LEARNING_RATE: learning_rate, GRADIENT_NORM: taken.gradient_norm}
    return TrainStep(
        train_op=taken.op,
        losses=passed.losses,
        scalars=scalars,
        counts=passed.counts,
        summaries=[images, *histograms],
        gradients=taken.gradients,
        checks=taken.checks,
        written=taken.written,
        inputs=inputs,
        input_wait=measure_input_wait(list(inputs.values())),
        rejected=rejected,
    )


def measure_input_wait(batch: List[tf.Tensor]) -> tf.Tensor:
    """Seconds from the start of a step to its batch being there, by two clocks in the graph.

    One clock depends on nothing, the other on the batch.
    """
    with tf1.name_scope("input_wait"):
        start = tf.timestamp()
        with tf.control_dependencies(batch):
            return tf.timestamp() - start


def summary_op(step: TrainStep) -> tf.Tensor:
    """All that a step reports, for TensorBoard, as one serialized Summary; tags are the names."""
    named: List[Tuple[str, tf.Tensor]] = [*step.scalars.items(), *step.counts.items()]
    named.append(("loss", step.losses[TOTAL_LOSS]))
    scalars = tf.raw_ops.ScalarSummary(
        tags=[name for name, _ in named], values=tf.stack([value for _, value in named])
    )
    return tf1.summary.merge([scalars, *step.summaries], collections=[])


class TrainGraph:
    """What the hooks of a run take from the graph that its model_fn builds.

    The run makes it and hands it to `create_model_fn`, which fills it in; hooks read it from
    `begin` on.

    Attributes:
        host_values: What the host of a TPU received last (`host_call.HostValues`); None elsewhere.
    """

    def __init__(self) -> None:
        self._step: Optional[TrainStep] = None
        self._saver: Optional[tf1.train.Saver] = None
        self.host_values: Any = None

    def fill(self, saver: tf1.train.Saver, step: Optional[TrainStep] = None) -> None:
        """Called by the model_fn; on a TPU there is no step that hooks could fetch from."""
        self._saver, self._step = saver, step

    @property
    def step(self) -> TrainStep:
        assert self._step is not None, "no training graph was built"
        return self._step

    @property
    def saver(self) -> tf1.train.Saver:
        assert self._saver is not None, "no training graph was built"
        return self._saver
