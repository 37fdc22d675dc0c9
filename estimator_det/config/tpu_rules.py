"""Parts of the rules for TPU: the target, fields that need one value, and placeholders."""

from __future__ import annotations

import copy
import dataclasses
import re
from typing import Any, Iterator, Optional

from estimator_det.config.check import PLACEHOLDER
from estimator_det.config.problem import Problem
from estimator_det.config.text import entries, is_repeated
from estimator_det.protos import pipeline_pb2

Config = pipeline_pb2.TrainEvalPipelineConfig

# Texts in sample configurations in place of a path of the user.
PLACEHOLDERS = (PLACEHOLDER, "YOUR_BUCKET")


@dataclasses.dataclass(frozen=True)
class Target:
    """Target that a configuration is to run on."""

    num_shards: int = 8  # TPU cores that share a batch, at least 1
    model_dir: Optional[str] = None  # folder of checkpoints; None if it is not known yet
    # True if predictions are computed on the TPU too, not the training alone.
    inference: bool = False
    # True if the machine of the TPU has the files, as a TPU VM of one host may; otherwise they
    # must lie in Google Cloud Storage.
    local_files: bool = False


def unless(
    config: Config,
    edit: str,
    why: str,
    severity: str = "error",
    *,
    safe: bool = True,
    remedy: str = "",
) -> Iterator[Problem]:
    """A problem "is <value>: <why>" unless the field of `edit`, PATH=VALUE, has this value.

    None if the path leads through a member of a oneof that is not chosen.
    """
    path, _, wanted = edit.partition("=")
    value: Any = config
    for name, index in re.findall(r"(\w+)(?:\[(\d+)\])?", path):
        if value.DESCRIPTOR.fields_by_name[name].containing_oneof and not value.HasField(name):
            return
        value = getattr(value, name)[int(index)] if index else getattr(value, name)
    value_text = str(value).lower()
    if value_text != wanted:
        yield Problem(severity, path, f"is {value_text}: {why}", remedy, (edit,), safe)


def is_placeholder(text: str) -> bool:
    """Whether a path is one that a sample configuration leaves to its user."""
    return any(mark in text for mark in PLACEHOLDERS)


def without_placeholders(config: Config) -> Config:
    """A copy without the paths that a sample configuration leaves to its user.

    For checks that read files.
    """
    changed = copy.deepcopy(config)
    for _, parent, field, value in list(entries(changed)):
        if field.cpp_type == field.CPPTYPE_STRING and is_placeholder(value):
            if is_repeated(field):
                getattr(parent, field.name).remove(value)
            else:
                parent.ClearField(field.name)
    return changed
