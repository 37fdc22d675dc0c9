"""Saves a served model, with its weights as constants or as variables.

Constants make a model faster: TensorFlow merges them with the operations around them. A SavedModel
of constants has an empty folder `variables`, which loaders do not need.
"""

from __future__ import annotations

import logging
import os
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

from estimator_det.compat import tf, tf1
from estimator_det.errors import UsageError
from estimator_det.files import is_remote
from estimator_det.protos import pipeline_pb2
from inputs.label_map import read_label_map
from model_fn.serving import warmup
from model_fn.serving.folding import fold_batch_norms

_LOG = logging.getLogger(__name__)

MAX_FILE_BYTES = 2**31 - 1  # limit of a protobuf file, which contains a graph and its constants
UNFINISHED = "temp-"  # prefix of folders that are not complete yet
GRAPH_BYTES = 2**26  # enough for a graph without its weights

Definitions = Dict[str, Any]  # `SignatureDef`s by key


def fits_in_constants(variables: Iterable[Any]) -> bool:
    """True if a graph with these variables as constants fits in a file."""
    weights = sum(variable.shape.num_elements() * variable.dtype.size for variable in variables)
    return bool(weights + GRAPH_BYTES <= MAX_FILE_BYTES)


def constant_graph(session: Any, outputs: Sequence[str]) -> Optional[Any]:
    """`GraphDef` of some operations, the current graph's variables as constants of their names.

    None if a file cannot hold it.
    """
    if not fits_in_constants(tf1.global_variables()):
        return None
    graph_def = session.graph.as_graph_def()
    return tf1.graph_util.convert_variables_to_constants(session, graph_def, outputs)


def output_operations(definitions: Iterable[Any]) -> List[str]:
    """Names of the operations whose tensors are outputs."""
    infos = [info for definition in definitions for info in definition.outputs.values()]
    return sorted({info.name.split(":")[0] for info in infos})


def write_constants(
    folder: str, graph_def: Any, definitions: Definitions, label_map: Optional[str]
) -> None:
    """Writes a SavedModel of constants, with batch norm folded into convolutions."""
    folded = fold_batch_norms(graph_def, output_operations(definitions.values()))
    with tf.Graph().as_default():
        tf.import_graph_def(folded, name="")
        with tf1.Session() as session:
            write_session(folder, session, definitions, label_map)


def write_session(
    folder: str, session: Any, definitions: Definitions, label_map: Optional[str]
) -> None:
    """Writes a SavedModel of the current graph, with the session's variables."""
    if label_map is not None:
        add_label_map(label_map)
    builder = tf1.saved_model.Builder(folder)
    builder.add_meta_graph_and_variables(
        session,
        [tf1.saved_model.tag_constants.SERVING],
        signature_def_map=definitions,
        assets_collection=tf1.get_collection(tf1.GraphKeys.ASSET_FILEPATHS),
    )
    builder.save()


def rewrite_as_constants(
    source: str, folder: str, label_map: Optional[str], num_additional_channels: int = 0
) -> None:
    """Copies a SavedModel with variables, which become constants unless they are too large.

    The new folder, which appears when it is complete, gets warm-up requests, and keeps other files
    of `assets.extra`. The source is local.
    """
    with tf.Graph().as_default(), tf1.Session() as session:
        meta = tf1.saved_model.load(session, [tf1.saved_model.tag_constants.SERVING], source)
        predict = tf1.saved_model.signature_constants.PREDICT_METHOD_NAME
        definitions = {
            key: value for key, value in meta.signature_def.items() if value.method_name == predict
        }
        graph_def = constant_graph(session, output_operations(definitions.values()))
    # Object stores have no folders to rename.
    beside = os.path.dirname(source if is_remote(folder) else folder)
    unfinished = os.path.join(beside, UNFINISHED + os.path.basename(folder))
    if tf.io.gfile.exists(unfinished):  # an earlier export was interrupted
        tf.io.gfile.rmtree(unfinished)
    if graph_def is None:
        copy_folder(source, unfinished)
    else:
        write_constants(unfinished, graph_def, definitions, label_map)
        copy_folder(*(os.path.join(parent, warmup.EXTRA_ASSETS) for parent in (source, unfinished)))
    warmup.write_requests(unfinished, definitions, num_additional_channels=num_additional_channels)
    if is_remote(folder):
        copy_folder(unfinished, folder)
        tf.io.gfile.rmtree(unfinished)
    else:
        tf.io.gfile.rename(unfinished, folder)


def copy_folder(source: str, target: str) -> None:
    """Copies all files of a folder, if it exists; the graph last, because servers wait for it."""
    if not tf.io.gfile.exists(source):
        return
    paths = []
    for folder, _, names in tf.io.gfile.walk(source):
        inside = folder[len(source) :].strip("/")
        tf.io.gfile.makedirs(os.path.join(target, inside))
        paths += [os.path.join(inside, name) for name in names]
    for path in sorted(paths, key=lambda path: path.endswith("saved_model.pb")):
        tf.io.gfile.copy(os.path.join(source, path), os.path.join(target, path))


def find_label_map(pipeline_config: pipeline_pb2.TrainEvalPipelineConfig) -> Optional[str]:
    """The first existing label map of the configuration's readers, evaluation readers first."""
    return next((path for path in _label_maps(pipeline_config) if tf.io.gfile.exists(path)), None)


def find_readable_label_map(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    read: Callable[[str], Any] = read_label_map,
) -> Optional[str]:
    """Like `find_label_map`, but a label map that cannot be read is left out, with a warning.

    For exports at the end of a long training, which must not fail because names are missing.
    """
    path = next(iter(_label_maps(pipeline_config)), None)
    try:
        path = find_label_map(pipeline_config) or path
        if path is not None:
            read(path)
    except (UsageError, OSError, tf.errors.OpError) as error:
        _LOG.warning("Exporting without the label map %s: %s", path, error)
        return None
    return path


def _label_maps(pipeline_config: pipeline_pb2.TrainEvalPipelineConfig) -> List[str]:
    readers = [*pipeline_config.eval_input_reader, pipeline_config.train_input_reader]
    return [reader.label_map_path for reader in readers if reader.label_map_path]


def add_label_map(path: str) -> None:
    """Makes a label map an asset of the SavedModel that the current graph becomes."""
    tf1.add_to_collection(tf1.GraphKeys.ASSET_FILEPATHS, tf.constant(path))
