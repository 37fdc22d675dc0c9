"""Checks of two stages, and of masks and keypoints."""

from __future__ import annotations

import pytest

from estimator_det.config.pipeline import (
    apply_overrides,
    check,
    merge_text,
)
from tests.config.test_check import GOOD, TWO_STAGE, only, problems

MASKS = TWO_STAGE.replace(
    "mask_rcnn_box_predictor { }",
    "mask_rcnn_box_predictor { predict_instance_masks: true conv_hyperparams { } }",
).replace("num_classes", "number_of_stages: 3 num_classes")


LOADED = (
    "train_input_reader.load_instance_masks=true",
    "eval_input_reader[0].load_instance_masks=true",
)


def test_a_model_with_masks_needs_readers_with_masks() -> None:
    assert problems(*LOADED, "eval_config.metrics_set=coco_mask_metrics", text=MASKS) == []
    found = problems(text=MASKS)
    assert [(one.severity, *one.edits) for one in found] == [("error", edit) for edit in LOADED]
    assert "is false, and the model learns masks" in str(found[0])


def test_masks_need_hyperparameters_of_their_layers() -> None:
    problem = only(problems(*LOADED, text=MASKS.replace("conv_hyperparams { }", "")))
    head = "model.faster_rcnn.second_stage_box_predictor.mask_rcnn_box_predictor"
    assert (problem.severity, problem.field) == ("error", f"{head}.conv_hyperparams")
    remedy = problem.remedy.removeprefix("--set ")
    assert problems(*LOADED, remedy, text=MASKS.replace("conv_hyperparams { }", "")) == []


@pytest.mark.parametrize(
    "name",
    [
        "coco_mask_metrics",
        "coco_panoptic_metrics",
        "lvis_mask_metrics",
        "oid_challenge_segmentation_metrics",
        "pascal_voc_instance_segmentation_metrics",
    ],
)
def test_mask_metrics_need_a_model_and_readers_with_masks(name: str) -> None:
    found = problems(f"eval_config.metrics_set={name}")
    assert [one.field for one in found] == [
        "eval_config.metrics_set",
        "eval_input_reader[0].load_instance_masks",
    ]
    assert "asks for mask metrics, and model.ssd finds boxes only" in found[0].message
    assert "asks for mask metrics" in found[1].message


@pytest.mark.parametrize(
    ("assignment", "field"),
    [
        ("eval_config.metrics_set=coco_keypoint_metrics", "eval_config.metrics_set"),
        (
            "eval_config.parameterized_metric=[{coco_keypoint_metrics {class_label: 'cat'}}]",
            "eval_config.parameterized_metric",
        ),
    ],
)
def test_keypoint_metrics_need_a_model_and_readers_with_keypoints(
    assignment: str, field: str
) -> None:
    without = "eval_input_reader[0].num_keypoints"
    found = problems(assignment)
    assert [one.field for one in found] == [field, without]
    assert "asks for metrics of keypoints, and model.ssd finds boxes only" in found[0].message
    assert f"is 0, but {field} asks" in found[1].message
    coder = "model.ssd.box_coder={keypoint_box_coder {num_keypoints: 3}}"
    fields = [one.field for one in problems(assignment, coder, f"{without}=3")]
    assert field not in fields and without not in fields


def test_image_labels_matter_to_challenges() -> None:
    field = "eval_config.image_classes_field_map_empty_to_ones"
    assert [one.field for one in problems(f"{field}=false")] == [field]
    challenge = "eval_config.metrics_set=oid_challenge_detection_metrics"
    assert problems(f"{field}=false", challenge) == []


@pytest.mark.parametrize(
    "assignment, field",
    [
        ("inplace_batchnorm_update=true", "inplace_batchnorm_update"),
        ("number_of_stages=4", "number_of_stages"),
        ("second_stage_box_predictor=null", "second_stage_box_predictor"),
        ("first_stage_anchor_generator={}", "first_stage_anchor_generator"),
        ("maxpool_stride=null", None),
        (
            "number_of_stages=3",
            "second_stage_box_predictor.mask_rcnn_box_predictor.predict_instance_masks",
        ),
    ],
)
def test_faster_rcnn(assignment: str, field: str) -> None:
    config = merge_text(GOOD, TWO_STAGE)
    if "stages=3" in assignment:
        config = apply_overrides(config, LOADED)
    if field is None:
        config.model.faster_rcnn.ClearField("maxpool_stride")
        field = "maxpool_stride"
    else:
        config = apply_overrides(config, [f"model.faster_rcnn.{assignment}"])
    problem = only(check(config, check_files=False))
    assert (problem.severity, problem.field) == ("error", f"model.faster_rcnn.{field}")


@pytest.mark.parametrize(
    "assignment, message",
    [
        ("use_static_balanced_label_sampler=true", "the sampler always has static shapes"),
        ("use_partitioned_nms_in_first_stage=false", "all kinds of suppression"),
        ("use_combined_nms_in_first_stage=true", "all kinds of suppression"),
        (
            "second_stage_box_predictor.mask_rcnn_box_predictor.predict_instance_masks=true",
            "masks need a third stage",
        ),
    ],
)
def test_faster_rcnn_without_effect(assignment: str, message: str) -> None:
    assignment = f"model.faster_rcnn.{assignment}"
    config = apply_overrides(merge_text(GOOD, TWO_STAGE), [assignment])
    problem = only(check(config, check_files=False))
    assert (problem.severity, problem.field) == ("warning", assignment.partition("=")[0])
    assert message in problem.message


def test_a_single_stage_needs_no_second_one() -> None:
    config = merge_text(GOOD, TWO_STAGE)
    model = config.model.faster_rcnn
    model.number_of_stages = 1
    model.ClearField("second_stage_box_predictor")
    assert check(config, check_files=False) == []


def test_rfcn_crops_inside_its_predictor() -> None:
    config = merge_text(GOOD, TWO_STAGE)
    model = config.model.faster_rcnn
    model.second_stage_box_predictor.rfcn_box_predictor.SetInParent()
    for field in ("initial_crop_size", "maxpool_kernel_size", "maxpool_stride"):
        model.ClearField(field)
    assert check(config, check_files=False) == []
