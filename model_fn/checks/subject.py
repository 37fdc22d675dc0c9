"""A configuration under check, with the files and graphs that all checks share."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

from estimator_det.config.facts import readers
from estimator_det.config.field_rules import PLACEHOLDER
from estimator_det.config.paths import named_paths, without_placeholders
from estimator_det.errors import Problem, UsageError
from estimator_det.files import is_remote
from estimator_det.protos import input_reader_pb2, pipeline_pb2
from inputs.label_map import LabelMap, read_label_map


class CheckedReader(NamedTuple):
    """An input reader of a configuration, and its label map."""

    field: str  # its path, such as "eval_input_reader[0]"
    config: input_reader_pb2.InputReader
    labels: Union[LabelMap, UsageError, None]  # an error of the file; None if it was not read

    @property
    def label_map(self) -> Optional[LabelMap]:
        """None if there is none that can be used."""
        return self.labels if isinstance(self.labels, LabelMap) else None


def read_label_maps(
    named_readers: Iterable[Tuple[str, input_reader_pb2.InputReader]], *, with_remote: bool = True
) -> List[CheckedReader]:
    """Input readers by path with their label maps, each file read once."""

    @functools.cache
    def read(path: str) -> Union[LabelMap, UsageError, None]:
        if not path or PLACEHOLDER in path or (is_remote(path) and not with_remote):
            return None
        try:
            return read_label_map(path)
        except UsageError as reason:
            return reason

    return [
        CheckedReader(field, config, read(config.label_map_path)) for field, config in named_readers
    ]


@dataclasses.dataclass
class CheckedConfig:
    """A configuration under check."""

    config: pipeline_pb2.TrainEvalPipelineConfig
    readable: (
        pipeline_pb2.TrainEvalPipelineConfig
    )  # the same for what reads files and builds graphs
    readers: Sequence[CheckedReader]
    reads_all: bool  # files that are not local, and records, too
    problems: Sequence[Problem] = ()  # problems that the rules report
    graphs: Any = None  # result of `graphs.examine`

    @functools.cached_property
    def can_be_made(self) -> bool:
        """True if nothing but paths is wrong with the configuration."""
        paths = {field for field, _ in named_paths(self.config)}
        return not any(
            problem.severity == "error"
            and problem.field not in paths
            and not problem.field.endswith(".input_path")
            for problem in self.problems
        )

    @property
    def label_maps(self) -> Dict[str, LabelMap]:
        """The label maps that can be used, by path."""
        label_maps = {each.config.label_map_path: each.label_map for each in self.readers}
        return {path: label_map for path, label_map in label_maps.items() if label_map is not None}

    @property
    def label_map(self) -> Optional[LabelMap]:
        """The label map of the first eval reader that names one; None if it cannot be used."""
        evals = (each for each in self.readers if each.field.startswith("eval_input_reader"))
        return next((each.label_map for each in evals if each.config.label_map_path), None)


def read_subject(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    problems: Sequence[Problem] = (),
    *,
    reads_all: bool = True,
    targets_tpu: bool = False,
) -> CheckedConfig:
    """Reads the label maps that a `TrainEvalPipelineConfig` names.

    With `targets_tpu`, paths that are placeholders are left out of what is read and built, because
    the rules for TPU report them.
    """
    readable = without_placeholders(config) if targets_tpu else config
    table = read_label_maps(readers(readable), with_remote=reads_all)
    return CheckedConfig(config, readable, table, reads_all, problems)
