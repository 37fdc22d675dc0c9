"""Checks of two stages, of masks and keypoints, and of context features."""

from __future__ import annotations

from typing import List, Optional, Tuple

import pytest
from google.protobuf import text_format

from estimator_det.config.check_model import check_context, check_context_reader, context_shape
from estimator_det.config.pipeline import apply_overrides, check, merge_text
from estimator_det.protos import input_reader_pb2, model_pb2
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


ATTENDS = "context_config { max_num_context_features: 3 context_feature_length: 2 %s }"
AMONG_BOXES = ATTENDS % "use_self_attention: true use_long_term_attention: false"


def model(text: str) -> model_pb2.DetectionModel:
    return text_format.Parse(f"faster_rcnn {{ {text} }}", model_pb2.DetectionModel())


@pytest.mark.parametrize(
    ("text", "shape"), [("", None), (ATTENDS % "", (3, 2)), (AMONG_BOXES, None)]
)
def test_shape(text: str, shape: Optional[Tuple[int, int]]) -> None:
    assert context_shape(model(text)) == shape
    assert context_shape(model_pb2.DetectionModel()) is None


@pytest.mark.parametrize(
    ("text", "reader", "fields"),
    [
        (ATTENDS % "", "", ["r.load_context_features"]),
        (ATTENDS % "", "load_context_features: true load_context_image_ids: true", []),
        ("", "load_context_features: true", ["r.load_context_features"]),
        (AMONG_BOXES, "load_context_image_ids: true", ["r.load_context_image_ids"]),
        (AMONG_BOXES, "", []),
    ],
)
def test_readers(text: str, reader: str, fields: List[str]) -> None:
    given = text_format.Parse(reader, input_reader_pb2.InputReader())
    found = list(check_context_reader(given, model(text), "r"))
    assert [problem.field for problem in found] == fields
    assert {problem.severity for problem in found} <= {"error"}


@pytest.mark.parametrize(
    ("text", "severity", "field"),
    [
        (ATTENDS % "attention_position: ATTENTION_DEFAULT", "error", "attention_position"),
        (ATTENDS % "use_long_term_attention: false", "error", "use_long_term_attention"),
        (AMONG_BOXES[:-1] + "self_attention_in_sequence: true }", "warning", "self_attention_in"),
        (ATTENDS % "" + "number_of_stages: 1", "error", ""),
        (ATTENDS % "" + "second_stage_box_predictor { rfcn_box_predictor {} }", "error", ""),
    ],
)
def test_problems(text: str, severity: str, field: str) -> None:
    (problem,) = check_context(model(text).faster_rcnn, "m")
    assert problem.severity == severity
    assert problem.field.startswith(f"m.context_config{'.' if field else ''}{field}")


def test_models_without_it_have_no_problem() -> None:
    assert not list(check_context(model("").faster_rcnn, "m"))
    assert not list(check_context(model(ATTENDS % "").faster_rcnn, "m"))
