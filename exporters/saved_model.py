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

import logging
import os
from dataclasses import dataclass
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import require_v2_behavior, tf, tf1
from estimator_det.config import pipeline
from estimator_det.config.ranges import refuse_absurd
from estimator_det.config.text import ConfigError
from estimator_det.detectors.base import Detector, make_detector
from exporters import signatures
from exporters.side_inputs import SideInput, check_side_inputs, make_placeholders
from inputs import serving
from model_fn.checkpoints.find import find_checkpoint
from model_fn.checkpoints.label_map_asset import find_label_map
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

    saved_model: str  # folder
    frozen_graph: Optional[str]  # None if the weights do not fit in its file
    checkpoint: str  # prefix
    pipeline_config: str
    label_map: Optional[str]  # its copy is an asset of the SavedModel
    input_types: Tuple[str, ...]  # the first is `serving_default`
    thresholds: Optional[str]  # the file that was copied into the SavedModel's folder
    has_variables: bool  # whether the SavedModel's weights are variables, not constants


@dataclass(frozen=True)
class GraphExtras:
    """Optional contents of an export beside the detections."""

    inference_graph: bool = False  # also writes the graph as text, without weights
    output_tensors: Sequence[str] = ()  # tensors of the first input type's graph, by name
    thresholds: Optional[str] = None  # path; default: of the checkpoint's evaluation, if any


@dataclass(frozen=True)
class ServingOptions:
    """How a SavedModel is served."""

    trainable: bool = False  # its weights are variables: slower, but they can be changed
    max_batch: Optional[int] = None  # larger batches are refused; warm-up requests up to this one


def export_saved_model(
    pipeline_config: Any,
    checkpoint_prefix: str,
    output_dir: str,
    *,
    input_types: Sequence[str] = ("image_tensor",),
    input_shape: Optional[Sequence[Optional[int]]] = None,
    label_map_path: Optional[str] = None,
    overwrite: bool = False,
    extras: GraphExtras = GraphExtras(),
    serving_options: ServingOptions = ServingOptions(),
    side_inputs: Optional[Sequence[SideInput]] = None,
) -> ExportedModel:
    """Writes `saved_model/`, the frozen graph, a checkpoint and `pipeline.config` to a folder.

    Args:
        checkpoint_prefix: The trained checkpoint, or a model_dir for its latest.
        output_dir: A new or empty folder, unless `overwrite` is set.
        input_shape: Batch, height, width and channels for the types that take image tensors; None
            for any size.
        label_map_path: Label map that becomes an asset; default: the one that the configuration
            names, if it exists.
        overwrite: Replaces an earlier export in `output_dir`.
        extras: More files and outputs. The additional outputs are in `serving_default` and in the
            frozen graph; their keys are their names.
        serving_options: Constants or variables, and the largest batch.
        side_inputs: Of models that attend to context features; None for others.

    Raises:
        ConfigError: if an input type, the input shape, a side input, the name of an output or
            `max_batch` is not valid.
        FileNotFoundError: if the checkpoint or `label_map_path` does not exist.
        ConfigError: if `extras.thresholds` is not of this model's scores.
        FileExistsError: if `output_dir` is not empty.
        DamagedCheckpointsError: if the checkpoint cannot be read.
        ConfigError: if a number of the model is out of its range.
        RunError: if the checkpoint does not fit the model.
    """
    require_v2_behavior()
    refuse_absurd(pipeline_config.model, "model.")
    channels = serving.additional_channels(pipeline_config)
    chosen = signatures.resolve_input_types(input_types, channels)
    sides = check_side_inputs(pipeline_config.model, side_inputs)
    max_batch = _check_max_batch(serving_options.max_batch)
    checkpoint = find_checkpoint(checkpoint_prefix)
    label_map = _existing(label_map_path) or find_label_map(pipeline_config)
    if extras.thresholds is not None:
        threshold_files.check(extras.thresholds, pipeline_config.model)
    check_folder(output_dir, overwrite)
    detector = make_detector(pipeline_config.model, False, pipeline_config.graph_rewriter)
    with tf.Graph().as_default():
        definitions = _build_signatures(
            detector, chosen, input_shape, channels, max_batch, sides, extras.output_tensors
        )
        graph_def = tf1.get_default_graph().as_graph_def()
        variables = inference_variables(pipeline_config.eval_config.use_moving_averages)
        check_variables(checkpoint, variables, pipeline_config.model)
        restorer = tf1.train.Saver(variables)
        saver = tf1.train.Saver(save_relative_paths=True)  # the folder may be moved
        with tf1.Session() as session:
            restorer.restore(session, checkpoint)
            thresholds = extras.thresholds
            if thresholds is None:  # only now, for a warning is of no use if the model is refused
                thresholds = threshold_files.find_usable(pipeline_config, checkpoint)
            _make_folder(output_dir)
            if extras.inference_graph:
                tf1.train.write_graph(graph_def, output_dir, INFERENCE_GRAPH_FILE)
            prefix = os.path.join(output_dir, CHECKPOINT_NAME)
            saver.save(session, prefix)
            constants = _constants(session, definitions)
            signatures_by_key = _by_key(definitions)
            folder = os.path.join(output_dir, SAVED_MODEL_FOLDER)
            if constants is None or serving_options.trainable:
                served.write_session(folder, session, signatures_by_key, label_map)
            else:
                served.write_constants(folder, constants, signatures_by_key, label_map)
            warmup.write_requests(folder, signatures_by_key, max_batch, channels)
            frozen_graph = _write_frozen_graph(constants, definitions[chosen[0]], output_dir)
    if thresholds is not None:
        threshold_files.add_to_export(thresholds, folder)
    config_file = pipeline.save_pipeline(pipeline_config, output_dir)
    has_variables = constants is None or serving_options.trainable
    return ExportedModel(
        folder, frozen_graph, prefix, config_file, label_map, chosen, thresholds, has_variables
    )


def _check_max_batch(max_batch: Optional[int]) -> Optional[int]:
    if max_batch is not None and not 1 <= max_batch <= MAX_BATCH:
        raise ConfigError(None, f"max_batch is {max_batch}; it must be between 1 and {MAX_BATCH}")
    return max_batch


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


def _make_folder(output_dir: str) -> None:
    """Removes SavedModel and graphs of an earlier export; other files stay."""
    saved_model = os.path.join(output_dir, SAVED_MODEL_FOLDER)
    if tf.io.gfile.exists(saved_model):
        tf.io.gfile.rmtree(saved_model)
    for name in (FROZEN_GRAPH_FILE, INFERENCE_GRAPH_FILE):
        if tf.io.gfile.exists(path := os.path.join(output_dir, name)):
            tf.io.gfile.remove(path)
    tf.io.gfile.makedirs(output_dir)


def _build_signatures(
    detector: Detector,
    input_types: Tuple[str, ...],
    input_shape: Optional[Sequence[Optional[int]]],
    num_additional_channels: int,
    max_batch: Optional[int],
    side_inputs: Sequence[SideInput],
    output_tensors: Sequence[str],
) -> Dict[str, Any]:
    """SignatureDefs by input type; their networks share the variables.

    The first one has the additional `output_tensors`.
    """
    definitions = {}
    further, context = make_placeholders(side_inputs)
    for index, input_type in enumerate(input_types):
        # With several input types the shape applies to those that take image tensors.
        strings_beside_images = input_type in signatures.STRING_INPUT_TYPES and len(input_types) > 1
        shape = None if strings_beside_images else input_shape
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
            _add_outputs(definitions[input_type], output_tensors)
    return definitions


def _add_outputs(definition: Any, names: Sequence[str]) -> None:
    for name, tensor in signatures.additional_outputs(names).items():
        definition.outputs[name].CopyFrom(tf1.saved_model.build_tensor_info(tensor))


def _by_key(definitions: Dict[str, Any]) -> Dict[str, Any]:
    """SignatureDefs by key of the SavedModel, from those by input type."""
    signatures = dict.fromkeys((SERVING_DEFAULT, PREDICT), next(iter(definitions.values())))
    return {**signatures, **definitions} if len(definitions) > 1 else signatures


def _constants(session: Any, definitions: Dict[str, Any]) -> Optional[Any]:
    """The graph with constants for weights; None and a warning if a file cannot hold it."""
    variables = tf1.global_variables()
    if served.fits_in_constants(variables):
        return served.constant_graph(session, definitions.values())
    _LOG.warning(
        "The model has more weights than a graph file can contain, which is %.1f GB: the "
        "SavedModel has variables, which makes it slower, and there is no frozen graph",
        served.MAX_FILE_BYTES / 1e9,
    )
    return None


def _write_frozen_graph(
    constants: Optional[Any], definition: Any, output_dir: str
) -> Optional[str]:
    """The graph of one signature, with batch norm and the weights of the checkpoint."""
    if constants is None:
        return None
    outputs = served.output_operations([definition])
    frozen = tf1.graph_util.extract_sub_graph(constants, outputs)
    path = os.path.join(output_dir, FROZEN_GRAPH_FILE)
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(frozen.SerializeToString())
    return path
