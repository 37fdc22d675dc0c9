"""Placeholders of a batch, with the shapes that the input functions give."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

from estimator_det.compat import estimator, tf, tf1
from estimator_det.images.resize import make_resizer
from inputs import schema

ModeKeys = estimator.ModeKeys

# Keys that a batch always has.
FEATURES = (schema.IMAGE, schema.TRUE_IMAGE_SHAPE, schema.HASH)
LABELS = (
    schema.NUM_BOXES,
    schema.BOXES,
    schema.CLASSES,
    schema.WEIGHTS,
    schema.CONFIDENCES,
    schema.IS_CROWD,
    schema.AREA,
    schema.DIFFICULT,
    schema.GROUP_OF,
)


def placeholders(config: Any, mode: str) -> Tuple[Dict[str, tf.Tensor], Dict[str, tf.Tensor]]:
    """Features and labels of a mode; there are no labels in PREDICT.

    EVAL takes batch size, boxes and keypoints from eval_config and the first evaluation reader;
    a length that the configuration leaves open is None.
    """
    model = getattr(config.model, config.model.WhichOneof("model"))
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

    def make(names: List[str], known: Dict[str, schema.Spec]) -> Dict[str, tf.Tensor]:
        tensors = {}
        for name in names:
            axes = known[name].shape.split()
            shape = [int(axis) if axis.isdigit() else sizes[axis] for axis in axes]
            tensors[name] = tf1.placeholder(getattr(tf, known[name].dtype), shape, name=name)
        return tensors

    features, labels = list(FEATURES), [] if mode == ModeKeys.PREDICT else list(LABELS)
    if mode == ModeKeys.EVAL:
        features.append(schema.ORIGINAL_SPATIAL_SHAPE)
    if labels and reader.num_keypoints:
        labels += [schema.KEYPOINTS, schema.KEYPOINT_VISIBILITIES]
    if labels and reader.load_instance_masks:
        labels.append(schema.MASKS)
    return make(features, schema.FEATURES), make(labels, schema.LABELS)
