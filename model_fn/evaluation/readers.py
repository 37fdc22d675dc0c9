"""The readers that a configuration is evaluated on, their names and folders."""

from __future__ import annotations

import os
from typing import Dict, Iterator, List, NamedTuple, Optional

from estimator_det.config.field_rules import no_effect
from estimator_det.config.rules import Tpu, rules
from estimator_det.console.printing import quoted
from estimator_det.errors import ConfigError, Problem, error
from estimator_det.protos import eval_pb2, input_reader_pb2, pipeline_pb2

TRAINING_DATA = "training_data"  # name of the training reader in an evaluation
# Folder in a run for evaluations with other settings, which do not replace the run's own.
OTHER_SETTINGS = "other_settings"


def named_readers(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, *, on_training_data: bool = False
) -> Dict[str, input_reader_pb2.InputReader]:
    """Evaluation readers by name, or the training reader; one without a name takes its number."""
    if on_training_data:
        return {TRAINING_DATA: pipeline_config.train_input_reader}
    readers = pipeline_config.eval_input_reader
    if not readers:
        raise ConfigError.at("eval_input_reader", "is missing", "add one to evaluate")
    return {reader.name or str(number): reader for number, reader in enumerate(readers)}


class Reader(NamedTuple):
    """A reader of a configuration that is evaluated on."""

    name: str  # events go to the folder eval_<name>
    config: input_reader_pb2.InputReader
    sample_1_of_n: Optional[int]  # None for the number in `config`


def evaluation_readers(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    *,
    on_training_data: bool = False,
    sample_1_of_n: Optional[int] = None,
) -> List[Reader]:
    """The evaluation readers, or the training reader, with the part of the images to read."""
    readers = named_readers(pipeline_config, on_training_data=on_training_data)
    return [Reader(name, reader, sample_1_of_n) for name, reader in readers.items()]


def evaluation_folder(model_dir: str, reader: str) -> str:
    """Folder for events and files of a reader's evaluations."""
    return os.path.join(model_dir, f"eval_{reader}")


@rules(eval_pb2.Tiles, target="tpu")
def _check_tiles(_: eval_pb2.Tiles, at: str, tpu: Tpu) -> Iterator[Problem]:
    if tpu.inference:
        yield no_effect(at, "evaluations on a TPU see whole images")


@rules(pipeline_pb2.TrainEvalPipelineConfig)
def _check_names(config: pipeline_pb2.TrainEvalPipelineConfig, _: str) -> Iterator[Problem]:
    """Errors for readers of one name, whose results would overwrite each other."""
    first: Dict[str, int] = {}
    for index, reader in enumerate(config.eval_input_reader):
        name = reader.name or str(index)
        if first.setdefault(name, index) != index:
            name_text = quoted(name) if reader.name else f"not set, which means {quoted(name)}"
            yield error(
                f"eval_input_reader[{index}].name",
                f"is {name_text}, the name of eval_input_reader[{first[name]}], too: one's results "
                "overwrite the other's",
                f"--set eval_input_reader[{index}].name=… with a name of its own",
            )
