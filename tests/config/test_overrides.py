"""Merging a second text, and settings by name."""

from __future__ import annotations

from typing import Any

import pytest

from estimator_det.config.pipeline import merge_text, override, parse_pipeline, rescale_schedule
from estimator_det.errors import ConfigError, UsageError
from tests.config.test_assignments import value_at

BASE = parse_pipeline(
    """
    model { ssd { num_classes: 90 loss { localization_weight: 3.0 } } }
    train_config {
      batch_size: 32
      optimizer { momentum_optimizer {
        momentum_optimizer_value: 0.9
        learning_rate { manual_step_learning_rate {
          initial_learning_rate: 0.4
          schedule { step: 10 learning_rate: 0.04 }
          schedule { step: 20 learning_rate: 0.004 }
        } }
      } }
      freeze_variables: "a"
    }
    train_input_reader { tf_record_input_reader { input_path: "old" input_path: "older" } }
    eval_input_reader { name: "one" }
    eval_input_reader { name: "two" }
    """
)


def with_schedule(text: str) -> Any:
    return merge_text(
        BASE,
        f"train_config {{ optimizer {{ momentum_optimizer {{ learning_rate {{ {text} }} }} }} }}",
    )


def test_merge_replaces_singular_fields_and_appends_repeated_ones():
    merged = merge_text(
        BASE,
        "train_config { batch_size: 8 freeze_variables: 'b' } eval_input_reader { name: 'three' }"
        " model { ssd { loss { classification_weight: 2.0 } } }",
    )
    assert merged.train_config.batch_size == 8
    assert list(merged.train_config.freeze_variables) == ["a", "b"]
    assert [reader.name for reader in merged.eval_input_reader] == ["one", "two", "three"]
    assert merged.model.ssd.loss.localization_weight == 3.0
    assert merged.model.ssd.loss.classification_weight == 2.0
    assert BASE.train_config.batch_size == 32


def test_merge_errors_name_the_option():
    with pytest.raises(UsageError, match=r"config_override:1: .*'trian_config'.*'train_config'"):
        merge_text(BASE, "trian_config { }")


def test_none_leaves_everything():
    assert override(BASE, batch_size=None, label_map_path=None) == BASE


@pytest.mark.parametrize(
    ("setting", "value", "path", "expected"),
    [
        ("batch_size", 8, "train_config.batch_size", 8),
        ("num_train_steps", 0, "train_config.num_steps", 0),
        ("use_bfloat16", True, "train_config.use_bfloat16", True),
        ("fine_tune_checkpoint", "m.ckpt", "train_config.fine_tune_checkpoint", "m.ckpt"),
        ("fine_tune_checkpoint_type", "detection", "train_config.fine_tune_checkpoint_type",
         "detection"),
        ("momentum_optimizer_value", 0.5,
         "train_config.optimizer.momentum_optimizer.momentum_optimizer_value", 0.5),
        ("num_classes", 3, "model.ssd.num_classes", 3),
        ("train_input_path", ["a", "b"], "train_input_reader.tf_record_input_reader.input_path",
         ["a", "b"]),
        ("label_map_path", "map", "train_input_reader.label_map_path", "map"),
        ("mask_type", "PNG_MASKS", "train_input_reader.mask_type", 2),
        ("eval_batch_size", 4, "eval_config.batch_size", 4),
        ("eval_with_moving_averages", True, "eval_config.use_moving_averages", True),
        ("retain_original_images", False, "eval_config.retain_original_images", False),
        ("retain_original_image_additional_channels", True,
         "eval_config.retain_original_image_additional_channels", True),
        *(
            (name, value, f"eval_input_reader[{index}].{field}", expected)
            for name, value, field, expected in (
                ("label_map_path", "map", "label_map_path", "map"),
                ("mask_type", "PNG_MASKS", "mask_type", 2),
                ("eval_input_path", "c", "tf_record_input_reader.input_path", ["c"]),
                ("sample_1_of_n_eval_examples", 5, "sample_1_of_n_examples", 5),
                ("eval_num_epochs", 1, "num_epochs", 1),
            )
            for index in (0, 1)
        ),
    ],
)  # fmt: skip
def test_settings_by_name(setting, value, path, expected):
    assert value_at(override(BASE, **{setting: value}), path) == expected


def test_an_evaluation_path_finds_its_place_where_no_reader_is():
    config = override(
        parse_pipeline("train_input_reader { label_map_path: 'm' }"), eval_input_path="c"
    )
    (reader,) = config.eval_input_reader
    assert list(reader.tf_record_input_reader.input_path) == ["c"]
    assert (reader.label_map_path, reader.shuffle) == ("m", False)


def test_learning_rate_scales_its_schedule():
    config = override(BASE, learning_rate=0.2)
    manual = (
        config.train_config.optimizer.momentum_optimizer.learning_rate.manual_step_learning_rate
    )
    assert manual.initial_learning_rate == pytest.approx(0.2)
    assert [entry.learning_rate for entry in manual.schedule] == pytest.approx([0.02, 0.002])

    cosine = override(
        with_schedule(
            "cosine_decay_learning_rate { learning_rate_base: 0.8 warmup_learning_rate: 0.2 }"
        ),
        learning_rate=0.4,
    ).train_config.optimizer.momentum_optimizer.learning_rate.cosine_decay_learning_rate
    assert cosine.learning_rate_base == pytest.approx(0.4)
    assert cosine.warmup_learning_rate == pytest.approx(0.1)

    for kind, field in (
        ("constant_learning_rate", "learning_rate"),
        ("exponential_decay_learning_rate", "initial_learning_rate"),
    ):
        config = override(with_schedule(f"{kind} {{ }}"), learning_rate=0.5)
        rate = config.train_config.optimizer.momentum_optimizer.learning_rate
        assert getattr(getattr(rate, kind), field) == 0.5


def test_loss_weight_ratio():
    loss = override(BASE, classification_localization_weight_ratio=5.0).model.ssd.loss
    assert (loss.classification_weight, loss.localization_weight) == (5.0, 1.0)
    weighted = parse_pipeline(
        """model { faster_rcnn { second_stage_localization_loss_weight: 3
        second_stage_classification_loss_weight: 2 first_stage_localization_loss_weight: 7 } }"""
    )
    two_stage = override(weighted, classification_localization_weight_ratio=5.0).model.faster_rcnn
    assert two_stage.second_stage_classification_loss_weight == 5.0
    assert two_stage.second_stage_localization_loss_weight == 1.0
    assert two_stage.first_stage_localization_loss_weight == 7.0


EMPTY = parse_pipeline("")
ADAM = merge_text(BASE, "train_config { optimizer { adam_optimizer { } } }")
AT_ZERO = with_schedule("manual_step_learning_rate { initial_learning_rate: 0 }")


@pytest.mark.parametrize(
    ("config", "settings", "words"),
    [
        (BASE, {"batch_sze": 3}, "'batch_sze'; did you mean 'batch_size'"),
        (BASE, {"batch_size": 0}, "batch_size=0: allowed are 1 to 65,536 images"),
        (BASE, {"batch_size": "8"}, "batch_size='8'"),
        (BASE, {"train_input_path": []}, "at least one path"),
        (BASE, {"mask_type": "PNG"}, "PNG_MASKS"),
        (EMPTY, {"num_classes": 3}, "DetectionModel has no model chosen"),
        (EMPTY, {"learning_rate": 0.1}, "no optimizer chosen"),
        (EMPTY, {"classification_localization_weight_ratio": 1.0}, "not chosen"),
        (ADAM, {"momentum_optimizer_value": 0.5}, "AdamOptimizer has no momentum_optimizer_value"),
        (ADAM, {"learning_rate": 0.5}, "no learning rate schedule"),
        (AT_ZERO, {"learning_rate": 0.5}, "initial rate is 0"),
    ],
)
def test_settings_that_are_refused(config, settings, words):
    with pytest.raises(UsageError, match=words):
        override(config, **settings)


@pytest.mark.parametrize(
    "schedule, rescaled",
    [
        (
            "manual_step_learning_rate { schedule { step: 10 } schedule { step: 400 } }",
            "manual_step_learning_rate { schedule { step: 1 } schedule { step: 20 } }",
        ),
        (
            "manual_step_learning_rate { schedule { step: 2 } schedule { step: 4 } }",
            "manual_step_learning_rate { schedule { step: 1 } schedule { step: 2 } }",
        ),
        (
            "exponential_decay_learning_rate { decay_steps: 200 burnin_steps: 100 }",
            "exponential_decay_learning_rate { decay_steps: 10 burnin_steps: 5 }",
        ),
        (
            "cosine_decay_learning_rate { total_steps: 1000 warmup_steps: 100 "
            "hold_base_rate_steps: 200 }",
            "cosine_decay_learning_rate { total_steps: 50 warmup_steps: 5 "
            "hold_base_rate_steps: 10 }",
        ),
        ("constant_learning_rate { }", "constant_learning_rate { }"),
        ("", ""),
    ],
)
def test_a_schedule_is_rescaled_to_another_number_of_steps(schedule, rescaled):
    text = (
        "train_config {{ num_steps: {} optimizer {{ adam_optimizer {{ "
        "learning_rate {{ {} }} }} use_moving_average: false }} }}"
    )
    config = parse_pipeline(text.format(1000, schedule))
    assert rescale_schedule(config, 50) == parse_pipeline(text.format(50, rescaled))
    assert config == parse_pipeline(text.format(1000, schedule))


@pytest.mark.parametrize(
    ("decay", "num_steps", "shorter"),
    [(0.999, 40, 0.999), (0.999, 5, 0.999**4), (0.98, 5, 0.95), (0.9, 5, 0.9)],
)
def test_averages_of_a_shorter_run_are_over_fewer_steps(decay, num_steps, shorter):
    config = with_schedule("cosine_decay_learning_rate { total_steps: 20 }")
    norm = config.model.ssd.feature_extractor.conv_hyperparams.batch_norm
    config.train_config.optimizer.moving_average_decay = norm.decay = decay
    changed = rescale_schedule(config, num_steps)
    norm = changed.model.ssd.feature_extractor.conv_hyperparams.batch_norm
    assert norm.decay == pytest.approx(shorter)
    assert changed.train_config.optimizer.moving_average_decay == pytest.approx(shorter)


def test_a_schedule_without_an_end_is_not_rescaled():
    with pytest.raises(ConfigError, match="no proportion"):
        rescale_schedule(BASE, 50)


def test_a_cosine_that_ends_elsewhere_is_rescaled_from_its_own_length():
    cosine = "cosine_decay_learning_rate { total_steps: 200 warmup_steps: 20 }"
    config = override(with_schedule(cosine), num_train_steps=50)
    rate = rescale_schedule(config, 50).train_config.optimizer.momentum_optimizer.learning_rate
    schedule = rate.cosine_decay_learning_rate
    assert (schedule.total_steps, schedule.warmup_steps) == (50, 5)


@pytest.mark.parametrize(("num_steps", "warmup", "hold"), [(1, 0, 0), (2, 1, 0), (3, 1, 1)])
def test_a_short_cosine_has_a_step_to_decay(num_steps, warmup, hold):
    cosine = "cosine_decay_learning_rate { total_steps: 9 warmup_steps: 2 hold_base_rate_steps: 3 }"
    rate = rescale_schedule(with_schedule(cosine), num_steps).train_config.optimizer
    schedule = rate.momentum_optimizer.learning_rate.cosine_decay_learning_rate
    assert (schedule.warmup_steps, schedule.hold_base_rate_steps) == (warmup, hold)
