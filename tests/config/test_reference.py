"""The reference says what the .proto files say."""

from __future__ import annotations

import json

import pytest

from estimator_det.config import reference
from estimator_det.errors import UsageError
from estimator_det.programs import cli


def test_every_message_and_field_is_in_the_page():
    page = reference.page()
    for message in reference.messages():
        assert f"\n## {reference.name_of(message)}\n" in page
        assert all(f"</a>`{field.name}` | " in page for field in message.fields)
    assert page.count("range: ") > 300 and "](" not in page


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("train_config.batch_size", ["Over all replicas.", "default: 32", "range: 1 to 65,536 im"]),
        ("train_config.freeze_variables", ["used by: model_fn/training/train_op.py"]),
        ("train_config.data_augmentation_options.mixup", ["used by: inputs/augment/mixup.py"]),
        ("eval_input_reader[0].label_hierarchy_path", ["no effect without: expand_labels_hier"]),
        ("eval_config.super_categories", ["map from text to text"]),
        ("eval_config.max_evals", ["no effect: an evaluation ends as"]),
        ("model.ssd.mask_head_config", ["Ssd.MaskHead", "refused: is not", "fields: mask_height"]),
        ("model.ssd.loss.localization_loss.weighted_giou", ["excludes: "]),
        ("model.ssd.inplace_batchnorm_update", ["default: false", "on a TPU: true"]),
    ],
)
def test_a_field_is_explained(path, lines):
    first, *rest = reference.explain(path)
    assert first == path and not any(each.endswith(": ") for each in rest)
    for line in lines:
        assert any(each.strip().startswith(line) for each in rest), rest


def test_the_verb_prints_it_without_a_configuration(capsys):
    for options, has_line in [([], str.splitlines), (["--json"], json.loads)]:
        assert cli.main(["check-config", "--explain", "train_config.num_steps", *options]) == 0
        lines = has_line(capsys.readouterr().out)
        assert "range: 0 to 4,294,967,295 steps" in [line.strip() for line in lines]
    with pytest.raises(UsageError, match="TrainConfig has no field 'num_step'; did you mean"):
        reference.explain("train_config.num_step.x")
    with pytest.raises(UsageError, match=r"TrainConfig\.num_steps has no field 'x'"):
        reference.explain("train_config.num_steps.x")
