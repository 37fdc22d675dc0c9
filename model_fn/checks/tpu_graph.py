"""Builds the step of one TPU core without a TPU and finds operations its compiler would refuse.

A TPU takes a program only if the shape of every tensor is known and its compiler, XLA, knows every
operation. The graph shows both without a TPU. The graph does not show whether the program fits into
a core's memory, and where the XLA of this wheel, which compiles for CPUs, differs from the XLA of a
TPU.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Set, Tuple

from estimator_det.compat import estimator, registered_kernels, tf, tf1
from estimator_det.compat.private import graph_of_function
from estimator_det.errors import ConfigError, Problem, error
from estimator_det.protos import pipeline_pb2
from inputs import schema
from model_fn.checks import xla_check
from model_fn.checks.graphs import placeholders, without_files
from model_fn.checks.op_origin import Origin, origin_of
from model_fn.model_fn import ModelFn

ModeKeys = estimator.ModeKeys

# An evaluation computes what a prediction does, and losses.
MODES = (ModeKeys.TRAIN, ModeKeys.EVAL)
BATCH_PER_CORE = 8
# Stands for a length that the configuration leaves open, so that the rest can be examined all the
# same; a multiple of every stride.
_STAND_IN = 512
_IN_CORE = "_tpu_replicate"
_JIT_DEVICE = "XLA_CPU_JIT"
# The rewrite for TPU takes these away or has kernels for them that a CPU has not.
_REPLICATION = ("TPUReplicateMetadata", "TPUReplicatedInput", "TPUReplicatedOutput")
_CONTROL_FLOW = ("Enter", "Exit", "Switch", "Merge", "NextIteration", "LoopCond")
_OF_THE_REWRITE = frozenset([*_REPLICATION, *_CONTROL_FLOW, "CrossReplicaSum"])
# The rewrite leaves these out, with a line in the log.
_SUMMARIES = ("AudioSummary", "HistogramSummary", "ImageSummary", "ScalarSummary", "TensorSummary")
_SUMMARIES_V2 = ("AudioSummaryV2", "MergeSummary", "TensorSummaryV2")
_LEFT_OUT = frozenset([*_SUMMARIES, *_SUMMARIES_V2, "Print", "PrintV2"])
_BATCH_NORM = "FusedBatchNormV3"
_RESERVED_OUTPUT = 5  # an output of batch norm for CPU and GPU only, never read on TPU


class CoreGraph(NamedTuple):
    """Program of one core, and problems of what the host feeds."""

    graph: tf.Graph
    inputs: List[tf.Tensor]  # placeholders, for what the host feeds
    outputs: List[tf.Tensor]  # tensors that the core returns
    # A problem for each input whose shape the configuration leaves open; it has `_STAND_IN`.
    problems: List[Problem]


def compile_check(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    *,
    xla: bool = True,
    batch_per_core: int = BATCH_PER_CORE,
    modes: Sequence[str] = MODES,
) -> Tuple[List[Problem], int]:
    """Problems that prevent a compilation for TPU, and the number of operations on a core.

    The real steps are built, with CrossShardOptimizer, and every operation of a core is checked.

    Args:
        pipeline_config: `TrainEvalPipelineConfig` proto. Files it names are not read.
        xla: Whether to compile the steps with XLA for CPU, too, unless something was found before;
            takes half a minute for a small network.
        modes: What is to run on TPU, of TRAIN, EVAL and PREDICT.
    """
    config = without_files(pipeline_config)
    findings: List[Problem] = []
    num_operations = 0
    for mode in modes:
        try:
            core = build_core_graph(config, mode, batch_per_core)
        except ConfigError as reason:
            findings += reason.problems
            continue
        operations = list(core_operations(core.graph))
        num_operations += len(operations)
        findings += [*core.problems, *problems_of(operations, config)]
        if xla and not any(problem.severity == "error" for problem in findings):
            findings += xla_check.check(core.graph, core.inputs, core.outputs, config)
    return list(dict.fromkeys(findings)), num_operations


def build_core_graph(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, mode: str, batch_per_core: int
) -> CoreGraph:
    """The graph of a step in a TPU's rewrite, for one core; the configuration names no files."""
    model_fn = ModelFn(pipeline_config, use_tpu=True)
    with tf.Graph().as_default() as graph:
        tf1.train.get_or_create_global_step()
        batch, problems = _batch(pipeline_config, mode, batch_per_core)
        flat = tf.nest.flatten(batch)

        def step(*tensors: tf.Tensor) -> List[tf.Tensor]:
            features, labels = tf.nest.pack_sequence_as(batch, tensors)
            spec = model_fn(features, labels or None, mode, {"use_tpu": True})
            if mode == ModeKeys.TRAIN:
                return [spec.train_op]
            metrics = spec.eval_metrics[1] if mode == ModeKeys.EVAL else []
            outputs = tf.nest.flatten([spec.loss, spec.predictions, metrics])
            return [tensor for tensor in outputs if tensor is not None]

        outputs = tf1.tpu.shard(step, inputs=flat, num_shards=1)
    return CoreGraph(graph, flat, [_inside_core(tensor) for tensor in outputs], problems)


def core_operations(graph: tf.Graph) -> Iterator[tf.Operation]:
    """Every operation that would run on a core, also inside of functions and loops."""
    seen: Set[str] = set()
    waiting = [op for op in graph.get_operations() if _IN_CORE in op.node_def.attr]
    while waiting:
        operation = waiting.pop(0)
        yield operation
        values = operation.node_def.attr.values()
        functions = [f for v in values for f in ([v.func] if v.HasField("func") else v.list.func)]
        for function in functions:
            if function.name not in seen:
                seen.add(function.name)
                body = graph_of_function(operation.graph, function.name)
                waiting += [op for op in body.get_operations() if op.type != "Placeholder"]


def _batch(
    config: pipeline_pb2.TrainEvalPipelineConfig, mode: str, batch_size: int
) -> Tuple[Any, List[Problem]]:
    """Placeholders of features and labels, all of known shape, and problems of their shapes."""
    problems = []
    with tf.Graph().as_default():
        batch = placeholders(config, mode)
    kind = config.model.WhichOneof("model")
    resizer = getattr(config.model, kind).image_resizer
    field = f"model.{kind}.image_resizer.{resizer.WhichOneof('image_resizer_oneof')}"

    def fixed(name: str, tensor: tf.Tensor) -> tf.Tensor:
        lengths = [batch_size, *tensor.shape.as_list()[1:]]
        if None in lengths and name == schema.IMAGE:
            problems.append(
                error(
                    field,
                    f"the size of the network's input depends on the picture: {name} is "
                    f"{_shape_text(tf.TensorShape(lengths))}, a TPU needs every length",
                    "take fixed_shape_resizer, or keep_aspect_ratio_resizer with "
                    "pad_to_max_dimension: true",
                )
            )
        shape = [_STAND_IN if length is None else length for length in lengths]
        return tf1.placeholder(tensor.dtype, shape, name=name)

    fed = tuple(
        {name: fixed(name, tensor) for name, tensor in tensors.items()} for tensors in batch
    )
    return fed, problems


def _inside_core(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor of the core that a replicated output hands out."""
    while _IN_CORE not in tensor.op.node_def.attr:
        # An output is concatenated over shards along an axis, which is the other input.
        (tensor,) = (
            tensor_input for tensor_input in tensor.op.inputs if tensor_input.op.type != "Const"
        )
    return tensor


def problems_of(
    operations: List[tf.Operation], config: pipeline_pb2.TrainEvalPipelineConfig
) -> List[Problem]:
    """One problem for all operations of a type that one line made.

    The operations are in an order in which each comes after those it depends on.
    """
    groups: Dict[Tuple[Origin, str, str, str], List[str]] = {}
    for operation, severity, message in _faults(operations):
        key = (origin_of(operation, config), operation.type, severity, message)
        groups.setdefault(key, []).append(operation.name)
    problems = []
    for (origin, kind, severity, message), names in groups.items():
        place = f" ({origin.location})" if origin.location else ""
        suffix = f" and {len(names) - 1} more" if len(names) > 1 else ""
        text = f"operation {kind} {names[0]!r}{suffix}{place} {message}"
        problems.append(Problem(severity, origin.field, text, origin.remedy))
    return problems


def _faults(operations: List[tf.Operation]) -> Iterator[Tuple[tf.Operation, str, str]]:
    """Operations that would be refused or left out, with severity and message."""
    # An operation that gets a tensor of unknown shape is not to blame for its own.
    tainted: Set[tf.Operation] = set()
    for operation in operations:
        unknown = list(_unknown_outputs(operation))
        inherited = any(
            tensor.op in tainted or (tensor.op.type == "Placeholder" and not _is_known(tensor))
            for tensor in operation.inputs
        )
        if unknown or inherited:
            tainted.add(operation)
        if unknown and not inherited:
            shape = _shape_text(operation.outputs[unknown[0]].shape)
            yield operation, "error", f"has an output of unknown shape, {shape}"
        if operation.type in _LEFT_OUT:
            yield operation, "warning", "is left out on TPU"
        elif operation.type not in _OF_THE_REWRITE and not _has_kernel(operation):
            yield operation, "error", "has no XLA kernel"


def _is_known(tensor: tf.Tensor) -> bool:
    return tensor.dtype in (tf.resource, tf.variant) or tensor.shape.is_fully_defined()


def _unknown_outputs(operation: tf.Operation) -> Iterator[int]:
    for index, tensor in enumerate(operation.outputs):
        if _is_known(tensor):
            continue
        if operation.type == _BATCH_NORM and index == _RESERVED_OUTPUT:
            continue
        if operation.type == "ZerosLike":  # that output's gradient
            source = operation.inputs[0]
            if source.op.type == _BATCH_NORM and source.value_index == _RESERVED_OUTPUT:
                continue
        yield index


def _shape_text(shape: tf.TensorShape) -> str:
    if shape.rank is None:
        return "of unknown rank"
    return f"[{', '.join('?' if length is None else str(length) for length in shape)}]"


_kernels = functools.cache(registered_kernels)


def _has_kernel(operation: tf.Operation) -> bool:
    """True if XLA can run an operation on values of its types."""
    attr = operation.node_def.attr
    return any(
        all(_allows(constraint, attr[constraint.name]) for constraint in kernel.constraint)
        for kernel in _kernels(operation.type, _JIT_DEVICE)
    )


def _allows(constraint: Any, value: Any) -> bool:
    allowed = constraint.allowed_values.list.type
    types = [value.type] if value.HasField("type") else value.list.type
    return not allowed or all(each in allowed for each in types)
