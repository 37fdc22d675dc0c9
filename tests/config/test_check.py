"""Static checks: each problem is found, and a good configuration has none."""

from __future__ import annotations

import re
from typing import Any, List

import pytest

from estimator_det.config import paths, rules
from estimator_det.config.pipeline import apply_overrides, merge_text, parse_pipeline
from estimator_det.errors import Problem
from model_fn.checks import config_check  # registers the rules of all components

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
  first_stage_anchor_generator { grid_anchor_generator { scales: 1 aspect_ratios: 1 } }
  initial_crop_size: 14 maxpool_kernel_size: 2 maxpool_stride: 2
  second_stage_box_predictor { mask_rcnn_box_predictor { } }
} }
train_config { batch_size: 1 }
"""
GOOD = parse_pipeline(SSD)


def check(config: Any) -> List[Problem]:
    """Problems by the rules, errors first."""
    assert config_check
    return sorted(rules.check(config), key=lambda problem: problem.severity != "error")


def problems(*assignments: str, text: str = "") -> List[Problem]:
    config = merge_text(GOOD, text) if text else GOOD
    return check(apply_overrides(config, assignments))


def only(found: List[Problem]) -> Problem:
    assert len(found) == 1, "\n".join(map(str, found))
    return found[0]


def test_a_good_configuration_has_no_problems():
    assert problems() == []
    assert problems("train_config.num_steps=0", "train_input_reader.num_epochs=2") == []
    assert problems(text=TWO_STAGE) == []


def test_an_empty_configuration_lacks_everything():
    fields = {problem.field: problem.severity for problem in check(parse_pipeline(""))}
    assert fields == {
        "model": "error",
        "train_config": "error",
        "train_input_reader": "error",
        "eval_input_reader": "warning",
    }


def test_errors_stand_before_warnings_and_read_well():
    found = problems("train_config.num_steps=0", "train_config.batch_size=0")
    assert [problem.severity for problem in found] == ["error", "warning"]
    assert str(found[0]) == (
        "error: train_config.batch_size: is 0; allowed are 1 to 65,536 images. Remedy: set it to "
        "a number in this range"
    )


# Lines of severity, assignments that lead to one problem, words of its message, and its field
# where that is another than the first assignment's.
FAULTS = """
error | model.ssd.box_coder=null | is missing
error | model.ssd.matcher={} | is empty
error | model.ssd.loss.localization_loss=null | missing
error | model.ssd.feature_extractor.type= | missing
error | model.ssd.explicit_background_class=true | excludes add_background_class
error | model.ssd.box_predictor.convolutional_box_predictor.box_code_size=5 | codes of 4 numbers
error | model.ssd.box_coder.keypoint_box_coder.num_keypoints=3; KEYPOINTS | codes of 10 numbers
 | model.ssd.box_predictor.convolutional_box_predictor.box_code_size
error | model.ssd.box_coder.keypoint_box_coder.num_keypoints=3; KEYPOINTS
 ; model.ssd.box_predictor.convolutional_box_predictor.box_code_size=10
 ; train_input_reader.num_keypoints=2 | is 2, and the model learns 3 keypoints
 | train_input_reader.num_keypoints
error | model.ssd.feature_extractor.num_layers=5 | makes 5 feature maps | model.ssd.anchor_generator
error | PYRAMID; LEVELS={aspect_ratios: 1 min_level: 2 max_level: 6}
 | levels 2 to 6, but the feature pyramid has 3 to 7 | LEVELS
error | model.ssd.loss.localization_loss.weighted_giou={}; KEYPOINTS
 ; model.ssd.box_coder.keypoint_box_coder.num_keypoints=3
 ; model.ssd.box_predictor.convolutional_box_predictor.box_code_size=10
 | keypoints are never learned
error | DICE={}; model.ssd.loss.hard_example_miner={}
 | which hard_example_miner needs | DICE
error | DICE={}; model.ssd.loss.expected_loss_weights=EXPECTED_SAMPLING
 | which expected_loss_weights needs | DICE
error | model.ssd.box_predictor.weight_shared_convolutional_box_predictor={depth: 8}
 | same number of anchors at every map; the anchor generator has [3, 1, 1, 1, 1, 1]
error | train_config.optimizer=null | no optimizer
error | train_config.optimizer.adam_optimizer.epsilon=1 | no learning rate schedule
 | train_config.optimizer.adam_optimizer.learning_rate
error | train_config.freeze_variables=( | expression | train_config.freeze_variables[0]
error | train_config.fine_tune_checkpoint_type=detecton | did you mean 'detection'
error | train_config.fine_tune_checkpoint_type=fine_tune | 'fine_tune' is an old name of 'detection'
error | STEPS=[{remap_labels {original_labels: 1 new_label: 9000}}]
 | 9000 is not a class of the model
 | STEPS[0].remap_labels.new_label
error | STEPS=[{remap_labels {original_labels: [1, 4] new_label: 1}}]
 | 4 is not a class of the model
 | STEPS[0].remap_labels.original_labels
error | STEPS=[{random_horizontal_flip {}}, {drop_label_probabilistically { label: 9 }}]
 | not a class
 | STEPS[1].drop_label_probabilistically.label
error | train_config.use_multiclass_scores=true | does not load
error | train_input_reader.tf_record_input_reader.input_path=[] | no input path
error | eval_input_reader[0].external_input_reader={} | not supported
error | train_input_reader.sample_from_datasets_weights=[1, 2] | 2 weights for 1 input paths
error | train_input_reader.fast_jpeg=true; train_input_reader.load_instance_masks=true
 | does not go with load_instance_masks, which needs all pixels
error | CACHE=MEMORY; train_input_reader.num_additional_channels=1
 | does not go with num_additional_channels
error | CACHE=MEMORY; train_input_reader.input_type=TF_SEQUENCE_EXAMPLE
 | does not go with sequences of images
warning | eval_input_reader[0].cache=MEMORY | has no effect: an evaluation reads each image once
error | train_input_reader.load_context_features=true | the model takes no context features
error | train_input_reader.load_context_image_ids=true | the model takes no context features
error | train_input_reader.label_map_path=PATH_TO_BE_CONFIGURED/map.pbtxt | placeholder
error | eval_config.batch_size=2; eval_config.force_no_resize=true | force_no_resize
error | eval_config.use_moving_averages=true; train_config.optimizer.use_moving_average=false
 | keeps no
error | MANUAL.schedule=[{step: 20}, {step: 10}] | do not increase
error | MANUAL.schedule=[{step: 0}] | do not increase from above 0
error | COSINE.warmup_steps=101; COSINE.total_steps=100 | more than the total of 100 steps
error | COSINE.warmup_learning_rate=1; COSINE.total_steps=100; COSINE.warmup_steps=10
 | is above the base rate
error | LEVELS={max_level: 6 aspect_ratios: 1}; FPN={min_level: 3 max_level: 7}; PYRAMID
 | 3 to 6, but | LEVELS
warning | COSINE.total_steps=99; COSINE.warmup_steps=9 | the learning rate is 0 from step 99 on
warning | COSINE.total_steps=101; COSINE.warmup_steps=9 | ends at step 101, but training stops
error | COSINE.warmup_steps=9; COSINE.hold_base_rate_steps=91; COSINE.total_steps=100
 | must exceed warmup_steps (9) | COSINE.total_steps
warning | MANUAL.schedule=[{step: 10}, {step: 100}, {step: 300}] | [100, 300] are never reached
error | STAIRS.decay_steps=0 | is 0: the rate has no period
warning | STAIRS={decay_steps: 51 burnin_steps: 50} | its first decay is at step 101
 | STAIRS.decay_steps
warning | STAIRS.burnin_steps=100; STAIRS.decay_steps=9 | within the 100 steps of warm-up
warning | train_config.num_steps=0; COSINE={total_steps: 9 warmup_steps: 8} | never ends
warning | train_config.num_steps=0; MANUAL.schedule=[{step: 10}] | never ends
warning | train_config.num_steps=0; STAIRS={decay_steps: 9 burnin_steps: 9} | never ends
warning | train_config.fine_tune_checkpoint=m.ckpt | 'classification' is used
 | train_config.fine_tune_checkpoint_type
warning | train_input_reader.label_map_path= | not set
warning | train_config.batch_queue_capacity=3 | no effect
warning | train_config.from_detection_checkpoint=true | use fine_tune_checkpoint_type instead
warning | eval_config.num_examples=3 | deprecated
warning | train_config.use_bfloat16=true | only a TPU computes
warning | eval_input_reader[0].num_epochs=0 | means no limit
warning | eval_config.image_classes_field_map_empty_to_ones=false
 | skip_predictions_for_unlabeled_class is not set
warning | eval_config.retain_original_image_additional_channels=true
 | no eval_input_reader sets num_additional_channels
warning | eval_config.keypoint_edge=[{start: 0 end: 1}] | no eval_input_reader sets num_keypoints
warning | model.ssd.post_processing=null | raw logits | model.ssd.post_processing.score_converter
warning | ANCHORS.scales=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.95]
 | has 9 values for 6 layers: 0.8, 0.95 at its end have no effect
warning
 | ANCHORS.scales=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7];
 ANCHORS.interpolated_scale_aspect_ratio=0; ANCHORS.aspect_ratios=1
 | 7 values for 6 layers: 0.7 at its end
warning | model.ssd.image_resizer.identity_resizer={} | different sizes | train_config.batch_size
warning | STEPS=[{mosaic { stop_at_step: 4000000 }}] | has no effect: training ends at step
 | STEPS[0].mosaic.stop_at_step
warning | model.ssd.feature_extractor.batch_norm_trainable=true
 | has no effect: batch norm trains unless model.ssd.freeze_batchnorm is set
warning | model.ssd.feature_extractor.batch_norm_trainable=false
 | training keeps the batch norm of the feature extractor as it is
warning | model.ssd.loss.hard_example_miner={}
 ; model.ssd.loss.expected_loss_weights=EXPECTED_SAMPLING
 | has no effect: expected_loss_weights weights all anchors
warning | NMS.soft_nms_sigma=0.5; NMS.use_hard_nms=true | has no effect: use_hard_nms is set
warning | graph_rewriter={} | has no effect: quantization is not set
warning | graph_rewriter.quantization={} | is 500000: training ends
 | graph_rewriter.quantization.delay
warning | graph_rewriter.quantization={ delay: 5 weight_bits: 4 }
 | is 4: TFLite computes with 8 bits
 | graph_rewriter.quantization.weight_bits
"""
FINE = """
eval_input_reader[0].num_epochs=2
eval_config.use_moving_averages=true
ANCHORS.scales=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
ANCHORS.scales=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
eval_config.keypoint_edge=[{start: 0 end: 1}]; eval_input_reader[0].num_keypoints=2
eval_config.image_classes_field_map_empty_to_ones=false; SKIP=true
eval_config.image_classes_field_map_empty_to_ones=false; METRICS=oid_challenge_detection_metrics
eval_config.retain_original_image_additional_channels=true; ADDITIONAL=1
eval_config.force_no_resize=true; eval_config.batch_size=1
STEPS=[{mosaic { stop_at_step: 2 }}]
graph_rewriter.quantization.delay=99
MANUAL.schedule=[{step: 10}, {step: 99}]
COSINE={total_steps: 100 warmup_steps: 10}
STAIRS={decay_steps: 1 burnin_steps: 99}
STAIRS={decay_steps: 101 staircase: false}
FPN={min_level: 3 max_level: 7}; LEVELS={aspect_ratios: 1}; PYRAMID
"""
ABBREVIATIONS = {
    "KEYPOINTS": "train_input_reader.num_keypoints=3; eval_input_reader[0].num_keypoints=3",
    "ADDITIONAL": "eval_input_reader[0].num_additional_channels",
    "ANCHORS": "model.ssd.anchor_generator.ssd_anchor_generator",
    "CACHE": "train_input_reader.cache",
    "COSINE": "RATE.cosine_decay_learning_rate",
    "DICE": "model.ssd.loss.classification_loss.weighted_dice_classification_loss",
    "FPN": "model.ssd.feature_extractor.fpn",
    "LEVELS": "model.ssd.anchor_generator.multiscale_anchor_generator",
    "MANUAL": "RATE.manual_step_learning_rate",
    "METRICS": "eval_config.metrics_set",
    "NMS": "model.ssd.post_processing.batch_non_max_suppression",
    "PYRAMID": "model.ssd.feature_extractor.type=ssd_mobilenet_v1_fpn; "
    "model.ssd.feature_extractor.pad_to_multiple=32",
    "SKIP": "eval_config.skip_predictions_for_unlabeled_class",
    "RATE": "train_config.optimizer.momentum_optimizer.learning_rate",
    "STAIRS": "RATE.exponential_decay_learning_rate",
    "STEPS": "train_config.data_augmentation_options",
}


def lines(table: str) -> List[str]:
    """Lines of a table; those that begin with a space continue the one before."""
    for name, path in sorted(ABBREVIATIONS.items(), key=lambda entry: "RATE." not in entry[1]):
        table = table.replace(name, path)
    return table.strip().replace("\n ", " ").split("\n")


@pytest.mark.parametrize("line", lines(FAULTS))
def test_one_fault_is_one_problem(line):
    severity, assignments, words, *field = line.split(" | ")
    problem = only(problems(*assignments.split("; ")))
    assert (problem.severity, problem.field) == (
        severity,
        *(field or [assignments.partition("=")[0]]),
    )
    assert words in f"{problem.message}. {problem.remedy}"


@pytest.mark.parametrize("line", lines(FINE))
def test_fields_with_effect_are_not_reported(line):
    assert problems(*line.split("; ")) == []


def test_edges_connect_keypoints_that_exist():
    edges = "eval_config.keypoint_edge=[{start: 0 end: 1}, {start: -1 end: 2}]"
    found = problems(edges, "eval_input_reader[0].num_keypoints=2")
    assert [(problem.severity, problem.field) for problem in found] == [
        ("error", "eval_config.keypoint_edge[1].start"),
        ("error", "eval_config.keypoint_edge[1].end"),
    ]
    assert found[1].remedy == "give one of 0 to 1"


def test_a_batch_that_no_machine_holds():
    sizes = "image_resizer={ fixed_shape_resizer { height: 16384 width: 16384 } }"
    batch = "train_config.batch_size"
    problem = only(problems(f"model.ssd.{sizes}", f"{batch}=65536"))
    assert (problem.severity, problem.field) == ("error", batch)
    assert "takes 196,608 GiB; allowed are 1,024" in problem.message
    assert problem.remedy.startswith("use 341 or fewer")
    assert problems(f"model.ssd.{sizes}", f"{batch}=341") == []


@pytest.mark.parametrize(
    ("names", "index", "message"),
    [
        (["a", "b", "a"], 2, r"is 'a', the name of eval_input_reader\[0\], too"),
        (["1", ""], 1, "not set, which means '1', the name of"),
        (["a", "0", ""], None, ""),
        (["", ""], None, ""),
    ],
)
def test_names_of_evaluation_readers_differ(names, index, message):
    reader = str(GOOD.eval_input_reader[0])
    readers = ", ".join(f"{{ {reader} name: '{name}' }}" for name in names)
    found = problems(f"eval_input_reader=[{readers}]")
    if index is None:
        assert found == []
    else:
        assert only(found).field == f"eval_input_reader[{index}].name"
        assert re.search(message, only(found).message)


def test_files_that_do_not_exist(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    remote = "train_input_reader.tf_record_input_reader.input_path=gs://bucket/no.record"
    checkpoint = "train_config.fine_tune_checkpoint"
    keypoints = "model.center_net.keypoint_label_map_path"
    assignments = [remote, f"{checkpoint}=model.ckpt-3", f"{keypoints}=map.pbtxt"]
    config = apply_overrides(GOOD, assignments)
    (tmp_path / "model.ckpt-30.index").touch()
    label_map, first, second = paths.check_paths(config)
    assert label_map.field == keypoints
    assert first.field == checkpoint
    assert first.message.endswith("'model.ckpt-3'; did you mean 'model.ckpt-30'?")
    assert second.field == "eval_input_reader[0].tf_record_input_reader.input_path[0]"
    assert "'eval-*.record'" in second.message
    (tmp_path / "eval-0.record").touch()
    (tmp_path / "map.pbtxt").touch()
    (tmp_path / "model.ckpt-3.index").touch()
    assert list(paths.check_paths(config)) == []
    (tmp_path / "model.ckpt-3.index").rename(tmp_path / "model.ckpt-3")  # as a single file
    assert list(paths.check_paths(config)) == []
