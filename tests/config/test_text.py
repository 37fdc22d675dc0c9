"""Errors in configuration text: file, line, block and the nearest name."""

import pytest

from estimator_det.config.pipeline import ConfigWarning, parse_pipeline
from estimator_det.config.text import nearest
from estimator_det.errors import UsageError


@pytest.mark.parametrize(
    "text, line, words",
    [
        ("train_config {\n batch_sze: 3\n}", 2, ["'batch_sze'", "'batch_size'", "in train_config"]),
        ("\n\nmodle { }", 3, ["'modle'", "did you mean 'model'"]),
        ("item { id: 1 }", 1, ["'item'", "its fields", "train_input_reader"]),
        ("train_config {\n batch_size: abc\n}", 2, ["parse integer: abc", "'batch_size'"]),
        ("train_config {\n batch_size: -3\n}", 2, ["out of range: -3", "'batch_size'"]),
        ("train_config {\n batch_size 3\n}", 2, ['Expected ":"', "'batch_size'"]),
        ("train_config {\n sync_replicas: yes\n}", 2, ["true", "false", "'sync_replicas'"]),
        (
            "train_config {\n num_steps: 3\n",
            2,
            ["'train_config', opened on line 1", "never closed"],
        ),
        ("train_config {\n num_steps: 3\n}}", 3, ["one closing brace too many"]),
        (
            "model {\n ssd {\n  num_classes: 3\n }\ntrain_config {\n}",
            5,
            ["'train_config' belongs outside of 'model', opened on line 1"],
        ),
        ('train_config {\n fine_tune_checkpoint: "a\n}', 2, ["quote", "'fine_tune_checkpoint'"]),
        (
            "train_config {\n fine_tune_checkpoint_version: V3\n}",
            2,
            ["'fine_tune_checkpoint_version' has no value V3", "UNKNOWN, V1, V2"],
        ),
        (
            "model { ssd { loss {\n localization_loss { weighted_smoth_l1 { } } } } }",
            2,
            ["'weighted_smooth_l1'", "in model.ssd.loss.localization_loss"],
        ),
        (
            "model { ssd { } }\n[object_detection.protos.extra] { depth: 3 }",
            2,
            ["extension [object_detection.protos.extra] is not known", "remove its block"],
        ),
        ("train_config {\n [a.b] { c: 3 }\n}", 2, ["extension [a.b] is not known"]),
    ],
)
def test_error_names_place_and_remedy(text, line, words):
    with pytest.raises(UsageError) as caught:
        parse_pipeline(text, "some.config")
    message = str(caught.value)
    assert message.startswith(f"some.config:{line}: ")
    for word in words:
        assert word in message
    assert message.splitlines()[-1].strip() == text.splitlines()[line - 1].strip()


def test_braces_in_comments_and_strings_do_not_count():
    text = 'model { # {{{\n ssd { }\n}\ntrain_config {\n fine_tune_checkpoint: "}}{"\n bach: 1\n}'
    with pytest.raises(UsageError, match=r"f:6: .*'bach'.*'batch_size'.* \(in train_config\)"):
        parse_pipeline(text, "f")


def test_two_members_of_a_group_leave_the_last_with_a_warning():
    text = "train_config { optimizer {\n adam_optimizer { }\n momentum_optimizer { } } }"
    with pytest.warns(ConfigWarning, match="f:3: 'momentum_optimizer'"):
        config = parse_pipeline(text, "f")
    assert config.train_config.optimizer.WhichOneof("optimizer") == "momentum_optimizer"


def test_an_error_behind_a_field_given_twice_is_still_found():
    with pytest.raises(UsageError, match=r"f:2: .*'num_stepz'.*'num_steps'"):
        parse_pipeline("train_config { batch_size: 1 batch_size: 2\n num_stepz: 3 }", "f")


def test_nearest():
    assert nearest("batch_sze", ["batch_size", "num_steps"]) == "; did you mean 'batch_size'?"
    assert nearest("zzz", ["batch_size"]) == ""
