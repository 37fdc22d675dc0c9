"""Fine-tuning: a table of the variables that a checkpoint restores, and their initialization."""

from __future__ import annotations

import logging
import re
from typing import Any, Collection, Dict, List, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import tf, tf1
from estimator_det.config.check import CHECKPOINT_TYPES
from estimator_det.config.text import ConfigError
from estimator_det.detectors.base import Detector
from model_fn.checkpoints.errors import DamagedCheckpointsError
from model_fn.checkpoints.find import find_whole_checkpoint
from model_fn.checkpoints.imported import NEUTRAL_STATISTICS, num_neutral_layers

_LOG = logging.getLogger(__name__)

_ROWS_SHOWN = 30

# What training keeps beside a variable, by the last part of its name, and beside all of them.
_SLOT = re.compile(
    r"/(Momentum|RMSProp(_\d+)?|Adam(_\d+)?|Adagrad|Ftrl(_\d+)?|ExponentialMovingAverage)$"
    r"|^(.*/)?beta[12]_power$|^global_step$"
)


class RestoreTable(NamedTuple):
    """What is restored of the requested variables, and what of the checkpoint is not used.

    Names are those in the checkpoint.
    """

    path: str
    restored: Dict[str, tf.Variable]
    mismatched: List[Tuple[str, List[int], List[int]]]  # name, checkpoint's shape, model's shape
    missing: List[str]
    unused: List[str]
    unused_slots: Sequence[str] = ()  # of optimizers, and moving averages
    backbone: int = 0  # variables of the feature extractor
    backbone_restored: int = 0

    @property
    def share(self) -> float:
        """How much of the backbone is restored, by number of variables, 0..1."""
        return self.backbone_restored / self.backbone if self.backbone else 0.0

    def heading(self) -> str:
        """The table in a line."""
        text = (
            f"Fine-tuning from {self.path}: {len(self.restored)} restored, "
            f"{len(self.mismatched)} of another shape, {len(self.missing)} missing in the "
            f"checkpoint, {len(self.unused)} in the checkpoint unused"
        )
        if self.unused_slots:
            text += f" (and {len(self.unused_slots)} slots of optimizers and moving averages)"
        return (
            f"{text}; {self.share:.0%} of the backbone "
            f"({self.backbone_restored} of {self.backbone} variables)"
        )

    def __str__(self) -> str:
        lines = [self.heading()]
        lines += [
            f"  {'shape':<8} {name}: checkpoint {theirs}, model {ours}; keeps its initializer"
            for name, theirs, ours in self.mismatched
        ]
        lines += _rows("missing", self.missing)
        lines += _rows("unused", self.unused)
        lines += _rows("restored", sorted(self.restored))
        return "\n".join(lines)


def _rows(state: str, names: List[str]) -> List[str]:
    rows = [f"  {state:<8} {name}" for name in names[:_ROWS_SHOWN]]
    if len(names) > _ROWS_SHOWN:
        rows.append(f"  {state:<8} … and {len(names) - _ROWS_SHOWN} more")
    return rows


def checkpoint_type(train_config: Any) -> str:
    """`fine_tune_checkpoint_type`, or what the older `from_detection_checkpoint` says instead.

    Raises:
        ConfigError: if the type is none of `CHECKPOINT_TYPES`.
    """
    kind = train_config.fine_tune_checkpoint_type
    if not kind:
        return "detection" if train_config.from_detection_checkpoint else "classification"
    if kind not in CHECKPOINT_TYPES:
        raise ConfigError(
            f"train_config.fine_tune_checkpoint_type: {kind!r} is not known; "
            f"use one of {list(CHECKPOINT_TYPES)}"
        )
    return kind


def restore_table(
    path: str, variables: Dict[str, tf.Variable], backbone: Collection[tf.Variable] = ()
) -> RestoreTable:
    """Compares variables by checkpoint name with the checkpoint at `path` (prefix or folder).

    Args:
        path: Of the checkpoint.
        variables: Checkpoint name -> variable.
        backbone: Those of the feature extractor.

    Raises:
        FileNotFoundError: if there is no checkpoint.
        DamagedCheckpointsError: if it cannot be read.
    """
    try:
        prefix = find_whole_checkpoint(path)
    except (FileNotFoundError, DamagedCheckpointsError) as error:
        raise type(error)(
            f"train_config.fine_tune_checkpoint: {error}. Leave the field out to start from the "
            "initializers"
        ) from error
    available = tf1.train.NewCheckpointReader(prefix).get_variable_to_shape_map()
    restored: Dict[str, tf.Variable] = {}
    mismatched = []
    missing = []
    for name, variable in sorted(variables.items()):
        shape = variable.shape.as_list()
        if name not in available:
            missing.append(name)
        elif list(available[name]) != shape:
            mismatched.append((name, list(available[name]), shape))
        else:
            restored[name] = variable
    unused = sorted(set(available) - set(variables) - {NEUTRAL_STATISTICS})
    of_backbone = {variable.op.name for variable in backbone}
    return RestoreTable(
        path=prefix,
        restored=restored,
        mismatched=mismatched,
        missing=missing,
        unused=[name for name in unused if not _SLOT.search(name)],
        unused_slots=[name for name in unused if _SLOT.search(name)],
        backbone=len(of_backbone),
        backbone_restored=sum(v.op.name in of_backbone for v in restored.values()),
    )


def table_of(detector: Detector, train_config: Any) -> RestoreTable:
    """What `train_config.fine_tune_checkpoint` gives the variables of the default graph.

    Raises:
        FileNotFoundError: if there is no such checkpoint.
        DamagedCheckpointsError: if it cannot be read.
        ConfigError: if the checkpoint's type is unknown.
    """
    kind = checkpoint_type(train_config)
    variables = detector.restore_map(kind, train_config.load_all_detection_checkpoint_vars)
    backbone = detector.restore_map("detection")
    return restore_table(
        train_config.fine_tune_checkpoint,
        _without_slots(variables),
        list(_without_slots(backbone).values()),
    )


def _without_slots(variables: Dict[str, tf.Variable]) -> Dict[str, tf.Variable]:
    """Those of the model: fine-tuning starts with new step, slots and averages."""
    return {name: each for name, each in variables.items() if not _SLOT.search(each.op.name)}


def plan_warm_start(
    detector: Detector, train_config: Any, model_dir: Optional[str]
) -> Optional[RestoreTable]:
    """What `train_config.fine_tune_checkpoint` gives the variables of the default graph.

    The table is logged, as a warning where a variable stays without a value. A checkpoint in
    `model_dir` means that training is being resumed: it holds every variable, so nothing is
    planned and the fine-tuning checkpoint need not exist any more.

    Returns:
        The table, or None where there is nothing to restore from.

    Raises:
        FileNotFoundError: if there is no such checkpoint.
        DamagedCheckpointsError: if it cannot be read.
        ConfigError: if it gives no variable, or less than `train_config.min_restored_share`.
    """
    if not train_config.fine_tune_checkpoint:
        return None
    if model_dir and tf1.train.latest_checkpoint(model_dir):
        _LOG.info("Resuming in %s; the fine-tuning checkpoint is not read again", model_dir)
        return None
    table = table_of(detector, train_config)
    check_table(table, train_config)
    incomplete = table.mismatched or table.missing
    _LOG.log(logging.WARNING if incomplete else logging.INFO, "%s", table)
    _warn_of_neutral_statistics(table)
    return table


def _warn_of_neutral_statistics(table: RestoreTable) -> None:
    """Warns if the graph trains batch norm that an import rebuilt without statistics."""
    count = num_neutral_layers(table.path)
    trains = any(
        operation.type.startswith("FusedBatchNorm") and operation.get_attr("is_training")
        for operation in tf1.get_default_graph().get_operations()
    )
    if count and trains:
        _LOG.warning(
            "train_config.fine_tune_checkpoint: %s was imported from a model with folded batch "
            "norm. %d layers have neutral statistics, so training starts from a far too high "
            "loss and may not recover. Import the model again with estimator-det import … "
            "--calibrate photos/, or keep batch norm frozen, e.g. with "
            "model.ssd.freeze_batchnorm=true",
            table.path,
            count,
        )


def check_table(table: RestoreTable, train_config: Any) -> None:
    """Refuses a checkpoint that gives nothing, or less than `min_restored_share`.

    Raises:
        ConfigError: with the table.
    """
    kind = checkpoint_type(train_config)
    if not table.restored:
        raise ConfigError(
            f"train_config.fine_tune_checkpoint: no variable of the model matches as a {kind!r} "
            "checkpoint. Check fine_tune_checkpoint_type and that the checkpoint is of this "
            f"feature extractor.\n{table}"
        )
    if table.share < train_config.min_restored_share:
        raise ConfigError(
            f"train_config.fine_tune_checkpoint: restores {table.share:.1%} of the backbone, less "
            f"than train_config.min_restored_share, {train_config.min_restored_share:.1%}. Check "
            "that feature extractor and depth_multiplier are those of the checkpoint, or lower "
            f"the share.\n{table}"
        )


def initialize_from(table: RestoreTable) -> None:
    """Makes the restored variables start at the checkpoint's values."""
    tf1.train.init_from_checkpoint(table.path, table.restored)
