"""Placeholders of a batch, with the shapes that the input functions give."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

from estimator_det.compat import estimator, tf, tf1
from estimator_det.config.context import context_shape
from estimator_det.config.evaluated_model import evaluated_model
from estimator_det.images.resize import make_resizer
from inputs import schema

ModeKeys = estimator.ModeKeys

FEATURES = (schema.IMAGE, schema.TRUE_IMAGE_SHAPE, schema.HASH)  # in every batch
CONTEXT = (schema.CONTEXT_FEATURES, schema.VALID_CONTEXT_SIZE)  # of models that attend to it


def placeholders(config: Any, mode: str) -> Tuple[Dict[str, tf.Tensor], Dict[str, tf.Tensor]]:
    """Features and labels of a mode; there are no labels in PREDICT.

    EVAL takes batch size, boxes and keypoints from eval_config and the first evaluation reader;
    a length that the configuration leaves open is None.
    """
    model = evaluated_model(config) if mode == ModeKeys.EVAL else config.model
    model = getattr(model, model.WhichOneof("model"))
    height, width = make_resizer(model.image_resizer).spatial_shape
    reader, batch_size = config.train_input_reader, config.train_config.batch_size
    if mode == ModeKeys.EVAL:
        batch_size = config.eval_config.batch_size
        reader = config.eval_input_reader[0] if config.eval_input_reader else reader
    sizes: Dict[str, Optional[int]] = {
        "B": batch_size or 1,
        "G": reader.max_number_of_boxes or 1,
        "K": model.num_classes,
        "H": height,
        "W": width,
        "C": 3 + reader.num_additional_channels,
        "P": reader.num_keypoints,
    }
    context = context_shape(config.model)
    if context is not None:
        sizes.update(zip("SF", context))

    def make(name: str, spec: Any) -> tf.Tensor:
        shape = [int(axis) if axis.isdigit() else sizes[axis] for axis in spec.shape.split()]
        return tf1.placeholder(getattr(tf, spec.dtype), shape, name=name)

    features = list(FEATURES if context is None else (*FEATURES, *CONTEXT))
    if mode == ModeKeys.EVAL:
        features.append(schema.ORIGINAL_SPATIAL_SHAPE)
    labels = {
        key: spec
        for key, spec in schema.LABELS.items()
        if (key == schema.NUM_BOXES or spec.is_per_box)
        and (not spec.reader_field or getattr(reader, spec.reader_field))
        and mode != ModeKeys.PREDICT
    }
    return (
        {name: make(name, schema.FEATURES[name]) for name in features},
        {name: make(name, spec) for name, spec in labels.items()},
    )
