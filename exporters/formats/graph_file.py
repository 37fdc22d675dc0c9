"""The graph that converters of other packages take: constants for weights, batch norm folded."""

from __future__ import annotations

import os
from typing import List, NamedTuple

from estimator_det.compat import tf
from estimator_det.config import files
from exporters.detector import OUTPUT_PREFIXES
from exporters.formats.base import Source
from exporters.importing.frozen_graph import parse_graph
from model_fn.checkpoints.errors import RunError
from model_fn.serving.folding import fold_batch_norms


class GraphFile(NamedTuple):
    """A graph in a file."""

    path: str
    input: str  # name of the placeholder
    outputs: List[str]  # names of operations; the output of each is its only one


def write_graph_file(source: Source, folder: str) -> GraphFile:
    """Writes the graph of an export's first input type.

    Raises:
        RunError: if the export has too many weights for a file.
    """
    if source.exported.frozen_graph is None:
        raise RunError(
            "the model has too many weights for a graph file, from which other formats are "
            "written; export --format saved_model"
        )
    path = source.exported.frozen_graph
    graph_def = parse_graph(files.read_bytes(path), path)
    outputs = [
        node.name
        for node in graph_def.node
        if "/" not in node.name and node.name.startswith(OUTPUT_PREFIXES)
    ]
    folded = fold_batch_norms(graph_def, outputs)
    target = os.path.join(folder, "graph.pb")
    with tf.io.gfile.GFile(target, "wb") as file:
        file.write(folded.SerializeToString())
    return GraphFile(target, source.plan.input_types[0], outputs)
