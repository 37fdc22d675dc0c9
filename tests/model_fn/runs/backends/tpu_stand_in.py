"""A `TPUStrategy` of one core without a TPU: its variables are on the CPU, which also runs steps.

A function of the strategy is traced as for a TPU. To be run here, what only a TPU has is taken out
of its graph: the marks of what cores compute, and sums over the one core.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Set

import numpy as np

from estimator_det.compat import tf, tf1

CPU = "/job:localhost/replica:0/task:0/device:CPU:0"
# Operations that return their first input here.
_PASSING = ("TPUReplicatedInput", "TPUReplicatedOutput", "CrossReplicaSum")
_MARKS = ("_tpu_replicate", "_xla_compile_id", "_tpu_compilation_status")
_SUFFIX = "_on_cpu"


class _Device(NamedTuple):
    name: str
    device_type: str


class _Metadata(NamedTuple):
    devices: List[_Device]
    num_hosts: int = 1
    num_of_cores_per_host: int = 1
    num_cores: int = 1
    topology: Any = None


class _Resolver:
    """Finds one core."""

    task_type = task_id = None

    def get_tpu_system_metadata(self) -> _Metadata:
        return _Metadata([_Device(CPU.replace("CPU", "TPU"), "TPU")])

    def cluster_spec(self) -> Any:
        return tf.train.ClusterSpec({})

    def num_accelerators(self) -> Any:
        return {"TPU": 1}

    def master(self) -> str:
        return ""


def strategy() -> Any:
    made = tf.distribute.TPUStrategy(_Resolver())
    made.extended._tpu_devices = np.array([[CPU]], object)
    return made


class Runnable:
    """A concrete function of the strategy for the CPU, with the attributes that callers use.

    Args:
        traced: Made for the TPU.
    """

    def __init__(self, traced: Any) -> None:
        self.graph, self.structured_outputs = traced.graph, traced.structured_outputs
        graph_def = traced.graph.as_graph_def()
        self.operations = [node.op for nodes in _nodes(graph_def) for node in nodes]
        graph_def = _without_tpu(graph_def)
        inputs = [tensor.name for tensor in traced.inputs]
        outputs = [tensor.name for tensor in traced.outputs]

        def imported(*values: Any) -> Any:
            return tf.graph_util.import_graph_def(
                graph_def, input_map=dict(zip(inputs, values)), return_elements=outputs, name=""
            )

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in traced.inputs]
        self._function = tf1.wrap_function(imported, specs)
        self._captured = list(traced.captured_inputs)

    def __call__(self, *arguments: Any) -> Any:
        flat = tf.nest.flatten(arguments, expand_composites=True)
        return tf.nest.pack_sequence_as(
            self.structured_outputs, self._function(*flat, *self._captured)
        )


def _nodes(graph_def: Any) -> List[Any]:
    """The nodes of the graph, and of each of its functions."""
    return [graph_def.node, *(each.node_def for each in graph_def.library.function)]


def _without_tpu(graph_def: Any) -> Any:
    for nodes in _nodes(graph_def):
        # Functions name the outputs of operations.
        renamed = {f"{node.name}:outputs:" for node in nodes if node.op == "TPUReplicatedOutput"}
        for node in nodes:
            _change(node, renamed)
            # The functions of the traced one keep their names.
            for value in node.attr.values():
                for function in (*value.list.func, *([value.func] if value.func.name else [])):
                    function.name += _SUFFIX
    for function in graph_def.library.function:
        function.signature.name += _SUFFIX
    del graph_def.library.gradient[:]
    return graph_def


def _change(node: Any, renamed: Set[str]) -> None:
    for mark in _MARKS:
        node.attr.pop(mark, None)
    kept = [each for each in node.input if "TPUReplicateMetadata" not in each]
    del node.input[:]
    for each in kept:
        is_renamed = each.rstrip("0123456789") in renamed
        node.input.append(each.replace(":outputs:", ":output:") if is_renamed else each)
    if node.op in _PASSING:
        assert node.op == "CrossReplicaSum" or len(node.input) == 1
        del node.input[1:]
        _replace(node, "Identity", T=node.attr["T"])
    elif node.op == "TPUReplicateMetadata":
        _replace(node, "NoOp")
    elif node.op == "TPUCompilationResult":
        nothing = tf1.AttrValue(tensor=tf.make_tensor_proto(b""))
        _replace(node, "Const", dtype=tf1.AttrValue(type=tf.string.as_datatype_enum), value=nothing)


def _replace(node: Any, operation: str, **attributes: Any) -> None:
    copies = {
        name: tf1.AttrValue.FromString(value.SerializeToString())
        for name, value in attributes.items()
    }
    node.op = operation
    node.attr.clear()
    for name, value in copies.items():
        node.attr[name].CopyFrom(value)
