"""Checks of two stages, of masks and keypoints, and of context features."""

import pytest

from tests.config.test_check import TWO_STAGE, only, problems

RCNN = "model.faster_rcnn"
PREDICTOR = f"{RCNN}.second_stage_box_predictor"
HEAD = f"{PREDICTOR}.mask_rcnn_box_predictor"
READERS = ("train_input_reader", "eval_input_reader[0]")
LOADED = [f"{reader}.load_instance_masks=true" for reader in READERS]
MASKS = [
    f"{RCNN}.number_of_stages=3",
    f"{HEAD}={{ predict_instance_masks: true conv_hyperparams {{ }} }}",
]
CONTEXT = [
    f"{RCNN}.context_config={{ max_num_context_features: 3 context_feature_length: 2 }}",
    *(f"{reader}.load_context_features=true" for reader in READERS),
]
AMONG_BOXES = f"{RCNN}.context_config={{ use_self_attention: true use_long_term_attention: false }}"
ANCHORS = f"{RCNN}.first_stage_anchor_generator"
FPN = f"{RCNN}.feature_extractor={{ type: 'faster_rcnn_resnet50_fpn_keras' conv_hyperparams {{}} }}"
DICE = "weighted_dice_classification_loss"
KEYPOINTS = "model.ssd.box_coder={ keypoint_box_coder { num_keypoints: 3 } }"


@pytest.mark.parametrize(
    "assignments",
    [
        [*MASKS, *LOADED, "eval_config.metrics_set=coco_mask_metrics"],
        [f"{RCNN}.number_of_stages=1", f"{PREDICTOR}=null"],
        # R-FCN crops inside its predictor.
        [
            f"{PREDICTOR}={{ rfcn_box_predictor {{ }} }}",
            *(f"{RCNN}.{name}=null" for name in ("initial_crop_size", "maxpool_kernel_size")),
            f"{RCNN}.maxpool_stride=null",
        ],
        CONTEXT,
        [*CONTEXT, *(f"{reader}.load_context_image_ids=true" for reader in READERS)],
        [AMONG_BOXES],
    ],
)
def test_configurations_without_problems(assignments):
    assert problems(*assignments, text=TWO_STAGE) == []


FAULTS = [
    ("error", [f"{RCNN}.inplace_batchnorm_update=true"], "", "set it to false"),
    ("error", [f"{RCNN}.number_of_stages=4"], "", "1 to 3 stages"),
    ("error", [f"{PREDICTOR}=null"], "", "is missing"),
    ("error", [f"{RCNN}.first_stage_anchor_generator={{}}"], "", "is empty"),
    ("error", [f"{ANCHORS}.multiscale_anchor_generator={{ aspect_ratios: 1 }}"], ANCHORS,
     "has 5 layers, but the feature extractor makes 1 feature map"),
    ("error", [FPN], ANCHORS, "has 1 layer, but the feature extractor makes 5 feature maps"),
    ("error", [FPN, f"{ANCHORS}.multiscale_anchor_generator={{ aspect_ratios: 1 min_level: 2 "
               "max_level: 6 }"], f"{ANCHORS}.multiscale_anchor_generator",
     "levels 2 to 6, but the feature pyramid has 3 to 7"),
    ("error", [f"{RCNN}.second_stage_classification_loss.{DICE}={{}}"],
     f"{RCNN}.second_stage_classification_loss.{DICE}",
     "has no value for each anchor or region, which the second stage needs"),
    ("warning", [f"{RCNN}.second_stage_balance_fraction=0.5", f"{RCNN}.hard_example_miner={{}}"],
     "", "has no effect: hard_example_miner chooses among all proposals"),
    ("error", [f"{RCNN}.maxpool_stride=null"], "", "is missing"),
    ("error", [f"{RCNN}.number_of_stages=3", *LOADED], f"{HEAD}.predict_instance_masks",
     "a third stage predicts masks"),
    ("error", [f"{HEAD}.conv_hyperparams=null", *MASKS[:1],
               f"{HEAD}.predict_instance_masks=true", *LOADED], "", "needs it"),
    ("warning", [f"{HEAD}.predict_instance_masks=true"], "", "masks need a third stage"),
    ("error", [f"{RCNN}.context_config.attention_position=ATTENTION_DEFAULT", *CONTEXT[1:]], "",
     "is no position"),
    ("error", [f"{RCNN}.context_config.use_long_term_attention=false"], "", "nothing attends"),
    ("warning", [f"{RCNN}.context_config.self_attention_in_sequence=true", AMONG_BOXES[:-1] +
                 "self_attention_in_sequence: true }"], "", "use_long_term_attention is not"),
    ("error", [f"{RCNN}.context_config={{}}", *CONTEXT[1:], f"{RCNN}.number_of_stages=1"], "",
     "needs a second stage"),
    ("error", ["eval_config.skip_predictions_for_unlabeled_class=true", f"{PREDICTOR}=null",
               f"{RCNN}.number_of_stages=1"], "", "needs classes of detections"),
    ("error", [f"{RCNN}.context_config={{}}", *CONTEXT[1:],
               f"{PREDICTOR}={{ rfcn_box_predictor {{ }} }}"], "", "no features of single"),
    ("error", ["eval_input_reader[0].load_context_features=false", *CONTEXT[:2]], "",
     "the model needs context features"),
    ("error", ["train_input_reader.load_context_image_ids=true", AMONG_BOXES], "",
     "takes no context features"),
]  # fmt: skip


@pytest.mark.parametrize(("severity", "assignments", "field", "words"), FAULTS)
def test_each_fault_is_one_problem(severity, assignments, field, words):
    problem = only(problems(*assignments, text=TWO_STAGE))
    assert problem.severity == severity
    assert problem.field == (field or assignments[0].partition("=")[0])
    assert words in f"{problem.message}. {problem.remedy}"


def test_remedies_of_masks_can_be_carried_out():
    found = problems(*MASKS, text=TWO_STAGE)
    assert [(problem.severity, *problem.edits) for problem in found] == [
        ("error", edit) for edit in LOADED
    ]
    without_layers = [*MASKS, *LOADED, f"{HEAD}.conv_hyperparams=null"]
    remedy = only(problems(*without_layers, text=TWO_STAGE)).remedy.removeprefix("--set ")
    assert problems(*without_layers, remedy, text=TWO_STAGE) == []


@pytest.mark.parametrize(
    "name", ["coco_mask_metrics", "coco_panoptic_metrics", "oid_challenge_segmentation_metrics"]
)
def test_mask_metrics_need_a_model_and_readers_with_masks(name):
    (problem,) = problems(f"eval_config.metrics_set={name}")
    assert problem.field == "eval_config.metrics_set"
    assert "asks for mask metrics, and model.ssd finds boxes only" in problem.message
    assert "load_instance_masks" in problem.remedy


@pytest.mark.parametrize(
    "assignment",
    [
        "eval_config.metrics_set=coco_keypoint_metrics",
        "eval_config.parameterized_metric=[{coco_keypoint_metrics {class_label: 'cat'}}]",
    ],
)
def test_keypoint_metrics_need_a_model_and_readers_with_keypoints(assignment):
    field, count = assignment.partition("=")[0], "eval_input_reader[0].num_keypoints"
    metrics, keypoints = problems(assignment)
    assert (metrics.field, keypoints.field) == (field, count)
    assert "asks for metrics of keypoints, and model.ssd finds boxes only" in metrics.message
    assert f"is 0, but {field} asks" in keypoints.message
    fields = [problem.field for problem in problems(assignment, KEYPOINTS, f"{count}=3")]
    assert field not in fields and count not in fields
