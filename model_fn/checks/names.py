"""Components and fields that a configuration names, against the registries that a run uses."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple, Union

from estimator_det.boxes.anchors import ANCHOR_GENERATORS
from estimator_det.boxes.coders import CODERS
from estimator_det.boxes.geometry import SIMILARITIES
from estimator_det.boxes.matching import MATCHERS
from estimator_det.boxes.score_conversion import CALIBRATIONS
from estimator_det.config.field_rules import check_ranges, no_effect, non_default_fields
from estimator_det.config.problem import Problem, error, from_error
from estimator_det.config.registry import Registry
from estimator_det.config.text import ConfigError, entries
from estimator_det.detectors import DETECTORS
from estimator_det.detectors.two_stage.regions import REGION_STAGES
from estimator_det.extractors.ssd import recipe as ssd
from estimator_det.extractors.two_stage import recipe as two_stage
from estimator_det.images.resize import IMAGE_RESIZERS
from estimator_det.losses.classification import CLASSIFICATION_LOSSES
from estimator_det.losses.localization import LOCALIZATION_LOSSES
from estimator_det.predictors.base import BOX_HEADS
from estimator_det.predictors.ssd import TF2_LINE_FIELDS
from estimator_det.protos import custom_pb2, eval_pb2, faster_rcnn_pb2, pipeline_pb2, ssd_pb2
from inputs.augment import AUGMENTATIONS
from model_fn.evaluation.metrics import METRICS
from model_fn.evaluation.metrics.base import EVAL_FIELDS, PARAMETERIZED, chosen_metrics
from model_fn.training.optimizers import OPTIMIZERS
from model_fn.training.schedules import LEARNING_RATES

# Which registry makes the member that is set in a oneof, by the oneof's name.
CHOICES: Dict[str, Registry[Any]] = {
    "anchor_generator_oneof": ANCHOR_GENERATORS,
    "box_coder_oneof": CODERS,
    "box_predictor_oneof": BOX_HEADS,
    "calibrator": CALIBRATIONS,
    "classification_loss": CLASSIFICATION_LOSSES,
    "image_resizer_oneof": IMAGE_RESIZERS,
    "learning_rate": LEARNING_RATES,
    "localization_loss": LOCALIZATION_LOSSES,
    "matcher_oneof": MATCHERS,
    "model": DETECTORS,
    "optimizer": OPTIMIZERS,
    "parameterized_metric": PARAMETERIZED,
    "preprocessing_step": AUGMENTATIONS,
    "region_similarity": SIMILARITIES,
}
# The same where the field that holds the choice decides, by the name of that field.
CHOICES_OF_FIELDS: Dict[str, Registry[Any]] = {"second_stage_box_predictor": REGION_STAGES}
# Which registry knows the text of a field, by message and field.
TEXTS: Dict[str, Registry[Any]] = {
    "EvalConfig.metrics_set": METRICS,
    "FasterRcnnFeatureExtractor.type": two_stage.EXTRACTORS,
    "SsdFeatureExtractor.type": ssd.EXTRACTORS,
}


class Component(NamedTuple):
    """A component that a configuration names."""

    path: str  # field that names it, in the form that `--set` takes
    registry: Registry[Any]
    name: str  # entry of the registry, or "custom"
    message: Any  # its settings


def components(pipeline_config: pipeline_pb2.TrainEvalPipelineConfig) -> Iterator[Component]:
    """Components that a `TrainEvalPipelineConfig` names, each before those in its settings."""
    for path, parent, field, value in entries(pipeline_config):
        group = field.containing_oneof
        holder = path.rpartition(".")[0].rpartition(".")[2]
        choices = CHOICES_OF_FIELDS.get(holder, CHOICES.get(group.name)) if group else None
        texts = TEXTS.get(f"{parent.DESCRIPTOR.name}.{field.name}")
        if choices is not None:
            yield Component(path, choices, field.name, value)
        elif texts is not None and value:  # `config.check` reports ""
            yield Component(path, texts, value, parent)


def check_names(pipeline_config: pipeline_pb2.TrainEvalPipelineConfig) -> List[Problem]:
    """An error for every component that a `TrainEvalPipelineConfig` names and no run can make.

    Parts of a component that cannot be made are not checked.
    """
    problems: List[Problem] = []
    refused: Tuple[str, ...] = ()
    for path, registry, name, message in components(pipeline_config):
        holder, _, field = path.rpartition(".")
        if path.startswith(refused):
            continue
        if field == "custom":
            refused += (f"{path}.",)
            problems += _plugin_problems(registry.custom_function, message, path)
        elif name not in registry:
            refused += (f"{path}.",)
            problems.append(error(path, *registry.refusal(name, reserved=(field,))))
        elif field == "type":
            problems += _plugin_problems(registry.get(name).with_parameters, message, holder)
    return problems


def _plugin_problems(
    make: Callable[[Any], Any],
    config: Union[
        custom_pb2.Custom, faster_rcnn_pb2.FasterRcnnFeatureExtractor, ssd_pb2.SsdFeatureExtractor
    ],
    path: str,
) -> Iterator[Problem]:
    """The error in the parameters of a plug-in; its field begins with the last name of `path`."""
    try:
        make(config)
    except ConfigError as reason:
        yield from_error(reason, f"{path.rpartition('.')[0]}.{reason.field}", "correct it")


def check_unused(pipeline_config: pipeline_pb2.TrainEvalPipelineConfig) -> List[Problem]:
    """A warning for each field that is set and that the chosen components do not use.

    Components that cannot be made are not checked.
    """
    return [*_extractor_fields(pipeline_config), *_metrics_fields(pipeline_config.eval_config)]


def _extractor_fields(pipeline_config: pipeline_pb2.TrainEvalPipelineConfig) -> Iterator[Problem]:
    kind = pipeline_config.model.WhichOneof("model")
    if kind not in ("ssd", "faster_rcnn"):
        return
    extractor = getattr(pipeline_config.model, kind).feature_extractor
    if any(check_ranges(extractor)):
        return
    try:
        recipe = TEXTS[f"{extractor.DESCRIPTOR.name}.type"].get(extractor.type)
        names = recipe.ignored_fields(extractor)
    except ConfigError:
        return  # An error that other checks report.
    for name in names:
        yield no_effect(
            f"model.{kind}.feature_extractor.{name}", f"{extractor.type} does not use it"
        )
    if kind == "ssd" and not recipe.is_tf2_line:
        shared = "weight_shared_convolutional_box_predictor"
        predictor = getattr(pipeline_config.model.ssd.box_predictor, shared)
        for name in non_default_fields(predictor, TF2_LINE_FIELDS):
            yield no_effect(
                f"model.ssd.box_predictor.{shared}.{name}",
                "conv_hyperparams always apply to all layers of a network of the TF1 line",
            )


def _metrics_fields(eval_config: eval_pb2.EvalConfig) -> Iterator[Problem]:
    chosen = chosen_metrics(eval_config)
    names = sorted({name for names in EVAL_FIELDS.values() for name in names})
    for field in non_default_fields(eval_config, names):
        users = sorted(name for name, fields in EVAL_FIELDS.items() if field in fields)
        if not any(name in users for name in chosen):
            yield no_effect(f"eval_config.{field}", f"only {', '.join(users)} use it")


def component_problem(
    reason: ConfigError,
    config: pipeline_pb2.TrainEvalPipelineConfig,
    remedy: str = "choose what is supported, or remove it",
) -> Problem:
    """The problem of an error that a part of a run raises; its field is as `--set` takes it.

    Parts know their field from the model or from train_config on only. An error without a field
    is one of the model; `remedy` is for errors that have none.
    """
    kind = config.model.WhichOneof("model")
    model = f"model.{kind}" if kind else "model"
    if reason.field is not None:
        first = re.split(r"[.\[]", reason.field)[0]
        for prefix, message in (
            ("", config),
            ("model.", config.model),
            (f"{model}.", getattr(config.model, kind) if kind else config.model),
            ("train_config.", config.train_config),
        ):
            if first in message.DESCRIPTOR.fields_by_name:
                return from_error(reason, prefix + reason.field, remedy)
    sentence = str(ConfigError(reason.field, reason.message))
    return error(model, sentence, reason.remedy or remedy)
