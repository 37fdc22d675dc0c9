"""`estimator-det export`: exports a checkpoint in one or several formats."""

from __future__ import annotations

import argparse
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple

from estimator_det.programs import console
from estimator_det.programs.verbs.base import (
    CONFIG_FILE,
    add_config_arguments,
    add_old_name,
    load,
)

SUMMARY = "Exports a checkpoint as SavedModel, frozen graph and other formats"
EXAMPLE = "run --output_dir exported"
INPUT_TYPES_HELP = (
    "image_tensor (default), encoded_image_string_tensor, tf_example, float_image_tensor, several "
    "of them with commas between, or all; the SavedModel has a signature for each"
)


def _boolean(text: str) -> bool:
    values = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return values[text.lower()]


# Fields of a configuration that an export does not use. It checks the label map when it reads it.
_UNUSED = ("train_config", "train_input_reader", "eval_config", "eval_input_reader")

# Flags of the reference's exporter that describe the side inputs of context models.
SIDE_INPUTS: Dict[str, str] = {
    "side_input_shapes": "shapes with slashes between, e.g. 1,2000,2057/1, -1 for any size",
    "side_input_types": "types with commas between, e.g. float,int",
    "side_input_names": "names with commas between, e.g. context_features,valid_context_size",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    add_config_arguments(parser, default=f"{CONFIG_FILE} in model_dir")
    parser.add_argument("--model_dir", help="folder of a run, whose latest checkpoint is exported")
    parser.add_argument(
        "--trained_checkpoint_prefix",
        metavar="PREFIX",
        help="another checkpoint, e.g. run/model.ckpt-2000",
    )
    folder = parser.add_argument("--output_dir", required=True, help="new folder for the export")
    add_old_name(parser, folder, "--output_directory")
    parser.add_argument(
        "--format",
        default="saved_model,frozen_graph",
        metavar="NAMES",
        help="with commas between, of saved_model, frozen_graph, tflite, onnx, tfjs, openvino "
        "(default: %(default)s)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    _add_input_arguments(parser)
    _add_output_arguments(parser)
    _add_format_arguments(parser)


def _add_switch(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """A flag alone, or with a value, as flags of the reference's exporter have."""
    parser.add_argument(
        name,
        nargs="?",
        const=True,
        default=False,
        type=_boolean,
        metavar="true|false",
        help=text,
    )


def _add_input_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--input_type", default="image_tensor", help=INPUT_TYPES_HELP)
    parser.add_argument(
        "--input_shape",
        default="",
        metavar="B,H,W,C",
        help="sizes of the input images, -1 for any size; default: any size",
    )
    _add_switch(
        parser,
        "--use_side_inputs",
        "needed for models with a context_config: context features are inputs, too",
    )
    for name, text in SIDE_INPUTS.items():
        default_text = "default: what the model needs"
        parser.add_argument(f"--{name}", default="", help=f"{text}; {default_text}")


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--label_map_path", help="becomes an asset; default: the label map of the configuration"
    )
    parser.add_argument(
        "--thresholds",
        metavar="FILE",
        help="thresholds for detect --threshold auto; default: those of the checkpoint's "
        "evaluation, eval_READER/thresholds-STEP.json, if there are any",
    )
    parser.add_argument(
        "--trainable",
        action="store_true",
        help="the SavedModel has variables, not constants: slower, but they can be changed",
    )
    parser.add_argument(
        "--max_batch",
        type=int,
        metavar="N",
        help="the SavedModel refuses larger batches, and its warm-up requests are of batches up to "
        "N; default: no limit, and requests of one image",
    )
    _add_switch(
        parser, "--write_inference_graph", "also write the graph as text, inference_graph.pbtxt"
    )
    parser.add_argument(
        "--additional_output_tensor_names",
        default="",
        metavar="NAMES",
        help="tensors with commas between; further outputs of serving_default and frozen graph",
    )


# Options of TFLite alone: those of the reference's exporter for it, and quantization.
TFLITE_NUMBERS: Dict[str, Tuple[int, str]] = {
    "max_detections": (10, "detections of an image"),
    "max_classes_per_detection": (1, "classes of a detection, without --use_regular_nms"),
    "detections_per_class": (100, "detections of a class, with --use_regular_nms"),
}
TFLITE_CHOICES: Dict[str, Tuple[bool, str]] = {
    "use_regular_nms": (False, "suppress boxes of each class by themselves: slower"),
    "add_postprocessing_op": (True, "false: the model returns raw boxes and scores"),
}
TFLITE_OPTIONS = (*TFLITE_NUMBERS, *TFLITE_CHOICES, "quantize")


def _add_format_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sample_images",
        nargs="+",
        default=[],
        metavar="IMAGE",
        help="image files or folders: each format is compared with the checkpoint on two of them, "
        "and --quantize int8 measures ranges on a hundred; default: images of the configured "
        "records",
    )
    parser.add_argument(
        "--converter_python",
        metavar="FILE",
        help="Python interpreter, or virtual environment, that has the converters of onnx, tfjs "
        "and openvino; default: $ESTIMATOR_DET_CONVERTERS, or this interpreter",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="what the network of the SavedModel computes in (default: %(default)s); bfloat16 is "
        "faster on processors with avx512_bf16 or amx_bf16, and slower on others",
    )
    group = parser.add_argument_group("TFLite")
    group.add_argument(
        "--quantize",
        choices=("int8", "float16", "dynamic"),
        help="weights and activations as int8, weights as float16, or weights as int8",
    )
    for name, (number, text) in TFLITE_NUMBERS.items():
        group.add_argument(f"--{name}", type=int, metavar="N", help=f"{text}; default: {number}")
    for name, (choice, text) in TFLITE_CHOICES.items():
        default_text = str(choice).lower()
        group.add_argument(
            f"--{name}", nargs="?", const=True, type=_boolean, metavar="true|false",
            help=f"{text}; default: {default_text}",
        )  # fmt: skip


def _names(text: str) -> List[str]:
    """`"a, b"` -> `["a", "b"]`."""
    return [name.strip() for name in text.split(",")]


def _tflite_options(options: argparse.Namespace) -> Dict[str, Any]:
    """Fields of `ExportOptions` for TFLite."""
    from exporters.network import TfliteOptions

    chosen = {name: getattr(options, name) for name in TFLITE_OPTIONS}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if chosen and "tflite" not in _names(options.format):
        names = ", ".join(f"--{name}" for name in chosen)
        raise console.UsageError(f"{names}: for TFLite only; add tflite to --format")
    return {"quantize": chosen.pop("quantize", None), "tflite": TfliteOptions(**chosen)}


def run(options: argparse.Namespace) -> int:
    """Runs the verb; returns an exit code."""
    if options.precision != "float32" and "saved_model" not in _names(options.format):
        raise console.UsageError("--precision: for SavedModels only; add saved_model to --format")
    side_options = [f"--{name}" for name in SIDE_INPUTS if getattr(options, name)]
    if side_options and not options.use_side_inputs:
        raise console.UsageError(f"{', '.join(side_options)}: needs --use_side_inputs; add it")
    # `export run` is short for `export --model_dir run`.
    if options.model_dir is None and options.config and os.path.isdir(options.config):
        options.model_dir = options.config
    checkpoint = options.trained_checkpoint_prefix or options.model_dir
    if checkpoint is None:
        raise console.UsageError(
            "no checkpoint is given: add the folder of a run, or --trained_checkpoint_prefix PREFIX"
        )
    from estimator_det.config import files

    saved = files.path_in(options.model_dir, CONFIG_FILE) if options.model_dir else None
    config = load(options, saved)
    console.check_config(config, "names", ignore=_UNUSED)
    from model_fn.checkpoints import writing

    with writing.writable_folder(options.output_dir, "output_dir"):
        _report(_export(config, checkpoint, options), _names(options.format))
    return console.EXIT_OK


def _export(config: Any, checkpoint: str, options: argparse.Namespace) -> Any:
    from exporters import formats, network, signatures
    from exporters.formats.export import export_formats

    export_options = network.ExportOptions(
        input_types=_names(options.input_type),
        input_shape=signatures.parse_input_shape(options.input_shape),
        label_map_path=options.label_map_path,
        side_inputs=_side_inputs(options, config),
        thresholds=options.thresholds,
        output_tensors=list(filter(None, _names(options.additional_output_tensor_names))),
        inference_graph=options.write_inference_graph,
        trainable=options.trainable,
        max_batch=options.max_batch,
        precision=options.precision,
        sample_images=options.sample_images,
        converter_python=options.converter_python,
        **_tflite_options(options),
    )
    return export_formats(
        config,
        checkpoint,
        options.output_dir,
        formats.resolve_formats(_names(options.format)),
        export_options,
        overwrite=options.overwrite,
    )


def _report(export: Any, formats: Sequence[str]) -> None:
    for each in export.models:
        what = f"{each.path} ({each.num_bytes / 1e6:.1f} MB)"
        console.print_line(f"{each.name + ':':<14} {what}{_compared(each.difference)}")
    console.print_line(f"inputs:        {', '.join(export.input_types)}")
    if "saved_model" in [each.name for each in export.models]:
        kind = "variables" if export.has_variables else "constants"
        console.print_line(f"weights:       {kind} in the SavedModel")
    if "frozen_graph" in formats and export.frozen_graph is None:
        console.print_line("frozen_graph:  none (too many weights)")
    console.print_line(f"checkpoint:    {export.checkpoint}")
    console.print_line(f"label map:     {export.label_map or 'none (give --label_map_path)'}")
    console.print_line(
        f"thresholds:    {export.thresholds or 'none (evaluate the checkpoint first)'}"
    )


def _compared(difference: Optional[Any]) -> str:
    if difference is None:
        return "; not compared: it does not make detections of one color image"
    from exporters.formats.check import describe

    return f"; {describe(difference)}"


def _side_inputs(options: argparse.Namespace, config: Any) -> Optional[Any]:
    if not options.use_side_inputs:
        return None
    from exporters.side_inputs import parse_side_inputs

    return parse_side_inputs(
        options.side_input_shapes, options.side_input_types, options.side_input_names, config.model
    )
