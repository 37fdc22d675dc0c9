"""`estimator-det init`: writes a configuration for a data set, weights and this machine."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import Any, Dict

from estimator_det.errors import RunError, UsageError
from estimator_det.programs import console
from estimator_det.programs.verbs import convert
from estimator_det.programs.verbs.base import CONFIG_FILE, add_options, number, positive
from estimator_det.programs.verbs.train import AUTO
from inputs.datasets.source import ConversionError

SUMMARY = "Writes a configuration that trains well on your data"
EXAMPLE = "--records records --hours 1 --output_dir project"
# In the order of the command that a configuration repeats.
_OPTIONS = (
    "records", "from", "images", "annotations", "classes", "split", "model", "pretrained", "hours",
    "num_train_steps", "output_dir",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "the same as --records, or with --from as --images"
    parser.add_argument("data", nargs="?", metavar="DATA", help=text)
    switches = {
        "--list": "print all models for --model",
        "--overwrite": f"replace an earlier {CONFIG_FILE}",
    }
    add_options(parser, bool, switches)
    texts = {
        "--output_dir DIR": "folder for the configuration",
        "--model NAME": "a name from --list (default: as the weights, else ssd_mobilenet_v1, or "
        "a model of finer feature maps if boxes are small)",
        "--pretrained NAME|PATH": "weights to start from: a name from `estimator-det pretrained "
        "--list`, an archive (.tar.gz), or the folder of a run or an import",
    }
    add_options(parser, str, texts)
    data = parser.add_argument_group("data")
    text = "convert this data set first, to OUTPUT_DIR/records; formats as in convert"
    add_options(data, convert.format_name, {"--from FORMAT": text}, dest="source_format")
    texts = {
        "--records DIR": "folder that `convert` has written",
        "--images DIR": "with --from: folder of all images",
        "--annotations PATH": "with --from: annotations",
        "--classes FILE": "with --from yolo or open_images",
        "--split PART=SHARE,…": "with --from: as in convert (default: train=0.8,val=0.2)",
    }
    add_options(data, str, texts)
    length = parser.add_argument_group("length of the training").add_mutually_exclusive_group()
    hours = number(lambda value: 0 < value < 10_000, "not a time: give hours, such as 0.5 or 12")
    add_options(length, hours, {"--hours H": "time of the whole run on this machine"})
    add_options(length, positive, {"--num_train_steps N": "steps to train"})


def run(options: argparse.Namespace) -> None:
    _name_data(options)
    if options.list:
        values = {**_values(options), "overwrite": options.overwrite or None}
        if others := [name for name, value in values.items() if value is not None]:
            raise UsageError(f"--{others[0]} has no effect with --list; remove it")
        _print_list()
        return
    _check_usage(options)
    path = os.path.join(options.output_dir, CONFIG_FILE)
    from estimator_det.files import ownership

    ownership.check_file(path, "init")
    if os.path.exists(path) and not options.overwrite:
        raise FileExistsError(f"{path} exists. Add --overwrite to replace it")
    from estimator_det import files
    from estimator_det.programs import (
        pretrained,
        starter,
        starter_models,
        starter_plan,
        starter_text,
    )
    from model_fn.checkpoints import writing

    with writing.writable_folder(options.output_dir, "output_dir"):
        # A wrong name is reported before the data are converted, which may take hours.
        if options.model:
            starter_models.find_starter(options.model)
        weights = pretrained.resolve(options.pretrained) if options.pretrained else None
        plan = starter_plan.make_plan(
            options.records or _convert(options),
            starter.Budget(options.hours, options.num_train_steps),
            model=options.model,
            weights=weights,
        )
        command = _train_command(path)
        # The first lines of the file repeat it: who finds it later knows where it is from.
        header = [_command(options), "", f"Train:  {command}", *plan.expectations]
        files.write_text(path, starter_text.commented(plan.config, plan.reasons, header))
    for line in [*plan.findings, *plan.expectations]:
        console.print_line(line)
    console.print_line(f"configuration: {path}; train it by")
    console.print_line(f"  {command}")
    console.report_result({"configuration": path, "train": command, "findings": plan.findings})


def _name_data(options: argparse.Namespace) -> None:
    """Makes the argument DATA an option."""
    data = vars(options).pop("data")
    name = "records" if options.source_format is None else "images"
    if data is not None and getattr(options, name) is not None:
        raise UsageError(
            f"{data} and --{name} {getattr(options, name)} are given: give one of them"
        )
    if data is not None:
        setattr(options, name, data)


def _check_usage(options: argparse.Namespace) -> None:
    data = (
        "--records DIR, a folder that `convert` has written, or --from FORMAT with --images and "
        "--annotations"
    )
    if None not in (options.records, options.source_format):
        raise UsageError(f"--records and --from exclude each other: give {data}")
    missing = []
    if options.source_format is not None:
        missing = convert.missing_options(options.source_format, vars(options))
    elif options.records is None:
        missing = [data]
    if options.output_dir is None:
        missing.append("--output_dir DIR, the folder for the configuration")
    if missing:
        raise UsageError(f"init needs {'; and '.join(missing)}")
    for name in ("images", "annotations", "classes", "split"):
        if options.records is not None and getattr(options, name) is not None:
            raise UsageError(f"--{name} has no effect with --records; remove it")


def _print_list() -> None:
    from estimator_det.programs import pretrained, starter_models

    rows = [("model", "line", "input size", "parameters", "time", "mAP", "speed", "published")]
    for row in starter_models.MODELS:
        published = pretrained.find_model(row.zoo)
        size, time = f"{row.parameters:.1f} M", f"{row.step_time:.1f}"
        rows.append((row.name, published.line, row.input_size, size, time,
                     published.quality, published.speed, published.name))  # fmt: skip
    for cells in rows:
        console.print_line("{:<32}  {:<4}  {:<11}  {:>10}  {:>4}  {:>4}  {:<18}  {}".format(*cells))
    console.report_result([dict(zip(rows[0], cells)) for cells in rows[1:]])
    console.print_line("time: for training an image on a CPU, relative to ssd_mobilenet_v1")
    console.print_line(
        "mAP on COCO and speed: as published for these weights, which --pretrained takes; "
        "`estimator-det pretrained --list` prints all"
    )


def _convert(options: argparse.Namespace) -> str:
    """Converts the data set; returns the folder of its records."""
    folder = os.path.join(options.output_dir, "records")
    split = options.split or "train=0.8,val=0.2"
    arguments = {**vars(options), "output_dir": folder, "split": split}
    try:
        convert.to_records({name: value for name, value in arguments.items() if value})
    except ConversionError as error:
        names = ("images", "annotations", "classes", "split", "output_dir")
        words = ["estimator-det", "convert", "--from", options.source_format, "--to", "tfrecord"]
        words += [word for n in names if arguments[n] for word in (f"--{n}", arguments[n])]
        raise RunError(
            f"{error}\ninit has no such options: give them to convert, then start init with "
            f"--records {shlex.quote(folder)}\n  {shlex.join(words)}"
        ) from error
    return folder


def _command(options: argparse.Namespace) -> str:
    """The command line as it was given."""
    words = [
        word
        for name, value in _values(options).items()
        if value is not None
        for word in (f"--{name}", f"{value:g}" if name == "hours" else str(value))
    ]
    return "estimator-det init " + " ".join(map(shlex.quote, words))


def _values(options: argparse.Namespace) -> Dict[str, Any]:
    # `from` is a word of Python, so the option has another name inside.
    values = {**vars(options), "from": options.source_format}
    return {name: values[name] for name in _OPTIONS}


def _train_command(path: str) -> str:
    folder = os.path.join(os.path.dirname(path), "run")
    return shlex.join(["estimator-det", "train", path, "--model_dir", folder, "--precision", AUTO])
