"""`estimator-det export`: exports a checkpoint as SavedModel and frozen graph."""

from __future__ import annotations

import argparse
from typing import Any, Dict, Optional

from estimator_det import console
from estimator_det.verbs.base import CONFIG_EXAMPLE, add_config_arguments, load

SUMMARY = "Exports a checkpoint as SavedModel and frozen graph"
EXAMPLE = (
    f"{CONFIG_EXAMPLE} --trained_checkpoint_prefix run/model.ckpt-2000 --output_directory exported"
)
INPUT_TYPES_HELP = (
    "image_tensor (default), encoded_image_string_tensor, tf_example, float_image_tensor, several "
    "of them with commas between, or all; the SavedModel has a signature for each"
)


def _boolean(text: str) -> bool:
    values = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return values[text.lower()]


# Flags of the reference's exporter that describe the side inputs of context models.
SIDE_INPUTS: Dict[str, str] = {
    "side_input_shapes": "shapes with slashes between, e.g. 1,2000,2057/1, -1 for any size",
    "side_input_types": "types with commas between, e.g. float,int",
    "side_input_names": "names with commas between, e.g. context_features,valid_context_size",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    add_config_arguments(parser)
    parser.add_argument(
        "--trained_checkpoint_prefix",
        required=True,
        help="checkpoint, e.g. run/model.ckpt-2000, or a model_dir for its latest checkpoint",
    )
    parser.add_argument("--output_directory", required=True, help="new folder for the export")
    parser.add_argument("--input_type", default="image_tensor", help=INPUT_TYPES_HELP)
    parser.add_argument(
        "--input_shape",
        default="",
        metavar="B,H,W,C",
        help="sizes of the input images, -1 for any size; default: any size",
    )
    parser.add_argument(
        "--label_map_path", help="becomes an asset; default: the label map of the configuration"
    )
    parser.add_argument(
        "--thresholds",
        metavar="FILE",
        help="thresholds for detect --threshold auto; default: those of the checkpoint's "
        "evaluation, eval_READER/thresholds-STEP.json, if there are any",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")
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
    parser.add_argument(
        "--write_inference_graph",
        nargs="?",
        const=True,
        default=False,
        type=_boolean,
        metavar="true|false",
        help="also write the graph as text, inference_graph.pbtxt",
    )
    parser.add_argument(
        "--additional_output_tensor_names",
        default="",
        metavar="NAMES",
        help="tensors with commas between; further outputs of serving_default and frozen graph",
    )
    parser.add_argument(
        "--use_side_inputs",
        nargs="?",
        const=True,
        default=False,
        type=_boolean,
        metavar="true|false",
        help="needed for models with a context_config: context features are inputs, too",
    )
    for name, text in SIDE_INPUTS.items():
        by_default = "default: what the model needs"
        parser.add_argument(f"--{name}", default="", help=f"{text}; {by_default}")


def run(options: argparse.Namespace) -> int:
    """Runs the verb; returns an exit code."""
    given = [f"--{name}" for name in SIDE_INPUTS if getattr(options, name)]
    if given and not options.use_side_inputs:
        raise console.UsageError(f"{', '.join(given)}: needs --use_side_inputs; add it")
    config = load(options)
    console.warn_of_float_model(config)
    from exporters import saved_model, signatures

    exported = saved_model.export_saved_model(
        config,
        options.trained_checkpoint_prefix,
        options.output_directory,
        input_types=options.input_type.split(","),
        input_shape=signatures.parse_input_shape(options.input_shape),
        label_map_path=options.label_map_path,
        side_inputs=_side_inputs(options, config),
        overwrite=options.overwrite,
        serving_options=saved_model.ServingOptions(options.trainable, options.max_batch),
        extras=saved_model.GraphExtras(
            inference_graph=options.write_inference_graph,
            output_tensors=[
                name.strip() for name in options.additional_output_tensor_names.split(",") if name
            ],
            thresholds=options.thresholds,
        ),
    )
    console.say(f"SavedModel:    {exported.saved_model} ({', '.join(exported.input_types)})")
    console.say(f"its weights:   {'variables' if exported.has_variables else 'constants'}")
    console.say(f"frozen graph:  {exported.frozen_graph or 'none (too many weights)'}")
    console.say(f"checkpoint:    {exported.checkpoint}")
    console.say(f"label map:     {exported.label_map or 'none (give --label_map_path)'}")
    console.say(f"thresholds:    {exported.thresholds or 'none (evaluate the checkpoint first)'}")
    return console.EXIT_OK


def _side_inputs(options: argparse.Namespace, config: Any) -> Optional[Any]:
    if not options.use_side_inputs:
        return None
    from exporters.side_inputs import parse_side_inputs

    return parse_side_inputs(
        options.side_input_shapes, options.side_input_types, options.side_input_names, config.model
    )
