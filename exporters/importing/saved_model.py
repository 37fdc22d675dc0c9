"""Reads SavedModels of TensorFlow 1, with variables or with constants."""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from google.protobuf.message import DecodeError

from estimator_det.compat import tf, tf1
from estimator_det.compat.model_files import saved_model_message
from estimator_det.config import files
from exporters.importing.frozen_graph import VARIABLES, as_float32, constants, publish
from exporters.importing.published import FORMATS, Published
from inputs.label_map import read_label_map
from model_fn.checkpoints.errors import RunError
from model_fn.checkpoints.find import find_whole_checkpoint

_FILE = "saved_model.pb"


@FORMATS.register("saved_model")
def read_saved_model(path: str) -> Published:
    """The constants, variables and layers of a SavedModel, given as its folder.

    Nothing of its graph is run, and the label map among its assets is read.

    Raises:
        RunError: if it is damaged or keeps its network in functions, as those of TensorFlow 2 do.
    """
    folder = os.path.dirname(path) if os.path.basename(path) == _FILE else path
    file = os.path.join(folder, _FILE)
    graph_def = _parse(file)
    arrays = constants(graph_def, file)
    if any(node.op in VARIABLES for node in graph_def.node):
        reader = tf1.train.NewCheckpointReader(
            find_whole_checkpoint(os.path.join(folder, "variables", "variables"))
        )
        for name, kind in reader.get_variable_to_dtype_map().items():
            if kind.is_floating:
                arrays[name] = as_float32(reader.get_tensor(name))
    published = publish(graph_def, arrays, file)
    if not published.structure.convolutions and graph_def.library.function:
        raise RunError(
            f"{folder} keeps its network in functions, as SavedModels of TensorFlow 2 do; this is "
            "not supported yet. Give its frozen graph, or the checkpoint it was exported from"
        )
    return published._replace(label_map=_label_map(folder))


def _parse(file: str) -> Any:
    """The `GraphDef` of the meta graph for serving, or of the first one."""
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
    return (serving or message.meta_graphs)[0].graph_def


def _label_map(folder: str) -> Optional[Dict[int, str]]:
    found = sorted(tf.io.gfile.glob(os.path.join(folder, "assets", "*.pbtxt")))
    return dict(read_label_map(found[0]).names) if found else None
