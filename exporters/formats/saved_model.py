"""SavedModels of TensorFlow.

The weights are constants, and convolutions contain their batch norm, which changes scores by less
than 1e-5. Weights of more than 2 GB do not fit in a graph file: a warning is logged, and the
SavedModel has variables. `assets.extra/tf_serving_warmup_requests` has requests for TensorFlow
Serving.
"""

from __future__ import annotations

import os
from typing import Any, Dict

from estimator_det.compat import tf, tf1
from exporters.formats.base import FORMATS, ExportFormat, Plan
from exporters.network import RestoredNetwork
from exporters.saved_model_detector import SAVED_MODEL_FOLDER, SavedModelDetector, find_saved_model
from model_fn.evaluation import threshold_files
from model_fn.serving import saved_model as served
from model_fn.serving import warmup
from model_fn.serving.graph import PREDICT, SERVING_DEFAULT

_GRAPH_FILE = "saved_model.pb"


@FORMATS.register("saved_model")
class SavedModel(ExportFormat):
    """The format that TensorFlow Serving loads."""

    name = "saved_model"
    file = SAVED_MODEL_FOLDER

    def write(self, network: RestoredNetwork, plan: Plan, path: str) -> bool:
        """Writes the SavedModel with its warm-up requests and thresholds."""
        del plan
        definitions = _by_key(network.definitions)
        if not network.has_variables:
            constants = network.graph_of(served.output_operations(definitions.values()))
            served.write_constants(path, constants, definitions, network.label_map)
        elif network.variants:
            # The checkpoint's own graph, which has no tensors of other formats.
            with tf.Graph().as_default(), tf1.Session() as session:
                saver = tf1.train.import_meta_graph(f"{network.checkpoint}.meta")
                saver.restore(session, network.checkpoint)
                served.write_session(path, session, definitions, network.label_map)
        else:
            with network.session.graph.as_default(), network.session.as_default():
                served.write_session(path, network.session, definitions, network.label_map)
        warmup.write_requests(
            path, definitions, network.serving_options.max_batch, network.num_additional_channels
        )
        if network.thresholds is not None:
            threshold_files.add_to_export(network.thresholds, path)
        return True

    def recognizes(self, path: str) -> bool:
        try:
            find_saved_model(_folder(path))
        except FileNotFoundError:
            return False
        return True

    def load(self, path: str, *, keeps_raw: bool = False) -> SavedModelDetector:
        del keeps_raw
        return SavedModelDetector(_folder(path))


def _folder(path: str) -> str:
    return os.path.dirname(path) or "." if os.path.basename(path) == _GRAPH_FILE else path


def _by_key(definitions: Dict[str, Any]) -> Dict[str, Any]:
    """SignatureDefs by key of the SavedModel, from those by input type."""
    signatures = dict.fromkeys((SERVING_DEFAULT, PREDICT), next(iter(definitions.values())))
    return {**signatures, **definitions} if len(definitions) > 1 else signatures
