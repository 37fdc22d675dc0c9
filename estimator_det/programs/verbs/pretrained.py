"""`estimator-det pretrained`: weights of the public model zoos, by name."""

from __future__ import annotations

import argparse
import os
import shlex

from estimator_det.errors import UsageError
from estimator_det.programs import console
from estimator_det.programs.verbs.base import add_options

SUMMARY = "Lists and downloads pretrained detectors of the TensorFlow 1 and 2 model zoos"
EXAMPLE = "ssd_mobilenet_v2_coco"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="a name from --list, which is downloaded once, or the path of an archive (.tar.gz)",
    )
    add_options(parser, bool, {"--list": "print all names; downloads nothing"})
    text = (
        "folder of archives and their contents (default: $ESTIMATOR_DET_CACHE, or "
        "estimator-det in $XDG_CACHE_HOME or ~/.cache)"
    )
    add_options(parser, str, {"--cache_dir DIR": text})


def run(options: argparse.Namespace) -> None:
    from estimator_det.config.assignments import assignment
    from estimator_det.programs import pretrained

    if options.list == (options.name is not None):
        raise UsageError("give the name of a model, or --list, which prints all names")
    if options.cache_dir is not None and (options.list or os.path.isdir(options.name)):
        raise UsageError("--cache_dir has an effect on names and archives only; remove it")
    if options.list:
        models = pretrained.zoo()
        names = max(len(model.name) for model in models)
        extractors = max(len(model.extractor) for model in models)
        for model in models:
            network = f"{model.line}  {model.extractor:<{extractors}}"
            console.print_line(f"{model.name:<{names}}  {network}  {model.published}")
        console.report_result([model._asdict() for model in models])
        return
    weights = pretrained.resolve(options.name, options.cache_dir)
    console.print_line(f"folder:        {weights.folder}")
    console.print_line(f"checkpoint:    {weights.checkpoint}")
    console.print_line(f"configuration: {weights.config_path or 'none in the archive'}")
    if weights.zoo_model is not None:
        console.print_line(f"published:     {weights.zoo_model.published}")
    files = (str(weights.folder), str(weights.checkpoint), weights.config_path)
    console.report_result(dict(zip(("folder", "checkpoint", "configuration"), files)))
    console.print_line("to fine-tune a configuration with the same feature extractor:")
    console.print_line("  estimator-det train FILE --model_dir DIR " + "\\")
    lines = [f"    --set {shlex.quote(assignment(*pair))}" for pair in weights.fields.items()]
    console.print_line(" \\\n".join(lines))
