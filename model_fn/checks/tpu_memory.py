"""Memory of a TPU core in a training step, and the batch that fits.

An estimate from the graph of one core: variables, gradients, what the backward pass needs of the
forward pass, and the batch. Two habits of TPUs are taken into account. The compiler computes
elementwise operations, batch norm among them, again where they are needed: of a chain "convolution,
batch norm, activation" only the convolution's output is kept. And a TPU stores values in tiles of
8 x 128 numbers, which pads narrow layers. How the compiler really schedules a program,
only a TPU shows: hence `MARGIN`.
"""

from __future__ import annotations

import math
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from estimator_det.compat import estimator, tf, tf1
from estimator_det.errors import raise_errors
from estimator_det.protos import pipeline_pb2
from model_fn.checks import tpu_graph
from model_fn.checks.graphs import without_files
from model_fn.checks.memory import variable_bytes

# Bytes of high-bandwidth memory that a core has to itself.
CORE_BYTES: Dict[str, int] = {"v2": 8 << 30, "v3": 16 << 30, "v5e": 16 << 30}
# A batch is said to fit if the estimate times this stays within a core's memory.
MARGIN = 1.3
LANES, SUBLANES = 128, 8  # lengths of a tile's axes
MOST_PER_CORE = 1024  # images; more are of no use
_WIDE_STEP = 8  # larger batches are rounded down to multiples of this

# Operations that the compiler repeats if the backward pass needs their results.
_ACTIVATIONS = ("Relu", "Relu6", "Sigmoid", "Softplus")
_OF_ONE = ("Abs", "Exp", "IsNan", "Log", "Log1p", "LogicalNot", "Neg", "Rsqrt", "Square")
_OF_TWO = ("BiasAdd", "Maximum", "Minimum", "Mul", "Pow", "RealDiv", "Sub")
_CHOICES = ("Greater", "GreaterEqual", "Less", "LessEqual", "Select", "SelectV2")
_FORMS = ("BroadcastTo", "Cast", "ExpandDims", "Identity", "Pad", "PadV2", "Reshape", "Squeeze")
_MARKS = ("PreventGradient", "Snapshot", "StopGradient")
_RECOMPUTED = frozenset(
    ["FusedBatchNormV3", *_ACTIVATIONS, *_OF_ONE, *_OF_TWO, *_CHOICES, *_FORMS, *_MARKS]
)
# Their values are variables, come with the batch or cost nothing.
_FREE = frozenset(
    ["Const", "Fill", "Range", "ReadVariableOp", "Shape", "TPUReplicatedInput", "VarHandleOp"]
)
_CONVOLUTIONS = frozenset(["Conv2D", "DepthwiseConv2dNative"])


class TensorGroup(NamedTuple):
    """Values of one shape."""

    shape: Tuple[int, ...]
    width: int  # bytes of a number
    convolved: bool  # laid out by batch and channels, as convolutions want it


class CoreMemory(NamedTuple):
    """Contents of a core's memory in a training step."""

    variables: int  # bytes of parameters, statistics, optimizer slots, moving averages
    gradients: int  # bytes
    kept: List[TensorGroup]  # for the backward pass
    largest: Optional[TensorGroup]  # largest block of the backward pass; two are alive at a time
    batch: List[TensorGroup]  # blocks from the host; one batch waits while one is computed on
    images: int  # per core, of the graph that was measured

    def total(self, images: Optional[int] = None) -> int:
        """Bytes at a number of images a core, by default as in the graph."""
        count = images or self.images
        alive = 2 * self._size(self.largest, count) if self.largest else 0
        infeed = 2 * sum(self._size(block, count) for block in self.batch)
        return self.variables + self.gradients + self.activations(count) + alive + infeed

    def activations(self, images: Optional[int] = None) -> int:
        """Bytes that are kept for the backward pass, by default for the graph's images a core."""
        return sum(self._size(block, images or self.images) for block in self.kept)

    def fitting(self, core_bytes: int) -> int:
        """Images a core that fit into its memory with `MARGIN` to spare; 0 if not one does."""
        numbers = [*range(MOST_PER_CORE, 0, -_WIDE_STEP), *range(_WIDE_STEP - 1, 0, -1)]
        return next((n for n in numbers if self.total(n) * MARGIN <= core_bytes), 0)

    def _size(self, block: TensorGroup, images: int) -> int:
        shape = block.shape
        if shape and shape[0] % self.images == 0:
            shape = (shape[0] // self.images * images, *shape[1:])
        return padded_size(shape, block.convolved) * block.width


def padded_size(shape: Tuple[int, ...], convolved: bool) -> int:
    """Numbers that a tensor of `shape` takes in tiles, in the layout that wastes least.

    Args:
        convolved: Whether rows and columns of a tile are batch and channels, [B, h, w, C].
    """
    if len(shape) < 2:
        return math.prod(shape)
    axes = (0, len(shape) - 1) if convolved else range(len(shape))

    def tiled(lanes: int, sublanes: int) -> int:
        lengths = list(shape)
        lengths[lanes] = -(-lengths[lanes] // LANES) * LANES
        lengths[sublanes] = -(-lengths[sublanes] // SUBLANES) * SUBLANES
        return math.prod(lengths)

    return min(tiled(rows, columns) for rows in axes for columns in axes if rows != columns)


def estimate(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, images_per_core: int
) -> CoreMemory:
    """Builds the step of one core and measures its memory; the size of inputs must be static."""
    config = without_files(pipeline_config)
    core = tpu_graph.build_core_graph(config, estimator.ModeKeys.TRAIN, images_per_core)
    raise_errors(core.problems)
    with core.graph.as_default():
        variables, trained = tf1.global_variables(), tf1.trainable_variables()
    operations = list(tpu_graph.core_operations(core.graph))
    backward = {op for op in operations if "gradients/" in op.name}
    kept: Dict[Any, tf.Tensor] = {}
    for op in backward:
        for tensor in op.inputs:
            if tensor.op not in backward:
                kept.update({root.ref(): root for root in _roots(tensor)})
    blocks = [_block(tensor) for tensor in kept.values()]
    gradients = [_block(tensor) for op in backward for tensor in op.outputs]
    return CoreMemory(
        variables=variable_bytes(variables),
        gradients=variable_bytes(trained),
        kept=[block for block in blocks if block],
        largest=max(
            (block for block in gradients if block),
            key=lambda block: padded_size(block.shape, block.convolved) * block.width,
            default=None,
        ),
        batch=[block for block in map(_block, core.inputs) if block],
        images=images_per_core,
    )


def _roots(tensor: tf.Tensor) -> List[tf.Tensor]:
    """Blocks that must be kept so that `tensor` can be computed again."""
    roots: List[tf.Tensor] = []
    seen: Set[Any] = set()
    waiting = [tensor]
    while waiting:
        tensor = waiting.pop()
        if tensor.ref() in seen:
            continue
        seen.add(tensor.ref())
        # The terms of a sum of feature maps lie far back.
        is_small_sum = tensor.op.type in ("Add", "AddV2") and tensor.shape.rank != 4
        if tensor.op.type in _RECOMPUTED or is_small_sum:
            waiting += list(tensor.op.inputs)
        elif tensor.op.type not in _FREE:
            roots.append(tensor)
    return roots


def _block(tensor: tf.Tensor) -> Optional[TensorGroup]:
    if tensor.dtype in (tf.resource, tf.variant, tf.string) or not tensor.shape.is_fully_defined():
        return None
    shape = tuple(tensor.shape.as_list())
    return TensorGroup(
        shape, tensor.dtype.size, len(shape) == 4 and tensor.op.type in _CONVOLUTIONS
    )
