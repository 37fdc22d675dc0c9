"""Exports a trained checkpoint as SavedModel, frozen graph and checkpoint without slots."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline
from estimator_det.config.ranges import refuse_absurd
from estimator_det.detectors.base import Detector, make_detector
from exporters import signatures
from exporters.side_inputs import SideInput, check_side_inputs, make_placeholders
from inputs import serving
from model_fn.checkpoints.find import find_whole_checkpoint
from model_fn.checkpoints.label_map_asset import add_label_map, find_label_map
from model_fn.checkpoints.variables import check_variables, inference_variables
from model_fn.evaluation import threshold_files
from model_fn.serving_graph import PREDICT, SERVING_DEFAULT, serve

SAVED_MODEL_FOLDER = "saved_model"
FROZEN_GRAPH_FILE = "frozen_inference_graph.pb"
CHECKPOINT_NAME = "model.ckpt"
INFERENCE_GRAPH_FILE = "inference_graph.pbtxt"


class ExportedModel(NamedTuple):
    """Paths and input types of an export."""

    saved_model: str  # folder
    frozen_graph: str
    checkpoint: str  # prefix
    pipeline_config: str
    label_map: Optional[str]  # its copy is an asset of the SavedModel
    input_types: Tuple[str, ...]  # the first is `serving_default`
    thresholds: Optional[str]  # the file that was copied into the SavedModel's folder


@dataclass(frozen=True)
class GraphExtras:
    """What an export may contain beside the detections."""

    inference_graph: bool = False  # also writes the graph as text, without weights
    output_tensors: Sequence[str] = ()  # tensors of the first input type's graph, by name
    thresholds: Optional[str] = None  # path; default: of the checkpoint's evaluation, if any


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
    side_inputs: Optional[Sequence[SideInput]] = None,
) -> ExportedModel:
    """Writes `saved_model/`, the frozen graph, a checkpoint and `pipeline.config` to a folder.

    The first input type is the signature `serving_default`, which the SavedModel also contains as
    `tensorflow/serving/predict`. The names of its tensors are their keys: `image_tensor:0`,
    `detection_boxes:0`, … With several input types, each also has a signature of its own name. All
    signatures share the variables. The outputs of the second and later ones have names such as
    `<input type>_outputs/detection_boxes`. The frozen graph contains only the first input type.

    A model with `num_additional_channels` n takes images of 3 + n channels.

    Side inputs are further inputs of every signature, under their names.

    With `eval_config.use_moving_averages` the exported weights are the moving averages.

    Args:
        pipeline_config: A `TrainEvalPipelineConfig`.
        checkpoint_prefix: The trained checkpoint, or a model_dir for its latest.
        output_dir: A new or empty folder, unless `overwrite` is set.
        input_types: Of `signatures.INPUT_TYPES`, or `("all",)`.
        input_shape: Batch, height, width and channels for the types that take image tensors; None
            for any size.
        label_map_path: Label map that becomes an asset; default: the one that the configuration
            names, if it exists.
        overwrite: Replaces an earlier export in `output_dir`.
        extras: More files and outputs. The additional outputs are in `serving_default` and in the
            frozen graph; their keys are their names.
        side_inputs: Of models that attend to context features; None for others.

    Raises:
        ConfigError: if an input type, the input shape, a side input or the name of an output is
            not valid.
        FileNotFoundError: if the checkpoint or `label_map_path` does not exist.
        ConfigError: if `extras.thresholds` is not of this model's scores.
        FileExistsError: if `output_dir` is not empty.
        DamagedCheckpointsError: if the checkpoint cannot be read.
        ConfigError: if a number of the model is out of its range.
        RunError: if the checkpoint does not fit the model.
    """
    refuse_absurd(pipeline_config.model, "model.")
    channels = serving.additional_channels(pipeline_config)
    chosen = signatures.resolve_input_types(input_types, channels)
    sides = check_side_inputs(pipeline_config.model, side_inputs)
    checkpoint = find_whole_checkpoint(checkpoint_prefix)
    label_map = _existing(label_map_path) or find_label_map(pipeline_config)
    thresholds = _thresholds(pipeline_config, checkpoint, extras.thresholds)
    _check_folder(output_dir, overwrite)
    detector = make_detector(pipeline_config.model, is_training=False)
    with tf.Graph().as_default():
        definitions = _build_signatures(detector, chosen, input_shape, channels, sides)
        first = definitions[chosen[0]].outputs
        for name, tensor in signatures.additional_outputs(extras.output_tensors).items():
            first[name].CopyFrom(tf1.saved_model.build_tensor_info(tensor))
        graph_def = tf1.get_default_graph().as_graph_def()
        variables = inference_variables(pipeline_config.eval_config.use_moving_averages)
        check_variables(checkpoint, variables)
        restorer = tf1.train.Saver(variables)
        saver = tf1.train.Saver(save_relative_paths=True)  # the folder may be moved
        if label_map is not None:
            add_label_map(label_map)
        with tf1.Session() as session:
            restorer.restore(session, checkpoint)
            _make_folder(output_dir)
            if extras.inference_graph:
                tf1.train.write_graph(graph_def, output_dir, INFERENCE_GRAPH_FILE)
            prefix = os.path.join(output_dir, CHECKPOINT_NAME)
            saver.save(session, prefix)
            frozen_graph = _write_frozen_graph(session, definitions[chosen[0]], output_dir)
            saved_model_dir = _write_saved_model(session, definitions, output_dir)
    if thresholds is not None:
        threshold_files.add_to_export(thresholds, saved_model_dir)
    config_file = pipeline.save_pipeline(pipeline_config, output_dir)
    return ExportedModel(
        saved_model_dir, frozen_graph, prefix, config_file, label_map, chosen, thresholds
    )


def _thresholds(pipeline_config: Any, checkpoint: str, given: Optional[str]) -> Optional[str]:
    if given is None:
        return threshold_files.find_usable(pipeline_config, checkpoint)
    threshold_files.check(given, pipeline_config.model)
    return given


def _existing(label_map_path: Optional[str]) -> Optional[str]:
    if label_map_path and not tf.io.gfile.exists(label_map_path):
        raise FileNotFoundError(f"the label map {label_map_path} does not exist")
    return label_map_path


def _check_folder(output_dir: str, overwrite: bool) -> None:
    is_used = tf.io.gfile.exists(output_dir) and tf.io.gfile.listdir(output_dir)
    if is_used and not overwrite:
        raise FileExistsError(
            f"{output_dir} is not empty; give a new folder, or set overwrite "
            "(--overwrite) to replace the export in it"
        )


def _make_folder(output_dir: str) -> None:
    """Removes only the SavedModel of an earlier export; other files stay."""
    saved_model = os.path.join(output_dir, SAVED_MODEL_FOLDER)
    if tf.io.gfile.exists(saved_model):
        tf.io.gfile.rmtree(saved_model)
    tf.io.gfile.makedirs(output_dir)


def _build_signatures(
    detector: Detector,
    input_types: Tuple[str, ...],
    input_shape: Optional[Sequence[Optional[int]]],
    num_additional_channels: int,
    side_inputs: Sequence[SideInput],
) -> Dict[str, Any]:
    """SignatureDefs by input type; their networks share the variables."""
    definitions = {}
    further, context = make_placeholders(side_inputs)
    for index, input_type in enumerate(input_types):
        # With several input types the shape applies to those that take image tensors.
        strings_beside_images = input_type in signatures.STRING_INPUT_TYPES and len(input_types) > 1
        shape = None if strings_beside_images else input_shape
        receiver = serving.make_receiver(
            input_type, detector.preprocess, shape, num_additional_channels
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
    return definitions


def _write_frozen_graph(session: Any, definition: Any, output_dir: str) -> str:
    names = [info.name.split(":")[0] for info in definition.outputs.values()]
    frozen = tf1.graph_util.convert_variables_to_constants(
        session, session.graph.as_graph_def(), names
    )
    path = os.path.join(output_dir, FROZEN_GRAPH_FILE)
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(frozen.SerializeToString())
    return path


def _write_saved_model(session: Any, definitions: Dict[str, Any], output_dir: str) -> str:
    by_name = dict.fromkeys((SERVING_DEFAULT, PREDICT), next(iter(definitions.values())))
    if len(definitions) > 1:
        by_name.update(definitions)
    path = os.path.join(output_dir, SAVED_MODEL_FOLDER)
    builder = tf1.saved_model.Builder(path)
    builder.add_meta_graph_and_variables(
        session,
        [tf1.saved_model.tag_constants.SERVING],
        signature_def_map=by_name,
        assets_collection=tf1.get_collection(tf1.GraphKeys.ASSET_FILEPATHS),
    )
    builder.save()
    return path
