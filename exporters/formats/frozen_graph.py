"""Frozen graphs: a `GraphDef` with constants for weights."""

from __future__ import annotations

import re
from typing import Any, Dict

import numpy as np

from estimator_det.compat import tf, tf1
from exporters.formats.base import FORMATS, ExportFormat, first_bytes
from exporters.importing.frozen_graph import parse_frozen_graph, refuse_without_weights
from exporters.loaded_model import OUTPUT_PREFIXES, REQUIRED_OUTPUTS, LoadedModel, image_feed
from exporters.network import RestoredNetwork
from model_fn.checkpoints.errors import RunError
from model_fn.serving import saved_model as served

FROZEN_GRAPH_FILE = "frozen_inference_graph.pb"
# Field 1 (tag 0x0a) with its length, in it field 1 with its length, and the start of a name.
_FIRST_NODE = re.compile(rb"\x0a[\x80-\xff]{0,4}[\x00-\x7f]\x0a[\x80-\xff]?[\x00-\x7f][\w.]")
_LONGEST_START = 16  # bytes


@FORMATS.register("frozen_graph")
class FrozenGraph(ExportFormat):
    """The format of the reference's exporter, `frozen_inference_graph.pb`."""

    name = "frozen_graph"
    file = FROZEN_GRAPH_FILE

    def write(self, network: RestoredNetwork, path: str) -> bool:
        """Writes the graph of the first input type, with batch norm and weights."""
        if network.constants is None:  # a protobuf file ends at 2 GB
            return False
        outputs = served.output_operations([next(iter(network.definitions.values()))])
        frozen = network.graph_of(outputs)
        with tf.io.gfile.GFile(path, "wb") as file:
            file.write(frozen.SerializeToString())
        return True

    def recognizes(self, path: str) -> bool:
        """True if a file begins with a node, and this with its name."""
        return _FIRST_NODE.match(first_bytes(path, _LONGEST_START)) is not None

    def load(self, path: str) -> GraphDetector:
        """The detector in a frozen graph, of this trainer or of the reference."""
        graph_def = parse_frozen_graph(path, "Get the file again, or export it again")
        refuse_without_weights(graph_def, path)
        return GraphDetector(path, graph_def)


class GraphDetector(LoadedModel):
    """A `GraphDef` with constants for weights.

    Its input is its one placeholder, its outputs are the operations with the names of a served
    model's outputs.
    """

    def __init__(self, path: str, graph_def: Any) -> None:
        super().__init__(path)
        with tf.Graph().as_default() as graph:
            try:
                tf.import_graph_def(graph_def, name="")
            except (ValueError, tf.errors.OpError) as error:
                reason = str(error).splitlines()[0]
                raise RunError(
                    f"{path} cannot be loaded: {reason}. The file is damaged, or needs operations "
                    "that TensorFlow does not have; export the checkpoint again"
                ) from error
        self._session = tf1.Session(graph=graph)
        self._placeholder = self._find_input(graph)
        self._outputs = {
            node.name: graph.get_tensor_by_name(f"{node.name}:0")
            for node in graph.get_operations()
            if node.outputs and "/" not in node.name and node.name.startswith(OUTPUT_PREFIXES)
        }
        missing = sorted(set(REQUIRED_OUTPUTS) - set(self._outputs))
        if missing:
            raise RunError(
                f"{path} is not an exported detector: its graph has no tensor {missing[0]}; give "
                "the frozen_inference_graph.pb of an export"
            )
        self._feed = image_feed(
            self._placeholder.name, self._placeholder.dtype, self._placeholder.shape.rank
        )

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        return dict(self._session.run(self._outputs, {self._placeholder: self._feed(images)}))

    def _find_input(self, graph: tf.Graph) -> tf.Tensor:
        placeholders = [
            node.outputs[0] for node in graph.get_operations() if node.type == "Placeholder"
        ]
        names = [tensor.op.name for tensor in placeholders]
        # Other placeholders are context features or training flags, which an image does not set.
        if len(placeholders) != 1 or placeholders[0].dtype not in (tf.uint8, tf.float32, tf.string):
            raise RunError(
                f"{self.path} is not a detector that takes images only: its inputs are {names}; "
                "call its graph directly"
            )
        self.take_input(placeholders[0].shape, "call its graph directly")
        return placeholders[0]
