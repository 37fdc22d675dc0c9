"""Reads checkpoints, of which only the model's variables are taken, and SavedModels.

These are flat graphs of TensorFlow 1, or functions that TensorFlow 2 wraps them in.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Sequence

import numpy as np
from google.protobuf.message import DecodeError

from estimator_det.compat import tf1
from estimator_det.compat.private import saved_model_message
from estimator_det.config import files
from estimator_det.config.printing import counted, plain
from exporters.importing import functions
from exporters.importing.frozen_graph import VARIABLES, as_float32, constants, publish
from exporters.importing.published import FORMATS, NO_STRUCTURE, Published
from exporters.loaded_model import asset_class_names
from model_fn.checkpoints.errors import RunError
from model_fn.checkpoints.find import find_checkpoint
from model_fn.checkpoints.repair import require_whole
from model_fn.checkpoints.variables import num_neutral_layers
from model_fn.serving.graph import SERVING_DEFAULT

_FILE = "saved_model.pb"
_WEIGHTS = ("/weights", "/depthwise_weights")  # names that these models use
_KERAS_WEIGHTS = ("/kernel", "/depthwise_kernel", "/pointwise_kernel")


@FORMATS.register("checkpoint")
def read_checkpoint(path: str) -> Published:
    """The variables of a checkpoint, given as a prefix, one of its files, or a folder."""
    prefix = find_checkpoint(path)
    arrays = _float_variables(prefix)
    return Published(arrays, NO_STRUCTURE, has_names=True, num_neutral=num_neutral_layers(prefix))


@FORMATS.register("saved_model")
def read_saved_model(path: str) -> Published:
    """The constants, variables and layers of a SavedModel, given as its folder.

    Nothing of its graph is run, and the label map among its assets is read.
    """
    folder = os.path.dirname(path) if os.path.basename(path) == _FILE else path
    file = os.path.join(folder, _FILE)
    meta_graph = _parse(file)
    if functions.keeps_network_in_functions(meta_graph.graph_def):
        published = _read_functions(meta_graph, folder, file)
    else:
        published = _read_graph(meta_graph.graph_def, folder, file)
    return published._replace(label_map=asset_class_names(folder) or None)


def _read_graph(graph_def: Any, folder: str, file: str) -> Published:
    """A model of TensorFlow 1, whose variables have their names in the checkpoint, too."""
    arrays = constants(graph_def, file)
    if any(node.op in VARIABLES for node in graph_def.node):
        arrays.update(_float_variables(_prefix(folder)))
    return publish(graph_def, arrays, file)


def _read_functions(meta_graph: Any, folder: str, file: str) -> Published:
    """A model of TensorFlow 2: the functions of a signature, and the variables that they read."""
    graph_def = functions.inline_functions(
        meta_graph.graph_def, _outputs(meta_graph.signature_def, folder), file
    )
    arrays = constants(graph_def, file)
    variables = [node.name for node in graph_def.node if node.op in VARIABLES]
    if variables:
        _refuse_keras(variables, folder)
        arrays.update(_variables(meta_graph, variables, folder, file))
    published = publish(graph_def, arrays, file)
    if not published.structure.convolutions:
        raise RunError(
            f"{folder} has no layers with weights in the functions of its signature, or they are "
            "in loops or conditions, which is not supported. Give its frozen graph, or the "
            "checkpoint it was exported from"
        )
    return published._replace(from_functions=True)


def _refuse_keras(variables: Sequence[str], folder: str) -> None:
    kernels = [name for name in variables if name.endswith(_KERAS_WEIGHTS)]
    if kernels and not any(name.endswith(_WEIGHTS) for name in variables):
        raise RunError(
            f"{folder} is a model that Keras built, as those of the Object Detection API for "
            f"TensorFlow 2 are: {counted(len(kernels), 'variable')} named as Keras names weights, "
            f"such as {plain(kernels[0])}. Its layers are not those of the models here, so it "
            "cannot be imported; choose a model for TensorFlow 1"
        )


def _outputs(signatures: Any, folder: str) -> List[str]:
    """Names of the output tensors of the default signature, or of the only one."""
    usable = sorted(name for name in signatures if not name.startswith("__saved_model"))
    chosen = [name for name in usable if name == SERVING_DEFAULT] or usable
    if len(chosen) != 1:
        description = f"the signatures {plain(chosen)}, none of them" if chosen else "no signature"
        raise RunError(
            f"{folder} has {description} {SERVING_DEFAULT}, so which function to import is not "
            "known. "
            f"Save it with signatures={{{SERVING_DEFAULT!r}: function}}"
        )
    return [each.name for each in signatures[chosen[0]].outputs.values() if each.name]


def _variables(
    meta_graph: Any, names: Sequence[str], folder: str, file: str
) -> Dict[str, np.ndarray]:
    """Values of variables of numbers, by their names in the graph."""
    reader = _reader(_prefix(folder))
    kinds = reader.get_variable_to_dtype_map()
    restore = meta_graph.saver_def.restore_op_name
    keys = functions.variable_keys(meta_graph.graph_def, restore, file)
    values = {}
    for name in names:
        key = keys.get(name)
        if key not in kinds:
            raise RunError(
                f"{folder}: its checkpoint has no value for the variable {plain(name)}"
                f"{'' if key is None else f', which is stored as {plain(key)}'}. Get the folder "
                "again"
            )
        if kinds[key].is_floating:
            values[name] = as_float32(reader.get_tensor(key))
    return values


def _prefix(folder: str) -> str:
    """The checkpoint of a SavedModel."""
    return find_checkpoint(os.path.join(folder, "variables", "variables"))


def _reader(prefix: str) -> Any:
    require_whole(prefix)
    return tf1.train.NewCheckpointReader(prefix)


def _float_variables(prefix: str) -> Dict[str, np.ndarray]:
    reader = _reader(prefix)
    kinds = reader.get_variable_to_dtype_map()
    names = [name for name, kind in kinds.items() if kind.is_floating]
    return {name: as_float32(reader.get_tensor(name)) for name in names}


def _parse(file: str) -> Any:
    """The `MetaGraphDef` for serving, or the first one."""
    content = files.read_bytes(file)
    message = saved_model_message()
    try:
        message.ParseFromString(content)
    except DecodeError as error:
        raise RunError(
            f"{file} is not a SavedModel, or is cut off after {len(content)} bytes: {error}. Get "
            "the folder again, or give its format with --from"
        ) from error
    if not message.meta_graphs:
        raise RunError(
            f"{file} is not a SavedModel: it contains no graph. Get the folder again, or give its "
            "format with --from"
        )
    serving = [each for each in message.meta_graphs if "serve" in each.meta_info_def.tags]
    return (serving or message.meta_graphs)[0]
