"""Names of the metrics of a run, before step 1."""

from __future__ import annotations

import logging
from typing import List, Optional

from estimator_det.compat import tf1
from estimator_det.config.text import nearest
from estimator_det.console.printing import listed
from estimator_det.detectors import ssd_loss
from estimator_det.detectors.two_stage import masks, proposals, regions
from estimator_det.errors import UsageError
from estimator_det.protos import pipeline_pb2
from model_fn.evaluation.eval_ops import evaluated_categories
from model_fn.evaluation.metrics import make_metrics
from model_fn.evaluation.metrics.base import lowest_is_best
from model_fn.training import step

_LOG = logging.getLogger(__name__)

_SHOWN = 20


def check_best_metric(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, metric: Optional[str]
) -> None:
    """Refuses a metric that no evaluation of the configuration computes."""
    if metric is None:
        return
    known = metric_names(pipeline_config)
    if metric not in known:
        raise UsageError(
            f"best_metric: {metric!r} is not evaluated{nearest(metric, known) or '.'} Known: "
            f"{listed(known, _SHOWN)}"
        )
    for name in sorted(lowest_is_best(pipeline_config.eval_config) - {*known}):
        _LOG.warning(
            "lower_is_better of a metrics set has %r, which is not evaluated%s Correct the name: "
            "without it, the highest value of the metric is the best",
            name,
            nearest(name, known) or ".",
        )


def metric_names(pipeline_config: pipeline_pb2.TrainEvalPipelineConfig) -> List[str]:
    """Names of all that an evaluation computes, in the order of the metrics sets."""
    sets = make_metrics(pipeline_config.eval_config, evaluated_categories(pipeline_config))
    names = [name for metrics in sets for name in metrics.names]
    return [*names, *_loss_names(pipeline_config), "learning_rate", tf1.GraphKeys.GLOBAL_STEP]


def lower_is_better(pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, metric: str) -> bool:
    """True for a loss, and for a metric whose set says so."""
    is_loss = metric in _loss_names(pipeline_config)
    return is_loss or metric in lowest_is_best(pipeline_config.eval_config)


def _loss_names(pipeline_config: pipeline_pb2.TrainEvalPipelineConfig) -> List[str]:
    """The total has two names: ours, and "loss" of the Estimator.

    Terms that only some networks have are among them.
    """
    names = [step.TOTAL_LOSS, "loss"]
    if pipeline_config.eval_config.use_dummy_loss_in_eval:
        return names
    if pipeline_config.train_config.add_regularization_loss:
        names.append(step.REGULARIZATION_LOSS)
    if pipeline_config.model.WhichOneof("model") == "ssd":
        return [*names, ssd_loss.LOCALIZATION, ssd_loss.CLASSIFICATION, ssd_loss.EQUALIZATION]
    stages = pipeline_config.model.faster_rcnn.number_of_stages
    names += [proposals.RPN_LOCALIZATION, proposals.RPN_OBJECTNESS]
    if stages > 1:
        names += [regions.REGION_LOCALIZATION, regions.REGION_CLASSIFICATION]
    if stages > 2:
        names.append(masks.MASK_LOSS)
    return names
