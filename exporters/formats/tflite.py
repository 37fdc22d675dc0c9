"""TFLite models of SSDs: float, float16, dynamic range and int8."""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Optional

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.config.text import ConfigError
from exporters.formats.base import (
    EXACT,
    FORMATS,
    ExportFormat,
    Tolerance,
    first_bytes,
    is_quantized,
)
from exporters.formats.samples import CALIBRATED, sample_images
from exporters.formats.tflite_detector import TfliteDetector, set_options
from exporters.formats.tflite_graph import (
    INPUT,
    TfliteGraph,
    build_tflite_graph,
    check_tflite,
    input_range,
    raw_outputs,
)
from exporters.formats.tflite_metadata import add_metadata
from exporters.importing.tflite import IDENTIFIER
from exporters.network import ExportOptions, RestoredNetwork
from inputs.label_map import read_label_map

MODEL_FILE = "model.tflite"
_TOLERANCES = {
    None: EXACT,
    "float16": Tolerance(0.02, 0.02),
    "dynamic": Tolerance(0.1, 0.1, uses_quantile=True),
    "int8": Tolerance(0.1, 0.1, uses_quantile=True),
}


@FORMATS.register("tflite")
class Tflite(ExportFormat):
    """The format of phones and small boards."""

    name = "tflite"
    file = MODEL_FILE
    variant = staticmethod(raw_outputs)

    def check(self, config: Any, options: ExportOptions) -> None:
        check_tflite(config, options.tflite)
        if is_quantized(config):
            if options.quantize is not None:
                raise ConfigError(
                    None,
                    f"--quantize: is {options.quantize}, and graph_rewriter.quantization gives the "
                    "model the ranges of its training",
                    "leave out --quantize",
                )
        elif options.quantize == "int8" and not sample_images(config, options.sample_images, 1):
            raise ConfigError(
                None,
                "--quantize int8 measures ranges on images, and no record of eval_input_reader or "
                "train_input_reader exists",
                "give image files or folders with --sample_images",
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
        extractor = config.model.ssd.feature_extractor.type
        content = add_metadata(
            content, graph.normalization, config.model.ssd.num_classes, names, f"SSD, {extractor}"
        )
        with tf.io.gfile.GFile(path, "wb") as file:
            file.write(content)
        return True

    def recognizes(self, path: str) -> bool:
        return first_bytes(path, 8)[4:] == IDENTIFIER

    def load(self, path: str) -> TfliteDetector:
        return TfliteDetector(path)

    def load_with_raw(self, path: str) -> TfliteDetector:
        return TfliteDetector(path, keeps_raw=True)

    def tolerance(self, config: Any, options: ExportOptions) -> Tolerance:
        return _TOLERANCES["int8" if is_quantized(config) else options.quantize]

    def detects(self, options: ExportOptions) -> bool:
        return options.tflite.add_postprocessing_op


def convert(
    graph: TfliteGraph,
    quantize: Optional[str] = None,
    representative: Optional[Callable[[], Iterator[List[np.ndarray]]]] = None,
) -> bytes:
    """Converts a graph.

    Args:
        graph: If it has ranges of training, the result is uint8 with these.
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
    if graph.is_quantized:
        # The kernels of int8 need weights whose range is symmetric, and those of training are not.
        converter.inference_type = converter.inference_input_type = tf.uint8
        converter.quantized_input_stats = {INPUT: input_range(graph.normalization)}
    elif quantize is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantize == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if quantize == "int8" and not graph.is_quantized:
        converter.inference_input_type = tf.uint8
        converter.representative_dataset = representative
    content = bytes(converter.convert())
    return set_options(content, graph.options) if graph.options else content
