"""Whether the registries that a run uses have every component that a configuration names."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List

from google.protobuf.message import Message

from estimator_det.boxes.anchors import ANCHOR_GENERATORS
from estimator_det.boxes.coders import CODERS
from estimator_det.boxes.geometry import SIMILARITIES
from estimator_det.boxes.matching import MATCHERS
from estimator_det.boxes.score_conversion import CALIBRATIONS
from estimator_det.config.problem import Problem, error
from estimator_det.config.registry import Registry
from estimator_det.config.text import is_repeated
from estimator_det.detectors import DETECTORS
from estimator_det.extractors.ssd.recipe import EXTRACTORS
from estimator_det.images.resize import IMAGE_RESIZERS
from estimator_det.losses.classification import CLASSIFICATION_LOSSES
from estimator_det.losses.localization import LOCALIZATION_LOSSES
from estimator_det.predictors.base import BOX_HEADS
from inputs.augment import AUGMENTATIONS
from model_fn.evaluation.metrics import METRICS
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
    "preprocessing_step": AUGMENTATIONS,
    "region_similarity": SIMILARITIES,
}
# Which registry knows the text of a field, by message and field.
TEXTS: Dict[str, Registry[Any]] = {
    "EvalConfig.metrics_set": METRICS,
    "SsdFeatureExtractor.type": EXTRACTORS,
}


def check_names(pipeline_config: Any) -> List[Problem]:
    """An error for every component that a `TrainEvalPipelineConfig` names and no run can make.

    Parts of a component that cannot be made are not checked.
    """
    return list(_unknown(pipeline_config, ""))


def _unknown(message: Message, prefix: str) -> Iterator[Problem]:
    for field, value in message.ListFields():
        path = prefix + field.name
        choices = CHOICES.get(field.containing_oneof.name) if field.containing_oneof else None
        if choices is not None and field.name not in choices:
            what, remedy = choices.refusal(field.name, reserved=(field.name,))
            yield error(path, what, remedy)
            continue
        texts = TEXTS.get(f"{message.DESCRIPTOR.name}.{field.name}")
        if texts is None and field.message_type is None:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        repeated = is_repeated(field)
        for index, entry in enumerate(value if repeated else [value]):
            here = f"{path}[{index}]" if repeated else path
            if texts is None:
                yield from _unknown(entry, f"{here}.")
            elif entry and entry not in texts:  # what is missing, `config.check` reports
                what, remedy = texts.refusal(entry)
                yield error(here, what, remedy)
