"""How a served model is saved: its weights are constants, or variables.

Constants make a model faster: TensorFlow merges them with the operations around them. A SavedModel
of constants has an empty folder `variables`, which loaders do not need.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, List, Optional

from estimator_det.compat import tf, tf1
from model_fn.checkpoints.label_map_asset import add_label_map
from model_fn.serving import warmup
from model_fn.serving.folding import fold_batch_norms

MAX_FILE_BYTES = 2**31 - 1  # of a protobuf file, which contains a graph and its constants
GRAPH_BYTES = 2**26  # enough for a graph without its weights

Definitions = Dict[str, Any]  # `SignatureDef`s by key


def fits_in_constants(variables: Iterable[Any]) -> bool:
    """Whether a graph with these variables as constants can be written to a file."""
    weights = sum(one.shape.num_elements() * one.dtype.size for one in variables)
    return bool(weights + GRAPH_BYTES <= MAX_FILE_BYTES)


def constant_graph(session: Any, definitions: Iterable[Any]) -> Any:
    """`GraphDef` of what signatures need, the session's variables as constants of their names."""
    return tf1.graph_util.convert_variables_to_constants(
        session, session.graph.as_graph_def(), output_operations(definitions)
    )


def output_operations(definitions: Iterable[Any]) -> List[str]:
    """Names of the operations whose tensors are outputs."""
    infos = [info for definition in definitions for info in definition.outputs.values()]
    return sorted({info.name.split(":")[0] for info in infos})


def write_constants(
    folder: str, graph_def: Any, definitions: Definitions, label_map: Optional[str]
) -> None:
    """A SavedModel of constants, batch norm folded into convolutions.

    Args:
        folder: A new one.
        graph_def: Of `constant_graph`.
        definitions: Signatures.
        label_map: A file that becomes an asset.
    """
    folded = fold_batch_norms(graph_def, output_operations(definitions.values()))
    with tf.Graph().as_default():
        tf.import_graph_def(folded, name="")
        with tf1.Session() as session:
            write_session(folder, session, definitions, label_map)


def write_session(
    folder: str, session: Any, definitions: Definitions, label_map: Optional[str]
) -> None:
    """A SavedModel of a session's graph, which must be the current one, with its variables."""
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
    """Moves a SavedModel with variables, which become constants unless they are too large.

    It gets warm-up requests, and keeps other files of `assets.extra`.

    Args:
        source: Folder of a SavedModel with predict signatures.
        folder: A new one, which appears when it is complete.
        label_map: A file that becomes an asset.
        num_additional_channels: See `warmup.write_requests`.
    """
    with tf.Graph().as_default(), tf1.Session() as session:
        meta = tf1.saved_model.load(session, [tf1.saved_model.tag_constants.SERVING], source)
        predict = tf1.saved_model.signature_constants.PREDICT_METHOD_NAME
        definitions = {
            key: value for key, value in meta.signature_def.items() if value.method_name == predict
        }
        fits = fits_in_constants(tf1.global_variables())
        graph_def = constant_graph(session, definitions.values()) if fits else None
    written = source
    if graph_def is not None:
        written = os.path.join(os.path.dirname(folder), f"temp-{os.path.basename(folder)}")
        write_constants(written, graph_def, definitions, label_map)
        _copy_extra_assets(source, written)
    warmup.write_requests(written, definitions, num_additional_channels=num_additional_channels)
    tf.io.gfile.rename(written, folder)
    if written != source:
        tf.io.gfile.rmtree(source)


def _copy_extra_assets(source: str, folder: str) -> None:
    inside, copies = (os.path.join(parent, warmup.EXTRA_ASSETS) for parent in (source, folder))
    if tf.io.gfile.exists(inside):
        tf.io.gfile.makedirs(copies)
        for name in tf.io.gfile.listdir(inside):
            tf.io.gfile.copy(os.path.join(inside, name), os.path.join(copies, name))
