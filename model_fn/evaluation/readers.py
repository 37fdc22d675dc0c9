"""The readers that a configuration is evaluated on, their names and folders."""

from __future__ import annotations

import os
from typing import Any, Dict

from estimator_det.config.text import ConfigError
from estimator_det.protos import pipeline_pb2

TRAINING_DATA = "training_data"  # name of the training reader where it is evaluated on


def named_readers(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, *, on_training_data: bool = False
) -> Dict[str, Any]:
    """Evaluation readers by name, or the training reader; one without a name takes its number."""
    if on_training_data:
        return {TRAINING_DATA: pipeline_config.train_input_reader}
    readers = pipeline_config.eval_input_reader
    if not readers:
        raise ConfigError("eval_input_reader", "the configuration has none to evaluate on")
    return {reader.name or str(number): reader for number, reader in enumerate(readers)}


def evaluation_folder(model_dir: str, reader: str) -> str:
    """Folder for events and files of a reader's evaluations."""
    return os.path.join(model_dir, f"eval_{reader}")
