"""Whether the registries that a run uses have every component that a configuration names."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from estimator_det.boxes.anchors import ANCHOR_GENERATORS
from estimator_det.boxes.coders import CODERS
from estimator_det.boxes.geometry import SIMILARITIES
from estimator_det.boxes.matching import MATCHERS
from estimator_det.boxes.score_conversion import CALIBRATIONS
from estimator_det.config.problem import Problem, error
from estimator_det.config.registry import Registry
from estimator_det.config.text import entries
from estimator_det.detectors import DETECTORS
from estimator_det.detectors.two_stage.roi_stage import REGION_STAGES
from estimator_det.extractors.ssd.recipe import EXTRACTORS
from estimator_det.extractors.two_stage.recipe import EXTRACTORS as TWO_STAGE_EXTRACTORS
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
# The same where the field that holds the choice decides, by the name of that field.
CHOICES_OF_FIELDS: Dict[str, Registry[Any]] = {"second_stage_box_predictor": REGION_STAGES}
# Which registry knows the text of a field, by message and field.
TEXTS: Dict[str, Registry[Any]] = {
    "EvalConfig.metrics_set": METRICS,
    "FasterRcnnFeatureExtractor.type": TWO_STAGE_EXTRACTORS,
    "SsdFeatureExtractor.type": EXTRACTORS,
}


def check_names(pipeline_config: Any) -> List[Problem]:
    """An error for every component that a `TrainEvalPipelineConfig` names and no run can make.

    Parts of a component that cannot be made are not checked.
    """
    problems: List[Problem] = []
    refused: Tuple[str, ...] = ()
    for path, parent, field, value in entries(pipeline_config):
        if path.startswith(refused):
            continue
        group = field.containing_oneof
        holder = path.rpartition(".")[0].rpartition(".")[2]
        choices = CHOICES_OF_FIELDS.get(holder, CHOICES.get(group.name)) if group else None
        texts = TEXTS.get(f"{parent.DESCRIPTOR.name}.{field.name}")
        if choices is not None and field.name not in choices:
            refused = (f"{path}.",)
            problems.append(error(path, *choices.refusal(field.name, reserved=(field.name,))))
        elif texts is not None and value and value not in texts:  # `config.check` reports ""
            problems.append(error(path, *texts.refusal(value)))
    return problems
