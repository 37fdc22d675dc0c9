"""Components that a run cannot make, and fields that the chosen components do not use."""

from __future__ import annotations

import re
from typing import Any, List

import pytest

from estimator_det.config import pipeline
from estimator_det.errors import Problem
from estimator_det.extractors.recipe import OVERRIDE
from estimator_det.programs import demo
from model_fn.checks import config_check
from model_fn.evaluation.metrics import METRICS


def _config(*assignments: str) -> Any:
    config = pipeline.read_pipeline(str(demo.CONFIG_FILE))
    return pipeline.apply_overrides(config, assignments)


def _problems(*assignments: str) -> List[Problem]:
    found = config_check.check(_config(*assignments), config_check.NAMES).problems
    return [
        each for each in found if " is not known" in each.message or "supported yet" in each.message
    ]


def test_what_runs_is_accepted():
    assert _problems() == []
    assert _problems("eval_config.metrics_set=[]", "model.ssd.feature_extractor.type=") == []


@pytest.mark.parametrize(
    ("assignment", "field", "message", "remedy"),
    [
        ("eval_config.metrics_set=[lvis_mask_metrics, coco_detection_metrcs]",
         "eval_config.metrics_set[1]", "'coco_detection_metrcs' is not known",
         "did you mean 'coco_detection_metrics'? Supported: coco_detection_metrics"),
        ("model.ssd.feature_extractor.type=ssd_mobilenet_v7", "model.ssd.feature_extractor.type",
         "'ssd_mobilenet_v7' is not known", "did you mean 'ssd_mobilenet_v"),
        ("model={ experimental_model { name: 'mine' } }", "model.experimental_model",
         "'experimental_model' is not supported yet", "supported: center_net, faster_rcnn, ssd"),
        ("model={ faster_rcnn { second_stage_box_predictor { convolutional_box_predictor {} } } }",
         "model.faster_rcnn.second_stage_box_predictor.convolutional_box_predictor",
         "not supported yet", "supported: mask_rcnn_box_predictor, rfcn_box_predictor"),
        ("model={ faster_rcnn { feature_extractor { type: 'faster_rcnn_resnet5' } "
         "second_stage_box_predictor { mask_rcnn_box_predictor {} } } }",
         "model.faster_rcnn.feature_extractor.type", "is not known",
         "did you mean 'faster_rcnn_resnet50'"),
    ],
)  # fmt: skip
def test_what_no_run_can_make_is_refused(assignment, field, message, remedy):
    (problem,) = _problems(assignment)
    assert (problem.severity, problem.field) == ("error", field)
    assert message in problem.message and remedy in problem.remedy


EXTRACTOR = "model.ssd.feature_extractor"


def _unused_fields(*assignments: str) -> List[str]:
    found = config_check.check(_config(*assignments), config_check.NAMES).problems
    users = re.compile("does not use it|only .* use it|of the TF1 line")
    return [problem.field for problem in found if users.search(problem.message)]


def test_what_is_used_is_not_reported():
    assert _unused_fields() == []
    assert _unused_fields("eval_config.include_metrics_per_category=true") == []


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
def test_options_that_the_extractor_ignores(assignments, fields):
    changes = [f"{EXTRACTOR}.{text}" for text in (*assignments, "num_layers=null")]
    assert _unused_fields(*changes) == [f"{EXTRACTOR}.{field}" for field in fields]


def test_options_that_no_chosen_metrics_set_uses():
    # pascal_voc_detection_metrics never uses what COCO's metrics use.
    setting = "eval_config.include_metrics_per_category=true"
    assert "include_metrics_per_category" in METRICS.get("coco_detection_metrics").eval_fields
    metrics = "eval_config.metrics_set=pascal_voc_detection_metrics"
    assert _unused_fields(setting, metrics) == ["eval_config.include_metrics_per_category"]


def test_an_unknown_model_is_left_to_other_checks():
    assert _unused_fields("model={ center_net { } }") == []


@pytest.mark.parametrize(
    ("kind", "is_used"), [("ssd_mobilenet_v1", False), ("ssd_mobilenet_v1_keras", True)]
)
def test_options_of_heads_that_only_the_tf2_line_uses(kind, is_used):
    head = "model.ssd.box_predictor.weight_shared_convolutional_box_predictor"
    field = f"{head}.apply_conv_hyperparams_to_heads"
    assert _unused_fields(f"{EXTRACTOR}.type={kind}", f"{field}=true") == [field][is_used:]
