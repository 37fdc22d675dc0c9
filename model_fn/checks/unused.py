"""Fields that the components of a configuration do not use, as their registries say."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Tuple

from estimator_det.config.fields import is_news, no_effect
from estimator_det.config.problem import Problem
from estimator_det.config.ranges import check_ranges
from estimator_det.config.text import ConfigError
from estimator_det.extractors.ssd import recipe as ssd
from estimator_det.extractors.two_stage import recipe as two_stage
from model_fn.evaluation.metrics.base import EVAL_FIELDS, chosen_metrics

_OF_EXTRACTORS: Dict[str, Callable[[Any], Tuple[str, ...]]] = {
    "ssd": ssd.ignored_fields,
    "faster_rcnn": two_stage.ignored_fields,
}


def check_unused(pipeline_config: Any) -> List[Problem]:
    """A warning for each field that is set and that the chosen components do not use.

    Components that cannot be made are not checked.
    """
    return [*_extractor_fields(pipeline_config), *_metrics_fields(pipeline_config.eval_config)]


def _extractor_fields(pipeline_config: Any) -> Iterator[Problem]:
    kind = pipeline_config.model.WhichOneof("model")
    if kind not in _OF_EXTRACTORS:
        return
    extractor = getattr(pipeline_config.model, kind).feature_extractor
    if any(check_ranges(extractor)):
        return
    try:
        names = _OF_EXTRACTORS[kind](extractor)
    except ConfigError:
        return  # An error that other checks report.
    for name in names:
        yield no_effect(
            f"model.{kind}.feature_extractor.{name}", f"{extractor.type} does not use it"
        )


def _metrics_fields(eval_config: Any) -> Iterator[Problem]:
    chosen = chosen_metrics(eval_config)
    for field in sorted({name for names in EVAL_FIELDS.values() for name in names}):
        users = sorted(name for name, fields in EVAL_FIELDS.items() if field in fields)
        is_used = any(name in users for name in chosen)
        if is_news(eval_config, eval_config.DESCRIPTOR.fields_by_name[field]) and not is_used:
            yield no_effect(f"eval_config.{field}", f"only {', '.join(users)} use it")
