"""The graph that converters of other packages take: constants for weights, batch norm folded.

It suppresses boxes with the operations that TPUs have, for converters know no others. The result is
the same.
"""

from __future__ import annotations

import os
from typing import List, NamedTuple

from estimator_det.compat import tf, tf1
from estimator_det.config.derived_models import with_static_shapes
from exporters.formats.base import Plan, inference_detector
from inputs.serving import additional_channels, make_receiver
from model_fn.checkpoints.errors import RunError
from model_fn.serving import saved_model as served
from model_fn.serving.folding import fold_batch_norms
from model_fn.serving.graph import serve


class GraphFile(NamedTuple):
    """A graph in a file."""

    path: str
    input: str  # name of the placeholder
    outputs: List[str]  # names of operations with one output each


def write_graph_file(checkpoint: str, plan: Plan, folder: str) -> GraphFile:
    """Writes the graph of an export's first input type."""
    detector = inference_detector(plan.config, with_static_shapes(plan.config.model))
    with tf.Graph().as_default() as graph:
        receiver = make_receiver(
            plan.input_types[0],
            detector.preprocess,
            plan.input_shape,
            additional_channels(plan.config),
        )
        outputs = serve(detector, receiver.inputs, receiver.true_shapes)
        variables = tf1.global_variables()
        if not served.fits_in_constants(variables):
            raise RunError(
                "the model has too many weights for a graph file, from which other formats are "
                "written; export --format saved_model"
            )
        with tf1.Session() as session:
            tf1.train.Saver(variables).restore(session, checkpoint)
            constants = tf1.graph_util.convert_variables_to_constants(
                session, graph.as_graph_def(), list(outputs)
            )
    path = os.path.join(folder, "graph.pb")
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(fold_batch_norms(constants, list(outputs)).SerializeToString())
    return GraphFile(path, plan.input_types[0], list(outputs))
