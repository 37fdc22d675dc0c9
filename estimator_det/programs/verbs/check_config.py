"""`estimator-det check-config`: reports what a configuration does and what is wrong with it."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, List, Sequence, Tuple

from estimator_det.console import printing
from estimator_det.errors import UsageError
from estimator_det.programs import console
from estimator_det.programs.verbs import tpu_checks
from estimator_det.programs.verbs.base import add_config_arguments, add_options, load

if TYPE_CHECKING:
    from estimator_det.protos import pipeline_pb2

SUMMARY = "Reports what a configuration does and what is wrong with it"
EXAMPLE = "ssd.config --set model.ssd.num_classes=3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    text = "print it with all changes applied"
    add_options(parser, bool, {"--print": text}, dest="print_config")
    text = "print what the schema says about one field, such as train_config.batch_size"
    add_options(parser, str, {"--explain FIELD": text})
    switches = {
        "--list_quantized": "list the tensors that are quantized",
        "--no_build": "do not build the model",
    }
    add_options(parser, bool, switches)
    tpu_checks.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    if options.explain:
        from estimator_det.config import reference

        lines = reference.explain(options.explain)
        for line in lines:
            console.print_line(line)
        console.report_result([line.strip() for line in lines])
        return console.EXIT_OK
    tpu_checks.check_options(options)
    for name, is_given in (
        ("compile", options.compile_step),
        ("list_quantized", options.list_quantized),
    ):
        if options.no_build and is_given:
            raise UsageError(f"--no_build and --{name} exclude each other: give one of them")
    from estimator_det.config import pipeline
    from model_fn.checks import config_check

    config = load(options, is_trusted=False)
    targets_tpu = bool(options.tpu or options.fix or options.compile_step)
    text = pipeline.format_pipeline(config) if options.print_config else ""
    if text and not options.json:
        printing.report(text, whole=True)
    depth = config_check.CONTENTS if options.no_build else config_check.GRAPHS
    checked = config_check.check(config, depth, targets_tpu=targets_tpu)
    ignored = console.FOR_TPU if targets_tpu else ()
    problems = [problem for problem in checked.problems if problem.field not in ignored]
    lines = summary_lines(config)
    if options.no_build:
        lines.append("graph:      not built (--no_build): what only the graph shows is not checked")
    if checked.graphs is not None:
        lines += _graph_lines(config, checked.graphs, list_quantized=options.list_quantized)
        if checked.graphs.memory is not None and not targets_tpu:
            reads = not any("path" in problem.field for problem in problems)
            reads &= not any(problem.severity == "error" for problem in checked.graphs.problems)
            memory_problems, memory_lines = _memory(config, checked.graphs.memory, with_input=reads)
            problems += memory_problems
            lines += memory_lines
    for problem in problems:
        if problem.severity != "error" and not options.json:
            printing.report(problem)
    for line in lines:
        console.print_line(line)
    if targets_tpu:
        build = checked.graphs is not None and checked.graphs.num_operations > 0
        problems += tpu_checks.run(config, options, problems, build=build)
    errors = [problem for problem in problems if problem.severity == "error"]
    num_warnings = sum(problem.severity == "warning" for problem in problems)
    totals = printing.counted(len(errors), "error"), printing.counted(num_warnings, "warning")
    console.print_line(", ".join(totals))
    document = {"summary": lines, "problems": [vars(problem) for problem in problems]}
    console.report_result({**document, "config": text} if text else document)
    for problem in errors:  # last, where they are seen
        printing.report(problem, sys.stderr)
    return console.EXIT_FAILED if errors else console.EXIT_OK


def _graph_lines(
    config: pipeline_pb2.TrainEvalPipelineConfig, graphs: Any, *, list_quantized: bool
) -> List[str]:
    lines = []
    if graphs.num_operations:
        lines.append(
            f"graph:      {printing.counted(graphs.num_variables, 'variable')}, "
            f"{printing.counted(graphs.num_operations, 'operation')}"
        )
    lines += _quantized_lines(config, graphs.quantized, lists_names=list_quantized)
    if graphs.warm_start is not None:
        lines.append(f"start:      {graphs.warm_start.heading()}")
    return lines


def _quantized_lines(
    config: pipeline_pb2.TrainEvalPipelineConfig, scopes: Sequence[str], *, lists_names: bool
) -> List[str]:
    """Number of tensors that simulate quantization, and their names."""
    if not scopes:
        return []
    from estimator_det.nets.quantization import WEIGHTS

    options = config.graph_rewriter.quantization
    num_weights = sum(scope.endswith(f"/{WEIGHTS}") for scope in scopes)
    weights = printing.counted(num_weights, "weight")
    activations = printing.counted(len(scopes) - num_weights, "activation")
    heading = (
        f"quantized:  {weights} of {options.weight_bits} bits and {activations} of "
        f"{options.activation_bits} bits, rounded from step {max(options.delay, 1)} on"
    )
    if not lists_names:
        return [f"{heading} (--list_quantized lists them)"]
    return [heading, *(f"            {scope}" for scope in scopes)]


def _memory(
    config: pipeline_pb2.TrainEvalPipelineConfig, training: Any, with_input: bool
) -> Tuple[List[Any], List[str]]:
    """Problems and lines about memory; the input pipeline's only if its files can be read."""
    from estimator_det.errors import RunError, error
    from inputs.machine import available_cpus
    from model_fn.checks import memory

    problems: List[Any] = []
    total = training.training
    lines = [
        f"memory:     about {total / 1e9:.1f} GB for training at batch {training.images} "
        f"(TensorFlow and its graph {training.graph / 1e9:.2f}, activations "
        f"{training.activations / 1e9:.2f}, parameters and gradients "
        f"{(training.parameters + training.gradients) / 1e9:.2f}, optimizer "
        f"{training.slots / 1e9:.2f})"
    ]
    if with_input:
        try:
            needed = memory.input_memory(config, training, available_cpus())
        except RunError as reason:
            problems.append(error("train_input_reader", str(reason), "name a file with records"))
        else:
            total += needed.total
            lines.append(
                f"            and {needed.total / 1e9:.2f} GB for the input pipeline (shuffle "
                f"buffer {needed.shuffled / 1e9:.2f}, batches ahead "
                f"{needed.prefetched / 1e9:.2f})"
            )
    return [*problems, *memory.check_memory(total, training.images)], lines


def summary_lines(config: pipeline_pb2.TrainEvalPipelineConfig) -> List[str]:
    """Summary of a configuration in a few lines."""
    kind = config.model.WhichOneof("model")
    model: Any = getattr(config.model, kind) if kind else None
    lines = [f"model:      {kind or 'none'}"]
    extractor = getattr(model, "feature_extractor", None)
    if extractor is not None:
        classes = printing.counted(model.num_classes, "class")
        lines[0] = ", ".join(filter(None, [lines[0], extractor.type, classes]))
    resizer = getattr(model, "image_resizer", None)
    if resizer is not None and resizer.WhichOneof("image_resizer_oneof"):
        name = resizer.WhichOneof("image_resizer_oneof")
        sizes = " ".join(str(getattr(resizer, name)).split())
        lines.append(f"images:     {name} {sizes}")
    train = config.train_config
    optimizer = train.optimizer.WhichOneof("optimizer") or "no optimizer"
    steps = printing.counted(train.num_steps, "step")
    lines.append(f"training:   {steps} of {train.batch_size}, {optimizer}")
    links = [step.WhichOneof("preprocessing_step") for step in train.data_augmentation_options]
    lines.append(f"augmenting: {', '.join(str(link) for link in links) or 'nothing'}")
    for name, readers in (
        ("records:   ", [config.train_input_reader]),
        ("evaluation:", list(config.eval_input_reader)),
    ):
        paths = [path for reader in readers for path in reader.tf_record_input_reader.input_path]
        lines.append(f"{name} {', '.join(paths) or 'no records'}")
    lines.append(f"metrics:    {', '.join(config.eval_config.metrics_set) or 'default'}")
    return lines
