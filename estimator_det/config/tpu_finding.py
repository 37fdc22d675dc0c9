"""What a check of a configuration for TPU finds, and what it checks for."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Callable, Iterator, Optional, Tuple

from estimator_det.config.registry import Registry
from estimator_det.protos import input_reader_pb2, pipeline_pb2

Config = pipeline_pb2.TrainEvalPipelineConfig

SEVERITIES = ("error", "warning", "advice", "placeholder")
# Texts that stand in sample configurations where a path of the user's belongs.
PLACEHOLDERS = ("PATH_TO_BE_CONFIGURED", "YOUR_BUCKET")


@dataclasses.dataclass(frozen=True)
class Target:
    """What a configuration is to run on.

    Attributes:
        num_shards: TPU cores that share a batch.
        model_dir: Where checkpoints go; None if it is not known yet.
        inference: Whether predictions are computed on the TPU too, not the training alone.
        local_files: Whether the machine of the TPU has the files, as a TPU VM of one host may;
            otherwise they must lie in Google Cloud Storage.
    """

    num_shards: int = 8
    model_dir: Optional[str] = None
    inference: bool = False
    local_files: bool = False

    def __post_init__(self) -> None:
        if self.num_shards < 1:
            raise ValueError(f"num_shards must be 1 or more; given {self.num_shards}")


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing about a configuration that does not suit a TPU.

    Attributes:
        severity: "error": it cannot run there; "warning": it runs, badly or not as meant;
            "advice": it may run better; "placeholder": a path that is still to be filled in.
        field: Path of the field, in the form that `--set` takes.
        message: What it is, and why that is wrong.
        edits: Assignments, as `--set` takes them, that mend it.
        safe: Whether the edits can be made unseen: the model keeps its variables and learns the
            same task by the same loss.
        remedy: What to do where no edit is known, or what to mind when making it.
        rule: Name of the rule that found it.
    """

    severity: str
    field: str
    message: str
    edits: Tuple[str, ...] = ()
    safe: bool = False
    remedy: str = ""
    rule: str = ""

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"severity must be one of {SEVERITIES}, given {self.severity!r}")
        if not (self.edits or self.remedy):
            raise ValueError(f"a finding about {self.field} needs an edit or a remedy")
        if self.safe and not self.edits:
            raise ValueError(f"a finding about {self.field} without an edit cannot be safe to mend")

    def __str__(self) -> str:
        ways = [self.remedy] if self.remedy else []
        if self.edits:
            ways.insert(0, " ".join(f"--set {shlex.quote(edit)}" for edit in self.edits))
        return f"{self.severity}: {self.field}: {self.message}. Remedy: {'; '.join(ways)}"


Rule = Callable[[Config, Target], Iterator[Finding]]
RULES: Registry[Rule] = Registry("TPU rule")


def rule(name: str) -> Callable[[Rule], Rule]:
    """Decorator: the findings of a function belong to the rule `name`."""

    def enter(check: Rule) -> Rule:
        def named(config: Config, target: Target) -> Iterator[Finding]:
            for finding in check(config, target):
                yield dataclasses.replace(finding, rule=name)

        RULES.register(name)(named)
        return check

    return enter


def readers(config: Config) -> Iterator[Tuple[str, input_reader_pb2.InputReader]]:
    """(path, reader) of every input reader, that of training first."""
    if config.HasField("train_input_reader"):
        yield "train_input_reader", config.train_input_reader
    for index, reader in enumerate(config.eval_input_reader):
        yield f"eval_input_reader[{index}]", reader


def is_placeholder(text: str) -> bool:
    """Whether a path is one that a sample configuration leaves to its user."""
    return any(mark in text for mark in PLACEHOLDERS)
