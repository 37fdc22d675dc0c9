"""Exports a trained checkpoint as SavedModel, frozen graph and checkpoint without slots.

The first input type is the signature `serving_default`, which the SavedModel also contains as
`tensorflow/serving/predict`. The names of its tensors are their keys: `image_tensor:0`,
`detection_boxes:0`, … With several input types, each also has a signature of its own name. All
signatures share the variables. The outputs of the second and later ones have names such as
`<input type>_outputs/detection_boxes`. The frozen graph contains only the first input type.

A model with `num_additional_channels` n takes images of 3 + n channels. Side inputs are further
inputs of every signature, under their names.

The weights of the SavedModel are constants, and its convolutions contain their batch norm, which
changes scores by less than 1e-5. The frozen graph has the weights of the checkpoint. Weights of
more than 2 GB fit in neither: a warning is logged, the SavedModel has variables, and there is no
frozen graph. With `eval_config.use_moving_averages` the exported weights are the moving averages.

`assets.extra/tf_serving_warmup_requests` in the SavedModel has requests for TensorFlow Serving.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
from dataclasses import dataclass
from typing import Any, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import require_v2_behavior, tf, tf1
from estimator_det.config import pipeline
from estimator_det.config.ranges import refuse_absurd
from estimator_det.config.text import ConfigError
from estimator_det.detectors.base import Detector, make_detector
from exporters import signatures
from exporters.side_inputs import SideInput, check_side_inputs, make_placeholders
from inputs import serving
from model_fn.checkpoints.find import find_checkpoint
from model_fn.checkpoints.repair import restoring
from model_fn.checkpoints.variables import check_variables, inference_variables
from model_fn.evaluation import threshold_files
from model_fn.serving import saved_model as served
from model_fn.serving import warmup
from model_fn.serving.graph import PREDICT, SERVING_DEFAULT, serve

_LOG = logging.getLogger(__name__)

SAVED_MODEL_FOLDER = "saved_model"
FROZEN_GRAPH_FILE = "frozen_inference_graph.pb"
CHECKPOINT_NAME = "model.ckpt"
INFERENCE_GRAPH_FILE = "inference_graph.pbtxt"
MAX_BATCH = 1024  # the largest that `ServingOptions.max_batch` may be


class ExportedModel(NamedTuple):
    """Paths and input types of an export."""

    saved_model: Optional[str]  # folder; None if it was not written
    frozen_graph: Optional[str]  # None if it was not written, or the weights do not fit in its file
    checkpoint: str  # prefix
    pipeline_config: str
    label_map: Optional[str]  # its copy is an asset of the SavedModel
    input_types: Tuple[str, ...]  # the first is `serving_default`
    thresholds: Optional[str]  # the file that was copied into the SavedModel's folder
    has_variables: bool  # True if the SavedModel's weights are variables, not constants


@dataclass(frozen=True)
class GraphExtras:
    """Optional contents of an export beside the detections."""

    inference_graph: bool = False  # also writes the graph as text, without weights
    output_tensors: Sequence[str] = ()  # tensors of the first input type's graph, by name
    thresholds: Optional[str] = None  # path; default: of the checkpoint's evaluation, if any


@dataclass(frozen=True)
class ServingOptions:
    """Weights and batches of a served SavedModel."""

    trainable: bool = False  # its weights are variables: slower, but they can be changed
    max_batch: Optional[int] = None  # larger batches are refused; warm-up requests up to this one

    def __post_init__(self) -> None:
        if self.max_batch is not None and not 1 <= self.max_batch <= MAX_BATCH:
            raise ConfigError(
                None, f"max_batch is {self.max_batch}; it must be between 1 and {MAX_BATCH}"
            )


@dataclass(frozen=True)
class NetworkOptions:
    """Inputs and outputs of an exported network."""

    input_types: Sequence[str] = ("image_tensor",)  # the first one is `serving_default`
    # Batch, height, width and channels for the types that take image tensors; None for any size.
    input_shape: Optional[Sequence[Optional[int]]] = None
    # Label map that becomes an asset; default: the one that the configuration names, if it
    # exists.
    label_map_path: Optional[str] = None
    # More files and outputs. The additional outputs are in `serving_default` and in the frozen
    # graph; their keys are their names.
    extras: GraphExtras = GraphExtras()
    # Constants or variables, and the largest batch.
    serving_options: ServingOptions = ServingOptions()
    # For models that attend to context features; None for others.
    side_inputs: Optional[Sequence[SideInput]] = None


@dataclass(frozen=True)
class RestoredNetwork:
    """A network for serving, with its weights in an open session."""

    session: Any
    definitions: Dict[str, Any]  # SignatureDef by input type; the first is `serving_default`
    checkpoint: str  # prefix of the exported checkpoint, whose variables have their own names
    label_map: Optional[str]
    thresholds: Optional[str]
    num_additional_channels: int
    serving_options: ServingOptions

    @functools.cached_property
    def constants(self) -> Optional[Any]:
        """The graph with constants for weights; None and a warning if a file cannot hold it."""
        with self.session.graph.as_default():
            if served.fits_in_constants(tf1.global_variables()):
                return served.constant_graph(self.session, self.definitions.values())
        _LOG.warning(
            "The model has more weights than a graph file can contain, which is %.1f GB: the "
            "SavedModel has variables, which makes it slower, and there is no frozen graph",
            served.MAX_FILE_BYTES / 1e9,
        )
        return None

    @property
    def has_variables(self) -> bool:
        """True if the weights of a SavedModel are variables."""
        return self.serving_options.trainable or self.constants is None


def export_saved_model(
    pipeline_config: Any,
    checkpoint_prefix: str,
    output_dir: str,
    options: Optional[NetworkOptions] = None,
    *,
    overwrite: bool = False,
    **fields: Any,
) -> ExportedModel:
    """Writes `saved_model/`, the frozen graph, a checkpoint and `pipeline.config` to a folder.

    Args:
        checkpoint_prefix: The trained checkpoint, or a model_dir for its latest.
        output_dir: A new or empty folder, unless `overwrite` is set.
        overwrite: Replaces an earlier export in `output_dir`.
        **fields: Fields of `NetworkOptions` that replace those of `options`.

    Raises:
        ConfigError: if an input type, the input shape, a side input, the name of an output,
            `max_batch` or a number of the model is not valid, or `extras.thresholds` is not of
            this model's scores.
        FileNotFoundError: if the checkpoint or `label_map_path` does not exist.
        FileExistsError: if `output_dir` is not empty.
        DamagedCheckpointsError: if the checkpoint cannot be read.
        RunError: if the checkpoint does not fit the model.
    """
    options = dataclasses.replace(options or NetworkOptions(), **fields)
    check_folder(output_dir, overwrite)
    saved_model = os.path.join(output_dir, SAVED_MODEL_FOLDER)
    frozen_graph = os.path.join(output_dir, FROZEN_GRAPH_FILE)
    with restored_network(pipeline_config, checkpoint_prefix, output_dir, options) as network:
        _remove_models(output_dir)
        write_saved_model(network, saved_model)
        has_graph = write_frozen_graph(network, frozen_graph)
        return describe(network, output_dir, saved_model, frozen_graph if has_graph else None)


@contextlib.contextmanager
def restored_network(
    pipeline_config: Any, checkpoint_prefix: str, output_dir: str, options: NetworkOptions
) -> Iterator[RestoredNetwork]:
    """Context manager: builds and restores the network that SavedModel and frozen graph share.

    Writes checkpoint, `pipeline.config` and the graph as text, if wanted, to a folder, which is
    made if the model is accepted. Errors are those of `export_saved_model`.
    """
    require_v2_behavior()
    refuse_absurd(pipeline_config.model, "model.")
    channels = serving.additional_channels(pipeline_config)
    checkpoint = find_checkpoint(checkpoint_prefix)
    label_map = _existing(options.label_map_path) or served.find_label_map(pipeline_config)
    thresholds = options.extras.thresholds
    if thresholds is not None:
        threshold_files.check(thresholds, pipeline_config.model)
    detector = make_detector(pipeline_config.model, False, pipeline_config.graph_rewriter)
    with tf.Graph().as_default() as graph:
        definitions = _build_signatures(detector, pipeline_config.model, options, channels)
        graph_def = graph.as_graph_def()
        variables = inference_variables(pipeline_config.eval_config.use_moving_averages)
        check_variables(checkpoint, variables, pipeline_config.model)
        saver = tf1.train.Saver(save_relative_paths=True)  # the folder may be moved
        restorer = tf1.train.Saver(variables)
    # The session is not the default one: formats build graphs of their own, and run eagerly.
    with contextlib.closing(tf1.Session(graph=graph)) as session:
        with graph.as_default(), restoring(checkpoint):
            restorer.restore(session, checkpoint)
        if thresholds is None:  # only now: a warning is useless if the model is refused
            thresholds = threshold_files.find_usable(pipeline_config, checkpoint)
        tf.io.gfile.makedirs(output_dir)
        if options.extras.inference_graph:
            tf1.train.write_graph(graph_def, output_dir, INFERENCE_GRAPH_FILE)
        prefix = os.path.join(output_dir, CHECKPOINT_NAME)
        with graph.as_default():
            saver.save(session, prefix)
        pipeline.save_pipeline(pipeline_config, output_dir)
        yield RestoredNetwork(
            session, definitions, prefix, label_map, thresholds, channels, options.serving_options
        )


def write_saved_model(network: RestoredNetwork, folder: str) -> None:
    """Writes the SavedModel with its warm-up requests and thresholds."""
    signatures_by_key = _by_key(network.definitions)
    if network.has_variables:
        with network.session.graph.as_default(), network.session.as_default():
            served.write_session(folder, network.session, signatures_by_key, network.label_map)
    else:
        served.write_constants(folder, network.constants, signatures_by_key, network.label_map)
    max_batch = network.serving_options.max_batch
    warmup.write_requests(folder, signatures_by_key, max_batch, network.num_additional_channels)
    if network.thresholds is not None:
        threshold_files.add_to_export(network.thresholds, folder)


def write_frozen_graph(network: RestoredNetwork, path: str) -> bool:
    """Writes the graph of the first input type, with batch norm and the checkpoint's weights.

    Returns:
        False if they do not fit in a file.
    """
    # A protobuf file ends at 2 GB.
    if network.constants is None:
        return False
    outputs = served.output_operations([next(iter(network.definitions.values()))])
    frozen = tf1.graph_util.extract_sub_graph(network.constants, outputs)
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(frozen.SerializeToString())
    return True


def describe(
    network: RestoredNetwork,
    output_dir: str,
    saved_model: Optional[str],
    frozen_graph: Optional[str],
) -> ExportedModel:
    """Paths of an export, as they are in its folder."""
    return ExportedModel(
        saved_model,
        frozen_graph,
        os.path.join(output_dir, CHECKPOINT_NAME),
        os.path.join(output_dir, pipeline.PIPELINE_FILE),
        network.label_map,
        tuple(network.definitions),
        network.thresholds,
        saved_model is not None and network.has_variables,
    )


def _existing(label_map_path: Optional[str]) -> Optional[str]:
    if label_map_path and not tf.io.gfile.exists(label_map_path):
        raise FileNotFoundError(f"the label map {label_map_path} does not exist")
    return label_map_path


def check_folder(output_dir: str, overwrite: bool) -> None:
    """Refuses a folder that is not empty unless `overwrite` is set."""
    is_used = tf.io.gfile.exists(output_dir) and tf.io.gfile.listdir(output_dir)
    if is_used and not overwrite:
        raise FileExistsError(
            f"{output_dir} is not empty; give a new folder, or set overwrite "
            "(--overwrite) to replace the export in it"
        )


def _remove_models(output_dir: str) -> None:
    """Removes SavedModel and graphs of an earlier export; other files stay."""
    saved_model = os.path.join(output_dir, SAVED_MODEL_FOLDER)
    if tf.io.gfile.exists(saved_model):
        tf.io.gfile.rmtree(saved_model)
    if tf.io.gfile.exists(path := os.path.join(output_dir, FROZEN_GRAPH_FILE)):
        tf.io.gfile.remove(path)


def _build_signatures(
    detector: Detector, model: Any, options: NetworkOptions, num_additional_channels: int
) -> Dict[str, Any]:
    """SignatureDefs by input type; their networks share the variables.

    The first one has the additional `output_tensors`.
    """
    input_types = signatures.resolve_input_types(options.input_types, num_additional_channels)
    max_batch = options.serving_options.max_batch
    definitions = {}
    further, context = make_placeholders(check_side_inputs(model, options.side_inputs))
    for index, input_type in enumerate(input_types):
        # With several input types the shape applies to those that take image tensors.
        strings_beside_images = input_type in signatures.STRING_INPUT_TYPES and len(input_types) > 1
        # Serialized examples have no height and width of their own.
        shape = None if strings_beside_images else options.input_shape
        receiver = serving.make_receiver(
            input_type, detector.preprocess, shape, num_additional_channels, max_batch
        )
        outputs = serve(
            detector,
            receiver.inputs,
            receiver.true_shapes,
            context=context,
            scope=f"{input_type}_outputs" if index else "",
            reuse=index > 0,
        )
        placeholders = {**receiver.placeholders, **further}
        definitions[input_type] = signatures.predict_signature(placeholders, outputs)
        if not index:  # while the graph has no other input
            _add_outputs(definitions[input_type], options.extras.output_tensors)
    return definitions


def _add_outputs(definition: Any, names: Sequence[str]) -> None:
    for name, tensor in signatures.additional_outputs(names).items():
        definition.outputs[name].CopyFrom(tf1.saved_model.build_tensor_info(tensor))


def _by_key(definitions: Dict[str, Any]) -> Dict[str, Any]:
    """SignatureDefs by key of the SavedModel, from those by input type."""
    signatures = dict.fromkeys((SERVING_DEFAULT, PREDICT), next(iter(definitions.values())))
    return {**signatures, **definitions} if len(definitions) > 1 else signatures
