"""`estimator-det export`: turns a checkpoint into a SavedModel and a frozen graph."""

from __future__ import annotations

import argparse

from estimator_det import console
from estimator_det.verbs.base import CONFIG_EXAMPLE, Verb, add_config_arguments, load

INPUT_TYPES_HELP = (
    "image_tensor, encoded_image_string_tensor, tf_example, float_image_tensor, or all: one "
    "SavedModel with a signature for each"
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    parser.add_argument(
        "--trained_checkpoint_prefix",
        required=True,
        help="e.g. run/model.ckpt-2000, or a model_dir for its latest",
    )
    parser.add_argument("--output_directory", required=True, help="new folder for the export")
    parser.add_argument("--input_type", default="image_tensor", help=INPUT_TYPES_HELP)
    parser.add_argument(
        "--input_shape",
        default="",
        metavar="B,H,W,C",
        help="fixed sizes of the input images, -1 where any (default: all of them any)",
    )
    parser.add_argument(
        "--label_map_path", help="goes along as an asset; default: the configuration's"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")


def _run(options: argparse.Namespace) -> int:
    config = load(options)
    from exporters import saved_model, signatures

    try:
        input_types = signatures.resolve_input_types(options.input_type.split(","))
        input_shape = signatures.parse_input_shape(options.input_shape)
    except ValueError as error:
        raise console.UsageError(str(error)) from error
    exported = saved_model.export_saved_model(
        config,
        options.trained_checkpoint_prefix,
        options.output_directory,
        input_types=input_types,
        input_shape=input_shape,
        label_map_path=options.label_map_path,
        overwrite=options.overwrite,
    )
    console.say(f"SavedModel:    {exported.saved_model} ({', '.join(exported.input_types)})")
    console.say(f"frozen graph:  {exported.frozen_graph}")
    console.say(f"checkpoint:    {exported.checkpoint}")
    console.say(f"label map:     {exported.label_map or 'none found, give --label_map_path'}")
    return console.EXIT_OK


VERB = Verb(
    "export",
    "Turns a checkpoint into a SavedModel and a frozen graph",
    f"{CONFIG_EXAMPLE} --trained_checkpoint_prefix run/model.ckpt-2000 --output_directory exported",
    _add_arguments,
    _run,
)
