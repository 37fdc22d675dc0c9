"""Pipeline configurations: read, merge, override, print and save.

A pipeline configuration is one `TrainEvalPipelineConfig` message: model, training, evaluation and
the input readers. Everything here takes and returns such a message; functions that change one
return a copy. TensorFlow is imported for remote paths (gs://…) only.
"""

from __future__ import annotations

import os

from google.protobuf import text_format

from estimator_det.config import plugins
from estimator_det.config.overrides import (
    apply_overrides,
    merge_text,
    override,
    rescale_schedule,
    set_values,
)
from estimator_det.config.paths import resolve_paths
from estimator_det.config.text import ConfigWarning, parse_message
from estimator_det.files import AnyPath, read_text, write_text
from estimator_det.protos import pipeline_pb2

PIPELINE_FILE = "pipeline.config"

__all__ = [
    "PIPELINE_FILE",
    "ConfigWarning",
    "apply_overrides",
    "format_pipeline",
    "merge_text",
    "override",
    "parse_pipeline",
    "read_pipeline",
    "rescale_schedule",
    "save_pipeline",
    "set_values",
]


def parse_pipeline(text: str, source: str = "<text>") -> pipeline_pb2.TrainEvalPipelineConfig:
    """A pipeline configuration from its text form; errors name `source`, usually a path."""
    return parse_message(text, pipeline_pb2.TrainEvalPipelineConfig(), source)


def read_pipeline(path: AnyPath) -> pipeline_pb2.TrainEvalPipelineConfig:
    """Reads a pipeline configuration file, local or remote.

    Relative paths in it start from the working folder, or else from the file's folder.
    """
    config = parse_pipeline(read_text(path), source=os.fspath(path))
    return resolve_paths(config, os.path.dirname(os.fspath(path)))


def format_pipeline(config: pipeline_pb2.TrainEvalPipelineConfig) -> str:
    """The text form of `config`, which `parse_pipeline` turns back into an equal message.

    Characters beyond ASCII are escaped.
    """
    return text_format.MessageToString(config, as_utf8=False)


def save_pipeline(config: pipeline_pb2.TrainEvalPipelineConfig, model_dir: AnyPath) -> str:
    """Writes `config` to `pipeline.config` in `model_dir`, whole or not at all; returns its path.

    The folder is made if it is missing; an earlier file is replaced. The record of plug-ins, if
    there are any, is written beside it.
    """
    path = os.path.join(model_dir, PIPELINE_FILE)
    write_text(path, format_pipeline(config))
    plugins.save_record(model_dir)
    return path
