"""Makes one flat graph of a SavedModel of TensorFlow 2, which keeps its network in functions.

Messages are copied, and nothing is run. Operations keep the names that they have in their
functions, which TensorFlow took from the wrapped graph. If several functions contain a name, the
names of the calls come first: `call/name`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Collection, Dict, Iterable, List, Mapping, NamedTuple, Tuple

from estimator_det.compat import tf1
from estimator_det.compat.private import operation_definition
from estimator_det.console.printing import plain
from estimator_det.errors import RunError
from exporters.reading.graphs import CONVOLUTIONS, SAME_VALUE
from exporters.reading.published import damaged

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_MAX_DEPTH = 64  # depth of functions that call functions; also ends recursion
_MAX_STEPS = 1 << 12  # through calls, from an input to the operation that makes it
_MAX_NODES = 1 << 18  # functions that call each other twice each can state any number
_MAX_BYTES = 1 << 31  # bytes of constants, which every call of their function repeats

_Key = Tuple[str, str]  # an operation: the names of the calls around it as `call/`, and its own


class _Tensor(NamedTuple):
    """An output of an operation."""

    key: _Key
    position: int  # among the outputs of the operation


class InlinedGraph:
    """The operations of a `GraphDef` and of its functions, whose operations each call repeats."""

    def __init__(self, graph_def: Any, path: str) -> None:
        self._path = path
        self._versions = graph_def.versions
        self._library = {each.signature.name: each for each in graph_def.library.function}
        self._main = {node.name: node for node in graph_def.node}
        self._nodes: Dict[_Key, Any] = {}  # without calls
        self._inputs: Dict[_Key, List[_Tensor]] = {}  # without control inputs
        self._results: Dict[_Tensor, _Tensor] = {}  # outputs of calls -> tensors of functions
        self._num_nodes = 0
        self._add("", self._main, {})

    def flat(self, outputs: Iterable[str]) -> Any:
        """The `GraphDef` of the operations that tensors of the main graph depend on."""
        waiting = [self._origin(self._tensor(name, "", self._main, {})) for name in outputs]
        needed: Dict[_Key, List[_Tensor]] = {}
        num_bytes = 0
        while waiting:
            key = waiting.pop().key
            if key in needed:
                continue
            needed[key] = [self._origin(each) for each in self._inputs[key]]
            waiting += needed[key]
            node = self._nodes[key]
            num_bytes += node.ByteSize() if node.op == "Const" else 0
            if num_bytes > _MAX_BYTES:
                raise self._too_large()
        names = self._names(needed)
        graph_def = tf1.GraphDef(versions=self._versions)
        for key, inputs in needed.items():
            node = graph_def.node.add()
            node.CopyFrom(self._nodes[key])
            node.name = names[key]
            del node.input[:]
            node.input.extend(f"{names[each.key]}:{each.position}" for each in inputs)
        return graph_def

    def variable_keys(self) -> Dict[str, str]:
        """Names of variables in the graph -> their keys in the checkpoint.

        They are read from the operations that restore the variables, since several variables may
        have one name in TensorFlow 2.
        """
        variable_keys = {}
        for key, node in self._nodes.items():
            if node.op != "AssignVariableOp" or len(self._inputs[key]) < 2:
                continue
            variable, value = self._inputs[key][:2]
            value = self._origin(value, through=SAME_VALUE)
            inputs = self._inputs[value.key]
            if self._nodes[value.key].op != "RestoreV2" or len(inputs) < 3:
                continue
            constants = (self._nodes[self._origin(each).key] for each in inputs[1:3])
            keys, slices = (each.attr["value"].tensor.string_val for each in constants)
            # A slice is not the whole variable, which is then reported as not restored.
            if value.position < len(keys) and not any(slices):
                name = self._origin(variable).key[1]
                variable_keys[name] = str(keys[value.position], "utf-8", "replace")
        return variable_keys

    def _add(
        self, scope: str, nodes: Mapping[str, Any], arguments: Mapping[str, _Tensor], depth: int = 0
    ) -> None:
        """Adds the operations of the graph, or of a function for one of its calls.

        Args:
            scope: Names of the calls.
            arguments: Tensors of the caller by name of the argument.
        """
        for name, node in nodes.items():
            self._num_nodes += 1
            if self._num_nodes > _MAX_NODES:
                raise self._too_large()
            sources = [each for each in node.input if not each.startswith("^")]
            inputs = [self._tensor(each, scope, nodes, arguments) for each in sources]
            if node.op in _CALLS:
                self._add_call((scope, name), node, inputs, depth + 1)
            else:
                self._nodes[scope, name], self._inputs[scope, name] = node, inputs

    def _add_call(self, key: _Key, node: Any, inputs: List[_Tensor], depth: int) -> None:
        name = node.attr["f"].func.name
        function = self._library.get(name)
        if function is None:
            raise self._damaged(f"it has no function {plain(name)}, which {plain(node.name)} calls")
        if depth > _MAX_DEPTH:
            raise RunError(
                f"{self._path}: the function {plain(name)} is called more than {_MAX_DEPTH} deep, "
                "or calls itself. Such a model cannot be imported; give its frozen graph"
            )
        signature = function.signature
        if len(inputs) != len(signature.input_arg):
            raise self._damaged(
                f"{plain(node.name)} gives {len(inputs)} inputs to the function {plain(name)}, "
                f"which takes {len(signature.input_arg)}"
            )
        scope = f"{key[0]}{node.name}/"
        nodes = {each.name: each for each in function.node_def}
        arguments = {each.name: tensor for each, tensor in zip(signature.input_arg, inputs)}
        self._add(scope, nodes, arguments, depth)
        for position, each in enumerate(signature.output_arg):
            result = self._tensor(function.ret.get(each.name, ""), scope, nodes, arguments)
            self._results[_Tensor(key, position)] = result

    def _tensor(
        self, name: str, scope: str, nodes: Mapping[str, Any], arguments: Mapping[str, _Tensor]
    ) -> _Tensor:
        """The tensor `node`, `node:index`, or in functions `argument` or `node:output:index`."""
        operation, _, rest = name.partition(":")
        if operation in arguments:
            return arguments[operation]
        if operation not in nodes:
            raise self._damaged(f"it has no operation {plain(operation)}, which another reads")
        output, _, index = (rest or "0").rpartition(":")
        if not (index.isascii() and index.isdigit() and len(index) < 10):
            raise self._damaged(f"{plain(name)} is no tensor")
        return _Tensor((scope, operation), _flat_index(nodes[operation], output, int(index)))

    def _origin(self, tensor: _Tensor, through: Collection[str] = ()) -> _Tensor:
        """The output of an operation that a tensor is, which may be an output of a call.

        Args:
            through: Operations whose first input is taken in place of their output.
        """
        for _ in range(_MAX_STEPS):
            if tensor.key in self._nodes:
                inputs = self._inputs[tensor.key]
                if self._nodes[tensor.key].op not in through or not inputs:
                    return tensor
                tensor = inputs[0]
            elif tensor in self._results:
                tensor = self._results[tensor]
            else:
                what = f"the function of {plain(tensor.key[1])} has no output {tensor.position}"
                raise self._damaged(what)
        raise self._damaged(f"the calls before {plain(tensor.key[1])} have no end")

    def _names(self, keys: Iterable[_Key]) -> Dict[_Key, str]:
        """A name for each operation: its own if no other function has one of this name."""
        counts = Counter(name for _, name in keys)
        used = set(counts)
        names: Dict[_Key, str] = {}
        for scope, name in keys:
            flat = name
            if counts[name] > 1 and self._nodes[scope, name].op in CONVOLUTIONS:
                calls = sorted(each for each, unscoped in keys if unscoped == name)
                raise RunError(
                    f"{self._path} has the layer {plain(name)} in the calls {plain(calls[0])} and "
                    f"{plain(calls[1])}, so which one is the model's is not known. Save it with a "
                    "signature that calls the network once"
                )
            if counts[name] > 1 and scope:
                flat = f"{scope}{name}"
                while flat in used:
                    flat += "_"
            used.add(flat)
            names[scope, name] = flat
        return names

    def _damaged(self, what: str) -> RunError:
        return damaged(f"{self._path} is damaged: {what}")

    def _too_large(self) -> RunError:
        return RunError(
            f"{self._path}: its functions make more than {_MAX_NODES} operations, or constants of "
            f"more than {_MAX_BYTES} bytes. Give its frozen graph"
        )


def _flat_index(node: Any, output: str, index: int) -> int:
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
