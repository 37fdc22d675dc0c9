"""`estimator-det check-config`: tells what a configuration does and what is wrong with it."""

from __future__ import annotations

import argparse
from typing import Any, List, Tuple

from estimator_det import console
from estimator_det.verbs import tpu_checks
from estimator_det.verbs.base import Verb, add_set_argument


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="pipeline configuration")
    parser.add_argument("--config_override", default="", metavar="TEXT", help="merged over it")
    parser.add_argument(
        "--print", action="store_true", dest="print_config", help="print it with all changes made"
    )
    parser.add_argument(
        "--no_build", action="store_true", help="only what can be told without building the model"
    )
    add_set_argument(parser)
    tpu_checks.add_arguments(parser)


def _run(options: argparse.Namespace) -> int:
    from estimator_det.config import pipeline, tpu_lint

    config = console.load_config(options.file, options.config_override, options.set)
    on_tpu = tpu_checks.wanted(options)
    if on_tpu:
        tpu_checks.target_of(options)  # A slip among the options is told before anything is built.
    if options.print_config:
        console.say(pipeline.format_pipeline(config))
    problems = pipeline.check(config)
    lines = summary_lines(config)
    build = bool(config.model.WhichOneof("model")) and not options.no_build
    if build:
        # Paths that a sample leaves open are told by the rules for TPU; nobody should look there.
        given = tpu_lint.without_placeholders(config) if on_tpu else config
        missing = given is not config or any("path" in problem.field for problem in problems)
        found, more = _preflight(given, missing_files=missing, on_host=not on_tpu)
        told = {problem.field for problem in problems if problem.severity == "error"}
        problems += [problem for problem in found if problem.field not in told]
        lines += more
    for problem in problems:
        console.say(str(problem))
    errors = sum(problem.severity == "error" for problem in problems)
    warnings = len(problems) - errors
    for line in lines:
        console.say(line)
    if on_tpu:
        build = build and not any(p.severity == "error" and p.field == "model" for p in problems)
        outcome = tpu_checks.run(config, options, problems, build=build)
        errors, warnings = errors + outcome.errors, warnings + outcome.warnings
    console.say(f"{errors} errors, {warnings} warnings")
    return console.EXIT_FAILED if errors else console.EXIT_OK


def _preflight(config: Any, missing_files: bool, on_host: bool) -> Tuple[List[Any], List[str]]:
    """Problems and facts that only building the training graph shows; memory if run `on_host`."""
    from estimator_det.config.problem import error
    from inputs.augment import make_augmentation
    from inputs.machine import available_cpus
    from model_fn.preflight import run_check

    examined = run_check.examine(config)
    problems = [*examined.problems, *run_check.check_files(config)]
    try:
        make_augmentation(config.train_config.data_augmentation_options)
    except ValueError as reason:
        field, text = "train_config.data_augmentation_options", str(reason).rstrip(".")
        problems.append(error(field, text, "choose what is supported, or remove it"))
    lines = []
    if examined.num_operations:
        lines.append(
            f"graph:      {examined.num_variables} variables, {examined.num_operations} operations"
        )
    if examined.warm_start is not None:
        lines.append(f"start:      {examined.warm_start.heading()}")
    memory = examined.memory
    if memory is not None and on_host:
        total = memory.training
        lines.append(
            f"memory:     about {total / 1e9:.1f} GB for training at batch {memory.images} "
            f"(TensorFlow and its graph {memory.graph / 1e9:.2f}, activations "
            f"{memory.activations / 1e9:.2f}, parameters and gradients "
            f"{(memory.parameters + memory.gradients) / 1e9:.2f}, optimizer "
            f"{memory.slots / 1e9:.2f})"
        )
        if not missing_files and not any(p.severity == "error" for p in problems):
            try:
                needed = run_check.input_memory(config, memory, available_cpus())
            except ValueError as reason:
                remedy = "give records, or another file"
                problems.append(error("train_input_reader", str(reason), remedy))
            else:
                total += needed.total
                lines.append(
                    f"            and {needed.total / 1e9:.2f} GB for the input pipeline (shuffle "
                    f"buffer {needed.shuffled / 1e9:.2f}, batches ahead "
                    f"{needed.prefetched / 1e9:.2f})"
                )
        problems += run_check.check_memory(total, memory.images)
    return problems, lines


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
