from __future__ import annotations

from typing import Any, Iterator, List, Set, Tuple

import pytest

from estimator_det.config.field_rules import range_of, rule_of
from estimator_det.config.text import is_repeated
from estimator_det.protos import center_net_pb2, pipeline_pb2
from tests.config.test_check import problems

SSD = "model.ssd"
ANCHORS = f"{SSD}.anchor_generator.ssd_anchor_generator"
NMS = f"{SSD}.post_processing.batch_non_max_suppression"
RATE = "train_config.optimizer.momentum_optimizer.learning_rate.constant_learning_rate"


def _numbers(descriptor: Any, seen: Set[str]) -> Iterator[Tuple[Any, Any]]:
    """(message, field) of every numeric field below a message, each message once."""
    if descriptor.full_name in seen:
        return
    seen.add(descriptor.full_name)
    for field in descriptor.fields:
        if field.message_type is not None:
            yield from _numbers(field.message_type, seen)
        elif range_of(field) is not None and not descriptor.GetOptions().map_entry:
            yield descriptor, field


SCHEMA = list(_numbers(pipeline_pb2.TrainEvalPipelineConfig.DESCRIPTOR, set()))


@pytest.mark.parametrize(
    ("assignment", "allowed"),
    [
        ("train_input_reader.max_number_of_boxes=1000000000", "1 to 20,000 boxes"),
        ("train_config.max_number_of_boxes=-1", "0 to 20,000 boxes"),
        (f"{SSD}.num_classes=0", "1 to 100,000 classes"),
        (f"{SSD}.image_resizer.keep_aspect_ratio_resizer.min_dimension=-1", "1 to 16,384 pixels"),
        ("train_config.batch_size=1000000000", "1 to 65,536 images"),
        ("eval_input_reader[0].sample_1_of_n_examples=0", "1 to 4,294,967,295 records"),
        (f"{NMS}.max_detections_per_class=1000000000", "1 to 100,000 boxes"),
        (f"{NMS}.iou_threshold=nan", "not a finite number"),
        (f"{NMS}.iou_threshold=1.5", "0 to 1"),
        (f"{SSD}.loss.random_example_sampler.positive_sample_fraction=0", "above 0 to 1"),
        (f"{RATE}.learning_rate=inf", "not a finite number"),
        ("train_config.optimizer.adam_optimizer.epsilon=0", "above 0 to"),
        ("train_config.optimizer.rms_prop_optimizer.epsilon=0", "above 0 to"),
        (f"{ANCHORS}.aspect_ratios=[1, 0]", "above 0 to 1,000"),
        (f"{ANCHORS}.scales=[0.1, nan]", "not a finite number"),
        (f"{SSD}.feature_extractor.depth_multiplier=1e30", "above 0 to 100"),
        (
            "train_config.data_augmentation_options+={random_image_scale {max_scale_ratio: 1e9}}",
            "0 to 1,000",
        ),
    ],
)
def test_absurd_numbers_are_refused_by_field(assignment, allowed):
    field = assignment.partition("=")[0].rstrip("+")
    found = [problem for problem in problems(assignment) if problem.severity == "error"]
    matching = [problem for problem in found if problem.field.startswith(field)]
    assert allowed in matching[0].message, found


def test_the_entry_of_a_list_and_the_value_are_named():
    (problem,) = problems("train_input_reader.sample_from_datasets_weights=[-0.5]")
    assert problem.field == "train_input_reader.sample_from_datasets_weights[0]"
    assert problem.message == "is -0.5; allowed are 0 to 1,000,000,000"
    (infinite,) = problems("eval_config.keypoint_edge=[]", "eval_config.min_score_threshold=inf")
    assert infinite.message == "is inf, not a finite number"


def test_every_float_of_the_schema_refuses_nan_and_every_whole_number_has_a_range():
    # Most tasks of CenterNet are refused as a whole.
    other: Set[str] = set()
    list(_numbers(center_net_pb2.CenterNet.DESCRIPTOR, other))
    without: List[str] = []
    assert len(SCHEMA) > 400
    for descriptor, field in SCHEMA:
        row = range_of(field)
        assert not row.contains(float("nan")) and not row.contains(float("inf"))
        is_float = field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE)
        if not is_float and descriptor.full_name not in other:
            if not rule_of(field).HasField("largest"):
                without.append(f"{descriptor.name}.{field.name}")
            assert row.largest < 2**32
    assert without == []


def test_defaults_are_in_range_but_for_what_must_be_set():
    must_be_set = ("num_classes", "_stride", "target_height", "target_width", "new_height")
    must_be_set += ("new_width", ".label", "new_label", "_area", "_aspect_ratio")
    must_be_set += ("num_iterations", "num_filters")
    for descriptor, field in SCHEMA:
        if not is_repeated(field) and not f".{field.name}".endswith(must_be_set):
            assert range_of(field).contains(field.default_value), (descriptor.name, field.name)


def test_limits_are_whole_and_in_order():
    for descriptor, field in SCHEMA:
        rule, name = rule_of(field), f"{descriptor.name}.{field.name}"
        assert not (rule.HasField("least") and rule.HasField("above")), name
        assert rule.HasField("largest") == (rule.HasField("least") or rule.HasField("above")), name
        assert range_of(field).least < range_of(field).largest, name


def test_real_numbers_are_allowed():
    for assignment in (
        "train_input_reader.shuffle_buffer_size=9000000",
        f"{SSD}.num_classes=21841",
        f"{SSD}.image_resizer.fixed_shape_resizer.width=4096",
        "train_config.batch_size=32768",
        f"{ANCHORS}.interpolated_scale_aspect_ratio=0",
        "train_input_reader.num_prefetch_batches=-1",
    ):
        assert not [each for each in problems(assignment) if "allowed are" in each.message]
