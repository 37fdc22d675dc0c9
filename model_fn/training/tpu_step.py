"""The training step of a TPU core, and the scalars that it sends to its host.

Only what a core does differently from a graph: gradients are summed over cores, and no step is
rejected. A TPU returns to the host once in many steps, and cannot write: the scalars of each step
leave it through the outfeed. The host writes some of them for TensorBoard, and keeps the last in a
variable of its own, for hooks.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.rules import Tpu, rules
from estimator_det.detectors.base import TrainableDetector
from estimator_det.errors import Problem
from estimator_det.protos import pipeline_pb2, train_pb2
from model_fn.training import optimizers, train_op
from model_fn.training.step import TOTAL_LOSS, Forward, Tensors, reported_scalars

STEP = "global_step"
FILE_SUFFIX = ".tpu"
_NOTHING_YET = -1.0
TILE = 8  # TPUs pad a dimension of tensors to a multiple of this
LEAST_STATISTICS = 8  # images, below which batch norm's statistics are mostly noise


@rules(pipeline_pb2.TrainEvalPipelineConfig, target="tpu")
def _check_batches(
    config: pipeline_pb2.TrainEvalPipelineConfig, _: str, tpu: Tpu
) -> Iterator[Problem]:
    """Cores have equal parts of a batch, which are large enough."""
    path, size = "train_config.batch_size", config.train_config.batch_size
    scale = "or choose another --num_shards; scale the learning rate too"
    yield from _check_division(path, size, tpu, scale)
    if tpu.inference:
        yield from _check_division("eval_config.batch_size", config.eval_config.batch_size, tpu)
    if size % tpu.num_shards or not size:
        return
    per_core = size // tpu.num_shards
    ssd = config.model.ssd
    trains_batch_norm = config.model.HasField("ssd") and not ssd.freeze_batchnorm
    is_synchronous = ssd.feature_extractor.conv_hyperparams.HasField("sync_batch_norm")
    if trains_batch_norm and not is_synchronous and per_core < LEAST_STATISTICS:
        yield Problem(
            "advice",
            path,
            f"gives batch norm the statistics of {per_core} images only",
            "use sync_batch_norm in conv_hyperparams, which takes the images of all cores",
        )
    elif per_core % TILE:
        yield Problem(
            "advice",
            path,
            f"gives {per_core} images to each core, which the TPU pads to a multiple of {TILE}",
            f"a multiple of {TILE * tpu.num_shards} wastes nothing",
        )


def _check_division(path: str, size: int, tpu: Tpu, remedy: str = "") -> Iterator[Problem]:
    """An error that is safe to fix, unless there is a remedy to consider, for an uneven batch."""
    shards = tpu.num_shards
    if size % shards or not size:
        edit = f"{path}={max(1, round(size / shards)) * shards}"
        text = f"{size} images do not divide by {shards} cores"
        yield Problem("error", path, text, remedy, (edit,), safe=not remedy)


def make_core_step(
    detector: TrainableDetector,
    forward_pass: Forward,
    train_config: train_pb2.TrainConfig,
    *,
    is_on_core: bool,
) -> Tuple[tf.Tensor, Tensors]:
    """The train op of a core and its report: losses, learning rate, gradient norm.

    The step is taken even if its numbers are not finite: one core cannot hold back the others.
    `is_on_core` is false in a rehearsal.
    """
    global_step = tf1.train.get_or_create_global_step()
    optimizer, learning_rate = optimizers.make_optimizer(train_config.optimizer, global_step)
    # The optimizer's gradients are the core's share of the gradients of the whole batch.
    sharing = tf1.tpu.CrossShardOptimizer(optimizer) if is_on_core else optimizer
    with tf.control_dependencies(list(detector.updates())):
        loss = tf.identity(forward_pass.losses[TOTAL_LOSS])
    gradients, variables = zip(*train_op.compute_gradients(loss, sharing, train_config))
    if is_on_core:
        # Sum first, then clip. The Object Detection API clips each core's share, which is smaller
        # by the number of cores.
        gradients = tuple(map(tf1.tpu.cross_replica_sum, gradients))
    clipped, norm = train_op.clip_gradients(gradients, train_config)
    # A gradient may be known before the loss that is reported has read its variables.
    with tf.control_dependencies([loss]):
        applied = optimizer.apply_gradients(list(zip(clipped, variables)), global_step=global_step)
    with tf.control_dependencies([applied]):
        reported_loss = tf.identity(loss, name="train_op")
    return reported_loss, reported_scalars(forward_pass.losses, learning_rate, norm)


class HostValues(NamedTuple):
    """Scalars of the last step that arrived at the host, averaged over the TPU's cores."""

    names: List[str]

    def variable(self) -> tf.Variable:
        """The variable of a graph that holds them, float64 [1 + names]: the step comes first."""
        with tf1.variable_scope("host_call", reuse=tf1.AUTO_REUSE):
            return tf1.get_variable(
                "last_figures",
                [1 + len(self.names)],
                tf.float64,
                initializer=tf1.constant_initializer(_NOTHING_YET),
                trainable=False,
                collections=[tf1.GraphKeys.LOCAL_VARIABLES],
                use_resource=True,
            )

    def scalars(self, values: Sequence[float]) -> Dict[str, float]:
        """Scalars by name from the value of the variable; empty before the first step."""
        step, *rest = map(float, values)
        return {} if step == _NOTHING_YET else dict(zip(self.names, rest))


def make_host_call(
    model_dir: str,
    scalars: Dict[str, tf.Tensor],
    step: tf.Tensor,
    every_steps: int,
    last: HostValues,
) -> Tuple[Callable[..., Any], Tensors]:
    """The `host_call` of a `TPUEstimatorSpec`: a function for the host, and what the core sends it.

    Everything is sent as [1], because the host gets the values of all cores in one tensor. `step`
    is the global step after the step of the scalars.
    """

    def write(**sent: tf.Tensor) -> List[Any]:
        now = sent[STEP][0]
        means = {name: tf.reduce_mean(sent[name]) for name in last.names}
        writer = tf.summary.create_file_writer(model_dir, filename_suffix=FILE_SUFFIX)
        is_time = tf.equal(tf.math.floormod(now, every_steps), 0)
        # Tags are names as they are, wherever the host function is called.
        with tf1.name_scope(None), writer.as_default(), tf.summary.record_if(is_time):
            written = [
                tf.summary.scalar(name, value, step=now, description=None)
                for name, value in means.items()
            ]
        values = [tf.cast(value, tf.float64) for value in (now, *means.values())]
        return [*written, last.variable().assign(tf.stack(values), read_value=False)]

    tensors = {name: tf.reshape(tf.cast(value, tf.float32), [1]) for name, value in scalars.items()}
    tensors[STEP] = tf.reshape(step, [1])
    return write, tensors
