"""Compiles a core's step with XLA for CPU, beside the check of its graph."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.errors import Problem, error
from estimator_det.protos import pipeline_pb2
from model_fn.checks.op_origin import origin_of

# Attributes of the rewrite for TPU, and of places, which have no meaning here.
_MARKS = ("_tpu_replicate", "_xla_outside_compilation", "_class")
_HANDLE = "VarHandleOp"
_PASS_ON = ("TPUReplicatedInput", "TPUReplicatedOutput", "CrossReplicaSum")
_NODE = re.compile(r"\{\{node ([^}]+)\}\}")
_LONGEST = 400


def compiled_step(
    graph: tf.Graph, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]
) -> Tuple[Any, Dict[str, tf.Variable]]:
    """Program of one core as a function for XLA on CPU; its variables by name, zero at first.

    Of the rewrite for TPU only sums over cores are replaced: with one core they are what they sum.

    Args:
        graph: Made under `tf.compat.v1.tpu.shard` with one shard.
        inputs: Placeholders that the host feeds.
    """
    definition = _for_one_core(graph, [tensor.op.name for tensor in outputs])
    read = {name.lstrip("^").split(":")[0] for node in definition.node for name in node.input}
    handles = [op for op in graph.get_operations() if op.type == _HANDLE and op.name in read]
    with tf.init_scope():
        variables = {
            op.name: tf.Variable(
                tf.zeros(op.get_attr("shape"), op.get_attr("dtype")), trainable=False
            )
            for op in handles
        }

    def run(*values: tf.Tensor) -> List[tf.Tensor]:
        feeds = {tensor.op.name: value for tensor, value in zip(inputs, values)}
        captured = tf1.get_default_graph().capture
        feeds.update({name: captured(variable.handle) for name, variable in variables.items()})
        return tf1.import_graph_def(
            definition,
            {f"{name}:0": value for name, value in feeds.items() if name in read},
            [tensor.name for tensor in outputs],
            name="",
        )

    return tf.function(run, autograph=False, jit_compile=True), variables


def _for_one_core(graph: tf.Graph, output_names: List[str]) -> Any:
    """The part of a graph that outputs need, without what it is given and marks of the rewrite."""
    definition = tf1.graph_util.extract_sub_graph(graph.as_graph_def(), output_names)
    inner = [node for node in definition.node if node.op not in (_HANDLE, "Placeholder")]
    del definition.node[:]
    definition.node.extend(inner)
    for node in definition.node:
        for mark in _MARKS:
            node.attr.pop(mark, None)
        if node.op in _PASS_ON:
            kept = [name for name in node.input if not name.startswith("^")][:1]
            kept += [name for name in node.input if name.startswith("^")]
            dtype = node.attr["T"].type
            node.ClearField("attr")
            node.op = "Identity"
            node.ClearField("input")
            node.input.extend(kept)
            node.attr["T"].type = dtype
        elif node.op == "TPUReplicateMetadata":
            node.op = "NoOp"
            node.ClearField("attr")
    return definition


def check(
    graph: tf.Graph,
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
    config: pipeline_pb2.TrainEvalPipelineConfig,
) -> List[Problem]:
    """Problems that XLA has with a step as `compiled_step` takes it; none if it compiles."""
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
    try:
        step, _ = compiled_step(graph, inputs, outputs)
        with tf.init_scope():
            step.experimental_get_compiler_ir(*specs)(stage="optimized_hlo_serialized")
    except (ValueError, tf.errors.OpError) as reason:
        return _problems(str(getattr(reason, "message", None) or reason), graph, config)
    return []


def _problems(
    text: str, graph: tf.Graph, config: pipeline_pb2.TrainEvalPipelineConfig
) -> List[Problem]:
    """A problem for each operation that XLA's message names."""
    short = " ".join(text.split())[:_LONGEST]
    problems = []
    for name in dict.fromkeys(_NODE.findall(text)):
        try:
            operation = graph.get_operation_by_name(name)
        except KeyError:
            continue
        origin = origin_of(operation, config)
        message = f"XLA does not compile operation {operation.type} {name!r} ({origin.location})"
        problems.append(error(origin.field, f"{message}: {short}", origin.remedy))
    remedy = "remove the part that the message names"
    return problems or [error("model", f"XLA does not compile the step: {short}", remedy)]
