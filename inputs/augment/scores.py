"""Changes of labels that do not change the image."""

from __future__ import annotations

from typing import Any

from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from inputs.augment.base import AUGMENTATIONS, checked_by
from inputs.schema import Sample


def _check_temperature(config: Any) -> None:
    if not config.temperature > 0:
        raise ConfigError("temperature", f"is {config.temperature:g}; it must be above 0")


@AUGMENTATIONS.register("convert_class_logits_to_softmax")
@checked_by(_check_temperature)
def convert_class_logits_to_softmax(sample: Sample, seed: tf.Tensor, config: Any) -> Sample:
    """Converts multiclass scores [n, K + 1] from logits to probabilities; ConfigError if absent."""
    if sample.multiclass_scores is None:
        raise ConfigError(
            "convert_class_logits_to_softmax",
            "needs multiclass scores, but they are not loaded",
            "set load_multiclass_scores: true in the input reader, or remove the step",
        )
    scores = tf.nn.softmax(sample.multiclass_scores / config.temperature)
    return sample._replace(multiclass_scores=scores)
