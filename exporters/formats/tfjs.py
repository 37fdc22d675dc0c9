"""TensorFlow.js graph models: `model.json` and shards of weights.

TensorFlow.js runs in browsers. `load` runs the written graph and weights in TensorFlow, with the
operations that the converter fused as the ones that they were made of.
"""

from __future__ import annotations

import itertools
import os
from typing import Any, List, Mapping

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.config import files
from estimator_det.config.printing import plain
from exporters.formats.base import FORMATS
from exporters.formats.converters import GraphFormat
from exporters.formats.frozen_graph import GraphDetector
from exporters.importing.tfjs import MODEL_FILE, read_graph_model
from exporters.loaded_model import parent_folder
from model_fn.checkpoints.errors import RunError

MODEL_FOLDER = "tfjs"
# Operations of the converter: the one that each begins with.
_FUSED = {
    "_FusedConv2D": "Conv2D",
    "FusedDepthwiseConv2dNative": "DepthwiseConv2dNative",
    "_FusedMatMul": "MatMul",
}
# Types of constants.
_NUMBERS = {
    each.as_datatype_enum: each
    for each in (tf.bool, tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64, tf.float16, tf.float32)
}
_OWN_ATTRIBUTES = ("fused_ops", "num_args", "epsilon", "leakyrelu_alpha", "explicit_paddings")


def _convert(graph: str, image: str, outputs: List[str], path: str) -> None:
    import sys
    import types

    # The converter imports decision forests, which detectors do not have; releases of that package
    # need another protobuf than TensorFlow.
    name = "tensorflow_decision_forests"
    sys.modules[name] = types.ModuleType(name)
    from tensorflowjs.converters.converter import pip_main

    names = f"--output_node_names={','.join(outputs)}"
    sys.argv[1:] = ["--input_format=tf_frozen_model", names, graph, path]
    pip_main()


@FORMATS.register("tfjs")
class Tfjs(GraphFormat):
    """The format of TensorFlow.js."""

    name = "tfjs"
    file = MODEL_FOLDER
    converter = ("tensorflowjs",)
    extra = "tfjs"
    convert = staticmethod(_convert)

    def recognizes(self, path: str) -> bool:
        file_path = _model_file(path)
        if not tf.io.gfile.exists(file_path) or not file_path.endswith(".json"):
            return False
        return "modelTopology" in files.read_text(file_path)

    def load(self, path: str) -> GraphDetector:
        """The detector in a graph model; `path` is its folder, or the `model.json` in it."""
        file_path = _model_file(path)
        graph_def, arrays = read_graph_model(file_path)
        return GraphDetector(parent_folder(file_path), with_constants(graph_def, arrays, path))


def _damaged(path: str, what: str) -> RunError:
    return RunError(f"{path}: modelTopology is damaged: {what}. Export the model again")


def with_constants(graph_def: Any, arrays: Mapping[str, np.ndarray], path: str) -> Any:
    """A copy of a graph with the values of its constants, and without fused operations.

    The constants of its functions, which are conditions and bodies of loops, are filled, too.
    """
    copied = tf1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    for node in graph_def.node:
        if node.op in _FUSED:
            _add_unfused(copied, node, path)
        else:
            copied.node.add().CopyFrom(node)
    functions = [function.node_def for function in copied.library.function]
    for node in itertools.chain(copied.node, *functions):
        if node.op == "Const":
            # The converter moves weights of constants to files of their own.
            if node.name not in arrays:
                raise _damaged(path, f"there are no weights for the constant {plain(node.name)}")
            dtype = _NUMBERS.get(node.attr["dtype"].type)
            if dtype is None:
                raise _damaged(path, f"the constant {plain(node.name)} has no type of numbers")
            values = np.asarray(arrays[node.name]).astype(dtype.as_numpy_dtype)
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values, dtype))
    return copied


def _add_unfused(graph_def: Any, node: Any, path: str) -> None:
    """Adds a fused operation as the first one, and those after it, the last under its name."""
    steps = [name.decode("utf-8", "replace") for name in node.attr["fused_ops"].list.s]
    # A damaged file must not end as an IndexError.
    if len(node.input) < 2 + steps.count("BiasAdd"):
        what = f"{plain(node.name)} has {len(node.input)} inputs, too few for {plain(steps)}"
        raise _damaged(path, what)
    first = graph_def.node.add(name=f"{node.name}/{_FUSED[node.op]}", op=_FUSED[node.op])
    first.input.extend(node.input[:2])
    for key, value in node.attr.items():
        if key not in _OWN_ATTRIBUTES:
            first.attr[key].CopyFrom(value)
    previous, extra = first.name, list(node.input[2:])
    for number, step in enumerate(steps, 1):
        # The last step takes the fused operation's name, because others refer to that.
        name = node.name if number == len(steps) else f"{node.name}/{step}"
        new = graph_def.node.add(name=name, op=step)
        new.input.append(previous)
        if step == "BiasAdd":
            new.input.append(extra.pop(0))
        new.attr["T"].CopyFrom(node.attr["T"])
        previous = name


def _model_file(path: str) -> str:
    return os.path.join(path, MODEL_FILE) if tf.io.gfile.isdir(path) else path
