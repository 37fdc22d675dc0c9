"""TFLite models of SSDs and CenterNets: float, float16, dynamic range and int8, written and run.

An SSD takes a normalized image, and ends in raw predictions or in TFLite's own operation
`TFLite_Detection_PostProcess`, which TensorFlow does not have. CenterNets: `tflite_peaks`.
"""

from __future__ import annotations

import re
import threading
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
from flatbuffers import flexbuffers

from estimator_det import files
from estimator_det.boxes.coders import CenterSizeCoder
from estimator_det.compat import tf, tf1
from estimator_det.compat.private import tflite_interpreter, tflite_quantization
from estimator_det.console.printing import counted
from estimator_det.errors import RunError, UsageError
from estimator_det.protos import pipeline_pb2
from exporters.formats.base import EXACT, FORMATS, ExportFormat, Tolerance, is_quantized
from exporters.formats.check import RAW_BOXES, RAW_SCORES
from exporters.formats.samples import CALIBRATED, sample_images
from exporters.formats.tflite_metadata import (
    Normalization,
    add_metadata,
    measure_normalization,
    pack,
    read_normalization,
)
from exporters.formats.tflite_peaks import DETECTIONS, check_peaks, peaks_graph
from exporters.formats.tflite_postprocess import (
    OUTPUTS,
    RAW_OUTPUTS,
    add_postprocessing,
    check_postprocessing,
    postprocessing_options,
)
from exporters.formats.tflite_reader import (
    DAMAGE,
    IDENTIFIER,
    POSTPROCESS,
    attached_labels,
    corners,
    find_postprocess,
    postprocess_options,
    read_tflite,
    unpack,
)
from exporters.loaded_model import BOXES, CLASSES, NUM, LoadedModel
from exporters.network import ExportOptions, RestoredNetwork
from exporters.reading.published import Published, damaged
from inputs.label_map import read_label_map
from inputs.serving import COLOR_CHANNELS, additional_channels
from model_fn.serving.graph import CLASS_OFFSET

INPUT = "normalized_input_image_tensor"
_RAW_ANCHORS = "raw_outputs/anchors"
# Normalization of SSD MobileNets, which published files without metadata mostly are.
_PIXELS = Normalization((0.0,) * COLOR_CHANNELS, (1.0,) * COLOR_CHANNELS)
_USUAL = Normalization((127.5,) * COLOR_CHANNELS, (127.5,) * COLOR_CHANNELS)
_KINDS = {"ssd": "SSD", "center_net": "CenterNet"}
_TOLERANCES = {
    None: EXACT,
    "float16": Tolerance(0.02, 0.02),
    "dynamic": Tolerance(0.1, 0.1, uses_quantile=True),
    "int8": Tolerance(0.1, 0.1, uses_quantile=True),
}


class TfliteGraph(NamedTuple):
    """A graph that the converter takes."""

    graph_def: Any  # constants for weights
    image_shape: Tuple[int, int, int, int]  # shape of INPUT
    normalization: Normalization
    options: Dict[str, Any]  # options of POSTPROCESS; empty if the graph does not end in it
    outputs: Tuple[str, ...] = OUTPUTS


def raw_outputs(network: RestoredNetwork) -> List[str]:
    """Names of raw outputs: RAW_OUTPUTS and anchors, which it adds to the graph of an SSD.

    A CenterNet has its detections instead.
    """
    if not network.config.model.HasField("ssd"):
        return [tensor.op.name for tensor in network.first.outputs.values()]
    detector: Any = network.detector
    predictions = network.first.predictions
    scores = detector.postprocessing.convert_scores(predictions.class_logits)
    values = (predictions.box_encodings, scores, predictions.anchors)
    names = (*RAW_OUTPUTS, _RAW_ANCHORS)
    return [tf.identity(value, name).op.name for value, name in zip(values, names)]


@FORMATS.register("tflite")
class Tflite(ExportFormat):
    """The format of phones and small boards."""

    name = "tflite"
    file = "model.tflite"
    resize_methods = ("BILINEAR",)
    variant = staticmethod(raw_outputs)
    start = re.compile(b"(?s).{4}" + IDENTIFIER)

    def check(self, config: pipeline_pb2.TrainEvalPipelineConfig, options: ExportOptions) -> None:
        check_tflite(config, options)
        super().check(config, options)
        if is_quantized(config):
            if options.quantize is not None:
                raise UsageError(
                    f"--quantize: is {options.quantize}, and graph_rewriter.quantization gives the "
                    "model the ranges of its training; leave out --quantize"
                )
        elif options.quantize == "int8" and not sample_images(config, options.sample_images, 1):
            raise UsageError(
                "--quantize int8 measures ranges on images, and no record of eval_input_reader or "
                "train_input_reader exists; give image files or folders with --sample_images"
            )

    def write(self, network: RestoredNetwork, path: str) -> bool:
        config, options = network.config, network.options
        graph = build_tflite_graph(network)
        preprocess = network.detector.preprocess

        def representative() -> Iterator[List[np.ndarray]]:
            for pixels in sample_images(config, options.sample_images, CALIBRATED):
                inputs, _ = preprocess(tf.constant(pixels[None], tf.float32))
                yield [inputs.numpy()]

        content = convert(graph, options.quantize, representative)
        names = read_label_map(network.label_map).names if network.label_map is not None else {}
        kind = config.model.WhichOneof("model")
        model = getattr(config.model, kind)
        description = f"{_KINDS[kind]}, {model.feature_extractor.type}"
        content = add_metadata(content, graph.normalization, model.num_classes, names, description)
        with tf.io.gfile.GFile(path, "wb") as file:
            file.write(content)
        return True

    def load(self, path: str) -> TfliteDetector:
        return TfliteDetector(path)

    def load_with_raw(self, path: str) -> TfliteDetector:
        return TfliteDetector(path, keeps_raw=True)

    def read(self, path: str) -> Published:
        return read_tflite(path)

    def tolerance(
        self, config: pipeline_pb2.TrainEvalPipelineConfig, options: ExportOptions
    ) -> Tolerance:
        return _TOLERANCES["int8" if is_quantized(config) else options.quantize]

    def limits(self, config: pipeline_pb2.TrainEvalPipelineConfig, options: ExportOptions) -> str:
        if not options.tflite.add_postprocessing_op or not config.model.HasField("ssd"):
            return ""
        numbers = postprocessing_options(config.model.ssd, options.tflite)
        detections = counted(numbers["max_detections"], "detection")
        if options.tflite.use_regular_nms:
            per_class = numbers["detections_per_class"]
            return f"keeps {detections} of an image at most, {per_class:,} of a class"
        return (
            f"keeps {detections} of an image at most; boxes of different classes suppress each "
            "other, unless --use_regular_nms is given"
        )

    def detects(self, options: ExportOptions) -> bool:
        return options.tflite.add_postprocessing_op


def value_of(interpreter: Any, index: int) -> np.ndarray:
    """A tensor of an interpreter as float32; converters differ in where they leave integers."""
    values = interpreter.get_tensor(index)
    if values.dtype == np.float32:
        return values
    scale, zero = tflite_quantization(interpreter, index)
    return ((values.astype(np.float32) - zero) * scale).astype(np.float32)


class TfliteDetector(LoadedModel):
    """A TFLite model that ends in POSTPROCESS, of this trainer or another, or in DETECTIONS.

    Images are resized with TensorFlow 1's bilinear rule. The metadata has normalization and
    class names; without metadata, pixels become -1 to 1.

    Args:
        keeps_raw: `run` also returns raw predictions, at the cost of memory.
    """

    def __init__(self, path: str, keeps_raw: bool = False) -> None:
        content = files.read_bytes(path)
        try:
            model = unpack(content)
            postprocess = find_postprocess(model)
            names, normalization = attached_labels(content), read_normalization(model)
            # TFLite follows the offsets in a file without a check; those packed here are right.
            interpreter = tflite_interpreter(pack(model), keeps_all=keeps_raw)
            interpreter.allocate_tensors()
        except (*DAMAGE, RuntimeError) as error:
            raise damaged(
                f"{path} is damaged, cut off, or has operations that TFLite here does not: "
                f"{str(error).splitlines()[0]}"
            ) from error
        outputs = {each["name"]: each["index"] for each in interpreter.get_output_details()}
        if postprocess is not None:
            outputs = dict(zip(DETECTIONS, postprocess.outputs))
        elif not outputs.keys() >= {*DETECTIONS}:
            raise RunError(
                f"{path} is not an exported detector: it has no operation {POSTPROCESS}; export it "
                "with --add_postprocessing_op true"
            )
        inputs = interpreter.get_input_details()
        if len(inputs) != 1 or len(inputs[0]["shape"]) != 4 or inputs[0]["shape"][0] != 1:
            shapes = [each["shape"].tolist() for each in inputs]
            raise RunError(
                f"{path} is not a detector of color images: its inputs have shapes {shapes}, and "
                "must be one image, [1, height, width, 3]"
            )
        super().__init__(path, names or None)
        self.batch_size = 1
        self.turn = threading.Lock()
        self._normalization = normalization or _USUAL
        self._interpreter, self._input = interpreter, inputs[0]
        self._outputs = outputs
        self._postprocess = postprocess if keeps_raw else None

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        self._interpreter.set_tensor(self._input["index"], self._as_input(images))
        try:
            self._interpreter.invoke()
        except RuntimeError as error:
            reason = str(error).split("\n")[0]
            raise damaged(f"{self.path} is damaged: it fails: {reason}") from error
        outputs = {name: self._value(index) for name, index in self._outputs.items()}
        outputs[CLASSES] = outputs[CLASSES] + CLASS_OFFSET
        number = int(outputs[NUM].reshape(()))
        for name in outputs.keys() - {NUM}:  # POSTPROCESS fills them up to the number only
            outputs[name][:, number:] = 0
        # POSTPROCESS does not cut boxes to the image, as other formats do.
        outputs[BOXES] = outputs[BOXES].clip(0, 1)
        outputs[NUM] = outputs[NUM].reshape(-1)
        return outputs if self._postprocess is None else {**outputs, **self._raw(self._postprocess)}

    def _raw(self, postprocess: Any) -> Dict[str, np.ndarray]:
        encodings, scores, anchors = map(self._value, postprocess.inputs)
        options = postprocess_options(postprocess)
        scales = (float(options[name]) for name in ("y_scale", "x_scale", "h_scale", "w_scale"))
        boxes = CenterSizeCoder(*scales).decode(encodings, tf.constant(corners(anchors))).boxes
        return {RAW_SCORES: scores, RAW_BOXES: boxes.numpy()}

    def _value(self, index: int) -> np.ndarray:
        return value_of(self._interpreter, index)

    def _as_input(self, images: np.ndarray) -> np.ndarray:
        """[1, height, width, 3] of the model's type."""
        height, width = self._input["shape"][1:3]
        resized = tf1.image.resize(images.astype(np.float32), [height, width]).numpy()
        values = (resized - self._normalization.mean) / self._normalization.std
        dtype = self._input["dtype"]
        if dtype == np.float32:
            return values.astype(np.float32)
        scale, zero = self._input["quantization"]
        limits = np.iinfo(dtype)
        return np.clip(np.round(values / scale + zero), limits.min, limits.max).astype(dtype)


def check_tflite(config: pipeline_pb2.TrainEvalPipelineConfig, options: ExportOptions) -> None:
    """Refuses what a model in TFLite cannot be."""
    kind = config.model.WhichOneof("model")
    if kind not in _KINDS:
        raise UsageError(
            f"--format tflite: model is {kind}, which TFLite does not run; export another format, "
            "such as saved_model, frozen_graph or onnx"
        )
    image_resizer = getattr(config.model, kind).image_resizer
    resizer = image_resizer.WhichOneof("image_resizer_oneof")
    is_gray = image_resizer.fixed_shape_resizer.convert_to_grayscale
    if resizer != "fixed_shape_resizer" or is_gray:
        side = image_resizer.keep_aspect_ratio_resizer.max_dimension
        size = f"fixed_shape_resizer {{ height: {side} width: {side} }}"
        remedy = f". --set 'model.{kind}.image_resizer={{ {size} }}' stretches images instead"
        raise UsageError(
            f"--format tflite: model.{kind}.image_resizer: is {resizer}; a TFLite model takes "
            "images of one size and three channels, so it must be fixed_shape_resizer without "
            "convert_to_grayscale" + (remedy if resizer == "keep_aspect_ratio_resizer" else "")
        )
    if additional_channels(config):
        raise UsageError(
            "--format tflite: num_additional_channels is not 0; only color images are supported yet"
        )
    if options.input_shape is not None and options.input_shape[0] not in (None, 1):
        raise UsageError(
            f"--format tflite: --input_shape: has batches of {options.input_shape[0]}; a TFLite "
            "model takes one image, so the first number must be 1 or -1"
        )
    if kind == "ssd":
        check_postprocessing(config.model.ssd, options.tflite)
    else:
        check_peaks(config.model.center_net, options)


def build_tflite_graph(network: RestoredNetwork) -> TfliteGraph:
    """The graph with the weights of a network that has `raw_outputs`, batch norm folded."""
    receiver, options = network.first.receiver, network.options.tflite
    kind = network.config.model.WhichOneof("model")
    size = getattr(network.config.model, kind).image_resizer.fixed_shape_resizer
    shape = (1, size.height, size.width, COLOR_CHANNELS)
    if kind != "ssd":
        graph_def, outputs = peaks_graph(network, shape, INPUT)
        return TfliteGraph(graph_def, shape, _PIXELS, {}, outputs)
    # The network begins after the preprocessing, with a batch of one image.
    with tf.Graph().as_default() as graph:
        images = tf1.placeholder(tf.float32, shape, name=INPUT)
        tf1.import_graph_def(
            network.folded_graph_of(RAW_OUTPUTS), {receiver.inputs.name: images}, name=""
        )
    graph_def = tf1.graph_util.extract_sub_graph(graph.as_graph_def(), list(RAW_OUTPUTS))
    normalization = measure_normalization(network.detector.preprocess.normalize)
    attributes: Dict[str, Any] = {}
    if options.add_postprocessing_op:
        attributes = postprocessing_options(network.config.model.ssd, options)
        boxes = network.session.run(f"{_RAW_ANCHORS}:0")
        low, high = boxes[:, :2], boxes[:, 2:]
        centers_and_sizes = np.concatenate([(low + high) / 2, high - low], 1)
        add_postprocessing(graph_def, centers_and_sizes.astype(np.float32), attributes)
    outputs = OUTPUTS if options.add_postprocessing_op else RAW_OUTPUTS
    return TfliteGraph(graph_def, shape, normalization, attributes, outputs)


def input_range(normalization: Normalization) -> Tuple[float, float]:
    """Mean and deviation of a uint8 input q, the normalized pixel being (q - mean) / deviation.

    Training gives no range to the input. As in the Object Detection API, (q - 128) / 128 for pixels
    q of 0 to 255 means -1 to 1.
    """
    mean, std = (np.asarray(each) for each in normalization)
    least, most = float((-mean / std).min()), float(((255 - mean) / std).max())
    deviation = 256 / (most - least)  # number of values of 8 bits
    return -least * deviation, deviation


def convert(
    graph: TfliteGraph,
    quantize: Optional[str] = None,
    representative: Optional[Callable[[], Iterator[List[np.ndarray]]]] = None,
) -> bytes:
    """Converts a graph.

    Args:
        graph: If it simulates quantization, the result is uint8 with the ranges of training.
        quantize: "int8", "float16", "dynamic", or None for float.
        representative: For "int8": yields [one network input] for each image.
    """
    converter = tf1.lite.TFLiteConverter(
        graph.graph_def,
        None,
        None,
        input_arrays_with_shape=[(INPUT, list(graph.image_shape))],
        output_arrays=list(graph.outputs),
    )
    converter.allow_custom_ops = True  # custom operations, of which POSTPROCESS is the only one
    has_ranges = any(node.op == "FakeQuantWithMinMaxVars" for node in graph.graph_def.node)
    if has_ranges:
        # int8 kernels need symmetric ranges of weights, and training does not give such ranges.
        converter.inference_input_type = tf.uint8
        converter.quantized_input_stats = {INPUT: input_range(graph.normalization)}
    elif quantize is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantize == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if quantize == "int8" and not has_ranges:
        converter.inference_input_type = tf.uint8
        converter.representative_dataset = representative
    content = bytes(converter.convert())
    if not graph.options:
        return content
    model = unpack(content)
    operator = find_postprocess(model)
    if operator is None:
        raise RunError(
            f"the TFLite converter of TensorFlow {tf.__version__} left out {POSTPROCESS}; export "
            "with TensorFlow 2.15"
        )
    # The converter leaves out some of its options, which the API writes in order of names.
    options = flexbuffers.Dumps(dict(sorted(graph.options.items())))
    operator.customOptions = np.frombuffer(options, np.uint8)
    return pack(model)
