"""Whether the label map of a reader knows the classes of its first records."""

from __future__ import annotations

from typing import Any, Iterator

from estimator_det.compat import tf
from estimator_det.config import check
from estimator_det.config.problem import Problem, error
from estimator_det.config.text import ConfigError
from inputs.checks.class_names import check_class_names
from inputs.records.stream import find_files, input_patterns
from model_fn.checks import data_problems


def check_first_records(config: Any) -> Iterator[Problem]:
    """Label maps without any class name of the first records, which training refuses.

    Label maps and records that cannot be read are left to other checks.
    """
    for field, reader in check.readers(config):
        if data_problems.read_map(field, reader.label_map_path)[0] is None:
            continue
        try:
            paths = find_files(input_patterns(reader)[0])
        except (ConfigError, OSError, tf.errors.OpError):
            continue
        try:
            check_class_names(reader, paths)
        except ConfigError as reason:
            remedy = "use the label map of the records"
            yield error(f"{field}.label_map_path", str(reason).rstrip("."), remedy)
        except (OSError, tf.errors.OpError):
            continue


def refuse_foreign_label_maps(config: Any) -> None:
    """Refuses label maps without any class name of the first records.

    An evaluation would refuse its own only when its first checkpoint is trained.

    Raises:
        ConfigError: with the fields.
    """
    problems = list(check_first_records(config))
    if problems:
        raise ConfigError("\n".join(str(each).removeprefix("error: ") for each in problems))
