"""Fine-tuning: a table of the variables that a checkpoint restores, and their initialization."""

from __future__ import annotations

import logging
from typing import (
    Callable,
    Collection,
    Dict,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.console.printing import counted
from estimator_det.detectors.base import TrainableDetector, build_detector
from estimator_det.errors import ConfigError, DamagedCheckpointsError, UsageError
from estimator_det.nets.quantization import is_range
from estimator_det.protos import model_pb2, pipeline_pb2, train_pb2
from model_fn.checkpoints.explanations import explain_shapes
from model_fn.checkpoints.find import find_checkpoint
from model_fn.checkpoints.object_based import keyed_variables, network_text
from model_fn.checkpoints.repair import require_whole
from model_fn.checkpoints.variables import (
    AVERAGE_SUFFIX,
    SLOT,
    VALUE_SUFFIX,
    check_types,
    is_of_detector,
    network_scopes,
    num_neutral_layers,
    scopes_text,
    under_own_names,
    unused_variables,
)
from model_fn.training import step

_LOG = logging.getLogger(__name__)

_FIELD = "train_config.fine_tune_checkpoint"
_ROWS_SHOWN = 10
_ROWS_IN_SUMMARY = 3
# Share of the backbone that another network of the TF2 line does not reach by chance.
_SAME_NETWORK = 0.5

Result = TypeVar("Result")


class RestoreTable(NamedTuple):
    """Requested variables that are restored, and variables of the checkpoint that are not used.

    Names are those in the checkpoint.
    """

    path: str
    restored: Dict[str, tf.Variable]
    mismatched: List[Tuple[str, List[int], List[int]]]  # name, checkpoint's shape, model's shape
    missing: List[str]
    unused: List[str]
    unused_slots: Sequence[str] = ()  # slots of optimizers, and moving averages
    backbone: int = 0  # variables of the feature extractor
    backbone_restored: int = 0
    backbone_names: Sequence[str] = ()  # that a checkpoint of the configured type may have
    # Ranges of simulated quantization, which a float checkpoint lacks.
    new_ranges: Sequence[str] = ()
    explanations: Sequence[str] = ()  # options of the model that explain shapes
    heads: int = 0  # unused variables that load_all_detection_checkpoint_vars would restore

    @property
    def is_object_based(self) -> bool:
        """True if the checkpoint is of the TF2 line, so that names are paths of objects."""
        return any(name.endswith(VALUE_SUFFIX) for name in (*self.restored, *self.unused))

    @property
    def share(self) -> float:
        """Share of the backbone that is restored, by number of variables, 0 to 1."""
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
        if self.heads:
            text += (
                f"; train_config.load_all_detection_checkpoint_vars=true restores "
                f"{counted(self.heads, 'variable')} of the heads, too"
            )
        if self.new_ranges:
            text += (
                f"; {len(self.new_ranges)} range variables of simulated quantization are not in "
                "the checkpoint and are learned again"
            )
        return (
            f"{text}; {self.share:.0%} of the backbone "
            f"({self.backbone_restored} of {self.backbone} variables)"
        )

    def summary(self) -> str:
        """The heading, and the first variables that keep their initial values."""
        lines = [self.heading()]
        shapes = [_shapes_text(*row) for row in self.mismatched]
        lines += _rows("shape", shapes, _ROWS_IN_SUMMARY)
        lines += [f"  {text}" for text in self.explanations]
        lines += _rows("missing", self.missing, _ROWS_IN_SUMMARY)
        return "\n".join(lines)

    def details(self) -> str:
        """The variables of each kind."""
        lines = _rows("shape", [_shapes_text(*row) for row in self.mismatched])
        lines += _rows("missing", self.missing)
        lines += _rows("unused", self.unused)
        lines += _rows("restored", sorted(self.restored))
        return "\n".join(lines)


def _shapes_text(name: str, theirs: List[int], ours: List[int]) -> str:
    return f"{_shown(name)}: checkpoint {theirs}, model {ours}; keeps its initializer"


def _shown(name: str) -> str:
    return name.removesuffix(VALUE_SUFFIX)


def _rows(state: str, names: List[str], limit: int = _ROWS_SHOWN) -> List[str]:
    rows = [f"  {state:<8} {_shown(name)}" for name in names[:limit]]
    if len(names) > limit:
        rows.append(f"  {state:<8} … and {len(names) - limit} more")
    return rows


def checkpoint_type(train_config: train_pb2.TrainConfig) -> str:
    """`fine_tune_checkpoint_type`, or the value of the older `from_detection_checkpoint`."""
    older = "detection" if train_config.from_detection_checkpoint else "classification"
    return train_config.fine_tune_checkpoint_type or older


def _whole_checkpoint(path: str) -> str:
    try:
        prefix = find_checkpoint(path)
        require_whole(prefix)  # Initializers restore it, whose errors would not name it.
    except (FileNotFoundError, DamagedCheckpointsError) as error:
        raise type(error)(
            f"{error}. Leave train_config.fine_tune_checkpoint out to start from the initializers"
        ) from error
    return prefix


def _compare(
    prefix: str,
    variables: Dict[str, tf.Variable],
    backbone: Collection[tf.Variable] = (),
    model: Optional[model_pb2.DetectionModel] = None,
) -> RestoreTable:
    available = tf1.train.NewCheckpointReader(prefix).get_variable_to_shape_map()
    restored: Dict[str, tf.Variable] = {}
    mismatched, missing, new_ranges = [], [], []
    for name, variable in sorted(variables.items()):
        shape = variable.shape.as_list()
        if name not in available and is_range(variable.op.name):
            new_ranges.append(name)
        elif name not in available:
            missing.append(name)
        elif list(available[name]) != shape:
            mismatched.append((name, list(available[name]), shape))
        else:
            restored[name] = variable
    unused = unused_variables(available, variables)
    wanted = {name: variable.shape.as_list() for name, variable in variables.items()}
    shapes = [under_own_names(each, variables) for each in (available, wanted)]
    backbone_variables = {each.op.name for each in backbone if not is_range(each.op.name)}
    return RestoreTable(
        path=prefix,
        restored=restored,
        mismatched=mismatched,
        missing=missing,
        unused=[name for name in unused if not SLOT.search(name)],
        unused_slots=[name for name in unused if SLOT.search(name)],
        backbone=len(backbone_variables),
        backbone_restored=sum(v.op.name in backbone_variables for v in restored.values()),
        backbone_names=sorted(n for n, v in variables.items() if v.op.name in backbone_variables),
        new_ranges=new_ranges,
        explanations=(
            [] if model is None else explain_shapes(model, *shapes, has_own_classes=True)
        ),
    )


def table_of(
    detector: TrainableDetector,
    train_config: train_pb2.TrainConfig,
    model: Optional[model_pb2.DetectionModel] = None,
) -> RestoreTable:
    """Table of what `train_config.fine_tune_checkpoint` restores in the default graph."""
    kind = checkpoint_type(train_config)
    prefix = _whole_checkpoint(train_config.fine_tune_checkpoint)

    def variables(load_all: bool) -> Dict[str, tf.Variable]:
        named = _without_slots(detector.restore_map(kind, load_all))
        try:
            keyed = keyed_variables(prefix, detector, named.values(), model, kind)
        except UsageError as error:
            remedy = "give another checkpoint, or change the model"
            raise ConfigError.at(_FIELD, str(error), remedy) from error
        return named if keyed is None else keyed

    load_all = train_config.load_all_detection_checkpoint_vars
    wanted, backbone = variables(load_all), _without_slots(detector.restore_map("detection"))
    table = _compare(prefix, wanted, list(backbone.values()), model)
    if kind != "detection" or load_all or not table.unused:
        return table
    every = _compare(prefix, variables(True))
    return table._replace(heads=len(set(every.restored) & set(table.unused)))


def _without_slots(variables: Dict[str, tf.Variable]) -> Dict[str, tf.Variable]:
    """Variables of the model: fine-tuning starts with new step, slots and averages."""
    return {name: each for name, each in variables.items() if not SLOT.search(each.op.name)}


def plan_warm_start(
    detector: TrainableDetector,
    train_config: train_pb2.TrainConfig,
    model_dir: Optional[str],
    model: Optional[model_pb2.DetectionModel] = None,
) -> Optional[RestoreTable]:
    """Table of what `train_config.fine_tune_checkpoint` restores in the default graph.

    The table is logged, as a warning if a variable stays without a value. None if there is
    nothing to restore from, or if a checkpoint in `model_dir`, which has every variable, is
    resumed: the fine-tuning checkpoint need not exist any more.
    """
    if not train_config.fine_tune_checkpoint:
        return None
    if model_dir and tf1.train.latest_checkpoint(model_dir):
        _LOG.info("Resuming in %s; the fine-tuning checkpoint is not read again", model_dir)
        return None
    table = table_of(detector, train_config, model)
    check_table(table, train_config, model)
    incomplete = table.mismatched or table.missing
    _LOG.log(logging.WARNING if incomplete else logging.INFO, "%s", table.summary())
    _LOG.debug("%s", table.details())
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


def check_table(
    table: RestoreTable,
    train_config: train_pb2.TrainConfig,
    model: Optional[model_pb2.DetectionModel] = None,
) -> None:
    """Refuses a checkpoint that restores nothing, too little, or weights of other precision."""
    if table.is_object_based and table.share < _SAME_NETWORK:
        raise _foreign_layers(table, model)
    if not table.backbone_restored and (table.backbone or not table.restored):
        raise _foreign_backbone(table, train_config, model)
    if table.share < train_config.min_restored_share:
        raise ConfigError.at(
            _FIELD,
            f"restores {table.share:.1%} of the backbone, less than "
            f"train_config.min_restored_share, {train_config.min_restored_share:.1%}",
            "Check that feature extractor and depth_multiplier are as in the training of the "
            f"checkpoint, or lower the share.\n{table.heading()}\n{table.details()}",
        )
    check_types(table.path, table.restored)


def _foreign_layers(table: RestoreTable, model: Optional[model_pb2.DetectionModel]) -> ConfigError:
    """The error of an object-based checkpoint, whose layers have numbers, of another network."""
    backbone = set(table.backbone_names)
    rows = [row for row in table.mismatched if row[0] in backbone]
    absent = backbone.intersection(table.missing)
    example = f", e.g. {_shapes_text(*rows[0]).partition(';')[0]}" if rows else ""
    return ConfigError.at(
        _FIELD,
        f"{table.path} is of another network than {network_text(model)}: of "
        f"{counted(table.backbone, 'variable')} of the backbone, {len(rows)} have another shape "
        f"there and {len(absent)} are missing{example}",
        "use feature_extractor.type, depth_multiplier and the other options of the checkpoint's "
        "own pipeline.config",
    )


def _foreign_backbone(
    table: RestoreTable,
    train_config: train_pb2.TrainConfig,
    model: Optional[model_pb2.DetectionModel],
) -> ConfigError:
    """The error of a checkpoint without variables of the backbone."""
    shapes = [name for name, _, _ in table.mismatched]
    stored = network_scopes([*table.restored, *shapes, *table.unused])
    wanted = network_scopes(table.backbone_names)
    return ConfigError.at(
        _FIELD,
        f"no variable of the backbone can be restored from {table.path} as a "
        f"{checkpoint_type(train_config)!r} checkpoint: the checkpoint contains "
        f"{scopes_text(stored)}, {network_text(model)} needs {scopes_text(wanted)}",
        _remedy(table, stored, wanted),
    )


def _remedy(table: RestoreTable, stored: Collection[str], wanted: Collection[str]) -> str:
    if set(stored) & set(wanted):
        rows = [row for row in table.mismatched if row[0] in set(table.backbone_names)]
        example = f", e.g. {_shapes_text(*rows[0]).partition(';')[0]}" if rows else ""
        options = [text for text in table.explanations if ".feature_extractor." in text]
        reasons = "".join(f". {text}" for text in options)  # none about heads
        return (
            "use the depth_multiplier and the other options of the feature extractor that the "
            f"checkpoint was trained with{example}{reasons}"
        )
    # The last part of a scope is the network, in detectors and classifiers.
    networks = [{scope.rpartition("/")[2] for scope in scopes} for scopes in (stored, wanted)]
    if networks[0] & networks[1]:
        are_detectors = [any(map(is_of_detector, scopes)) for scopes in (stored, wanted)]
        if are_detectors[0] != are_detectors[1]:
            kind = "detection" if are_detectors[0] else "classification"
            return f"use --set train_config.fine_tune_checkpoint_type={kind}"
    return (
        "use the feature_extractor.type of the checkpoint's network, or a checkpoint of the "
        "configured feature extractor"
    )


def initialize_from(table: RestoreTable) -> None:
    """Makes the restored variables start at the checkpoint's values.

    So do their moving averages, if the graph has them already, as the graph of a TPU does.
    """
    existing = {variable.op.name: variable for variable in tf1.global_variables()}
    averages = {
        name: existing[variable.op.name + AVERAGE_SUFFIX]
        for name, variable in table.restored.items()
        if variable.op.name + AVERAGE_SUFFIX in existing
    }
    for variables in filter(None, (table.restored, averages)):
        tf1.train.init_from_checkpoint(table.path, variables)


def fine_tuned_values(
    config: pipeline_pb2.TrainEvalPipelineConfig, make_dataset: Callable[[], tf.data.Dataset]
) -> Dict[str, np.ndarray]:
    """Values of `fine_tune_checkpoint` by variable, for a loop; empty without a checkpoint.

    Detectors map the variables of a graph, which is built here, to names in the checkpoint.

    Args:
        make_dataset: Builds the training data in that graph.
    """
    if not config.train_config.fine_tune_checkpoint:
        return {}
    with tf.Graph().as_default():
        features, labels = tf1.data.make_initializable_iterator(make_dataset()).get_next()
        detector = build_detector(config.model, is_training=True)
        step.forward(detector, features, labels, add_regularization=False)
        table = plan_warm_start(detector, config.train_config, None, config.model)
    assert table is not None
    reader = tf1.train.load_checkpoint(table.path)
    return {variable.op.name: reader.get_tensor(name) for name, variable in table.restored.items()}
