"""`estimator-det check-config`: tells what a configuration does and what is wrong with it."""

from __future__ import annotations

import argparse
from typing import Any, List

from estimator_det import console
from estimator_det.verbs.base import Verb, add_set_argument


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="pipeline configuration")
    parser.add_argument("--config_override", default="", metavar="TEXT", help="merged over it")
    parser.add_argument(
        "--print", action="store_true", dest="print_config", help="print it with all changes made"
    )
    add_set_argument(parser)


def _run(options: argparse.Namespace) -> int:
    from estimator_det.config import pipeline

    config = console.load_config(options.file, options.config_override, options.set)
    if options.print_config:
        console.say(pipeline.format_pipeline(config))
    problems = pipeline.check(config)
    if config.model.WhichOneof("model"):
        problems += _unsupported(config)
    for problem in problems:
        console.say(str(problem))
    errors = sum(problem.severity == "error" for problem in problems)
    for line in summary_lines(config):
        console.say(line)
    console.say(f"{errors} errors, {len(problems) - errors} warnings")
    return console.EXIT_FAILED if errors else console.EXIT_OK


def _unsupported(config: Any) -> List[Any]:
    """What no component can be made of: parts that are not built in, options they refuse."""
    from estimator_det.config.problem import error
    from estimator_det.detectors import make_detector
    from inputs.augment import make_augmentation

    problems = []
    for field, make in (
        ("model", lambda: make_detector(config.model, is_training=True)),
        (
            "train_config.data_augmentation_options",
            lambda: make_augmentation(config.train_config.data_augmentation_options),
        ),
    ):
        try:
            make()
        except ValueError as reason:
            text = str(reason).rstrip(".")
            problems.append(error(field, text, "choose what is supported, or remove it"))
    return problems


def summary_lines(config: Any) -> List[str]:
    """What a configuration asks for, in a few lines."""
    kind = config.model.WhichOneof("model")
    model: Any = getattr(config.model, kind) if kind else None
    lines = [f"model:      {kind or 'none'}"]
    extractor = getattr(model, "feature_extractor", None)
    if extractor is not None:
        lines[0] += f", {extractor.type}, {model.num_classes} classes"
    resizer = getattr(model, "image_resizer", None)
    if resizer is not None and resizer.WhichOneof("image_resizer_oneof"):
        name = resizer.WhichOneof("image_resizer_oneof")
        sizes = " ".join(str(getattr(resizer, name)).split())
        lines.append(f"images:     {name} {sizes}")
    train = config.train_config
    optimizer = train.optimizer.WhichOneof("optimizer") or "no optimizer"
    lines.append(f"training:   {train.num_steps} steps of {train.batch_size}, {optimizer}")
    steps = [step.WhichOneof("preprocessing_step") for step in train.data_augmentation_options]
    lines.append(f"augmenting: {', '.join(str(step) for step in steps) or 'nothing'}")
    for name, readers in (
        ("records:   ", [config.train_input_reader]),
        ("evaluation:", list(config.eval_input_reader)),
    ):
        paths = [path for reader in readers for path in reader.tf_record_input_reader.input_path]
        lines.append(f"{name} {', '.join(paths) or 'no records'}")
    lines.append(f"metrics:    {', '.join(config.eval_config.metrics_set) or 'default'}")
    return lines


VERB = Verb(
    "check-config",
    "Tells what a configuration does and what is wrong with it",
    "ssd.config --set model.ssd.num_classes=3",
    _add_arguments,
    _run,
)
