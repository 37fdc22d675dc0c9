"""Fields that the chosen components do not use."""

from __future__ import annotations

from typing import List

import pytest

from estimator_det.config import pipeline
from estimator_det.extractors.base import OVERRIDE
from estimator_det.extractors.ssd.recipe import EXTRACTORS
from estimator_det.programs import demo
from model_fn.checks import names
from model_fn.evaluation.metrics.base import EVAL_FIELDS

EXTRACTOR = "model.ssd.feature_extractor"


def _fields(*assignments: str) -> List[str]:
    config = pipeline.read_pipeline(str(demo.CONFIG_FILE))
    found = names.check_unused(pipeline.apply_overrides(config, assignments))
    assert all(problem.severity == "warning" for problem in found)
    return [problem.field for problem in found]


def test_what_is_used_is_not_reported() -> None:
    assert _fields() == []
    assert _fields("eval_config.include_metrics_per_category=true") == []


@pytest.mark.parametrize(
    ("assignments", "fields"),
    [
        (["type=ssd_mobilenet_v1_ppn", "use_depthwise=true"], ["use_depthwise"]),
        (["type=ssd_mobilenet_v1_ppn", "use_depthwise=false"], []),
        (["type=ssd_mobilenet_v1_ppn", f"{OVERRIDE}=false"], ["conv_hyperparams"]),
        (
            [
                "type=ssd_spaghettinet",
                "spaghettinet_arch_name=spaghettinet_edgetpu_s",
                "depth_multiplier=null",
            ],
            ["conv_hyperparams", OVERRIDE],
        ),
        (["type=ssd_mobilenet_v2_mnasfpn", f"{OVERRIDE}=false"], ["conv_hyperparams"]),
        (["type=ssd_mobilenet_v9"], []),
    ],
)
def test_options_that_the_extractor_ignores(assignments: List[str], fields: List[str]) -> None:
    changes = [f"{EXTRACTOR}.{text}" for text in (*assignments, "num_layers=null")]
    assert _fields(*changes) == [f"{EXTRACTOR}.{field}" for field in fields]


def test_an_unknown_model_is_left_to_other_checks() -> None:
    assert _fields("model={ center_net { } }") == []
    assert "ssd_mobilenet_v9" not in EXTRACTORS


def test_options_that_no_chosen_metrics_set_uses() -> None:
    # pascal_voc_detection_metrics never uses what COCO's metrics use.
    setting = "eval_config.include_metrics_per_category=true"
    assert "include_metrics_per_category" in EVAL_FIELDS["coco_detection_metrics"]
    metrics = "eval_config.metrics_set=pascal_voc_detection_metrics"
    assert _fields(setting, metrics) == ["eval_config.include_metrics_per_category"]
