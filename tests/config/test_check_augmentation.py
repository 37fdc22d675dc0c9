from __future__ import annotations

from typing import List

import pytest
from google.protobuf import text_format

from estimator_det.config.check import LABEL_FIELDS, check_augmentation
from estimator_det.protos import preprocessor_pb2, train_pb2


def _fields(text: str, num_classes: int = 3) -> List[str]:
    train = text_format.Parse(text, train_pb2.TrainConfig())
    return [problem.field for problem in check_augmentation(
        train.data_augmentation_options, num_classes
    )]  # fmt: skip


@pytest.mark.parametrize(
    ("step", "field"),
    [
        ("remap_labels { original_labels: [1, 3] new_label: 4 }", "remap_labels.new_label"),
        ("remap_labels { original_labels: [1, 4] new_label: 3 }", "remap_labels.original_labels"),
        ("drop_label_probabilistically { label: 9 }", "drop_label_probabilistically.label"),
    ],
)
def test_labels_beyond_the_classes(step: str, field: str) -> None:
    text = f"data_augmentation_options {{ {step} }}"
    flip = "data_augmentation_options { random_horizontal_flip {} }"
    assert _fields(flip + text) == [f"train_config.data_augmentation_options[1].{field}"]
    assert not _fields(text, num_classes=9)
    assert not _fields(text, num_classes=0)  # that is an error of its own


def test_fields_of_labels_exist() -> None:
    steps = preprocessor_pb2.PreprocessingStep.DESCRIPTOR.fields_by_name
    for step, fields in LABEL_FIELDS.items():
        assert set(fields) <= set(steps[step].message_type.fields_by_name)
