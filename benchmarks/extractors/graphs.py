"""Facts about the graph of an extractor: parameters, multiply-adds, feature maps, XLA."""

from __future__ import annotations

import math
import os
from typing import Any, Dict, Iterable, List, NamedTuple, Set

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from google.protobuf import text_format

from benchmarks.extractors import usual
from estimator_det.compat import registered_kernels, tf, tf1
from estimator_det.extractors.ssd.recipe import make_extractor

# Variables and images come from outside of what is compiled.
OUTSIDE = ("VarHandleOp", "Placeholder")
# Of batch norm in training: what the kernel keeps for its gradient, in a shape of its own.
RESERVED = ("FusedBatchNormV3", 5)
XLA_DEVICE = "XLA_CPU_JIT"

# Fields a configuration may set, with a value other than the default.
PROBES: Dict[str, str] = {
    "depth_multiplier": "0.5",
    "pad_to_multiple": "32",
    "use_explicit_padding": "true",
    "use_depthwise": "true",
    "num_layers": "4",
    "fpn": "{ min_level: 3 }",
    "override_base_feature_extractor_hyperparams": "true",
}
SHORT = {"override_base_feature_extractor_hyperparams": "override_base_…"}


class Facts(NamedTuple):
    """A row of the table."""

    parameters: int  # trainable
    multiply_adds: int  # of one image
    size: int  # height and width of an image
    maps: List[List[int]]  # height, width, channels
    obstacles: List[str]  # to compiling it with XLA
    refuses: List[str]
    ignores: List[str]


def extract(kind: str, size: int, batch: int, is_training: bool) -> Any:
    """Builds the usual network of a type in the default graph: its feature maps."""
    extractor = make_extractor(usual.extractor_message(kind), is_training)
    with tf1.variable_scope("FeatureExtractor"):
        return extractor.extract(tf1.placeholder(tf.float32, [batch, size, size, 3]))


def _above(ends: Iterable[Any]) -> Set[Any]:
    """All operations that some operations depend on, themselves included."""
    found: Set[Any] = set()
    waiting = list(ends)
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return found


def multiply_adds(ends: Iterable[Any]) -> int:
    """Multiplications of the convolutions and matrix products that operations depend on."""
    total = 0
    for op in _above(ends):
        if op.type in ("Conv2D", "DepthwiseConv2dNative", "Conv2DBackpropInput"):
            places = op.inputs[2] if op.type == "Conv2DBackpropInput" else op.outputs[0]
            cells = math.prod(places.shape[:3].as_list())
            total += cells * math.prod(op.inputs[1].shape.as_list())
        elif op.type in ("MatMul", "BatchMatMulV2"):
            total += math.prod(op.inputs[0].shape.as_list()) * op.outputs[0].shape[-1]
    return total


def xla_obstacles(ends: Iterable[Any]) -> List[str]:
    """What prevents compilation with XLA, as for TPU, of all that the operations `ends` depend on.

    That is an operation without an XLA kernel in the installed TensorFlow, or a tensor whose shape
    is not known when the graph is built.
    """
    ops = _above(ends)
    kinds = sorted({op.type for op in ops} - set(OUTSIDE))
    without = [op_type for op_type in kinds if not registered_kernels(op_type, XLA_DEVICE)]
    found = [f"{op_type} has no XLA kernel" for op_type in without]
    dynamic = {
        op.type
        for op in ops
        for number, tensor in enumerate(op.outputs)
        if tensor.dtype != tf.resource
        and (op.type, number) != RESERVED
        and not tensor.shape.is_fully_defined()
    }
    return found + [f"{op_type} has no static shape" for op_type in sorted(dynamic)]


def _training_obstacles(kind: str, size: int) -> List[str]:
    """Those of gradients and batch-norm updates of a type's network."""
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        maps = extract(kind, size, 2, is_training=True)
        loss = tf.add_n([tf.reduce_mean(map_) for map_ in maps])
        gradients = tf.gradients(loss, tf1.trainable_variables())
        ends = [gradient.op for gradient in gradients if gradient is not None]
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        ends += [getattr(update, "op", update) for update in updates]
    return xla_obstacles(ends)


def refused(kind: str) -> List[str]:
    """Fields whose setting, or whose absence, the maker answers with an error."""

    def fails(message: Any) -> bool:
        try:
            make_extractor(message, is_training=True)
        except ValueError:
            return True
        return False

    found = []
    for field, value in PROBES.items():
        bare = usual.extractor_message(kind)
        bare.ClearField(field)
        if fails(bare):
            found.append(f"{SHORT.get(field, field)} unset")
        changed = usual.extractor_message(kind)
        changed.ClearField(field)
        text = f"{field} {value}" if value.startswith("{") else f"{field}: {value}"
        text_format.Merge(text, changed)
        if fails(changed):
            found.append(SHORT.get(field, field))
    return found


def facts(kind: str) -> Facts:
    """All about one type, from graphs built for it."""
    size = usual.usual(kind).size
    with tf.Graph().as_default():
        maps = extract(kind, size, 1, is_training=False)
        parameters = sum(math.prod(v.shape.as_list()) for v in tf1.trainable_variables())
        count = multiply_adds(map_.op for map_ in maps)
    recipe = getattr(make_extractor(usual.extractor_message(kind), True), "recipe", None)
    return Facts(
        parameters=parameters,
        multiply_adds=count,
        size=size,
        maps=[map_.shape.as_list()[1:] for map_ in maps],
        obstacles=_training_obstacles(kind, size),
        refuses=refused(kind),
        ignores=[SHORT.get(field, field) for field in recipe.ignores] if recipe else [],
    )
