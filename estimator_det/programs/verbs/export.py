"""`estimator-det export`: exports a checkpoint in one or several formats."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence

from estimator_det.errors import UsageError
from estimator_det.files.text import names_of
from estimator_det.programs import console
from estimator_det.programs.verbs.base import (
    CONFIG_FILE,
    accept_names,
    add_config_arguments,
    add_options,
    add_output_dir,
    fields_of,
    load,
    require_path,
    run_folder,
)

if TYPE_CHECKING:
    from estimator_det.protos import pipeline_pb2

COMMON_OPTIONS = (
    "--model_dir", "--output_dir", "--format", "--overwrite", "--input_type", "--input_shape",
    "--quantize", "--sample_images", "--quiet",
)  # fmt: skip
SUMMARY = "Exports a checkpoint as SavedModel, frozen graph and other formats"
EXAMPLE = "run --output_dir exported"


def _boolean(text: str) -> bool:
    values = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return values[text.lower()]


# Fields of a configuration that an export does not use. It checks the label map when it reads it.
_UNUSED = ("train_config", "train_input_reader", "eval_config", "eval_input_reader")

# Option of certain formats -> its default, and these formats.
_ONLY_FOR = {
    "precision": ("float32", ("saved_model",)),
    "trainable": (False, ("saved_model",)),
    "outputs": ("all", ("saved_model", "frozen_graph")),
    "additional_output_tensor_names": ("", ("saved_model", "frozen_graph")),
}
# Names in export_tflite_graph_tf2.py and exporter_main_v2.py of the Object Detection API.
_OTHER_NAMES = {
    "--trained_checkpoint_dir": "--trained_checkpoint_prefix",
    "--ssd_use_regular_nms": "--use_regular_nms",
    "--ssd_add_postprocessing_op": "--add_postprocessing_op",
}
# Flags of the API's exporter that describe the side inputs of context models.
SIDE_INPUTS = {
    "side_input_shapes": "shapes with slashes between, e.g. 1,2000,2057/1, -1 for any size",
    "side_input_types": "types with commas between, e.g. float,int",
    "side_input_names": "names with commas between, e.g. context_features,valid_context_size",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser, default=f"{CONFIG_FILE} in model_dir")
    texts = {
        "--model_dir": "folder of a run, whose latest checkpoint is exported",
        "--trained_checkpoint_prefix PREFIX": "another checkpoint, e.g. run/model.ckpt-2000",
    }
    add_options(parser, str, texts)
    add_output_dir(parser, "new folder for the export")
    text = (
        "with commas between, of saved_model, frozen_graph, tflite, onnx, tfjs, openvino, "
        "tf2_checkpoint (default: %(default)s)"
    )
    add_options(parser, str, {"--format NAMES": text}, default="saved_model,frozen_graph")
    add_options(parser, bool, {"--overwrite": "replace an earlier export"})
    _add_input_arguments(parser)
    _add_output_arguments(parser)
    _add_format_arguments(parser)
    accept_names(parser, _OTHER_NAMES)


def _add_choices(parser: Any, texts: Mapping[str, str], default: Optional[bool] = False) -> None:
    """Options alone, or with a value, as flags of the API's exporter have."""
    for name, text in texts.items():
        spelling = f"--{name} true|false"
        add_options(parser, _boolean, {spelling: text}, nargs="?", const=True, default=default)


def _add_input_arguments(parser: argparse.ArgumentParser) -> None:
    text = (
        "image_tensor, encoded_image_string_tensor, tf_example, float_image_tensor, "
        "several of them with commas between, or all; the SavedModel has a signature for each"
    )
    add_options(parser, str, {"--input_type": text}, default="image_tensor")
    text = "sizes of the input images, -1 for any size (default: any size)"
    add_options(parser, str, {"--input_shape B,H,W,C": text}, default="")
    text = "needed for models with a context_config: context features are inputs, too"
    _add_choices(parser, {"use_side_inputs": text})
    for name, text in SIDE_INPUTS.items():
        text = f"{text} (default: what the model needs)"
        add_options(parser, str, {f"--{name}": text}, default="")


def _add_output_arguments(parser: argparse.ArgumentParser) -> None:
    texts = {
        "--label_map_path": "becomes an asset (default: the label map of the configuration)",
        "--thresholds FILE": "thresholds for detect --threshold auto (default: "
        "eval_READER/thresholds-STEP.json of the checkpoint's evaluation, if there is one)",
    }
    add_options(parser, str, texts)
    text = "the SavedModel has variables, not constants: slower, but they can be changed"
    add_options(parser, bool, {"--trainable": text})
    text = (
        "the SavedModel refuses larger batches, and its warm-up requests are of batches up to N "
        "(default: no limit, and requests of one image)"
    )
    add_options(parser, int, {"--max_batch N": text})
    parser.add_argument(
        "--outputs",
        choices=("all", "detections"),
        default="all",
        help="outputs of SavedModel and frozen graph (default: %(default)s); detections: without "
        "raw predictions and scores of other classes, and with class names",
    )
    text = "also write the graph as text, inference_graph.pbtxt"
    _add_choices(parser, {"write_inference_graph": text})
    text = "tensors with commas between; further outputs of serving_default and frozen graph"
    add_options(parser, str, {"--additional_output_tensor_names NAMES": text}, default="")


def _add_format_arguments(parser: argparse.ArgumentParser) -> None:
    text = (
        "image file or folder; may be repeated. Each format is compared with the checkpoint on two "
        "images, and --quantize int8 measures ranges on a hundred (default: images of the "
        "configured records)"
    )
    add_options(parser, str, {"--sample_images IMAGE": text}, action="append", default=[])
    text = (
        "Python interpreter, or virtual environment, that has the converters of onnx, tfjs and "
        "openvino (default: $ESTIMATOR_DET_CONVERTERS, or this interpreter)"
    )
    add_options(parser, str, {"--converter_python FILE": text})
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="what the network of the SavedModel computes in (default: %(default)s); bfloat16 is "
        "faster on processors with avx512_bf16 or amx_bf16, and slower on others",
    )
    group = parser.add_argument_group("TFLite")
    text = "weights and activations as int8, weights as float16, or weights as int8"
    add_options(group, str, {"--quantize": text}, choices=("int8", "float16", "dynamic"))
    numbers = {
        "--max_detections N": "detections of an image (default: max_total_detections of the "
        "configuration)",
        "--max_classes_per_detection N": "classes of a detection, without --use_regular_nms "
        "(default: 1)",
        "--detections_per_class N": "detections of a class, with --use_regular_nms (default: "
        "max_detections_per_class of the configuration)",
    }
    add_options(group, int, numbers)
    choices = {
        "use_regular_nms": "suppress boxes of each class by themselves: slower (default: false)",
        "add_postprocessing_op": "false: the model returns raw boxes and scores (default: true)",
    }
    _add_choices(group, choices, None)


def run(options: argparse.Namespace) -> None:
    for name, (default, formats) in _ONLY_FOR.items():
        is_given = getattr(options, name) != default
        if is_given and {*formats}.isdisjoint(names_of(options.format)):
            raise UsageError(
                f"--{name}: for {' and '.join(formats)} only; add {formats[0]} to --format"
            )
    side_options = [f"--{name}" for name in SIDE_INPUTS if getattr(options, name)]
    if side_options and not options.use_side_inputs:
        raise UsageError(f"{', '.join(side_options)}: needs --use_side_inputs; add it")
    # `export run` is short for `export --model_dir run`.
    if options.model_dir is None and options.config and os.path.isdir(options.config):
        options.model_dir = options.config = run_folder(options.config)
    checkpoint = options.trained_checkpoint_prefix or options.model_dir
    if checkpoint is None:
        require_path(options.config)
        raise UsageError(
            "no checkpoint is given: add the folder of a run, or --trained_checkpoint_prefix PREFIX"
        )

    saved = os.path.join(options.model_dir, CONFIG_FILE) if options.model_dir else None
    config = load(options, saved)
    console.check_config(config, "names", ignore=_UNUSED)
    from model_fn.checkpoints import writing

    with writing.writable_folder(options.output_dir, "output_dir"):
        _report(_export(config, checkpoint, options), names_of(options.format))


def _export(
    config: pipeline_pb2.TrainEvalPipelineConfig, checkpoint: str, options: argparse.Namespace
) -> Any:
    from exporters import formats, network, signatures
    from exporters.formats.export import export_formats

    tflite = fields_of(network.TfliteOptions, vars(options))
    tflite = {name: value for name, value in tflite.items() if value is not None}
    chosen = [name for name in (*tflite, "quantize") if getattr(options, name) is not None]
    if chosen and "tflite" not in names_of(options.format):
        flags = ", ".join(f"--{name}" for name in chosen)
        raise UsageError(f"{flags}: for TFLite only; add tflite to --format")
    side_inputs = None
    if options.use_side_inputs:
        shapes, types, names = (getattr(options, name) for name in SIDE_INPUTS)
        side_inputs = signatures.parse_side_inputs(shapes, types, names, config.model)
    values = fields_of(network.ExportOptions, vars(options))
    values["input_shape"] = signatures.parse_input_shape(options.input_shape)
    export_options = network.ExportOptions(
        input_types=names_of(options.input_type),
        side_inputs=side_inputs,
        output_tensors=list(filter(None, names_of(options.additional_output_tensor_names))),
        inference_graph=options.write_inference_graph,
        tflite=network.TfliteOptions(**tflite),
        **values,
    )
    return export_formats(
        config,
        checkpoint,
        options.output_dir,
        formats.resolve_formats(names_of(options.format)),
        export_options,
        overwrite=options.overwrite,
    )


def _report(export: Any, formats: Sequence[str]) -> None:
    from exporters.formats.check import describe

    for each in export.models:
        compared = "not compared: it does not give the detections of one color image"
        if each.difference is not None:
            compared = describe(each.difference)
        size = f"{each.num_bytes / 1e6:.1f} MB"
        console.print_line(f"{each.name + ':':<14} {each.path} ({size}); {compared}")
        if each.limits:
            console.print_line(f"{'':<14} {each.limits}")
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
    names = ("name", "path", "num_bytes")
    models = [{name: getattr(each, name) for name in names} for each in export.models]
    files = {name: getattr(export, name) for name in ("checkpoint", "label_map", "thresholds")}
    console.report_result({"models": models, **files})
