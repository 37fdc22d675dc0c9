"""What a training does otherwise than the run that it resumes."""

from __future__ import annotations

import pytest

from estimator_det.config.differences import MOST_LINES, training_differences
from estimator_det.config.pipeline import apply_overrides, parse_pipeline

BEFORE = """
model { ssd { num_classes: 3
  loss { classification_loss { weighted_sigmoid {} } localization_weight: 1.0 }
  post_processing { score_converter: SIGMOID } } }
train_config { batch_size: 24 num_steps: 10
  optimizer { rms_prop_optimizer { learning_rate {
    constant_learning_rate { learning_rate: 0.04 } } } }
  data_augmentation_options { random_horizontal_flip {} } }
train_input_reader { num_epochs: 3 }
"""
LOSS = "model.ssd.loss.classification_loss"
RATE = "train_config.optimizer.rms_prop_optimizer.learning_rate"


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ([], []),
        # Of no effect on a resumed training, or told elsewhere.
        (["train_config.num_steps=99", "train_config.fine_tune_checkpoint=x"], []),
        (["model.ssd.post_processing.score_converter=SOFTMAX"], []),
        (["train_input_reader.num_epochs=4", "eval_config.batch_size=2"], []),
        (["train_config.batch_size=12"], ["train_config.batch_size is 12; so far it was 24"]),
        (
            ["model.ssd.loss.localization_weight=2.5", "train_config.use_bfloat16=true"],
            [
                "model.ssd.loss.localization_weight is 2.5; so far it was 1",
                "train_config.use_bfloat16 is True; so far it was not set",
            ],
        ),
        (
            [f"{LOSS}={{weighted_sigmoid_focal {{alpha: 0.5}}}}"],
            [f"{LOSS} is weighted_sigmoid_focal; so far it was weighted_sigmoid"],
        ),
        (
            [f"{RATE}={{constant_learning_rate {{learning_rate: 0.01}}}}"],
            [f"{RATE}.constant_learning_rate.learning_rate is 0.01; so far it was 0.04"],
        ),
        (
            ["train_config.optimizer={momentum_optimizer {}}"],
            ["train_config.optimizer is momentum_optimizer; so far it was rms_prop_optimizer"],
        ),
        (
            ["train_config.data_augmentation_options=[]"],
            [
                "train_config.data_augmentation_options is []; so far it was "
                "[{ random_horizontal_flip { } }]"
            ],
        ),
    ],
)
def test_changes_of_a_training(changes, lines):
    before = parse_pipeline(BEFORE)
    assert training_differences(before, apply_overrides(before, changes)) == lines


@pytest.mark.parametrize(
    "field", ["center_net.post_processing", "faster_rcnn.second_stage_post_processing"]
)
def test_postprocessing_changes_no_step(field):
    before, after = (
        apply_overrides(parse_pipeline(""), [f"model.{field}.logit_scale={scale}"])
        for scale in (1, 2)
    )
    assert training_differences(before, after) == []


def test_many_changes_are_counted():
    freezing = "train_config { freeze_variables: 'a' }"
    before, after = parse_pipeline(freezing), parse_pipeline(BEFORE)
    lines = training_differences(before, after)
    assert "train_config.freeze_variables is []; so far it was ['a']" in lines
    many = [f"model.ssd.{field.name}" for field in after.model.ssd.DESCRIPTOR.fields]
    assert len(many) > len(lines) and len(lines) <= MOST_LINES + 1
