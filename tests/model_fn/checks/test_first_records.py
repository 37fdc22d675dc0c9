from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest

from estimator_det.config.text import ConfigError
from model_fn.checks.files import LabelMaps, check_first_records
from model_fn.runs import runner
from tests.inputs import examples
from tests.inputs.examples import BOXES, encoded, example
from tests.model_fn.checks.small import small_config


@pytest.fixture
def config(tmp_path: pathlib.Path) -> Any:
    """Records of a cat and a dog; a label map of the same, one of others, and a cut one."""
    image = encoded(examples.picture())
    features = {"image/encoded": image, **BOXES, "image/object/class/text": ["cat", "dog"]}
    examples.write(tmp_path / "a.record", [example(features)])
    for name, text in (("same", "'cat'"), ("other", "'owl'"), ("cut", "'owl' {")):
        (tmp_path / f"{name}.pbtxt").write_text(f"item {{ id: 1 name: {text} }}")

    def make(train: str, evaluation: str, records: str = "a.record") -> Any:
        paths = "tf_record_input_reader.input_path"
        return small_config(
            f"train_input_reader.label_map_path={tmp_path}/{train}.pbtxt",
            f"train_input_reader.{paths}=[{tmp_path}/{records}]",
            f"eval_input_reader[0].label_map_path={tmp_path}/{evaluation}.pbtxt",
            f"eval_input_reader[0].{paths}=[{tmp_path}/{records}]",
        )

    return make


def test_a_label_map_of_other_classes_is_an_error_of_its_reader(config: Any) -> None:
    assert not list(check_first_records(config("same", "same"), LabelMaps()))
    (problem,) = check_first_records(config("same", "other"), LabelMaps())
    assert (problem.severity, problem.field) == ("error", "eval_input_reader[0].label_map_path")
    assert "'cat' (1), 'dog' (1)" in problem.message and "names are ['owl']" in problem.message
    fields = [
        problem.field for problem in check_first_records(config("other", "other"), LabelMaps())
    ]
    assert fields == ["train_input_reader.label_map_path", "eval_input_reader[0].label_map_path"]


def test_training_refuses_the_label_map_of_an_evaluation_at_once(
    config: Any, tmp_path: pathlib.Path
) -> None:
    refused = r"^eval_input_reader\[0\].label_map_path: .*names are \['owl'\].*Correct label_map"
    with pytest.raises(ConfigError, match=refused):
        runner.train_and_evaluate(config("same", "other"), str(tmp_path / "model"))
    assert not (tmp_path / "model").exists()


def test_what_cannot_be_read_is_left_to_others(config: Any, tmp_path: pathlib.Path) -> None:
    (tmp_path / "b.record").write_bytes(b"no record")
    assert not list(check_first_records(config("cut", "gone"), LabelMaps()))
    assert not list(check_first_records(config("other", "other", "none.record"), LabelMaps()))
    assert not list(check_first_records(config("other", "other", "b.record"), LabelMaps()))
    os.mkfifo(tmp_path / "pipe.record")  # Opening it would wait without end.
    assert not list(check_first_records(config("other", "other", "pipe.record"), LabelMaps()))
    without = config("other", "other")
    without.train_input_reader.ClearField("tf_record_input_reader")
    without.eval_input_reader[0].ClearField("label_map_path")
    assert not list(check_first_records(without, LabelMaps()))
