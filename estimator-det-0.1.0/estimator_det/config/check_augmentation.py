"""Whether the steps of data augmentation fit the model."""

from __future__ import annotations

from typing import Any, Iterator, Sequence

from estimator_det.config.problem import Problem, error

# Fields of steps that contain ids of the label map.
LABEL_FIELDS = {
    "drop_label_probabilistically": ("label",),
    "remap_labels": ("original_labels", "new_label"),
}


def check_augmentation(steps: Sequence[Any], num_classes: int) -> Iterator[Problem]:
    """An error for each label in a `PreprocessingStep` that is no class of the model."""
    for index, step in enumerate(steps):
        name = step.WhichOneof("preprocessing_step")
        for field in LABEL_FIELDS.get(name, ()):
            value = getattr(getattr(step, name), field)
            for label in [value] if isinstance(value, int) else value:
                if label > num_classes >= 1:
                    yield error(
                        f"train_config.data_augmentation_options[{index}].{name}.{field}",
                        f"{label} is no class of the model, which has {num_classes}",
                        f"use ids of the label map from 1 to {num_classes}",
                    )
