"""A training step as a value: its results, its updates and its report.

The model_fn, the step of a TPU core and loops of `tf.distribute` use these functions, which return
their results; no collection of the graph carries anything.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.detectors.base import Context, Groundtruth, TrainableDetector
from estimator_det.nets import layers
from estimator_det.nets.quantization import QuantizedTensor
from estimator_det.protos import pipeline_pb2
from inputs import schema
from inputs.label_map import LabelMap
from model_fn.events import GRADIENT_NORM
from model_fn.training import input_images, recompute, train_op
from model_fn.training.finite_gate import RejectedBatch
from model_fn.training.optimizers import make_optimizer
from model_fn.training.sync_replicas import SyncReplicas

REGULARIZATION_LOSS = "Loss/regularization_loss"
TOTAL_LOSS = "Loss/total_loss"
LEARNING_RATE = "learning_rate"
_BIAS_ADD = "estimator_det.BiasAdd"

# Features that say where in the data an image is, see `inputs.records.cursor`.
POSITION = (schema.STREAM_INDEX, schema.AUGMENTATION_SEED)

Tensors = Dict[str, tf.Tensor]


class NetworkTypes(NamedTuple):
    """Types that a network computes in; variables and losses are float32."""

    tensors: tf.DType = tf.float32
    convolutions: Optional[tf.DType] = None  # if another, see `layers.convolutions_of_type`


FLOAT32: NetworkTypes = NetworkTypes()


class StepSummary(NamedTuple):
    """Summary that is computed in some steps only.

    Fetched at every step, because TensorFlow optimizes a graph for each set of fetches, which takes
    seconds for a large network.
    """

    serialized: tf.Tensor  # string scalar, a Summary proto; empty if it is not due
    is_due: tf.Tensor  # bool scalar, to be fed; True by default


class Forward(NamedTuple):
    """Network and loss of a batch."""

    predictions: Any  # result of `TrainableDetector.predict`, float32
    groundtruth: Groundtruth
    losses: Tensors  # float32 scalars: the terms, then their sum, TOTAL_LOSS
    counts: Tensors  # float32 scalars: figures of the assignment
    divisors: Tensors  # float32 scalars by the names of terms, see `detectors.base.Losses`


class TrainStep(NamedTuple):
    """One training step of a graph."""

    applied: train_op.TrainOp
    scalars: Tensors  # scalars of reports: losses, LEARNING_RATE, GRADIENT_NORM
    summary: StepSummary
    positions: Sequence[Tensors]  # for each reader of records: POSITION of its images
    input_wait: tf.Tensor  # float64 scalar, seconds that the step waited for its batch
    rejected: RejectedBatch  # the batch of the step whose numbers were not finite
    synchronizing: Optional[SyncReplicas] = None  # the optimizer, where workers share each step


def groundtruth_from_labels(labels: Tensors) -> Groundtruth:
    """Labels under the keys of `inputs.schema` as the detector takes them."""
    fields = {spec.field: labels.get(key) for key, spec in schema.LABELS.items() if spec.field}
    valid = tf.sequence_mask(labels[schema.NUM_BOXES], tf.shape(labels[schema.BOXES])[1])
    valid.set_shape(labels[schema.BOXES].shape[:2])
    fields["classes"] = tf.cast(labels[schema.CLASSES], tf.float32)
    if fields["weights"] is None:
        fields["weights"] = tf.cast(valid, tf.float32)
    return Groundtruth(valid=valid, **fields)


def without_padding(labels: Tensors) -> Tensors:
    """Labels without the rows that are padding in every image, which cost as much as boxes do.

    Their shapes are then not static; a row is left where no image has a box.
    """
    count = tf.maximum(tf.reduce_max(labels[schema.NUM_BOXES]), 1)

    def has_rows(key: str) -> bool:
        return key in schema.LABELS and schema.LABELS[key].shape.startswith("B G")

    return {key: tensor[:, :count] if has_rows(key) else tensor for key, tensor in labels.items()}


def predict(
    detector: TrainableDetector,
    features: Tensors,
    groundtruth: Optional[Groundtruth] = None,
    *,
    types: NetworkTypes = FLOAT32,
) -> Any:
    """Predictions in float32; the network itself computes in `types`.

    Args:
        groundtruth: In training, for detectors that choose regions by it.
    """
    images, true_shapes = features[schema.IMAGE], features[schema.TRUE_IMAGE_SHAPE]
    context = None
    if schema.CONTEXT_FEATURES in features:  # The reader loads them for models that take them.
        context = Context(features[schema.CONTEXT_FEATURES], features[schema.VALID_CONTEXT_SIZE])
    if types == FLOAT32:
        return detector.predict(images, true_shapes, groundtruth, context)
    overriding = tf1.get_default_graph().gradient_override_map({"BiasAdd": _BIAS_ADD})
    variables = tf1.variable_scope(
        "", custom_getter=_wide_variables(types.convolutions or types.tensors)
    )
    with overriding, variables, layers.convolutions_of_type(types.convolutions):
        images = tf.cast(images, types.tensors)
        predictions = detector.predict(images, true_shapes, groundtruth, context)

    def widened(tensor: Any) -> Any:
        is_narrow = isinstance(tensor, tf.Tensor) and tensor.dtype == types.tensors
        return tf.cast(tensor, tf.float32) if is_narrow else tensor

    return tf.nest.map_structure(widened, predictions)


@tf.RegisterGradient(_BIAS_ADD)
def _bias_add_gradient(operation: tf.Operation, gradient: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    """Gradients of an offset; TensorFlow's own adds up in bfloat16, which stops at large sums."""
    del operation
    return gradient, tf.reduce_sum(gradient, axis=list(range(gradient.shape.rank - 1)))


def _wide_variables(dtype: tf.DType) -> Callable[..., Any]:
    """Gives layers of a narrow type float32 variables, cast; `tpu.bfloat16_scope` does for one."""

    def get(getter: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if options["dtype"] != dtype:
            return getter(*arguments, **options)
        return tf.cast(getter(*arguments, **{**options, "dtype": tf.float32}), dtype)

    return get


def forward(
    detector: TrainableDetector,
    features: Tensors,
    labels: Tensors,
    *,
    add_regularization: bool,
    types: NetworkTypes = FLOAT32,
) -> Forward:
    """Builds network and loss, which is float32 with any `types`."""
    groundtruth = groundtruth_from_labels(labels)
    with recompute.recomputable():
        predictions = predict(detector, features, groundtruth, types=types)
    terms, counts, divisors = detector.loss(predictions, groundtruth)
    penalties = detector.regularization_losses() if add_regularization else []
    return Forward(predictions, groundtruth, with_total(terms, penalties), counts, divisors)


def with_total(terms: Tensors, penalties: Sequence[tf.Tensor] = ()) -> Tensors:
    """Loss terms, the sum of the penalties if there are any, and the sum of all."""
    terms = dict(terms)
    if penalties:
        terms[REGULARIZATION_LOSS] = tf.add_n(
            [tf.cast(penalty, tf.float32) for penalty in penalties], name="regularization_loss"
        )
    terms[TOTAL_LOSS] = tf.add_n(list(terms.values()), name="total_loss")
    return terms


def reported_scalars(losses: Tensors, learning_rate: tf.Tensor, norm: tf.Tensor) -> Tensors:
    """Scalars of a step's report, with the `norm` of the gradients before clipping."""
    return {**losses, LEARNING_RATE: learning_rate, GRADIENT_NORM: norm}


def make_train_step(
    detector: TrainableDetector,
    forward_pass: Forward,
    features: Tensors,
    labels: Tensors,
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    label_map: Optional[LabelMap] = None,
    num_replicas: Optional[int] = None,
) -> TrainStep:
    """The step after a forward pass; it runs `detector.updates()`, too.

    Initial values of variables must be settled before: moving averages start at them.

    Args:
        label_map: Names the classes in pictures.
        num_replicas: Workers, chief included, that share the variables of parameter servers, and
            each step with `sync_replicas`; None without parameter servers.
    """
    train_config = pipeline_config.train_config
    parts = {"features": features, "labels": labels}
    inputs = {f"{part}/{key}": each for part in parts for key, each in parts[part].items()}
    rejected = RejectedBatch(inputs)
    global_step = tf1.train.get_or_create_global_step()
    optimizer, learning_rate = make_optimizer(train_config.optimizer, global_step)
    synchronizing = None
    if train_config.sync_replicas and num_replicas is not None:
        replicas_to_aggregate = train_config.replicas_to_aggregate
        synchronizing = SyncReplicas(optimizer, replicas_to_aggregate, num_replicas)
    applied = train_op.make_train_op(
        forward_pass.losses[TOTAL_LOSS],
        synchronizing or optimizer,
        global_step,
        train_config,
        detector.updates(),
        learning_rate=learning_rate,
        batch=rejected,
    )
    scalars = reported_scalars(forward_pass.losses, learning_rate, applied.gradient_norm)
    figures = {**scalars, **forward_pass.counts, "loss": forward_pass.losses[TOTAL_LOSS]}
    return TrainStep(
        applied,
        scalars,
        _make_summary(
            figures,
            functools.partial(
                input_images.summary,
                features,
                forward_pass.groundtruth,
                detector.preprocess,
                label_map,
            ),
            applied.gradients if train_config.summarize_gradients else {},
            forward_pass.predictions,
        ),
        positions=[{key: features[key] for key in POSITION if key in features}],
        input_wait=measure_input_wait(list(inputs.values())),
        rejected=rejected,
        synchronizing=synchronizing,
    )


def _make_summary(
    figures: Tensors,
    draw: Callable[[], tf.Tensor],
    gradients: Tensors,
    predictions: Any,
) -> StepSummary:
    """Figures, pictures of the batch, gradients, and ranges of quantization."""
    is_due = tf1.placeholder_with_default(True, [], name="summary_is_due")

    def serialize() -> tf.Tensor:
        return summary(figures, draw(), gradients, range_summaries(predictions))

    serialized = tf.cond(is_due, serialize, lambda: tf.constant(b""), name="summary")
    return StepSummary(serialized, is_due)


def summary(
    figures: Tensors,
    pictures: tf.Tensor,
    gradients: Tensors,
    tables: Sequence[tf.Tensor] = (),
) -> tf.Tensor:
    """Serialized Summary of a step, in graphs and in loops.

    Args:
        pictures, tables: Serialized Summaries.
        gradients: By variable; empty if they are not summarized.
    """
    histograms = train_op.gradient_summaries(gradients) if gradients else []
    parts = [train_op.scalar_summary(figures), pictures, *histograms, *tables]
    return tf.raw_ops.MergeSummary(inputs=parts)


def measure_input_wait(batch: List[tf.Tensor]) -> tf.Tensor:
    """Seconds from the start of a step to its batch being there, by two clocks in the graph.

    One clock depends on nothing, the other on the batch.
    """
    with tf1.name_scope("input_wait"):
        start = tf.timestamp()
        with tf.control_dependencies(batch):
            return tf.timestamp() - start


def range_summaries(predictions: Any) -> List[tf.Tensor]:
    """A table of all quantized tensors as a serialized summary; nothing for a float network.

    "cut off" is the share of this step's values that are out of the range.
    """
    quantized: Sequence[QuantizedTensor] = getattr(predictions, "quantized", ())
    if not quantized:
        return []
    with tf1.name_scope("quantized_ranges"):
        numbers = [
            tf.stack([each.least for each in quantized]),
            tf.stack([each.most for each in quantized]),
        ]
        shares = tf.stack([_percent_cut_off(each) for each in quantized])
        columns = [
            tf.constant([each.scope for each in quantized]),
            *(tf.strings.as_string(column, precision=4) for column in numbers),
            tf.strings.join([tf.strings.as_string(shares, precision=2), " %"]),
        ]
        heading = ["tensor", "min", "max", "cut off"]
        table = tf.concat([[heading], tf.stack(columns, axis=1)], axis=0)
    return [tf1.summary.text("quantization", table, collections=[])]


def _percent_cut_off(quantized: QuantizedTensor) -> tf.Tensor:
    values = tf.cast(quantized.values, tf.float32)
    out = (values < quantized.least) | (values > quantized.most)
    return 100.0 * tf.reduce_mean(tf.cast(out, tf.float32))
