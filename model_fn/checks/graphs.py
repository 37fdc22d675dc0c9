"""Builds the graphs of a run before it starts, to find what cannot be built; runs nothing."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from estimator_det.compat import estimator, tf, tf1
from estimator_det.config.derived_models import evaluated_model
from estimator_det.config.facts import context_shape
from estimator_det.console.printing import counted
from estimator_det.detectors.base import build_detector
from estimator_det.errors import ConfigError, Problem, RunError, error, warning
from estimator_det.images.resize import make_resizer
from estimator_det.nets.quantization import quantized_scopes
from estimator_det.protos import model_pb2, pipeline_pb2, train_pb2
from inputs import schema
from inputs.label_map import LabelMap
from model_fn.checks.memory import Memory, training_memory
from model_fn.checks.subject import CheckedConfig
from model_fn.evaluation.eval_ops import evaluated_categories
from model_fn.evaluation.metrics.base import METRICS, make_metrics
from model_fn.model_fn import ModelFn
from model_fn.training import warm_start

ModeKeys = estimator.ModeKeys

FEATURES = (schema.IMAGE, schema.TRUE_IMAGE_SHAPE, schema.HASH)  # in every batch
# Inputs of models that attend to context.
CONTEXT = (schema.CONTEXT_FEATURES, schema.VALID_CONTEXT_SIZE)


class Graphs(NamedTuple):
    """Findings of `examine`; the numbers are of training, 0 if its graph cannot be built."""

    memory: Optional[Memory]
    warm_start: Optional[warm_start.RestoreTable]
    num_variables: int
    num_operations: int
    problems: List[Problem]
    quantized: Sequence[str] = ()  # scopes of simulated quantization in training


def examine(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, label_map: Optional[LabelMap] = None
) -> Graphs:
    """Builds the graphs that training, evaluation and prediction use.

    What cannot be built is an error among the problems. The checkpoint to fine-tune from is
    compared with the model, and read for its checksums. `memory` is None if the size of images
    depends on the record.
    """
    config = without_files(pipeline_config, label_map)
    problems: List[Problem] = []
    graphs = Graphs(None, None, 0, 0, problems)
    with _errors_among(problems):
        graphs = _examine_training(config, pipeline_config.train_config, problems)
    modes = [ModeKeys.EVAL, ModeKeys.PREDICT] if config.eval_input_reader else [ModeKeys.PREDICT]
    for mode in modes:
        with _errors_among(problems), tf.Graph().as_default():
            tf1.train.get_or_create_global_step()
            ModelFn(config, label_map=label_map)(*placeholders(config, mode), mode)
    return graphs


def check_metrics(subject: CheckedConfig) -> List[Problem]:
    """An error for the first metrics set that cannot be made for the classes of evaluations."""
    config, label_map = subject.config, subject.label_map
    # A label map that cannot be read, or is a placeholder, is an error of other checks.
    if label_map is None and any(reader.label_map_path for reader in config.eval_input_reader):
        config = without_files(config)
    problems: List[Problem] = []
    errors = [each.field for each in subject.problems if each.severity == "error"]
    chosen = ("eval_config.metrics_set[", "eval_config.parameterized_metric[")
    can_be_made = not any(field.startswith(chosen) for field in errors)
    if can_be_made and config.eval_input_reader and config.model.WhichOneof("model"):
        with _errors_among(problems):
            make_metrics(config.eval_config, evaluated_categories(config, label_map))
    return problems


def check_graphs(subject: CheckedConfig) -> List[Problem]:
    """Problems of the graphs of a run, which the `subject` has afterwards."""
    if not subject.can_be_made:
        return []
    subject.graphs = examine(subject.readable, subject.label_map)
    reported = [each.field for each in subject.problems if each.severity == "error"]
    return [each for each in subject.graphs.problems if each.field not in reported]


@contextlib.contextmanager
def _errors_among(problems: List[Problem]) -> Iterator[None]:
    """Context manager: problems of a `ConfigError` are added, unless they are there already."""
    try:
        yield
    except ConfigError as reason:
        problems += [problem for problem in reason.problems if problem not in problems]


def without_files(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, label_map: Optional[LabelMap] = None
) -> Any:
    """A copy that names no checkpoint and no label map.

    Without a `label_map` its evaluation leaves out what needs one, which `check_metrics` reports.
    """
    config = copy.deepcopy(pipeline_config)
    config.train_config.ClearField("fine_tune_checkpoint")
    if label_map is None:
        names = config.eval_config.metrics_set
        known = [n for n in names if n not in METRICS or not METRICS.get(n).needs_label_map]
        config.eval_config.metrics_set[:] = known
        config.eval_config.ClearField("parameterized_metric")
        config.eval_config.ClearField("super_categories")
    for reader in (config.train_input_reader, *config.eval_input_reader):
        reader.ClearField("label_map_path")
    return config


def _examine_training(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    train_config: train_pb2.TrainConfig,
    problems: List[Problem],
) -> Graphs:
    with tf.Graph().as_default() as graph:
        tf1.train.get_or_create_global_step()
        features, labels = placeholders(config, ModeKeys.TRAIN)
        detector = build_detector(config.model, True, config.graph_rewriter)
        ModelFn(config)(features, labels, ModeKeys.TRAIN)
        table = None
        if train_config.fine_tune_checkpoint:
            table = _table(detector, config.model, train_config, problems)
        static = all(features[schema.IMAGE].shape.as_list())
        memory = training_memory(graph, {**features, **labels}) if static else None
        num_variables = len(tf1.global_variables())
        operations = graph.get_operations()
        scopes = tuple(quantized_scopes(operations))
        return Graphs(memory, table, num_variables, len(operations), problems, scopes)


def _table(
    detector: Any,
    model: model_pb2.DetectionModel,
    train_config: train_pb2.TrainConfig,
    problems: List[Problem],
) -> Optional[warm_start.RestoreTable]:
    field = "train_config.fine_tune_checkpoint"
    try:
        table = warm_start.table_of(detector, train_config, model)
        warm_start.check_table(table, train_config, model)
    except ConfigError as reason:
        problems += reason.problems
        return None
    except (FileNotFoundError, RunError, tf.errors.OpError) as reason:
        remedy = "correct the path and fine_tune_checkpoint_type, or leave both out"
        problems.append(error(field, getattr(reason, "message", None) or str(reason), remedy))
        return None
    if table.mismatched or table.missing:
        reasons = "".join(f". {text}" for text in table.explanations)
        problems.append(
            warning(
                field,
                f"{counted(len(table.mismatched), 'variable')} with another shape there, "
                f"{len(table.missing)} missing; they start from their initializers{reasons}",
                "nothing, if those are the heads for other classes",
            )
        )
    return table


def placeholders(
    config: pipeline_pb2.TrainEvalPipelineConfig, mode: str
) -> Tuple[Dict[str, tf.Tensor], Dict[str, tf.Tensor]]:
    """Features and labels of a mode; there are no labels in PREDICT.

    EVAL takes batch size, boxes and keypoints from eval_config and the first evaluation reader;
    a length that the configuration leaves open is None.
    """
    model = evaluated_model(config) if mode == ModeKeys.EVAL else config.model
    model = getattr(model, model.WhichOneof("model"))
    height, width = make_resizer(model.image_resizer).spatial_shape
    reader, batch_size = config.train_input_reader, config.train_config.batch_size
    if mode == ModeKeys.EVAL:
        batch_size = config.eval_config.batch_size
        reader = config.eval_input_reader[0] if config.eval_input_reader else reader
    sizes: Dict[str, Optional[int]] = {
        "B": batch_size or 1,
        "G": reader.max_number_of_boxes or 1,
        "K": model.num_classes,
        "H": height,
        "W": width,
        "C": 3 + reader.num_additional_channels,
        "P": reader.num_keypoints,
    }
    context = context_shape(config.model)
    if context is not None:
        sizes.update(zip("SF", context))

    def make(name: str, spec: Any) -> tf.Tensor:
        shape = [int(axis) if axis.isdigit() else sizes[axis] for axis in spec.shape.split()]
        return tf1.placeholder(getattr(tf, spec.dtype), shape, name=name)

    features = list(FEATURES if context is None else (*FEATURES, *CONTEXT))
    if mode == ModeKeys.EVAL:
        features.append(schema.ORIGINAL_SPATIAL_SHAPE)
    labels = {
        key: spec
        for key, spec in schema.LABELS.items()
        if (key == schema.NUM_BOXES or spec.shape.startswith("B G"))
        and (not spec.reader_field or getattr(reader, spec.reader_field))
        and mode != ModeKeys.PREDICT
    }
    return (
        {name: make(name, schema.FEATURES[name]) for name in features},
        {name: make(name, spec) for name, spec in labels.items()},
    )
