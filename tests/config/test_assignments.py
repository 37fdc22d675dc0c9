"""The assignment language of --set."""

from __future__ import annotations

from typing import Any

import pytest

from estimator_det.config import assignments
from estimator_det.config.pipeline import ConfigWarning, apply_overrides, parse_pipeline, set_values
from estimator_det.errors import UsageError
from estimator_det.protos import optimizer_pb2

BASE = parse_pipeline(
    """
    model { ssd {
      num_classes: 90
      anchor_generator { ssd_anchor_generator { aspect_ratios: [1.0, 2.0] } }
      loss { classification_weight: 2.0 hard_example_miner { } }
    } }
    train_config {
      batch_size: 1024
      data_augmentation_options { random_horizontal_flip { } }
      data_augmentation_options { ssd_random_crop { } }
      optimizer { momentum_optimizer { momentum_optimizer_value: 0.5 } }
      freeze_variables: "a"
    }
    train_input_reader { tf_record_input_reader { input_path: "x" } }
    eval_input_reader { name: "first" }
    graph_rewriter { quantization { } }
    """
)


def value_at(config: Any, path: str) -> Any:
    return eval(f"config.{path}", {"config": config})


@pytest.mark.parametrize(
    "assignment, path, expected",
    [
        ("train_config.batch_size=8", "train_config.batch_size", 8),
        (" train_config.batch_size = 8 ", "train_config.batch_size", 8),
        ("train_config.batch_size=0x10", "train_config.batch_size", 16),
        ("train_config.sync_replicas=true", "train_config.sync_replicas", True),
        ("train_config.sync_replicas=False", "train_config.sync_replicas", False),
        ("train_config.optimizer.adam_optimizer.epsilon=2", "train_config.optimizer",
         optimizer_pb2.Optimizer(adam_optimizer=optimizer_pb2.AdamOptimizer(epsilon=2))),
        ("train_config.bias_grad_multiplier=-.5", "train_config.bias_grad_multiplier", -0.5),
        ("train_config.gradient_clipping_by_norm=inf", "train_config.gradient_clipping_by_norm",
         float("inf")),
        ("train_config.fine_tune_checkpoint_version=V2",
         "train_config.fine_tune_checkpoint_version", 2),
        ("train_config.fine_tune_checkpoint_version=2",
         "train_config.fine_tune_checkpoint_version", 2),
        ("train_config.fine_tune_checkpoint=gs://b/m.ckpt-3", "train_config.fine_tune_checkpoint",
         "gs://b/m.ckpt-3"),
        ("train_config.fine_tune_checkpoint=a = b # c", "train_config.fine_tune_checkpoint",
         "a = b # c"),
        ("train_config.fine_tune_checkpoint='a b'", "train_config.fine_tune_checkpoint", "a b"),
        ('train_config.fine_tune_checkpoint="a\\tb"', "train_config.fine_tune_checkpoint", "a\tb"),
        (r"train_config.fine_tune_checkpoint=C:\new\ü", "train_config.fine_tune_checkpoint",
         "C:\\new\\ü"),
        ("train_config.fine_tune_checkpoint=", "train_config.fine_tune_checkpoint", ""),
        ("train_config.freeze_variables=[b, 'c,d', \"e\"]", "train_config.freeze_variables",
         ["b", "c,d", "e"]),
        ("train_config.freeze_variables=b", "train_config.freeze_variables", ["b"]),
        ("train_config.freeze_variables=[]", "train_config.freeze_variables", []),
        ("train_config.freeze_variables+=b", "train_config.freeze_variables", ["a", "b"]),
        ("train_config.freeze_variables+=[b,c]", "train_config.freeze_variables", ["a", "b", "c"]),
        ("train_config.freeze_variables[0]=z", "train_config.freeze_variables", ["z"]),
        ("model.ssd.anchor_generator.ssd_anchor_generator.aspect_ratios=[1, 2, .5]",
         "model.ssd.anchor_generator.ssd_anchor_generator.aspect_ratios", [1, 2, 0.5]),
        ("model.ssd.anchor_generator.ssd_anchor_generator.aspect_ratios[-1]=3",
         "model.ssd.anchor_generator.ssd_anchor_generator.aspect_ratios", [1, 3]),
        ("train_input_reader.tf_record_input_reader.input_path=d/t-?????-of-00010",
         "train_input_reader.tf_record_input_reader.input_path", ["d/t-?????-of-00010"]),
        ("eval_input_reader[0].label_map_path=x", "eval_input_reader[0].label_map_path", "x"),
        ("eval_input_reader.label_map_path=x", "eval_input_reader[0].label_map_path", "x"),
        ("eval_input_reader.tf_record_input_reader.input_path+=x",
         "eval_input_reader[0].tf_record_input_reader.input_path", ["x"]),
        ("eval_config.super_categories[dog]=animal", "eval_config.super_categories['dog']",
         "animal"),
    ],
)  # fmt: skip
def test_values(assignment, path, expected):
    assert value_at(apply_overrides(BASE, [assignment]), path) == expected


@pytest.mark.parametrize(("index", "changed"), [(-1, 2), (-2, 1), (-3, 0), (0, 0), (2, 2)])
def test_entries_are_counted_from_the_end_too(index, changed):
    readers = ["eval_input_reader+={name: 'second'}", "eval_input_reader+={name: 'third'}"]
    config = apply_overrides(BASE, [*readers, f"eval_input_reader[{index}].name=new"])
    expected = ["first", "second", "third"]
    expected[changed] = "new"
    assert [reader.name for reader in config.eval_input_reader] == expected
    config = apply_overrides(BASE, [*readers, f"eval_input_reader[{index}]={{name: 'whole'}}"])
    assert config.eval_input_reader[changed].name == "whole"


def test_a_message_replaces_the_old_one():
    config = apply_overrides(BASE, ["model.ssd.loss={hard_example_miner {num_hard_examples: 3}}"])
    assert not config.model.ssd.loss.HasField("classification_weight")
    assert config.model.ssd.loss.hard_example_miner.num_hard_examples == 3
    empty = apply_overrides(BASE, ["train_config.optimizer.adam_optimizer={}"])
    assert empty.train_config.optimizer.WhichOneof("optimizer") == "adam_optimizer"


def test_null_removes_a_message():
    assert BASE.HasField("graph_rewriter")
    assert not apply_overrides(BASE, ["graph_rewriter=null"]).HasField("graph_rewriter")
    unset = apply_overrides(BASE, ["train_config.batch_size=3", "train_config.batch_size=null"])
    assert not unset.train_config.HasField("batch_size")
    named = apply_overrides(BASE, ["train_config.fine_tune_checkpoint=null"])
    assert named.train_config.fine_tune_checkpoint == "null"
    config = apply_overrides(BASE, ["train_config.data_augmentation_options=null"])
    assert not config.train_config.data_augmentation_options


def test_repeated_messages():
    steps = "train_config.data_augmentation_options"
    both = apply_overrides(BASE, [f"{steps}=[{{rgb_to_gray {{}}}}, {{random_rotation90 {{}}}}]"])
    names = [
        step.WhichOneof("preprocessing_step")
        for step in both.train_config.data_augmentation_options
    ]
    assert names == ["rgb_to_gray", "random_rotation90"]


def test_maps_of_messages():
    calibration = "model.ssd.post_processing.calibration_config.class_id_function_approximations"
    config = apply_overrides(
        BASE,
        [
            f"{calibration}.class_id_xy_pairs_map[2]={{x_y_pair {{x: 0.5}}}}",
            f"{calibration}.class_id_xy_pairs_map[2].x_y_pair[0].y=0.25",
        ],
    )
    entry = value_at(config, calibration).class_id_xy_pairs_map[2]
    assert [(pair.x, pair.y) for pair in entry.x_y_pair] == [(0.5, 0.25)]


@pytest.mark.parametrize(
    "assignment, words",
    [
        ("train_config", ["not an assignment", "PATH=VALUE"]),
        ("train_config..batch_size=3", ["not an assignment"]),
        ("train_config.batch_sze=8", ["train_config.batch_sze", "did you mean 'batch_size'"]),
        ("batch_size=8", ["'train_config.batch_size' or 'eval_config.batch_size'"]),
        ("num_classes=3", ["'model.ssd.num_classes'"]),
        ("quux.bar=3", ["its fields: eval_config"]),
        ("train_config.batch_size=abc", ["whole number", "given 'abc'"]),
        ("train_config.batch_size=-1", ["from 0 to 4294967295", "'-1'"]),
        ("train_config.sync_replicas=yes", ["true or false", "'yes'"]),
        ("train_config.fine_tune_checkpoint_version=V9", ["UNKNOWN, V1, V2", "'V9'", "did you"]),
        ("train_config.fine_tune_checkpoint='a", ["quote"]),
        ("train_config.optimizer=3", ["a message in braces", "'3'"]),
        (
            "train_config.optimizer={adam_optimiser {}}",
            ["'adam_optimiser'", "did you mean 'adam_optimizer'"],
        ),
        ("train_config.batch_size+=1", ["is not repeated"]),
        ("train_config.batch_size.x=1", ["no fields of its own"]),
        (
            "train_config.data_augmentation_options.ssd_random_crop={}",
            ["has 2 entries", "write train_config.data_augmentation_options[0]"],
        ),
        (
            "eval_config.parameterized_metric.coco_keypoint_metrics={}",
            ["has 0 entries", "eval_config.parameterized_metric+={…} adds one"],
        ),
        ("eval_input_reader[1].name=x", ["has 1 entries", "eval_input_reader+="]),
        ("eval_input_reader[-2].name=x", ["has 1 entries"]),
        ("eval_input_reader[x].name=x", ["a number belongs in the brackets", "'x'"]),
        ("train_config.freeze_variables[0]+=x", ["one entry takes '='"]),
        ("train_config.freeze_variables[0]=[x, y]", ["one value, not 2"]),
        ("eval_config.super_categories=x", ["is a map", "[KEY]=VALUE"]),
        ("eval_config.super_categories.x=y", ["is a map", "[KEY]"]),
        ("eval_config.super_categories[a].x=y", ["no fields of its own"]),
    ],
)
def test_errors(assignment, words):
    with pytest.raises(UsageError) as caught:
        apply_overrides(BASE, [assignment])
    for word in words:
        assert word in str(caught.value)


TWICE = """train_input_reader {
  tf_record_input_reader { input_path: ["a", "b"] }
  sample_from_datasets_weights: [1, 2]
  shuffle: true
  shuffle: false
}"""


def _reader(config: Any) -> Any:
    reader = config.train_input_reader
    assert list(reader.tf_record_input_reader.input_path) == ["a", "b"]
    assert list(reader.sample_from_datasets_weights) == [1, 2]
    return reader


def test_repeated_fields_stay_as_they_are_where_a_later_field_is_given_twice():
    with pytest.warns(ConfigWarning, match=":5: 'shuffle' is given more than once"):
        assert not _reader(parse_pipeline(TWICE)).shuffle
    value = TWICE[len("train_input_reader ") :]
    with pytest.warns(ConfigWarning, match="'shuffle' is given more than once"):
        config = apply_overrides(BASE, [f"train_input_reader={value}"])
    assert not _reader(config).shuffle


def test_the_same_assignment_twice_is_as_once():
    paths = "train_input_reader.tf_record_input_reader.input_path=[a, b]"
    weights = "train_input_reader.sample_from_datasets_weights=[1, 2]"
    config = apply_overrides(BASE, [paths, weights, "train_config.batch_size=1", paths, weights])
    _reader(config)
    steps = "train_config.data_augmentation_options=[{ssd_random_crop {}}]"
    config = apply_overrides(BASE, [steps, steps])
    assert len(config.train_config.data_augmentation_options) == 1
    readers = "eval_input_reader={name: 'x' tf_record_input_reader { input_path: 'e' }}"
    (reader,) = apply_overrides(BASE, [readers, readers]).eval_input_reader
    assert list(reader.tf_record_input_reader.input_path) == ["e"]


def test_texts_that_programs_set_are_not_parsed():
    path, entry = "train_config.fine_tune_checkpoint", "train_config.freeze_variables[0]"
    for text in ("'a", 'a" ', " [b]", "null"):
        changed = set_values(BASE, [(path, text), (entry, text)])
        assert value_at(changed, path) == value_at(changed, entry) == text
        # What is printed for `--set` gives the same.
        assert value_at(apply_overrides(BASE, [assignments.assignment(path, text)]), path) == text
    assert assignments.assignment("a", False) == "a=false"
    assert assignments.assignment("a", "b c") == "a=b c"


def test_blanks_that_are_left_out_are_reported():
    path = "train_config.fine_tune_checkpoint"
    with pytest.warns(ConfigWarning, match="at the end of ' a ' are left out; .* in quotes"):
        assert value_at(apply_overrides(BASE, [f"{path}= a "]), path) == "a"
    assert value_at(apply_overrides(BASE, [f"{path}= 'a ' "]), path) == "a "


def test_long_values_are_cut_in_errors():
    for assignment in ("train_config.batch_size=", "train_config.optimizer=", "", "train_config."):
        with pytest.raises(UsageError) as caught:
            apply_overrides(BASE, [assignment + "9\x1bz" * 10**5])
        assert len(str(caught.value)) < 2_000 and "\x1b" not in str(caught.value)
