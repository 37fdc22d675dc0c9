"""Files that a configuration names, and placeholders in place of their paths."""

from __future__ import annotations

import copy
import glob
import os
from typing import Iterator, List, Tuple

from google.protobuf.descriptor import FieldDescriptor

from estimator_det.config.assignments import set_value
from estimator_det.config.facts import readers
from estimator_det.config.field_rules import PLACEHOLDER
from estimator_det.config.rules import Tpu, rules
from estimator_det.config.text import entries, is_repeated, nearest
from estimator_det.console.printing import quoted
from estimator_det.errors import Problem, error
from estimator_det.files import bracket_hint, is_remote
from estimator_det.protos import pipeline_pb2

Config = pipeline_pb2.TrainEvalPipelineConfig

CHECKPOINT_FIELD = "train_config.fine_tune_checkpoint"
KEYPOINTS_FIELD = "model.center_net.keypoint_label_map_path"
# Texts in sample configurations in place of a path of the user; the second one in those for TPU.
PLACEHOLDERS = (PLACEHOLDER, "YOUR_BUCKET")
REMOTE = "gs://"


def named_paths(config: Config) -> Iterator[Tuple[str, str]]:
    """(field, path) of the checkpoint, label maps, hierarchies and input paths that are set."""
    if config.model.center_net.keypoint_label_map_path:
        yield KEYPOINTS_FIELD, config.model.center_net.keypoint_label_map_path
    if config.train_config.fine_tune_checkpoint:
        yield CHECKPOINT_FIELD, config.train_config.fine_tune_checkpoint
    for name, reader in readers(config):
        if reader.label_map_path:
            yield f"{name}.label_map_path", reader.label_map_path
        if reader.label_hierarchy_path:
            yield f"{name}.label_hierarchy_path", reader.label_hierarchy_path
        for index, pattern in enumerate(reader.tf_record_input_reader.input_path):
            yield f"{name}.tf_record_input_reader.input_path[{index}]", pattern


def is_placeholder(text: str) -> bool:
    """True if a path is a placeholder that a sample configuration leaves to its user."""
    return any(mark in text for mark in PLACEHOLDERS)


def without_placeholders(config: Config) -> Config:
    """A copy without the paths that a sample configuration leaves to its user.

    For checks that read files.
    """
    changed = copy.deepcopy(config)
    for _, parent, field, value in list(entries(changed)):
        if field.cpp_type == FieldDescriptor.CPPTYPE_STRING and is_placeholder(value):
            if is_repeated(field):
                getattr(parent, field.name).remove(value)
            else:
                parent.ClearField(field.name)
    return changed


def missing_files(config: Config) -> List[str]:
    """The fields whose local files do not exist: checkpoint, label maps, hierarchies, records."""
    return [field for field, path in named_paths(config) if _missing(path)]


def resolve_paths(config: Config, folder: str) -> Config:
    """A copy in which files that only exist relative to `folder` have paths that contain it."""
    changed = copy.deepcopy(config)
    for field, path in named_paths(config):
        is_pattern = ".input_path[" in field
        beside = os.path.join(glob.escape(folder) if is_pattern else folder, path)
        if _missing(path) and not _missing(beside) and not is_remote(folder):
            set_value(changed, field, beside)
    return changed


def _missing(pattern: str) -> bool:
    """Whether no local file matches; remote and placeholder paths count as present."""
    if not pattern or is_remote(pattern) or is_placeholder(pattern):
        return False
    # A checkpoint is named by the prefix of its files.
    paths = (pattern, f"{pattern}.index")
    return not any(map(os.path.exists, paths)) and not glob.glob(pattern)


def check_paths(config: Config) -> Iterator[Problem]:
    """An error for each local record, checkpoint or label map of the model that does not exist."""
    for field, path in named_paths(config):
        if not _missing(path):
            continue
        if field == CHECKPOINT_FIELD:
            folder, name = os.path.split(path)
            indices = glob.glob(os.path.join(glob.escape(folder), "*.index"))
            prefixes = [os.path.basename(index)[: -len(".index")] for index in sorted(indices)]
            yield error(
                field,
                f"there is no checkpoint {quoted(path)}{nearest(name, prefixes)}",
                "give its prefix, without .index or .data-…; empty to start from scratch",
            )
        elif field == KEYPOINTS_FIELD:
            yield error(field, f"there is no file {quoted(path)}", "give the path of a label map")
        elif ".input_path[" in field:
            yield error(
                field,
                f"no file matches {quoted(path)} (from {os.getcwd()}, or beside the file)",
                "correct the path; patterns such as train-*.record are allowed"
                + bracket_hint(path),
            )


@rules(pipeline_pb2.TrainEvalPipelineConfig, target="tpu")
def _check_storage(config: Config, _: str, tpu: Tpu) -> Iterator[Problem]:
    """The machine of a TPU reads and writes Cloud Storage."""
    for field, path in (("--model_dir", tpu.model_dir or ""), *named_paths(config)):
        # These are read by the program itself, wherever it runs.
        anywhere = tpu.local_files or field.endswith(("label_map_path", ".label_hierarchy_path"))
        if is_placeholder(path):
            yield Problem("placeholder", field, f"is still {path!r}", edits=(f"{field}={REMOTE}…",))
        elif path and not path.startswith(REMOTE) and not anywhere:
            text = (
                f"{path!r} is not in Cloud Storage, where the machine of the TPU reads and writes"
            )
            if field.startswith("--"):
                yield error(field, text, f"give a folder {REMOTE}YOUR_BUCKET/…")
            else:
                copy_it = (
                    "copy it there (gsutil cp), or check with --local_files if the TPU's own "
                    "machine has it"
                )
                edit = f"{field}={REMOTE}YOUR_BUCKET/…"
                yield Problem("error", field, text, copy_it, (edit,))
