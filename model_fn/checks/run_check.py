"""Builds the graphs of a run before it starts, to find what cannot be built; runs nothing."""

from __future__ import annotations

import copy
from typing import Any, Callable, List, NamedTuple, Optional, Sequence

from estimator_det.compat import estimator, tf, tf1
from estimator_det.config.printing import counted
from estimator_det.config.problem import Problem, error, warning
from estimator_det.config.text import ConfigError
from estimator_det.detectors.base import make_detector
from estimator_det.nets.quantization import quantized_scopes
from inputs import schema
from model_fn.checkpoints.errors import RunError
from model_fn.checks import data_problems
from model_fn.checks.as_problem import as_problem
from model_fn.checks.memory import Memory, training_memory
from model_fn.checks.placeholders import placeholders
from model_fn.evaluation.eval_ops import make_categories
from model_fn.evaluation.metrics.base import NEED_LABEL_MAP, make_metrics
from model_fn.model_fn import create_model_fn
from model_fn.training import warm_start

ModeKeys = estimator.ModeKeys


class Preflight(NamedTuple):
    """What `examine` finds; the numbers are those of training, 0 if its graph cannot be built."""

    memory: Optional[Memory]
    warm_start: Optional[warm_start.RestoreTable]
    num_variables: int
    num_operations: int
    problems: List[Problem]
    quantized: Sequence[str] = ()  # scopes of simulated quantization in training


def examine(pipeline_config: Any) -> Preflight:
    """Builds the graphs that training, evaluation and prediction use.

    What cannot be built is an error among the problems. The checkpoint to fine-tune from is
    compared with the model, and read for its checksums.

    Args:
        pipeline_config: `TrainEvalPipelineConfig` proto; `memory` is None if the size of its
            images depends on the record.
    """
    config = _without_files(pipeline_config)
    problems: List[Problem] = []
    found = Preflight(None, None, 0, 0, problems)
    try:
        found = _examine_training(config, pipeline_config.train_config, problems)
    except ConfigError as reason:
        problems.append(as_problem(reason, config))
    modes = [ModeKeys.EVAL] if config.eval_input_reader else []
    for mode in (*modes, ModeKeys.PREDICT):
        try:
            with tf.Graph().as_default():
                tf1.train.get_or_create_global_step()
                create_model_fn(config)(*placeholders(config, mode), mode)
        except ConfigError as reason:
            problems.append(as_problem(reason, config))
    return found._replace(problems=list(dict.fromkeys(problems)))


def examine_components(pipeline_config: Any) -> List[Problem]:
    """What is wrong with the parts of a run that are made before any graph.

    `examine` finds all of it and more; this takes a fraction of its time.
    """
    config = _without_files(pipeline_config)
    model = config.model
    makers: List[Callable[[], Any]] = [
        lambda: make_detector(model, True, config.graph_rewriter),
        lambda: make_detector(model, False, config.graph_rewriter),
    ]
    if config.eval_input_reader:
        makers.append(lambda: make_metrics(config.eval_config, make_categories(config)))
    problems = []
    for make in makers:
        try:
            make()
        except ConfigError as reason:
            problems.append(as_problem(reason, config))
    return list(dict.fromkeys(problems))


def _without_files(pipeline_config: Any) -> Any:
    """A copy that names no checkpoint and no label map but those that an evaluation can read."""
    config = copy.deepcopy(pipeline_config)
    config.train_config.ClearField("fine_tune_checkpoint")
    config.train_input_reader.ClearField("label_map_path")
    names_maps = any(reader.label_map_path for reader in config.eval_input_reader)
    for reader in config.eval_input_reader:
        if data_problems.read_map("", reader.label_map_path)[0] is None:
            reader.ClearField("label_map_path")
    if not any(reader.label_map_path for reader in config.eval_input_reader):
        config.eval_config.ClearField("super_categories")  # of names in the label map
        if names_maps:  # An error that the check of label maps reports; here it would be another.
            known = [x for x in config.eval_config.metrics_set if x not in NEED_LABEL_MAP]
            config.eval_config.metrics_set[:] = known
            config.eval_config.ClearField("parameterized_metric")
    return config


def _examine_training(config: Any, train_config: Any, problems: List[Problem]) -> Preflight:
    with tf.Graph().as_default() as graph:
        tf1.train.get_or_create_global_step()
        features, labels = placeholders(config, ModeKeys.TRAIN)
        detector = make_detector(config.model, True, config.graph_rewriter)
        create_model_fn(config)(features, labels, ModeKeys.TRAIN)
        table = None
        if train_config.fine_tune_checkpoint:
            table = _table(detector, config.model, train_config, problems)
        static = all(features[schema.IMAGE].shape.as_list())
        memory = training_memory(graph, {**features, **labels}) if static else None
        num_variables = len(tf1.global_variables())
        operations = graph.get_operations()
        scopes = tuple(quantized_scopes(operations))
        return Preflight(memory, table, num_variables, len(operations), problems, scopes)


def _table(
    detector: Any, model: Any, train_config: Any, problems: List[Problem]
) -> Optional[warm_start.RestoreTable]:
    field = "train_config.fine_tune_checkpoint"
    try:
        table = warm_start.table_of(detector, train_config, model)
        problem = warm_start.backbone_problem(table, train_config, model)
        if problem is not None:
            problems.append(problem)
            return None
        warm_start.check_table(table, train_config, model)
    except (FileNotFoundError, RunError, ConfigError, tf.errors.OpError) as reason:
        text = str(getattr(reason, "message", None) or reason).removeprefix(f"{field}: ")
        remedy = "correct the path and fine_tune_checkpoint_type, or leave both out"
        problems.append(error(field, text, remedy))
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
