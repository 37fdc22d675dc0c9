"""The part of `check-config` for TPU: rules, edits, memory and the compile check."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any, List

from estimator_det.console import printing
from estimator_det.errors import UsageError
from estimator_det.programs import console
from estimator_det.programs.verbs.base import add_options, config_path, positive

if TYPE_CHECKING:
    from estimator_det.protos import pipeline_pb2

_GIB = float(1 << 30)
_NUM_SHARDS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--tpu` and its options."""
    group = parser.add_argument_group("TPU")
    text = "apply the edits that are safe, write the result and print the differences"
    add_options(group, str, {"--fix OUT.config": text}, default="")
    text = "build the step of one TPU core and report what its compiler would refuse"
    add_options(group, bool, {"--compile": text}, dest="compile_step")
    switches = {
        "--tpu": "also report what does not suit a TPU, and the memory it needs",
        "--no_xla": "with --compile: do not compile it for CPU as well",
        "--tpu_inference": "predictions run on TPU too",
        "--local_files": "the machine of the TPU has the files; they need not be in Cloud Storage",
    }
    add_options(group, bool, switches)
    add_options(group, positive, {"--num_shards N": f"TPU cores (default: {_NUM_SHARDS})"})
    add_options(group, str, {"--model_dir": "folder of the checkpoints"})


def check_options(options: argparse.Namespace) -> None:
    """Refuses options that have no effect without another one."""
    if options.no_xla and not options.compile_step:
        raise UsageError("--no_xla requires --compile: add it, or remove --no_xla")
    for name in ("num_shards", "model_dir", "tpu_inference", "local_files"):
        if getattr(options, name) and not (options.tpu or options.fix):
            raise UsageError(f"--{name} requires --tpu or --fix: add it, or remove --{name}")


def run(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    options: argparse.Namespace,
    reported: List[Any],
    *,
    build: bool,
) -> List[Any]:
    """Runs the checks that the options name; returns the problems, and prints all but errors.

    Placeholders among the `reported` problems are not printed again. Without `build`, the checks
    that build the model are skipped.
    """
    from estimator_det.config import rules
    from model_fn.checks import tpu_lint

    target = rules.Tpu(
        num_shards=options.num_shards or _NUM_SHARDS,
        model_dir=options.model_dir,
        inference=options.tpu_inference,
        local_files=options.local_files,
    )
    findings: List[Any] = []
    if options.fix:
        config = _fix(config, options, target)
    if options.fix or options.tpu:
        findings = tpu_lint.lint(config, target)
    fields = {problem.field for problem in reported}
    findings = [f for f in findings if f.severity != "placeholder" or f.field not in fields]
    if build and (options.fix or options.tpu):
        findings += _memory(config, target.num_shards)
    if build and options.compile_step:
        findings += _compile(config, with_xla=not options.no_xla)
    warnings = [finding for finding in findings if finding.severity != "error"]
    if warnings:
        console.print_line("on TPU:")
    for finding in warnings:
        console.print_line(f"  {finding}")
    return findings


def _fix(
    config: pipeline_pb2.TrainEvalPipelineConfig, options: argparse.Namespace, target: Any
) -> Any:
    """The configuration with safe edits made; writes it, and prints the edits."""
    from estimator_det import files
    from estimator_det.config import pipeline
    from estimator_det.files import ownership
    from model_fn.checkpoints import writing
    from model_fn.checks import tpu_lint

    fixed, applied = tpu_lint.fix(config, target)
    path = config_path(options)
    verb = "check-config --fix"
    signed = f"# {ownership.signature(verb)}\n"
    heading = signed + tpu_lint.heading(files.read_text(path)).removeprefix(signed)
    with writing.writable_file(options.fix, "fix"):
        ownership.check_file(options.fix, verb)
        files.write_text(options.fix, heading + pipeline.format_pipeline(fixed))
    difference = tpu_lint.diff(config, fixed, path, options.fix)
    console.print_line(difference or "no edit is safe")
    for finding in applied:
        console.print_line(f"edited: {finding.field}: {finding.message}")
    num_left = sum(problem.severity != "placeholder" for problem in tpu_lint.lint(fixed, target))
    console.print_line(
        f"written: {options.fix}; {printing.counted(len(applied), 'problem')} fixed, "
        f"{num_left} left"
    )
    return fixed


def _memory(config: pipeline_pb2.TrainEvalPipelineConfig, num_shards: int) -> List[Any]:
    """Prints what a core needs; a problem if no kind of TPU has it."""
    from estimator_det.errors import ConfigError, warning
    from model_fn.checks import tpu_memory

    per_core = max(1, config.train_config.batch_size // num_shards)
    try:
        needed = tpu_memory.estimate(config, per_core)
    except ConfigError as reason:
        console.print_line(f"TPU memory: not known: {reason}")
        return []
    batch = printing.counted(per_core, "image")
    console.print_line(
        f"TPU memory: about {needed.total() / _GIB:.1f} GiB a core at {batch} each "
        f"(activations {needed.activations() / _GIB:.1f}, variables and gradients "
        f"{(needed.variables + needed.gradients) / _GIB:.2f}); with a margin of "
        f"{tpu_memory.MARGIN - 1:.0%} there fit"
    )
    fitting = {name: needed.fitting(size) for name, size in tpu_memory.CORE_BYTES.items()}
    for name, images in fitting.items():
        size = tpu_memory.CORE_BYTES[name] / _GIB
        verdict = "" if images >= per_core else "; this batch does not"
        each, cores = printing.counted(images, "image"), printing.counted(num_shards, "core")
        console.print_line(
            f"            {name:<3} ({size:.0f} GiB): {each} a core, a batch of "
            f"{images * num_shards} on {cores}{verdict}"
        )
    most = max(fitting.values())
    if most >= per_core:
        return []
    field = "train_config.batch_size"
    remedy = f"--set {field}={most * num_shards}, or use more cores" if most else "smaller images"
    do = "does" if per_core == 1 else "do"
    return [warning(field, f"{batch} {do} not fit into the memory of a core", remedy)]


def _compile(config: pipeline_pb2.TrainEvalPipelineConfig, with_xla: bool) -> List[Any]:
    from model_fn.checks import tpu_graph

    start = time.monotonic()
    problems, num_operations = tpu_graph.compile_check(config, xla=with_xla)
    bad = sum(problem.severity == "error" for problem in problems)
    console.print_line(
        f"TPU graph:  {num_operations} operations on a core, {printing.counted(bad, 'problem')}, "
        f"{time.monotonic() - start:.0f} s"
    )
    return problems
