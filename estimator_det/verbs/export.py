"""`estimator-det export`: exports a checkpoint as SavedModel and frozen graph."""

from __future__ import annotations

import argparse
from typing import Any, Callable, Dict

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


# Flags of the reference's exporter that only context models need, with their types.
SIDE_INPUTS: Dict[str, Callable[[str], Any]] = {
    "use_side_inputs": _boolean,
    "side_input_shapes": str,
    "side_input_types": str,
    "side_input_names": str,
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
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")
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
    for name, kind in SIDE_INPUTS.items():
        parser.add_argument(f"--{name}", nargs="?", const=True, type=kind, help=argparse.SUPPRESS)


def run(options: argparse.Namespace) -> int:
    """Runs the verb; returns an exit code."""
    given = [f"--{name}" for name in SIDE_INPUTS if getattr(options, name)]
    if given:
        raise console.UsageError(
            f"{', '.join(given)}: not supported yet, because only context models have side inputs; "
            "export without it"
        )
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
        overwrite=options.overwrite,
        extras=saved_model.GraphExtras(
            inference_graph=options.write_inference_graph,
            output_tensors=[
                name.strip() for name in options.additional_output_tensor_names.split(",") if name
            ],
        ),
    )
    console.say(f"SavedModel:    {exported.saved_model} ({', '.join(exported.input_types)})")
    console.say(f"frozen graph:  {exported.frozen_graph}")
    console.say(f"checkpoint:    {exported.checkpoint}")
    console.say(f"label map:     {exported.label_map or 'none (give --label_map_path)'}")
    return console.EXIT_OK
