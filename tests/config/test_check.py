"""Static checks: each problem is found, and a good configuration has none."""

from __future__ import annotations

import pathlib
from typing import List

import pytest

from estimator_det.config.pipeline import (
    Problem,
    apply_overrides,
    check,
    merge_text,
    parse_pipeline,
)

SSD = """
model { ssd {
  num_classes: 2
  image_resizer { fixed_shape_resizer { } }
  feature_extractor { type: "ssd_mobilenet_v1" }
  box_coder { faster_rcnn_box_coder { } }
  matcher { argmax_matcher { } }
  similarity_calculator { iou_similarity { } }
  box_predictor { convolutional_box_predictor { } }
  anchor_generator { ssd_anchor_generator { } }
  post_processing { score_converter: SIGMOID }
  loss {
    localization_loss { weighted_smooth_l1 { } }
    classification_loss { weighted_sigmoid { } }
  }
} }
train_config {
  num_steps: 100
  optimizer { momentum_optimizer { learning_rate { constant_learning_rate { } } } }
}
train_input_reader {
  tf_record_input_reader { input_path: "train.record" } label_map_path: "map.pbtxt"
}
eval_config { metrics_set: "coco_detection_metrics" }
eval_input_reader {
  tf_record_input_reader { input_path: "eval-*.record" } label_map_path: "map.pbtxt"
}
"""
TWO_STAGE = """
model { faster_rcnn {
  num_classes: 2
  image_resizer { keep_aspect_ratio_resizer { } }
  feature_extractor { type: "faster_rcnn_resnet50" }
  first_stage_anchor_generator { grid_anchor_generator { } }
  initial_crop_size: 14 maxpool_kernel_size: 2 maxpool_stride: 2
  second_stage_box_predictor { mask_rcnn_box_predictor { } }
} }
train_config { batch_size: 1 }
"""
GOOD = parse_pipeline(SSD)


def problems(*assignments: str, text: str = "") -> List[Problem]:
    config = merge_text(GOOD, text) if text else GOOD
    return check(apply_overrides(config, assignments), check_files=False)


def only(found: List[Problem]) -> Problem:
    assert len(found) == 1, "\n".join(map(str, found))
    return found[0]


def test_a_good_configuration_has_no_problems() -> None:
    assert problems() == []
    assert problems("train_config.num_steps=0", "train_input_reader.num_epochs=2") == []
    assert problems(text=TWO_STAGE) == []


def test_an_empty_configuration_lacks_everything() -> None:
    fields = {problem.field: problem.severity for problem in check(parse_pipeline(""))}
    assert fields == {
        "model": "error",
        "train_config": "error",
        "train_input_reader": "error",
        "eval_input_reader": "warning",
    }


def test_errors_stand_before_warnings_and_read_well() -> None:
    found = problems("train_config.num_steps=0", "train_config.batch_size=0")
    assert [problem.severity for problem in found] == ["error", "warning"]
    assert str(found[0]) == (
        "error: train_config.batch_size: is 0; allowed are 1 to 65,536 images. Remedy: set it to "
        "a number in this range"
    )


@pytest.mark.parametrize(
    "assignment, field, message",
    [
        ("model.ssd.num_classes=0", "model.ssd.num_classes", "is 0"),
        ("model.ssd.box_coder=null", "model.ssd.box_coder", "is missing"),
        ("model.ssd.matcher={}", "model.ssd.matcher", "is empty"),
        ("model.ssd.loss.localization_loss=null", "model.ssd.loss.localization_loss", "missing"),
        ("model.ssd.feature_extractor.type=", "model.ssd.feature_extractor.type", "missing"),
        (
            "model.ssd.explicit_background_class=true",
            "model.ssd.explicit_background_class",
            "excludes add_background_class",
        ),
        (
            "model.ssd.box_predictor.convolutional_box_predictor.box_code_size=5",
            "model.ssd.box_predictor.convolutional_box_predictor.box_code_size",
            "codes of 4 numbers",
        ),
        (
            "model.ssd.box_coder.keypoint_box_coder.num_keypoints=3",
            "model.ssd.box_predictor.convolutional_box_predictor.box_code_size",
            "codes of 10 numbers",
        ),
        ("train_config.optimizer=null", "train_config.optimizer", "no optimizer"),
        (
            "train_config.optimizer.adam_optimizer.epsilon=1",
            "train_config.optimizer.adam_optimizer.learning_rate",
            "no learning rate schedule",
        ),
        ("train_config.freeze_variables=(", "train_config.freeze_variables[0]", "expression"),
        (
            "train_config.fine_tune_checkpoint_type=detecton",
            "train_config.fine_tune_checkpoint_type",
            "did you mean 'detection'",
        ),
        (
            "train_config.data_augmentation_options=[{remap_labels "
            "{original_labels: 1 new_label: 9000}}]",
            "train_config.data_augmentation_options[0].remap_labels.new_label",
            "9000 is not a class of the model",
        ),
        (
            "train_config.use_multiclass_scores=true",
            "train_config.use_multiclass_scores",
            "does not load",
        ),
        (
            "train_input_reader.tf_record_input_reader.input_path=[]",
            "train_input_reader.tf_record_input_reader.input_path",
            "no input path",
        ),
        (
            "eval_input_reader[0].external_input_reader={}",
            "eval_input_reader[0].external_input_reader",
            "not supported",
        ),
        (
            "train_input_reader.sample_from_datasets_weights=[1, 2]",
            "train_input_reader.sample_from_datasets_weights",
            "2 weights for 1 input paths",
        ),
        ("train_input_reader.num_readers=0", "train_input_reader.num_readers", "is 0"),
        (
            "train_input_reader.max_number_of_boxes=0",
            "train_input_reader.max_number_of_boxes",
            "is 0",
        ),
        ("eval_config.batch_size=0", "eval_config.batch_size", "is 0"),
        (
            "train_input_reader.label_map_path=PATH_TO_BE_CONFIGURED/map.pbtxt",
            "train_input_reader.label_map_path",
            "placeholder",
        ),
    ],
)
def test_errors(assignment: str, field: str, message: str) -> None:
    problem = only(problems(assignment))
    assert (problem.severity, problem.field) == ("error", field)
    assert message in problem.message


@pytest.mark.parametrize(
    "assignment, field, message",
    [
        ("train_config.num_steps=0", "train_config.num_steps", "never ends"),
        (
            "train_config.fine_tune_checkpoint=m.ckpt",
            "train_config.fine_tune_checkpoint_type",
            "'classification' is used",
        ),
        ("train_input_reader.label_map_path=", "train_input_reader.label_map_path", "not set"),
        ("train_config.batch_queue_capacity=3", "train_config.batch_queue_capacity", "no effect"),
        ("eval_config.num_examples=3", "eval_config.num_examples", "deprecated"),
        ("train_config.use_bfloat16=true", "train_config.use_bfloat16", "only a TPU computes"),
        ("eval_input_reader[0].num_epochs=0", "eval_input_reader[0].num_epochs", "means no limit"),
        (
            "eval_config.image_classes_field_map_empty_to_ones=false",
            "eval_config.image_classes_field_map_empty_to_ones",
            "skip_predictions_for_unlabeled_class is not set",
        ),
        (
            "eval_config.retain_original_image_additional_channels=true",
            "eval_config.retain_original_image_additional_channels",
            "no eval_input_reader sets num_additional_channels",
        ),
        (
            "eval_config.keypoint_edge=[{start: 0 end: 1}]",
            "eval_config.keypoint_edge",
            "no eval_input_reader sets num_keypoints",
        ),
        (
            "model.ssd.post_processing=null",
            "model.ssd.post_processing.score_converter",
            "raw logits",
        ),
        (
            "model.ssd.anchor_generator.ssd_anchor_generator.scales="
            "[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.95]",
            "model.ssd.anchor_generator.ssd_anchor_generator.scales",
            "has 9 values for 6 layers: 0.8, 0.95 at its end have no effect",
        ),
        (
            "model.ssd.image_resizer.identity_resizer={}",
            "train_config.batch_size",
            "different sizes",
        ),
        (
            "train_config.data_augmentation_options=[{mosaic { stop_at_step: 4000000 }}]",
            "train_config.data_augmentation_options[0].mosaic.stop_at_step",
            "has no effect: training ends at step",
        ),
        (
            "model.ssd.feature_extractor.batch_norm_trainable=true",
            "model.ssd.feature_extractor.batch_norm_trainable",
            "has no effect: batch norm trains unless model.ssd.freeze_batchnorm is set",
        ),
        (
            "model.ssd.feature_extractor.batch_norm_trainable=false",
            "model.ssd.feature_extractor.batch_norm_trainable",
            "training keeps the batch norm of the feature extractor as it is",
        ),
    ],
)
def test_warnings(assignment: str, field: str, message: str) -> None:
    problem = only(problems(assignment))
    assert (problem.severity, problem.field) == ("warning", field)
    assert message in problem.message


@pytest.mark.parametrize(
    "assignments",
    [
        ["eval_input_reader[0].num_epochs=2"],
        ["model.ssd.anchor_generator.ssd_anchor_generator.scales=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]"],
        # The scale past the last layer is that of an interpolated box.
        [
            "model.ssd.anchor_generator.ssd_anchor_generator.scales="
            "[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]"
        ],
        ["eval_config.keypoint_edge=[{start: 0 end: 1}]", "eval_input_reader[0].num_keypoints=2"],
        [
            "eval_config.image_classes_field_map_empty_to_ones=false",
            "eval_config.skip_predictions_for_unlabeled_class=true",
        ],
        [
            "eval_config.retain_original_image_additional_channels=true",
            "eval_input_reader[0].num_additional_channels=1",
        ],
        ["eval_config.force_no_resize=true", "eval_config.batch_size=1"],
        ["train_config.data_augmentation_options=[{mosaic { stop_at_step: 2 }}]"],
    ],
)
def test_fields_with_effect_are_not_reported(assignments: List[str]) -> None:
    assert problems(*assignments) == []


def test_scales_past_the_last_layer_are_used_by_interpolated_boxes_alone() -> None:
    anchors = "model.ssd.anchor_generator.ssd_anchor_generator"
    scales = f"{anchors}.scales=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]"
    problem = only(problems(scales, f"{anchors}.interpolated_scale_aspect_ratio=0"))
    assert "7 values for 6 layers: 0.7 at its end" in problem.message


def test_edges_connect_keypoints_that_exist() -> None:
    edges = "eval_config.keypoint_edge=[{start: 0 end: 1}, {start: -1 end: 2}]"
    found = problems(edges, "eval_input_reader[0].num_keypoints=2")
    assert [(problem.severity, problem.field) for problem in found] == [
        ("error", "eval_config.keypoint_edge[1].start"),
        ("error", "eval_config.keypoint_edge[1].end"),
    ]
    assert found[1].remedy == "give one of 0 to 1"


def test_images_that_are_not_resized_do_not_stack() -> None:
    problem = only(problems("eval_config.force_no_resize=true", "eval_config.batch_size=2"))
    assert (problem.severity, problem.field) == ("error", "eval_config.batch_size")
    assert "force_no_resize" in problem.message


def test_a_batch_that_no_machine_holds() -> None:
    sizes = "image_resizer={ fixed_shape_resizer { height: 16384 width: 16384 } }"
    batch = "train_config.batch_size"
    problem = only(problems(f"model.ssd.{sizes}", f"{batch}=65536"))
    assert (problem.severity, problem.field) == ("error", batch)
    assert "takes 196,608 GiB; allowed are 1,024" in problem.message
    assert problem.remedy.startswith("use 341 or fewer")
    assert problems(f"model.ssd.{sizes}", f"{batch}=341") == []


@pytest.mark.parametrize("field", ["load_context_features", "load_context_image_ids"])
def test_context_features_need_a_model_that_takes_them(field: str) -> None:
    problem = only(problems(f"train_input_reader.{field}=true"))
    assert (problem.severity, problem.field) == ("error", f"train_input_reader.{field}")


def test_a_checkpoint_type_of_the_schema_is_not_supported_yet() -> None:
    problem = only(problems("train_config.fine_tune_checkpoint_type=fine_tune"))
    assert problem.message == "'fine_tune' is not supported yet"


def test_deprecated_fields_name_what_replaces_them() -> None:
    problem = only(problems("train_config.from_detection_checkpoint=true"))
    assert problem.remedy == "use fine_tune_checkpoint_type instead"


def test_moving_averages_must_be_kept_to_be_evaluated() -> None:
    assert problems("eval_config.use_moving_averages=true") == []
    problem = only(
        problems(
            "eval_config.use_moving_averages=true",
            "train_config.optimizer.use_moving_average=false",
        )
    )
    assert problem.field == "eval_config.use_moving_averages"


def test_schedules() -> None:
    rate = "train_config.optimizer.momentum_optimizer.learning_rate"
    manual = f"{rate}.manual_step_learning_rate.schedule"
    assert problems(f"{manual}=[{{step: 10}}, {{step: 20}}]") == []
    for steps in ("[{step: 20}, {step: 10}]", "[{step: 0}]"):
        assert only(problems(f"{manual}={steps}")).field == manual

    cosine = f"{rate}.cosine_decay_learning_rate"
    good = f"{cosine}={{total_steps: 100 warmup_steps: 10}}"
    assert problems(good) == []
    assert only(problems(good, f"{cosine}.warmup_steps=101")).field == f"{cosine}.warmup_steps"
    high = only(problems(good, f"{cosine}.warmup_learning_rate=1"))
    assert (high.severity, high.field) == ("error", f"{cosine}.warmup_learning_rate")
    short = only(problems(good, f"{cosine}.total_steps=99"))
    assert (short.severity, short.field) == ("warning", f"{cosine}.total_steps")


def test_schedules_that_outlast_training() -> None:
    rate = "train_config.optimizer.momentum_optimizer.learning_rate"

    def warned(schedule: str, num_steps: int) -> Problem:
        problem = only(problems(f"{rate}.{schedule}", f"train_config.num_steps={num_steps}"))
        assert problem.severity == "warning"
        return problem

    late = "manual_step_learning_rate.schedule=[{step: 10}, {step: 20}, {step: 30}]"
    assert "[20, 30] are never reached" in warned(late, 20).message
    assert problems(f"{rate}.{late}", "train_config.num_steps=31") == []

    cosine = "cosine_decay_learning_rate={total_steps: 100 warmup_steps: 50}"
    found = problems(f"{rate}.{cosine}", "train_config.num_steps=50")
    assert [problem.field.rpartition(".")[2] for problem in found] == [
        "warmup_steps",
        "total_steps",
    ]
    assert "ends at step 100" in warned(cosine, 51).message

    stairs = "exponential_decay_learning_rate={initial_learning_rate: 0.5 decay_steps: 11}"
    assert "the rate stays 0.5" in warned(stairs, 10).message
    assert problems(f"{rate}.{stairs}", "train_config.num_steps=11") == []
    smooth = f"{rate}.exponential_decay_learning_rate={{decay_steps: 11 staircase: false}}"
    assert problems(smooth, "train_config.num_steps=10") == []
    burnin = f"{stairs[:-1]} burnin_steps: 12}}"
    assert warned(burnin, 12).field.endswith("burnin_steps")

    # A training without end comes to all of it.
    for schedule in (late, cosine, stairs, burnin):
        endless = only(problems(f"{rate}.{schedule}", "train_config.num_steps=0"))
        assert endless.field == "train_config.num_steps"


def test_pyramid_and_anchor_levels_agree() -> None:
    pyramid = "model.ssd.feature_extractor.fpn={min_level: 3 max_level: 7}"
    anchors = "model.ssd.anchor_generator.multiscale_anchor_generator"
    assert problems(pyramid, f"{anchors}={{}}") == []
    problem = only(problems(pyramid, f"{anchors}.max_level=6"))
    assert problem.field == anchors and "3 to 6" in problem.message


class TestFiles:
    """Files that a configuration names, looked for in the working directory."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "train.record").touch()
        (tmp_path / "eval-0.record").touch()
        (tmp_path / "map.pbtxt").touch()
        return tmp_path

    def test_all_there(self) -> None:
        assert check(GOOD) == []

    def test_missing_records(self, folder: pathlib.Path) -> None:
        (folder / "eval-0.record").unlink()
        problem = only(check(GOOD))
        assert problem.field == "eval_input_reader[0].tf_record_input_reader.input_path[0]"
        assert "'eval-*.record'" in problem.message

    def test_remote_files_are_not_looked_at(self) -> None:
        path = "train_input_reader.tf_record_input_reader.input_path=gs://bucket/no.record"
        assert check(apply_overrides(GOOD, [path])) == []

    def test_checkpoints_are_prefixes(self, folder: pathlib.Path) -> None:
        config = apply_overrides(
            GOOD,
            [
                "train_config.fine_tune_checkpoint=model.ckpt-3",
                "train_config.fine_tune_checkpoint_type=detection",
            ],
        )
        assert only(check(config)).field == "train_config.fine_tune_checkpoint"
        (folder / "model.ckpt-3.index").touch()
        assert check(config) == []
        (folder / "model.ckpt-3.index").rename(folder / "model.ckpt-3")  # as a single file
        assert check(config) == []
