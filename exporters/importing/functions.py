"""Makes one flat graph of a SavedModel of TensorFlow 2, which keeps its network in functions.

Messages are copied, and nothing is run. Operations keep the names that they have in their
functions, which are those of the graph that was wrapped; where several functions have one name,
it gets the names of the calls in front of it, as `call/name`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from estimator_det.compat import tf1
from estimator_det.compat.private import operation_definition
from estimator_det.config.printing import plain
from exporters.importing.graphs import CONVOLUTIONS, SAME_VALUE
from exporters.importing.published import damaged
from model_fn.checkpoints.errors import RunError

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_MAX_DEPTH = 64  # depth of functions that call functions; also ends recursion
_MAX_STEPS = 1 << 12  # through calls, from an input to the operation that makes it
_MAX_NODES = 1 << 18  # functions that call each other twice each can state any number
_MAX_BYTES = 1 << 31  # bytes of constants, which every call of their function repeats


def keeps_network_in_functions(graph_def: Any) -> bool:
    """Whether all convolutions of a `GraphDef` are in its functions."""
    has_network = any(node.op in CONVOLUTIONS for node in graph_def.node)
    return not has_network and any(
        node.op in CONVOLUTIONS
        for function in graph_def.library.function
        for node in function.node_def
    )


def inline_functions(graph_def: Any, outputs: Iterable[str], path: str) -> Any:
    """The flat `GraphDef` of the operations that tensors depend on, without control inputs.

    Args:
        graph_def: A graph with functions.
        outputs: Names of tensors, e.g. those of a signature.
    """
    operations = _Functions(graph_def, path).sources(outputs)
    names = _names(operations, path)
    flat = tf1.GraphDef(versions=graph_def.versions)
    for key, (operation, inputs) in operations.items():
        node = flat.node.add()
        node.CopyFrom(operation)
        node.name = names[key]
        del node.input[:]
        node.input.extend(f"{names[each.key]}:{each.position}" for each in inputs)
    return flat


def variable_keys(graph_def: Any, restore_operation: str, path: str) -> Dict[str, str]:
    """Names of variables in the graph -> their keys in the checkpoint.

    They are read from the operations that restore the variables, since several variables may have
    one name in TensorFlow 2.
    """
    functions = _Functions(graph_def, path)
    main = functions.main
    restoring = functions.enter(main, main.nodes.get(restore_operation))
    keys: Dict[str, str] = {}
    for frame in [main] if restoring is None else [main, restoring]:
        for node in frame.nodes.values():
            if node.op != "AssignVariableOp":
                continue
            inputs = functions.inputs(frame, node)
            key = _restored_key(functions, inputs[1]) if len(inputs) > 1 else None
            if key is not None:
                keys[inputs[0].node.name] = key
    return keys


def _restored_key(functions: _Functions, value: _Tensor) -> Optional[str]:
    """The key in the checkpoint of a value that `RestoreV2` reads; None of any other value."""
    inputs = functions.inputs(value.frame, value.node)
    for _ in range(_MAX_STEPS):
        if value.node.op not in SAME_VALUE or not inputs:
            break
        value = inputs[0]
        inputs = functions.inputs(value.frame, value.node)
    if value.node.op != "RestoreV2" or len(inputs) < 3:
        return None
    keys, slices = (each.node.attr["value"].tensor.string_val for each in inputs[1:3])
    # A slice is not the whole variable, which is then reported as one that is not restored.
    if value.position >= len(keys) or any(slices):
        return None
    return str(keys[value.position], "utf-8", "replace")


@dataclasses.dataclass(frozen=True, eq=False)
class _Frame:
    """The graph, or a function as one call of it sees it."""

    nodes: Mapping[str, Any]
    scope: str = ""  # names of the calls
    depth: int = 0
    # Frame of the call, and tensor there, by the name of the argument.
    arguments: Mapping[str, Tuple[_Frame, str]] = dataclasses.field(default_factory=dict)
    results: Tuple[str, ...] = ()
    inner: Dict[str, _Frame] = dataclasses.field(default_factory=dict)  # by name of call


_Key = Tuple[_Frame, str]  # an operation: its place, and its name there


class _Tensor(NamedTuple):
    """An output of an operation that is not a call."""

    frame: _Frame
    node: Any
    position: int  # among the outputs of the operation

    @property
    def key(self) -> _Key:
        return self.frame, self.node.name


_Operations = Dict[_Key, Tuple[Any, List[_Tensor]]]  # each with its inputs


class _Functions:
    """Follows tensors through calls of functions."""

    def __init__(self, graph_def: Any, path: str) -> None:
        self.path = path
        self.main = _Frame({node.name: node for node in graph_def.node})
        self._library = {each.signature.name: each for each in graph_def.library.function}
        self._nodes: Dict[str, Dict[str, Any]] = {}  # nodes of each function by name
        self._num_calls = 0

    def _damaged(self, what: str) -> RunError:
        return damaged(f"{self.path} is damaged: {what}")

    def sources(self, outputs: Iterable[str]) -> _Operations:
        """The operations that tensors of the graph depend on."""
        waiting = [self.resolve(self.main, name) for name in outputs]
        operations: _Operations = {}
        num_bytes = 0
        while waiting:
            tensor = waiting.pop()
            if tensor.key in operations:
                continue
            inputs = self.inputs(tensor.frame, tensor.node)
            operations[tensor.key] = (tensor.node, inputs)
            waiting += inputs
            num_bytes += tensor.node.ByteSize() if tensor.node.op == "Const" else 0
            if len(operations) > _MAX_NODES or num_bytes > _MAX_BYTES:
                raise self._too_large()
        return operations

    def inputs(self, frame: _Frame, node: Any) -> List[_Tensor]:
        """Inputs of an operation, without control inputs."""
        return [self.resolve(frame, each) for each in _data_inputs(node)]

    def resolve(self, frame: _Frame, name: str) -> _Tensor:
        """The output of an operation that a tensor is, through calls into and out of functions.

        Args:
            frame: Where the tensor is named.
            name: `node`, `node:index`, or in functions `argument` or `node:output:index`.
        """
        for _ in range(_MAX_STEPS):
            operation, output, index = self._parsed(name)
            if operation in frame.arguments:
                frame, name = frame.arguments[operation]
                continue
            node = frame.nodes.get(operation)
            if node is None:
                raise self._damaged(f"it has no operation {plain(operation)}, which another reads")
            function = self.enter(frame, node)
            if function is None:
                return _Tensor(frame, node, self._flat_index(node, output, index))
            if not 0 <= index < len(function.results):
                raise self._damaged(f"the function of {plain(operation)} has no output {index}")
            name, frame = function.results[index], function
        raise self._damaged(f"the calls before {plain(name)} have no end")

    def enter(self, frame: _Frame, node: Any) -> Optional[_Frame]:
        """The function that an operation calls; None if it is not a call."""
        if node is None or node.op not in _CALLS:
            return None
        if node.name not in frame.inner:
            frame.inner[node.name] = self._called(frame, node)
        return frame.inner[node.name]

    def _called(self, frame: _Frame, node: Any) -> _Frame:
        name = node.attr["f"].func.name
        function = self._library.get(name)
        if function is None:
            raise self._damaged(f"it has no function {plain(name)}, which {plain(node.name)} calls")
        self._num_calls += 1
        if self._num_calls > _MAX_NODES:
            raise self._too_large()
        scope = f"{frame.scope}{node.name}/"
        if frame.depth > _MAX_DEPTH:
            raise RunError(
                f"{self.path}: the function {plain(name)} is called more than {_MAX_DEPTH} deep, "
                "or calls itself. Such a model cannot be imported; give its frozen graph"
            )
        if name not in self._nodes:
            self._nodes[name] = {each.name: each for each in function.node_def}
        results = tuple(function.ret.get(each.name, "") for each in function.signature.output_arg)
        inputs = _data_inputs(node)
        if len(inputs) != len(function.signature.input_arg):
            raise self._damaged(
                f"{plain(node.name)} gives {len(inputs)} inputs to the function {plain(name)}, "
                f"which takes {len(function.signature.input_arg)}"
            )
        names = [each.name for each in function.signature.input_arg]
        arguments = {each: (frame, tensor) for each, tensor in zip(names, inputs)}
        return _Frame(self._nodes[name], scope, frame.depth + 1, arguments, results)

    def _parsed(self, name: str) -> Tuple[str, str, int]:
        """Name of operation, name of output if there is one, and index."""
        operation, _, rest = name.partition(":")
        output, _, index = rest.rpartition(":")
        if not rest:
            return operation, "", 0
        if not (index.isascii() and index.isdigit() and len(index) < 10):
            raise self._damaged(f"{plain(name)} is no tensor")
        return operation, output, int(index)

    def _flat_index(self, node: Any, output: str, index: int) -> int:
        """The index among all outputs, from the one in the output of a name."""
        definition = operation_definition(node.op) if output else None
        before = 0
        for each in definition.output_arg if definition else ():
            if each.name == output:
                return before + index
            if each.number_attr:
                before += node.attr[each.number_attr].i
            elif each.type_list_attr:
                before += len(node.attr[each.type_list_attr].list.type)
            else:
                before += 1
        return index  # an operation that this TensorFlow does not know, which is never run

    def _too_large(self) -> RunError:
        return RunError(
            f"{self.path}: its functions make more than {_MAX_NODES} operations, or constants of "
            f"more than {_MAX_BYTES} bytes. Give its frozen graph"
        )


def _data_inputs(node: Any) -> Tuple[str, ...]:
    return tuple(name for name in node.input if not name.startswith("^"))


def _names(operations: _Operations, path: str) -> Dict[_Key, str]:
    """A name for each operation: its own if no other function has one of this name."""
    counts = Counter(name for _, name in operations)
    used = set(counts)
    names: Dict[_Key, str] = {}
    for (frame, name), (node, _) in operations.items():
        flat = name
        if counts[name] > 1 and node.op in CONVOLUTIONS:
            calls = sorted(each.scope for each, unscoped in operations if unscoped == name)
            raise RunError(
                f"{path} has the layer {plain(name)} in the calls {plain(calls[0])} and "
                f"{plain(calls[1])}, so which one is the model's is not known. Save it with a "
                "signature that calls the network once"
            )
        if counts[name] > 1 and frame.scope:
            flat = f"{frame.scope}{name}"
            while flat in used:
                flat += "_"
        used.add(flat)
        names[frame, name] = flat
    return names
