"""Options of a run on TPU, and whether a configuration suits it. Imports no TensorFlow."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, List, Mapping, Optional

from estimator_det.config import tpu_lint
from estimator_det.config.problem import Problem
from estimator_det.config.text import ConfigError
from model_fn.runs.loop_options import LOCAL


@dataclasses.dataclass(frozen=True)
class TpuOptions:
    """Where and how a run uses a TPU.

    Attributes:
        name: Of the TPU; "local" on its own machine, or an address, grpc://host:port. None only
            for a rehearsal.
        num_shards: TPU cores, which share a batch.
        iterations_per_loop: Steps between two returns from the TPU.
        evaluates: Whether evaluations run on the TPU too, not on this machine.
        rehearses: Run the same program on this machine, without a TPU: the same graph but for what
            connects cores, with the same input and the same reports.
    """

    name: Optional[str] = None
    zone: Optional[str] = None
    project: Optional[str] = None
    num_shards: int = 8
    iterations_per_loop: int = 100
    evaluates: bool = False
    rehearses: bool = False

    def __post_init__(self) -> None:
        if not self.name and not self.rehearses:
            raise ConfigError(
                "a run on TPU needs the TPU's name: that of a Cloud TPU, 'local' on the TPU's own "
                "machine, or an address such as grpc://10.0.0.2:8470. Without a TPU, rehearse"
            )
        for field in ("num_shards", "iterations_per_loop"):
            value = getattr(self, field)
            if value < 1:
                raise ConfigError(f"{field} must be 1 or more; given {value}")

    @property
    def reads_elsewhere(self) -> bool:
        """Whether the input pipeline runs on another machine, that of the TPU."""
        return not self.has_local_files

    @property
    def has_local_files(self) -> bool:
        """Whether the machine that reads and writes is this one."""
        return self.rehearses or self.name == LOCAL


def check(pipeline_config: Any, model_dir: str, on_tpu: TpuOptions) -> List[Problem]:
    """What about a configuration does not suit the TPU, without making the run impossible.

    Raises:
        ConfigError: listing all that makes it impossible, with the edits that fix it.
    """
    target = tpu_lint.Target(
        num_shards=on_tpu.num_shards,
        model_dir=model_dir,
        inference=on_tpu.evaluates,
        local_files=on_tpu.has_local_files,
    )
    found = tpu_lint.lint(pipeline_config, target)
    fatal = [finding for finding in found if finding.severity in ("error", "placeholder")]
    if fatal:
        raise ConfigError(
            "the configuration does not suit a TPU\n" + "\n".join(str(finding) for finding in fatal)
        )
    return [finding for finding in found if finding not in fatal]


def static_batches(pipeline_config: Any) -> Any:
    """The configuration with readers that leave incomplete batches out."""
    config = copy.deepcopy(pipeline_config)
    config.train_input_reader.drop_remainder = True
    for reader in config.eval_input_reader:
        reader.drop_remainder = True
    return config


def check_static(specs: Mapping[str, Any]) -> None:
    """Refuses tensors with an open length.

    Args:
        specs: `tf.TensorSpec`s of what the cores get.
    """
    for key, spec in specs.items():
        if not spec.shape.is_fully_defined():
            raise ConfigError(
                f"{key} has shape {spec.shape}, but a TPU needs every length. Give the model a "
                "fixed_shape_resizer, or a keep_aspect_ratio_resizer with pad_to_max_dimension: "
                "true, and the reader num_keypoints where it loads keypoints; "
                "estimator-det check-config --tpu lists all that is open"
            )
