"""The network of an export: built and restored once, whatever formats are written from it.

The first input type is the signature `serving_default`, which the SavedModel also contains as
`tensorflow/serving/predict`. The names of its tensors are their keys: `image_tensor:0`,
`detection_boxes:0`, … With several input types, each also has a signature of its own name. All
signatures share the variables. The outputs of the second and later ones have names such as
`<input type>_outputs/detection_boxes`. Formats other than SavedModel contain the first one only.

A model with `num_additional_channels` n takes images of 3 + n channels. Side inputs are further
inputs of every signature, under their names. With `eval_config.use_moving_averages` the exported
weights are the moving averages.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_det.compat import require_v2_behavior, tf, tf1
from estimator_det.config import pipeline
from estimator_det.console.printing import counted
from estimator_det.detectors.base import Context, TrainableDetector, build_detector
from estimator_det.errors import RunError, UsageError
from estimator_det.protos import pipeline_pb2
from exporters import signatures
from exporters.loaded_model import image_feed
from inputs import schema, serving
from inputs.label_map import check_same_ids, read_label_map
from model_fn.checkpoints.find import find_checkpoint
from model_fn.checkpoints.object_based import stored_variables
from model_fn.checkpoints.repair import restoring
from model_fn.checkpoints.variables import check_variables
from model_fn.evaluation import score_thresholds
from model_fn.serving import saved_model as served
from model_fn.serving.folding import fold_batch_norms
from model_fn.serving.graph import serve

_LOG = logging.getLogger(__name__)

CHECKPOINT_NAME = "model.ckpt"
INFERENCE_GRAPH_FILE = "inference_graph.pbtxt"
ALL, DETECTIONS = "all", "detections"
FLOAT32, BFLOAT16 = "float32", "bfloat16"
MAX_BATCH = 1024  # the largest that `ExportOptions.max_batch` may be


@dataclass(frozen=True)
class TfliteOptions:
    """Options of the TFLite format, by the names of the API's `export_tflite_ssd_graph`."""

    max_detections: Optional[int] = None  # None: max_total_detections of the configuration
    max_classes_per_detection: int = 1
    detections_per_class: Optional[int] = None  # None: its max_detections_per_class
    use_regular_nms: bool = False
    add_postprocessing_op: bool = True


@dataclass(frozen=True)
class ExportOptions:
    """Inputs, outputs, weights and formats of an export."""

    input_types: Sequence[str] = ("image_tensor",)  # the first one is `serving_default`
    # Batch, height, width and channels for the types that take image tensors; None for any size.
    input_shape: Optional[Sequence[Optional[int]]] = None
    # For models that attend to context features; None for others.
    side_inputs: Optional[Sequence[signatures.SideInput]] = None
    # Label map that becomes an asset; default: the configuration's label map, if the file exists.
    label_map_path: Optional[str] = None
    thresholds: Optional[str] = None  # path; default: of the checkpoint's evaluation, if any
    # ALL outputs, or DETECTIONS with their class names only, in SavedModel and frozen graph.
    outputs: str = ALL
    # Tensors of the first input type's graph by name, which are further outputs of it.
    output_tensors: Sequence[str] = ()
    inference_graph: bool = False  # also writes the graph as text, without weights
    trainable: bool = False  # a SavedModel's weights are variables: slower, but can be changed
    max_batch: Optional[int] = None  # larger batches are refused; warm-up requests up to this one
    precision: str = FLOAT32  # type in which the network of a SavedModel computes, or BFLOAT16
    # A quantization of TFLite; None for float, or for the ranges of training.
    quantize: Optional[str] = None
    # Image files for the check of each format and the ranges of int8; without, images of the
    # records of the configuration.
    sample_images: Sequence[str] = ()
    # The interpreter that converters run in; see `converters.converter_interpreter`.
    converter_python: Optional[str] = None
    tflite: TfliteOptions = TfliteOptions()

    def __post_init__(self) -> None:
        if self.max_batch is not None and not 1 <= self.max_batch <= MAX_BATCH:
            raise UsageError(f"max_batch is {self.max_batch}; it must be between 1 and {MAX_BATCH}")


class BuiltInput(NamedTuple):
    """The network behind one input type."""

    receiver: serving.Receiver
    predictions: Any  # by `TrainableDetector.predict`
    outputs: Dict[str, tf.Tensor]  # detections by name


# Adds tensors to the graph of a network for a format that needs other ones than the detections of
# its signatures; returns their names.
Variant = Callable[["RestoredNetwork"], List[str]]


@dataclass(frozen=True)
class RestoredNetwork:
    """A network for serving, with its weights in an open session."""

    config: pipeline_pb2.TrainEvalPipelineConfig
    options: ExportOptions
    session: Any
    detector: TrainableDetector
    built: Sequence[BuiltInput]  # the network behind each input type
    definitions: Dict[str, Any]  # SignatureDef by input type; the first is `serving_default`
    checkpoint: str  # prefix of the exported checkpoint, whose variables have their own names
    label_map: Optional[str]
    thresholds: Optional[str]
    variants: Dict[Variant, List[str]] = field(default_factory=dict)  # names of their tensors

    @property
    def first(self) -> BuiltInput:
        """The network behind the first input type."""
        return self.built[0]

    @property
    def prediction_names(self) -> List[str]:
        """Names of the operations with which the networks end, before postprocessing."""
        tensors = tf.nest.flatten([each.predictions for each in self.built])
        return [tensor.op.name for tensor in tensors if isinstance(tensor, tf.Tensor)]

    @functools.cached_property
    def constants(self) -> Optional[Any]:
        """The graph with constants for weights; None and a warning if a file cannot hold it."""
        outputs = served.output_operations(self.definitions.values())
        outputs += [name for names in self.variants.values() for name in names]
        with self.session.graph.as_default():
            constants = served.constant_graph(self.session, outputs)
        if constants is None:
            _LOG.warning(
                "The model has more weights than a graph file can contain, which is %.1f GB: the "
                "SavedModel has variables, which makes it slower, and there is no frozen graph",
                served.MAX_FILE_BYTES / 1e9,
            )
        return constants

    @property
    def has_variables(self) -> bool:
        """True if the weights of a SavedModel are variables."""
        return self.options.trainable or self.constants is None

    def graph_of(self, outputs: Sequence[str]) -> Any:
        """`GraphDef` of some outputs only, weights as constants.

        Raises:
            RunError: if the weights do not fit in a file.
        """
        if self.constants is None:
            raise RunError(
                "the model has too many weights for a graph file, from which other formats are "
                "written; export --format saved_model"
            )
        graph_def = tf1.graph_util.extract_sub_graph(self.constants, list(outputs))
        _remove_unused_functions(graph_def)
        return graph_def

    def folded_graph_of(self, outputs: Sequence[str]) -> Any:
        """`graph_of` with batch norm folded into convolutions."""
        return fold_batch_norms(self.graph_of(outputs), list(outputs))

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        """The detections of the checkpoint in images, uint8 [B, h, w, 3]; see `LoadedModel.run`."""
        (placeholder,) = self.first.receiver.placeholders.values()
        feed = {placeholder: image_feed(placeholder, images)}
        return dict(self.session.run(self.first.outputs, feed))


@contextlib.contextmanager
def restored_network(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    checkpoint_prefix: str,
    folder: str,
    options: ExportOptions,
    variants: Sequence[Variant] = (),
) -> Iterator[RestoredNetwork]:
    """Context manager: builds and restores the network from which all formats are written.

    Writes checkpoint, `pipeline.config` and the graph as text, if wanted, to a folder, which is
    made if the model is accepted. Raises the errors of `export_formats`.
    """
    require_v2_behavior()
    checkpoint = find_checkpoint(checkpoint_prefix)
    label_map = options.label_map_path or served.find_label_map(pipeline_config)
    if label_map and not tf.io.gfile.exists(label_map):
        raise FileNotFoundError(f"the label map {label_map} does not exist")
    if label_map:
        _check_label_map(label_map, pipeline_config)
    thresholds = options.thresholds
    if thresholds is not None:
        score_thresholds.check(thresholds, pipeline_config.model)
    detector = build_detector(pipeline_config.model, False, pipeline_config.graph_rewriter)
    with tf.Graph().as_default() as graph:
        built, definitions = _build_signatures(detector, pipeline_config, options, label_map)
        graph_def = graph.as_graph_def()
        model, averages = pipeline_config.model, pipeline_config.eval_config.use_moving_averages
        variables = stored_variables(checkpoint, detector, averages, model)
        check_variables(checkpoint, variables, model)
        saver = tf1.train.Saver(save_relative_paths=True)  # the folder may be moved
        restorer = tf1.train.Saver(variables)
    # The session is not the default one: formats build graphs of their own, and run eagerly.
    with contextlib.closing(tf1.Session(graph=graph)) as session:
        with graph.as_default(), restoring(checkpoint):
            restorer.restore(session, checkpoint)
        if thresholds is None:  # only now: a warning is useless if the model is refused
            thresholds = score_thresholds.find_usable(pipeline_config, checkpoint)
        tf.io.gfile.makedirs(folder)
        if options.inference_graph:
            tf1.train.write_graph(graph_def, folder, INFERENCE_GRAPH_FILE)
        prefix = os.path.join(folder, CHECKPOINT_NAME)
        network = RestoredNetwork(
            pipeline_config, options, session, detector, built, definitions, prefix, label_map,
            thresholds,
        )  # fmt: skip
        with graph.as_default():
            saver.save(session, prefix)
            # Only now, so that the checkpoint's own graph has no tensor of another format.
            network.variants.update((variant, variant(network)) for variant in variants)
        pipeline.save_pipeline(pipeline_config, folder)
        yield network


def _remove_unused_functions(graph_def: Any) -> None:
    """Removes functions that no operation calls, such as loops of another variant."""
    library = graph_def.library.function
    unused = {each.signature.name: each for each in library}
    nodes = list(graph_def.node)
    while nodes:
        for attribute in nodes.pop().attr.values():
            for each in (attribute.func, *attribute.list.func):
                if each.name in unused:
                    nodes += unused.pop(each.name).node_def
    for position in reversed(range(len(library))):
        if library[position].signature.name in unused:
            del library[position]


def _check_label_map(path: str, config: pipeline_pb2.TrainEvalPipelineConfig) -> None:
    """Refuses a label map by which a served model would name its classes wrongly."""
    labels, model = read_label_map(path), config.model
    num_classes = getattr(model, str(model.WhichOneof("model"))).num_classes
    if labels.max_id > num_classes:
        raise UsageError(
            f"the label map {path} has id {labels.max_id}, and the model "
            f"{counted(num_classes, 'class')}; give the label map of its training "
            "(--label_map_path)"
        )
    trained = served.find_label_map(config)
    if trained not in (None, path):
        check_same_ids(labels, read_label_map(str(trained)))


def _build_signatures(
    detector: TrainableDetector,
    config: pipeline_pb2.TrainEvalPipelineConfig,
    options: ExportOptions,
    label_map: Optional[str],
) -> Tuple[List[BuiltInput], Dict[str, Any]]:
    """The networks, which share the variables, and SignatureDefs by input type.

    The first one has the additional `output_tensors`.
    """
    names = None
    if options.outputs == DETECTIONS:
        if label_map is None:
            raise UsageError(
                "--outputs detections: class names are one of these outputs, and there is no label "
                "map; give --label_map_path"
            )
        names = read_label_map(label_map).names
    channels = serving.additional_channels(config)
    built, definitions = [], {}
    further = {
        side.name: tf1.placeholder(side.dtype, side.shape, name=side.name)
        for side in signatures.check_side_inputs(config.model, options.side_inputs)
    }
    context = None
    if further:
        context = Context(further[schema.CONTEXT_FEATURES], further[schema.VALID_CONTEXT_SIZE])
    for index, input_type in enumerate(options.input_types):
        is_string = serving.INPUT_TYPES.get(input_type) is tf.string
        # With several input types the shape applies to those that take image tensors, since
        # serialized examples have no height and width of their own.
        shape = None if is_string and len(options.input_types) > 1 else options.input_shape
        receiver = serving.make_receiver(
            input_type, detector.preprocess, shape, channels, options.max_batch
        )
        scope = f"{input_type}_outputs" if index else ""
        predictions, outputs = serve(
            detector,
            receiver.inputs,
            receiver.true_shapes,
            context=context,
            scope=scope,
            reuse=index > 0,
        )
        built.append(BuiltInput(receiver, predictions, outputs))
        placeholders = {**receiver.placeholders, **further}
        if names is not None:
            num_classes = getattr(config.model, config.model.WhichOneof("model")).num_classes
            outputs = signatures.compact_outputs(outputs, names, num_classes, scope)
        definitions[input_type] = tf1.saved_model.predict_signature_def(placeholders, outputs)
        if not index:  # while the graph has no other input
            for name, tensor in signatures.additional_outputs(options.output_tensors).items():
                info = tf1.saved_model.build_tensor_info(tensor)
                definitions[input_type].outputs[name].CopyFrom(info)
    return built, definitions
