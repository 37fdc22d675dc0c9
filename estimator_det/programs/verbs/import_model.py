"""`estimator-det import`: makes a checkpoint of a published model."""

from __future__ import annotations

import argparse
import logging

from estimator_det.programs import console
from estimator_det.programs.verbs.base import add_change_arguments, add_options, add_output_dir

SUMMARY = "Makes a checkpoint of a published model, for fine-tuning and export"
EXAMPLE = (
    "--from tfjs model/ --pipeline_config_path ssdlite.config --output_dir imported "
    "--calibrate photos/"
)

_LOG = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        metavar="PATH",
        help="the model: a .pb or .tflite file, the folder of a SavedModel or of a model.json, or "
        "the prefix of a checkpoint",
    )
    text = (
        "format of the model: checkpoint, frozen_graph, saved_model, tf2_checkpoint, tfjs, tflite, "
        "or a format that a module of --import registers"
    )
    add_options(parser, str, {"--from FORMAT": text}, dest="source", required=True)
    text = (
        "configuration of the model (default: proposed from the shapes in the file, for SSD with "
        "MobileNet v1 or v2)"
    )
    add_options(parser, str, {"--pipeline_config_path FILE": text})
    add_change_arguments(parser)
    text = (
        "new folder for the checkpoint, the configuration, the report and the label map, if the "
        "file contains one"
    )
    add_output_dir(parser, text)
    text = (
        "image or folder; may be repeated. Recompute the statistics of batch norm that is folded "
        "in the file, which fine-tuning needs"
    )
    add_options(parser, str, {"--calibrate PHOTOS": text}, action="append", default=[])
    parser.add_argument(
        "--anchor_order",
        choices=("last", "2017"),
        help="position of the interpolated anchor: 2017 for models of the first release of the "
        "Object Detection API (second), last for others (default: as the anchors in the file "
        "say, else last)",
    )
    add_options(parser, bool, {"--overwrite": "replace an earlier import"})


def run(options: argparse.Namespace) -> None:
    path = options.pipeline_config_path
    config = None
    if path is not None:
        config = console.load_config(path, options.config_override, options.set)
    from exporters.importing.importer import import_model, read_published
    from exporters.importing.proposal import propose_config
    from model_fn.checkpoints import writing

    with writing.writable_folder(options.output_dir, "output_dir"):
        published = read_published(options.source, options.path)
        if config is None:
            proposed = propose_config(published)
            config = console.change_config(proposed, options.config_override, options.set)
            console.print_line(
                "configuration: proposed from shapes; check scales of anchors and image size"
            )
        imported = import_model(
            published,
            config,
            options.output_dir,
            anchor_order=options.anchor_order,
            calibration_images=options.calibrate,
            overwrite=options.overwrite,
        )
    for line in imported.summary:
        console.print_line(line)
    for line in imported.warnings:
        _LOG.warning("warning: %s", line)
    console.print_line(f"checkpoint:    {imported.checkpoint}")
    console.print_line(f"configuration: {imported.pipeline_config}")
    console.print_line(f"label map:     {imported.label_map or 'none in the file'}")
    console.print_line(f"report:        {imported.report}")
    names = ("checkpoint", "pipeline_config", "label_map", "report")
    console.report_result({name: getattr(imported, name) for name in names})
