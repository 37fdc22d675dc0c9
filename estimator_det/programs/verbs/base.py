"""Options that several verbs of `estimator-det` share."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
from typing import Any, Callable, Dict, Mapping, Optional, Sequence

from estimator_det.console import printing
from estimator_det.errors import UsageError
from estimator_det.files import atomic, folders_with, json_lines
from estimator_det.programs import console

CONFIG_FILE = "pipeline.config"
RUN_FOLDER = "run"  # in the folder of a project
REPORT_FILES = ("report.txt", "report.json", "histograms.png")


def add_options(parser: Any, kind: Any, texts: Mapping[str, str], **settings: Any) -> None:
    """Adds options of one type to a parser or group.

    Args:
        kind: Type of the values; options of type `bool` are switches.
        texts: Option, with the name of its value if it has a special one -> help.
        settings: Further arguments of `add_argument`, such as a default.
    """
    for spelling, text in texts.items():
        name, _, metavar = spelling.partition(" ")
        if kind is bool:
            parser.add_argument(name, help=text, action="store_true", **settings)
        else:
            parser.add_argument(name, help=text, type=kind, metavar=metavar or None, **settings)


def add_config_arguments(parser: argparse.ArgumentParser, *, default: str = "") -> None:
    """The configuration as an argument or as `--pipeline_config_path`, and changes to it.

    Args:
        default: Says in the help which configuration is used if none is given; empty where one
            must be given.
    """
    group = parser.add_argument_group("configuration")
    note = f" (default: {default})" if default else ""
    text = f"pipeline configuration, or the folder of a run{note}"
    group.add_argument("config", nargs="?", metavar="CONFIG", help=text)
    add_options(group, str, {"--pipeline_config_path FILE": "the same as an option"})
    add_change_arguments(group)


def add_output_dir(parser: Any, text: str) -> None:
    """`--output_dir`, by its name in the Object Detection API, too."""
    parser.add_argument("--output_dir", required=True, help=text)
    accept_names(parser, {"--output_directory": "--output_dir"})


def accept_names(parser: Any, names: Mapping[str, str]) -> None:
    """Accepts options by their names in programs of the API, which the help leaves out."""
    for name, option in names.items():
        parser._option_string_actions[name] = parser._option_string_actions[option]


def add_change_arguments(parser: Any) -> None:
    """`--config_override` and `--set`."""
    text = "text proto merged over the configuration, e.g. 'train_config { batch_size: 8 }'"
    add_options(parser, str, {"--config_override TEXT": text}, default="")
    add_set_argument(parser)


def add_set_argument(parser: Any) -> None:
    """`--set KEY=VALUE`."""
    text = (
        "change one field, e.g. train_config.batch_size=8 or eval_input_reader[0].shuffle=true; "
        "may be repeated"
    )
    add_options(parser, str, {"--set KEY=VALUE": text}, action="append", default=[])


def add_report_arguments(parser: Any) -> None:
    """`--json` and `--verbose`."""
    texts = {
        "--json": "print the report as JSON",
        "--verbose": "print the whole report, not a summary of 15 lines",
    }
    add_options(parser, bool, texts)


def add_verbose_argument(parser: Any) -> None:
    """`--verbose` of a training or an evaluation."""
    add_options(parser, bool, {"--verbose": "print all metrics, and the variables of a start"})


def write_report(
    folder: str, prefix: str, lines: Sequence[str], document: Any, panels: Sequence[Any], title: str
) -> None:
    """Writes a report as text, JSON and charts; without panels, deletes earlier charts."""
    from estimator_det.compat import tf
    from model_fn.drawing import charts

    text_file, json_file, picture = (os.path.join(folder, prefix + name) for name in REPORT_FILES)
    text, json_text = printing.printable("\n".join(lines)), json_lines.dumps(document, indent=2)
    atomic.write(text_file, f"{text}\n")
    atomic.write(json_file, f"{json_text}\n")
    if panels:
        atomic.write(picture, charts.figure(panels, title=title))
    elif tf.io.gfile.exists(picture):
        tf.io.gfile.remove(picture)


def print_report(document: Any, lines: Sequence[str]) -> None:
    """Prints the lines of a report, or with `--json` all of it."""
    for line in lines:
        console.print_line(line)
    console.report_result(document)


def fields_of(options: Any, arguments: Mapping[str, Any]) -> Dict[str, Any]:
    """The arguments that are fields of a dataclass of options."""
    names = {field.name for field in dataclasses.fields(options)}
    return {name: value for name, value in arguments.items() if name in names}


def positive(text: str) -> int:
    """The value of an option that counts something."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: give 1 or more")
    return int(text)


def natural(text: str) -> int:
    """The value of an option that may be 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: give 0 or more")
    return int(text)


def tile_side(text: str) -> int:
    """The side of tiles in pixels, with the limit of `eval_config.tiles.side`."""
    if not text.isdecimal() or int(text) < 16:
        raise argparse.ArgumentTypeError(f"{text!r} is no side of tiles: give 16 pixels or more")
    return int(text)


def number(is_allowed: Callable[[float], bool], refusal: str) -> Callable[[str], float]:
    """The type of an option whose value is a number; the refusal says what it is not."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isnan(value) or not is_allowed(value):
            raise argparse.ArgumentTypeError(f"{text!r} is {refusal}")
        return value

    return parse


above_zero = number(lambda value: value > 0, "not allowed: give a number above 0")
score = number(lambda value: 0 <= value <= 1, "not a score: give a number between 0 and 1")


def config_path(options: argparse.Namespace, default: Optional[str] = None) -> str:
    """The path of the configuration from the options of `add_config_arguments`."""
    paths = [path for path in (options.config, options.pipeline_config_path) if path is not None]
    if len(paths) == 2 and _normal(paths[0]) != _normal(paths[1]):
        raise UsageError(
            f"two configurations are given, {paths[0]} as an argument and "
            f"--pipeline_config_path {paths[1]}: give one of them"
        )
    if not paths and default is None:
        raise UsageError("no configuration is given: add its path, or --pipeline_config_path FILE")
    path = str(paths[0] if paths else default)
    if not os.path.isdir(path):
        return path
    if not os.path.exists(os.path.join(path, CONFIG_FILE)):
        raise FileNotFoundError(
            f"there is no {CONFIG_FILE} in the folder {path}: name the folder of a project or run; "
            + (runs_below(path) or "estimator-det init makes a project of records")
        )
    return os.path.join(path, CONFIG_FILE)


def load(
    options: argparse.Namespace, default: Optional[str] = None, *, is_trusted: bool = True
) -> Any:
    """The configuration of `config_path`, with all changes applied."""
    path = config_path(options, default)
    return console.load_config(path, options.config_override, options.set, is_trusted=is_trusted)


def require_path(path: Optional[str]) -> None:
    """Refuses the argument of a verb if it names nothing, or a checkpoint; None is allowed."""
    from estimator_det import files

    if path is not None and files.exists(f"{path}.index"):
        raise UsageError(
            f"{path} is a checkpoint: give the folder of its run. Only evaluate --model_dir and "
            "export --trained_checkpoint_prefix take a checkpoint"
        )
    if path is not None and not files.exists(path):
        raise FileNotFoundError(f"there is no file or folder {path}; correct the path")


def runs_below(path: str) -> str:
    """Names the runs and projects in a folder, for an error; empty if there is none."""
    return printing.holding(folders_with(path, CONFIG_FILE))


def run_folder(path: str) -> str:
    """The folder of a run: `path`, or its subfolder `run` where `init` lets a project train."""
    has_run = os.path.isdir(os.path.join(path, RUN_FOLDER))
    return os.path.join(path, RUN_FOLDER) if has_run else path


def _normal(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)
