"""Batches for TPUs: shapes are static, and only what cores read fills the path to them."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional

from estimator_det.compat import tf
from estimator_det.errors import UsageError
from inputs import schema

FEATURES = tuple(key for key, spec in schema.FEATURES.items() if spec.in_train_step)
EVALUATION_FEATURES = tuple(key for key, spec in schema.FEATURES.items() if spec.in_eval_step)
_UNUSED_LABELS = tuple(key for key, spec in schema.LABELS.items() if not spec.on_tpu)


def make_tpu_input_fn(
    input_fn: Callable[..., Any], *, evaluates: bool = False
) -> Callable[..., Any]:
    """An input function for `TPUEstimator`, whose batches have the images of one core.

    Each host reads its own part of the records. UsageError if the configuration leaves a shape
    open.
    """
    wanted = EVALUATION_FEATURES if evaluates else FEATURES

    @tf.autograph.experimental.do_not_convert
    def keep(features: Dict[str, tf.Tensor], labels: Dict[str, tf.Tensor]) -> Any:
        return (
            {key: tensor for key, tensor in features.items() if key in wanted},
            {key: tensor for key, tensor in labels.items() if key not in _UNUSED_LABELS},
        )

    def feed(params: Dict[str, Any]) -> tf.data.Dataset:
        dataset = input_fn(params, _part_of_host(params)).map(keep)
        for specs in dataset.element_spec:
            check_static(specs)
        return dataset

    return feed


def _part_of_host(params: Dict[str, Any]) -> Optional[tf.distribute.InputContext]:
    context = params.get("context")
    if context is None:
        return None
    _, index, count, _ = context.current_input_fn_deployment()
    # One replica: the batch size is already for one core.
    return tf.distribute.InputContext(count, index, num_replicas_in_sync=1)


def check_static(specs: Mapping[str, Any]) -> None:
    """Refuses `tf.TensorSpec`s with an open length."""
    for key, spec in specs.items():
        if not spec.shape.is_fully_defined():
            raise UsageError(
                f"{key} has shape {spec.shape}, but a TPU needs every length. Give the model a "
                "fixed_shape_resizer, or a keep_aspect_ratio_resizer with pad_to_max_dimension: "
                "true, and the reader num_keypoints where it loads keypoints; estimator-det "
                "check-config --tpu lists all that is open"
            )
