"""SavedModels of TensorFlow.

The weights are constants, and convolutions contain their batch norm, which changes scores by less
than 1e-5. Weights of more than 2 GB do not fit in a graph file: a warning is logged, and the
SavedModel has variables. `assets.extra/tf_serving_warmup_requests` has requests for TensorFlow
Serving.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

import numpy as np
from google.protobuf.message import DecodeError

from estimator_det import files
from estimator_det.compat import failures, tf, tf1
from estimator_det.compat.private import saved_model_message
from estimator_det.console.printing import counted, plain
from estimator_det.errors import RunError, UsageError
from estimator_det.protos import pipeline_pb2
from exporters.formats.base import EXACT, FORMATS, ExportFormat, Tolerance, is_quantized
from exporters.formats.frozen_graph import VARIABLES, publish
from exporters.loaded_model import (
    SAVED_MODEL_FOLDER,
    LoadedModel,
    asset_label_map,
    image_feed,
    read_class_names,
)
from exporters.network import BFLOAT16, FLOAT32, ExportOptions, RestoredNetwork
from exporters.reading import functions
from exporters.reading.graphs import CONVOLUTIONS
from exporters.reading.published import (
    Published,
    as_float32,
    checkpoint_reader,
    damaged,
    float_variables,
    other_format,
    read_checkpoint,
)
from inputs import schema
from inputs.serving import additional_channels
from model_fn.checkpoints.find import find_checkpoint
from model_fn.checkpoints.object_based import MODEL_OF_SAVED_MODEL
from model_fn.evaluation import score_thresholds
from model_fn.serving import saved_model as served
from model_fn.serving import warmup
from model_fn.serving.folding import compute_in_bfloat16
from model_fn.serving.graph import PREDICT, SERVING_DEFAULT

_GRAPH_FILE = "saved_model.pb"
_OF_TENSORFLOW = "__saved_model"  # signatures that nobody calls
_WEIGHTS = ("/weights", "/depthwise_weights")  # names that these models use
_KERAS_WEIGHTS = ("/kernel", "/depthwise_kernel", "/pointwise_kernel")
_NARROW = Tolerance(0.1, 0.1, uses_quantile=True)  # fractions of bfloat16 have seven bits


@FORMATS.register("saved_model")
class SavedModel(ExportFormat):
    """The format that TensorFlow Serving loads."""

    name = "saved_model"
    file = SAVED_MODEL_FOLDER

    def write(self, network: RestoredNetwork, path: str) -> bool:
        """Writes the SavedModel with its warm-up requests and thresholds."""
        definitions = network.definitions
        default = dict.fromkeys((SERVING_DEFAULT, PREDICT), next(iter(definitions.values())))
        definitions = {**default, **definitions} if len(definitions) > 1 else default
        if not network.has_variables:
            outputs = served.output_operations(definitions.values())
            if network.options.precision == BFLOAT16:
                folded = network.folded_graph_of(outputs)
                graph_def = compute_in_bfloat16(folded, network.prediction_names)
            else:
                graph_def = network.graph_of(outputs)
            served.write_constants(path, graph_def, definitions, network.label_map)
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
            path, definitions, network.options.max_batch, additional_channels(network.config)
        )
        if network.thresholds is not None:
            tf.io.gfile.copy(network.thresholds, os.path.join(path, score_thresholds.IN_EXPORTS))
        return True

    def check(self, config: pipeline_pb2.TrainEvalPipelineConfig, options: ExportOptions) -> None:
        if options.precision == FLOAT32:
            return
        if config.model.WhichOneof("model") != "ssd" or is_quantized(config):
            raise UsageError(
                f"precision is {options.precision}, which is for SSDs without quantization; give "
                f"{FLOAT32}"
            )
        if options.trainable:
            raise UsageError(
                f"precision is {options.precision}, which only weights that are constants can "
                f"have; leave --trainable out, or give {FLOAT32}"
            )

    def tolerance(
        self, config: pipeline_pb2.TrainEvalPipelineConfig, options: ExportOptions
    ) -> Tolerance:
        return EXACT if options.precision == FLOAT32 else _NARROW

    def recognizes(self, path: str) -> bool:
        try:
            find_saved_model(_folder(path))
        except FileNotFoundError:
            return False
        return True

    def load(self, path: str) -> SavedModelDetector:
        return SavedModelDetector(_folder(path))

    def read(self, path: str) -> Published:
        """The constants, variables and layers, and the label map; nothing of the graph is run."""
        folder = _folder(path)
        file = os.path.join(folder, _GRAPH_FILE)
        meta_graph = _parse(file)
        graph_def = meta_graph.graph_def
        has_network = any(node.op in CONVOLUTIONS for node in graph_def.node)
        is_flat = has_network or not graph_def.library.function
        published = (_read_graph if is_flat else _read_functions)(meta_graph, folder, file)
        return published._replace(label_map=read_class_names(asset_label_map(folder)) or None)


class SavedModelDetector(LoadedModel):
    """A loaded SavedModel.

    Args:
        model_dir: Folder of an export, its `saved_model` folder, or a folder of timestamped
            exports as an Estimator writes them (the newest is loaded).
        signature: Which of the model's signatures to run.
    """

    def __init__(self, model_dir: str, signature: str = SERVING_DEFAULT) -> None:
        folder = find_saved_model(model_dir)
        thresholds = os.path.join(folder, score_thresholds.IN_EXPORTS)
        super().__init__(folder, read_class_names(asset_label_map(folder)), thresholds)
        # A session: `tf.saved_model.load` copies the graph of each signature, which takes longer
        # than all else.
        self._session = tf1.Session(graph=tf.Graph())
        try:
            tags = [tf1.saved_model.tag_constants.SERVING]
            meta_graph = tf1.saved_model.load(self._session, tags, folder)
        except (tf.errors.OpError, OSError) as error:
            raise damaged(
                f"{folder} cannot be loaded: {failures.reason(error)}. Its files are damaged or "
                "incomplete"
            ) from error
        known = meta_graph.signature_def
        if signature not in known:
            names = sorted(name for name in known if not name.startswith(_OF_TENSORFLOW))
            raise RunError(f"{folder} has no signature {signature!r}; it has {names}")
        tensor = self._session.graph.get_tensor_by_name
        inputs, outputs = known[signature].inputs, known[signature].outputs
        self._refuse_other_inputs(inputs, outputs)
        (self._placeholder,) = (tensor(each.name) for each in inputs.values())
        self._outputs = {key: tensor(each.name) for key, each in outputs.items()}
        self.take_input(self._placeholder.shape, "call the SavedModel's signature directly")

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        feed = {self._placeholder: image_feed(self._placeholder, images)}
        return dict(self._session.run(self._outputs, feed))

    def _refuse_other_inputs(self, inputs: Iterable[str], outputs: Iterable[str]) -> None:
        names = set(inputs)
        if schema.CONTEXT_FEATURES in names:
            raise RunError(
                f"{self.path} takes context features with every image, and detect has "
                "images only; call the SavedModel's signature directly"
            )
        self.refuse_unless(len(names) == 1, names, outputs)


def _folder(path: str) -> str:
    return os.path.dirname(path) or "." if os.path.basename(path) == _GRAPH_FILE else path


def find_saved_model(model_dir: str) -> str:
    """The folder with `saved_model.pb`; see `model_dir` of `SavedModelDetector`."""
    candidates = [model_dir, os.path.join(model_dir, SAVED_MODEL_FOLDER)]
    if tf.io.gfile.isdir(model_dir):
        dated = [name.rstrip("/") for name in tf.io.gfile.listdir(model_dir)]
        newest = sorted((name for name in dated if name.isdigit()), key=int, reverse=True)
        candidates += [os.path.join(model_dir, name) for name in newest[:1]]
    for folder in candidates:
        if tf.io.gfile.exists(os.path.join(folder, _GRAPH_FILE)):
            return folder
    raise FileNotFoundError(
        f"no SavedModel in {model_dir}: there is no {_GRAPH_FILE} in {', '.join(candidates)}"
    )


def _read_graph(meta_graph: Any, folder: str, file: str) -> Published:
    """A model of TensorFlow 1, whose variables have their names in the checkpoint, too."""
    graph_def = meta_graph.graph_def
    has_variables = any(node.op in VARIABLES for node in graph_def.node)
    return publish(graph_def, file, float_variables(_prefix(folder)) if has_variables else None)


def _read_functions(meta_graph: Any, folder: str, file: str) -> Published:
    """A model of TensorFlow 2: the functions of a signature, and the variables that they read."""
    outputs = _outputs(meta_graph.signature_def, folder)
    graph = functions.InlinedGraph(meta_graph.graph_def, file)
    graph_def = graph.flat(outputs)
    names = [node.name for node in graph_def.node if node.op in VARIABLES]
    if keras := _read_keras(names, folder):
        return keras
    variables = _variables(graph.variable_keys(), names, folder) if names else None
    published = publish(graph_def, file, variables)
    if not published.structure.convolutions:
        raise RunError(
            f"{folder} has no layers with weights in the functions of its signature, or they are "
            "in loops or conditions, which is not supported. Give its frozen graph, or the "
            "checkpoint it was exported from"
        )
    return published._replace(from_functions=True)


def _read_keras(variables: Sequence[str], folder: str) -> Optional[Published]:
    """The variables of a model of the TF2 line; None if Keras has not built the model."""
    kernels = [name for name in variables if name.endswith(_KERAS_WEIGHTS)]
    if not kernels or any(name.endswith(_WEIGHTS) for name in variables):
        return None
    published = read_checkpoint(_prefix(folder))
    if published.objects is None or MODEL_OF_SAVED_MODEL not in published.objects.roots:
        raise RunError(
            f"{folder} is a model that Keras built, and not one of the Object Detection API: "
            f"{counted(len(kernels), 'variable')} named as Keras names weights, such as "
            f"{plain(kernels[0])}, and no object {MODEL_OF_SAVED_MODEL!r}. It cannot be imported; "
            "choose a model of the Object Detection API"
        )
    return published


def _outputs(signatures: Any, folder: str) -> List[str]:
    """Names of the output tensors of the default signature, or of the only one."""
    usable = sorted(name for name in signatures if not name.startswith(_OF_TENSORFLOW))
    chosen = [name for name in usable if name == SERVING_DEFAULT] or usable
    if len(chosen) != 1:
        description = f"the signatures {plain(chosen)}, none of them" if chosen else "no signature"
        raise RunError(
            f"{folder} has {description} {SERVING_DEFAULT}, so which function to import is not "
            "known. "
            f"Save it with signatures={{{SERVING_DEFAULT!r}: function}}"
        )
    return [each.name for each in signatures[chosen[0]].outputs.values() if each.name]


def _variables(keys: Mapping[str, str], names: Sequence[str], folder: str) -> Dict[str, np.ndarray]:
    """Values of variables of numbers, by their names in the graph."""
    reader = checkpoint_reader(_prefix(folder))
    kinds = reader.get_variable_to_dtype_map()
    values = {}
    for name in names:
        key = keys.get(name)
        if key not in kinds:
            raise damaged(
                f"{folder}: its checkpoint has no value for the variable {plain(name)}"
                f"{'' if key is None else f', which is stored as {plain(key)}'}"
            )
        if kinds[key].is_floating:
            values[name] = as_float32(reader.get_tensor(key))
    return values


def _prefix(folder: str) -> str:
    """The checkpoint of a SavedModel."""
    return find_checkpoint(os.path.join(folder, "variables", "variables"))


def _parse(file: str) -> Any:
    """The `MetaGraphDef` for serving, or the first one."""
    content = files.read_bytes(file)
    message = saved_model_message()
    try:
        message.ParseFromString(content)
    except DecodeError as error:
        raise other_format(
            f"{file} is not a SavedModel, or is cut off after {len(content)} bytes: {error}"
        ) from error
    if not message.meta_graphs:
        raise other_format(f"{file} is not a SavedModel: it contains no graph")
    serving = [each for each in message.meta_graphs if "serve" in each.meta_info_def.tags]
    return (serving or message.meta_graphs)[0]
