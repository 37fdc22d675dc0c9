"""The model_fn: features and labels become an EstimatorSpec, or a TPUEstimatorSpec on TPU."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional

from estimator_det.compat import estimator, tf, tf1, tpu_estimator
from estimator_det.config.static_shapes import with_static_shapes
from estimator_det.config.text import ConfigError
from estimator_det.detectors.base import Detector, Groundtruth, make_detector
from inputs import schema
from inputs.label_map import LabelMap, read_label_map
from model_fn.evaluation import eval_ops
from model_fn.training import (
    host_call,
    input_images,
    optimizers,
    tpu_step,
    train_graph,
    warm_start,
)
from model_fn.training import (
    train_op as train,
)

ModeKeys = estimator.ModeKeys
_SERVING = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY


def groundtruth_from_labels(labels: Dict[str, tf.Tensor]) -> Groundtruth:
    """Labels under the keys of `inputs.schema` as the detector takes them."""
    fields = {
        spec.groundtruth_field: labels.get(key)
        for key, spec in schema.LABELS.items()
        if spec.groundtruth_field
    }
    valid = tf.sequence_mask(labels[schema.NUM_BOXES], tf.shape(labels[schema.BOXES])[1])
    valid.set_shape(labels[schema.BOXES].shape[:2])
    fields["classes"] = tf.cast(labels[schema.CLASSES], tf.float32)
    if fields["weights"] is None:
        fields["weights"] = tf.cast(valid, tf.float32)
    return Groundtruth(valid=valid, **fields)


def _predict(detector: Detector, features: Dict[str, tf.Tensor], in_bfloat16: bool) -> Any:
    """Predictions in float32; the network itself in bfloat16 where asked for."""
    images, true_shapes = features[schema.IMAGE], features[schema.TRUE_IMAGE_SHAPE]
    if not in_bfloat16:
        return detector.predict(images, true_shapes)
    with tf1.tpu.bfloat16_scope():
        predictions = detector.predict(tf.cast(images, tf.bfloat16), true_shapes)

    def widened(tensor: Any) -> Any:
        is_narrow = tensor is not None and tensor.dtype == tf.bfloat16
        return tf.cast(tensor, tf.float32) if is_narrow else tensor

    return tf.nest.map_structure(widened, predictions)


def _label_map(pipeline_config: Any) -> Optional[LabelMap]:
    """That of the first evaluation reader which names one."""
    for reader in pipeline_config.eval_input_reader:
        if reader.label_map_path:
            return read_label_map(reader.label_map_path)
    return None


def _check_trainable(pipeline_config: Any) -> None:
    """Refuses what a float model would silently leave out of training."""
    if pipeline_config.HasField("graph_rewriter"):
        raise ConfigError(
            "graph_rewriter: training with simulated quantization is not supported. To train "
            "in float, remove the graph_rewriter block, or give --set graph_rewriter=null; a "
            "checkpoint of such a configuration is evaluated and exported as a float model"
        )


def create_model_fn(
    pipeline_config: Any, *, use_tpu: bool = False, label_map: Optional[LabelMap] = None
) -> Callable[..., Any]:
    """The `model_fn` of a pipeline configuration.

    Args:
        pipeline_config: `TrainEvalPipelineConfig` proto.
        use_tpu: Whether the function is for a `TPUEstimator`. Whether a step is built for a TPU's
            core is then up to `params["use_tpu"]`, which that Estimator sets; where it is not set,
            training and prediction are and evaluation is not. A training step that is not is a
            rehearsal: the same, but for what connects cores.
        label_map: Names the categories of an evaluation. By default the one that
            `eval_input_reader` names is read, when an evaluation is built.

    Returns:
        `model_fn(features, labels, mode, params, config)` with the keys of `inputs.schema`. The
        result is a `TPUEstimatorSpec` on a TPU's core and in a rehearsal of training, otherwise an
        `EstimatorSpec`. In training it raises `ConfigError` for a configuration with a
        graph_rewriter, which has no effect otherwise.
    """
    train_config, eval_config = pipeline_config.train_config, pipeline_config.eval_config

    def model_fn(
        features: Dict[str, tf.Tensor],
        labels: Optional[Dict[str, tf.Tensor]],
        mode: str,
        params: Optional[Dict[str, Any]] = None,
        config: Optional[Any] = None,
    ) -> Any:
        training = mode == ModeKeys.TRAIN
        on_core = use_tpu and (params or {}).get("use_tpu", mode != ModeKeys.EVAL)
        for_tpu = on_core or (use_tpu and training)
        if training:
            _check_trainable(pipeline_config)
        model = with_static_shapes(pipeline_config.model) if for_tpu else pipeline_config.model
        detector = make_detector(model, is_training=training)
        predictions = _predict(detector, features, for_tpu and train_config.use_bfloat16)

        if mode == ModeKeys.PREDICT:
            return _finish(
                _predict_spec(detector, predictions, features, eval_config, config), on_core
            )

        warm = None
        if training:
            warm = warm_start.plan_warm_start(detector, train_config, config and config.model_dir)
            # Off TPU before the optimizer, for moving averages start where variables do.
            if warm and not for_tpu:
                warm_start.initialize_from(warm)

        groundtruth = groundtruth_from_labels(labels or {})
        if eval_config.use_dummy_loss_in_eval and not training:
            losses = {train.TOTAL_LOSS: tf.constant(1.0)}
        else:
            losses = train.with_total(
                detector.loss(predictions, groundtruth),
                detector,
                train_config.add_regularization_loss,
            )
        global_step = tf1.train.get_or_create_global_step()

        if mode == ModeKeys.EVAL:
            learning_rate = optimizers.make_optimizer(train_config.optimizer, global_step)[1]
            detections = detector.postprocess(predictions, features[schema.TRUE_IMAGE_SHAPE])
            spec = tpu_estimator.TPUEstimatorSpec(
                mode,
                predictions=detections.as_dict(),
                loss=losses[train.TOTAL_LOSS],
                eval_metrics=eval_ops.eval_metrics(
                    detections,
                    groundtruth,
                    features,
                    eval_config=eval_config,
                    categories=eval_ops.make_categories(
                        label_map or _label_map(pipeline_config), detector.num_classes
                    ),
                    losses=losses,
                    learning_rate=learning_rate,
                ),
                scaffold_fn=_inference_scaffold(eval_config, config),
            )
            return _finish(spec, on_core)

        optimizer, learning_rate = optimizers.make_optimizer(train_config.optimizer, global_step)
        total, updates = losses[train.TOTAL_LOSS], detector.updates()
        told = None
        if for_tpu:
            train_op, norm = tpu_step.make_train_op(
                total, optimizer, global_step, train_config, updates, on_core=on_core
            )
            if config is not None:
                figures = {
                    **losses,
                    "learning_rate": learning_rate,
                    train_graph.GRADIENT_NORM: norm,
                }
                with tf.control_dependencies([train_op]):
                    step = tf.identity(global_step)
                told = host_call.make_host_call(
                    config.model_dir, figures, step, config.tpu_config.iterations_per_loop
                )
        else:
            train.report(losses, learning_rate)
            train_graph.note_batch(features, labels or {})
            input_images.summarize(
                features, groundtruth, detector.preprocess, pipeline_config.train_input_reader
            )
            train_op = train.make_train_op(total, optimizer, global_step, train_config, updates)

        def scaffold() -> Any:
            if warm and for_tpu:
                tpu_step.initialize_from(warm)
            saver = train.make_saver(train_config, config.keep_checkpoint_max if config else 5)
            return train.make_scaffold(saver, config)

        spec = tpu_estimator.TPUEstimatorSpec(
            mode, loss=total, train_op=train_op, host_call=told, scaffold_fn=scaffold
        )
        return _finish(spec, for_tpu)

    return model_fn


def _predict_spec(
    detector: Detector,
    predictions: Any,
    features: Dict[str, tf.Tensor],
    eval_config: Any,
    config: Any,
) -> Any:
    """Detections as they are served: classes count from 1."""
    detections = detector.postprocess(predictions, features[schema.TRUE_IMAGE_SHAPE])
    served = detections._replace(classes=detections.classes + 1.0).as_dict()
    served = {name: tf.identity(tensor, name=name) for name, tensor in served.items()}
    return tpu_estimator.TPUEstimatorSpec(
        ModeKeys.PREDICT,
        predictions=served,
        export_outputs={_SERVING: estimator.export.PredictOutput(served)},
        scaffold_fn=_inference_scaffold(eval_config, config),
    )


def _inference_scaffold(eval_config: Any, config: Any) -> Callable[[], Any]:
    """Reads moving averages in place of the variables, where the configuration says so."""

    def scaffold() -> Any:
        saver = train.moving_average_saver() if eval_config.use_moving_averages else None
        return train.make_scaffold(saver, config)

    return scaffold


def _finish(spec: Any, for_tpu: bool) -> Any:
    return spec if for_tpu else spec.as_estimator_spec()
