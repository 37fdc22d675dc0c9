"""The model_fn: features and labels become an EstimatorSpec, or a TPUEstimatorSpec on TPU."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

from estimator_det.compat import estimator, tf, tf1, tpu_estimator
from estimator_det.config.derived_models import with_static_shapes
from estimator_det.config.rules import require
from estimator_det.detectors.base import (
    BatchDetections,
    Groundtruth,
    TrainableDetector,
    build_detector,
)
from estimator_det.protos import model_pb2, pipeline_pb2, train_pb2
from inputs import schema
from inputs.label_map import LabelMap, optional_label_map
from model_fn.checkpoints.object_based import stored_variables
from model_fn.checkpoints.savers import (
    CheckpointWeights,
    EvaluationSaver,
    Saver,
    make_saver,
    make_scaffold,
)
from model_fn.checkpoints.variables import inference_variables
from model_fn.evaluation import eval_ops
from model_fn.evaluation.accumulator import Accumulator
from model_fn.serving import graph as serving_graph
from model_fn.training import optimizers, step, tpu_step, warm_start
from model_fn.training.sync_replicas import SyncReplicasHook

ModeKeys = estimator.ModeKeys


class _Batch(NamedTuple):
    features: Dict[str, tf.Tensor]
    labels: Dict[str, tf.Tensor]
    run_config: Any  # `RunConfig`, or None outside an Estimator


class BuiltTraining(NamedTuple):
    """Parts of a training's graph, for hooks."""

    saver: Saver
    step: Any  # `TrainStep`; `HostValues` on a TPU, where hooks cannot fetch from steps


class ModelFn:
    """The `model_fn` of a pipeline configuration without errors.

    Called with features and labels under the keys of `inputs.schema`, it returns a
    `TPUEstimatorSpec` on a TPU's core and in a rehearsal of training, otherwise an `EstimatorSpec`.
    An evaluation whose `params["checkpoint"]` names the checkpoint has its weights as constants, if
    they are not too many, which makes each image a third faster. With `params["is_short"]` it feeds
    them, which makes it start faster.

    Args:
        use_tpu: The function is for a `TPUEstimator`, which sets `params["use_tpu"]` if it builds a
            step for a TPU's core. By default, training and prediction are for a core, and
            evaluation is not. A training step that is not for a core is a rehearsal: the same
            without the sums over cores.
        label_map: Names the categories of an evaluation. By default the label map
            that `eval_input_reader` names is read, when an evaluation is built.
        types: What the network computes in while it trains; evaluations have the type of
            convolutions alone. On a TPU `train_config.use_bfloat16` says it.
        stop: The run's `Stop`, which ends a step that waits for other workers; None without a run.

    Attributes:
        built: Parts of the last training that was built; None if there was none.
        accumulator: Gets the batches of the last evaluation that was built.
    """

    def __init__(
        self,
        pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
        *,
        use_tpu: bool = False,
        label_map: Optional[LabelMap] = None,
        types: step.NetworkTypes = step.FLOAT32,
        stop: Any = None,
    ) -> None:
        self._config, self._use_tpu, self._label_map = pipeline_config, use_tpu, label_map
        self._types, self._stop = types, stop
        self.built: Optional[BuiltTraining] = None
        self.accumulator: Optional[Accumulator] = None

    def __call__(
        self,
        features: Dict[str, tf.Tensor],
        labels: Optional[Dict[str, tf.Tensor]],
        mode: str,
        params: Optional[Dict[str, Any]] = None,
        config: Optional[Any] = None,
    ) -> Any:
        batch, params = _Batch(features, labels or {}, config), params or {}
        is_on_core = self._use_tpu and bool(params.get("use_tpu", mode != ModeKeys.EVAL))
        # A rehearsal trains by the TPU's code on CPU, so `use_tpu` decides, not the device.
        if mode == ModeKeys.TRAIN:
            if self._use_tpu:
                return self._train_spec_for_tpu(batch, is_on_core=is_on_core)
            return self._train_spec(batch)
        if mode == ModeKeys.EVAL:
            categories = eval_ops.evaluated_categories(self._config, self._label_map)
            feed = eval_ops.EvaluationFeed(self._config.eval_config, categories)
            self.accumulator = feed.accumulator
            spec = _eval_spec(
                self._config,
                batch,
                feed,
                params,
                self._types_of_inference(is_on_core),
                is_on_core,
            )
        else:
            types = self._types_of_inference(is_on_core)
            spec = _predict_spec(self._config, batch, types, is_on_core)
        # Off a core, TPUEstimator hands the spec to an Estimator, which knows only its own type.
        return spec if is_on_core else spec.as_estimator_spec()

    def _types_of_inference(self, is_on_core: bool) -> step.NetworkTypes:
        if is_on_core:
            return _types_on_core(self._config.train_config)
        return step.NetworkTypes(convolutions=self._types.convolutions)

    def _train_spec(self, batch: _Batch) -> Any:
        train_config, run_config = self._config.train_config, batch.run_config
        used = batch._replace(labels=step.without_padding(batch.labels))
        detector, forward, table = _forward(self._config, self._config.model, used, self._types)
        # Before the optimizer: moving averages start where variables do.
        if table:
            warm_start.initialize_from(table)
        # Workers, with the chief, that share variables of parameter servers.
        is_shared = run_config is not None and run_config.num_ps_replicas
        num_replicas = run_config.num_worker_replicas if is_shared else None
        label_map = self._label_map or optional_label_map(
            self._config.train_input_reader.label_map_path
        )
        train_step = step.make_train_step(
            detector, forward, batch.features, batch.labels, self._config, label_map, num_replicas
        )
        self.built = BuiltTraining(make_saver(train_config, run_config), train_step)
        hooks = []
        if train_step.synchronizing is not None:
            hooks = [SyncReplicasHook(train_step.synchronizing, run_config.is_chief, self._stop)]
        return estimator.EstimatorSpec(
            ModeKeys.TRAIN,
            loss=forward.losses[step.TOTAL_LOSS],
            train_op=train_step.applied.op,
            training_hooks=hooks,
            scaffold=make_scaffold(self.built.saver, run_config, train_step.summary.serialized),
        )

    def _train_spec_for_tpu(self, batch: _Batch, *, is_on_core: bool) -> Any:
        train_config, run_config = self._config.train_config, batch.run_config
        detector, forward, table = _forward(
            self._config,
            with_static_shapes(self._config.model),
            batch,
            _types_on_core(train_config),
        )
        train_op, scalars = tpu_step.make_core_step(
            detector, forward, train_config, is_on_core=is_on_core
        )
        host_values = tpu_step.HostValues(list(scalars))
        reported = None
        if run_config is not None:
            # The host must read the step after its update, else reports are one step late.
            with tf.control_dependencies([train_op]):
                step_taken = tf.identity(tf1.train.get_global_step())
            reported = tpu_step.make_host_call(
                run_config.model_dir,
                scalars,
                step_taken,
                run_config.tpu_config.iterations_per_loop,
                host_values,
            )

        # Called on the host after the core's program is built: variables do not exist before.
        def scaffold() -> Any:
            if table:
                warm_start.initialize_from(table)
            self.built = BuiltTraining(make_saver(train_config, run_config), host_values)
            return make_scaffold(self.built.saver, run_config)

        return tpu_estimator.TPUEstimatorSpec(
            ModeKeys.TRAIN,
            loss=forward.losses[step.TOTAL_LOSS],
            train_op=train_op,
            host_call=reported,
            scaffold_fn=scaffold,
        )


def create_model_fn(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, **options: Any
) -> ModelFn:
    """Checks a pipeline configuration, and returns its `model_fn`.

    Args:
        **options: More arguments of `ModelFn`.
    """
    require(pipeline_config, "model", "graph_rewriter")
    return ModelFn(pipeline_config, **options)


def _forward(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    model: model_pb2.DetectionModel,
    batch: _Batch,
    types: step.NetworkTypes,
) -> Tuple[TrainableDetector, step.Forward, Optional[warm_start.RestoreTable]]:
    """Detector and forward pass of training, and what the fine-tuning checkpoint restores."""
    train_config = pipeline_config.train_config
    detector = build_detector(model, True, pipeline_config.graph_rewriter)
    forward = step.forward(
        detector,
        batch.features,
        batch.labels,
        add_regularization=train_config.add_regularization_loss,
        types=types,
    )
    # Tests and users call the function without a RunConfig.
    model_dir = batch.run_config and batch.run_config.model_dir
    table = warm_start.plan_warm_start(detector, train_config, model_dir, pipeline_config.model)
    return detector, forward, table


def _eval_spec(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    batch: _Batch,
    feed: eval_ops.EvaluationFeed,
    params: Dict[str, Any],
    types: step.NetworkTypes,
    is_on_core: bool,
) -> Any:
    use_averages = pipeline_config.eval_config.use_moving_averages
    checkpoint: Optional[str] = params.get("checkpoint")
    weights, labels = None, batch.labels
    if not is_on_core:
        if checkpoint:
            is_fed = bool(params.get("is_short"))
            weights = CheckpointWeights(checkpoint, use_averages, is_fed=is_fed)
        labels = step.without_padding(labels)
    groundtruth = step.groundtruth_from_labels(labels)
    with tf1.variable_scope("", custom_getter=weights):
        detector, predictions, detections = _detect(pipeline_config, batch, types, is_on_core)
        # Two-stage detectors learn masks on their detections, so these come before the loss.
        losses = _evaluated_losses(pipeline_config, detector, predictions, groundtruth, detections)
    if detector.is_class_agnostic:
        groundtruth = groundtruth._replace(classes=tf.ones_like(groundtruth.classes[:, :, :1]))
    # An export's checkpoint has no step; the evaluation then reports step 0.
    global_step = tf1.train.get_or_create_global_step()
    optimizer = pipeline_config.train_config.optimizer
    _, learning_rate = optimizers.make_optimizer(optimizer, global_step)
    return tpu_estimator.TPUEstimatorSpec(
        ModeKeys.EVAL,
        predictions=detections.to_dict(),
        loss=losses[step.TOTAL_LOSS],
        evaluation_hooks=weights.hooks() if weights else [],
        eval_metrics=feed.eval_metrics(
            detections, groundtruth, batch.features, losses, learning_rate
        ),
        scaffold_fn=lambda: make_scaffold(
            EvaluationSaver(
                stored_variables(checkpoint, detector, use_averages, pipeline_config.model),
                pipeline_config.model,
                weights.tensors if weights else {},
            ),
            batch.run_config,
        ),
    )


def _evaluated_losses(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    detector: TrainableDetector,
    predictions: Any,
    groundtruth: Groundtruth,
    detections: BatchDetections,
) -> step.Tensors:
    if pipeline_config.eval_config.use_dummy_loss_in_eval:
        return {step.TOTAL_LOSS: tf.constant(1.0)}
    is_regularized = pipeline_config.train_config.add_regularization_loss
    penalties = detector.regularization_losses() if is_regularized else []
    terms = detector.loss(predictions, groundtruth, detections).terms
    return step.with_total(terms, penalties)


def _predict_spec(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    batch: _Batch,
    types: step.NetworkTypes,
    is_on_core: bool,
) -> Any:
    _, _, detections = _detect(pipeline_config, batch, types, is_on_core)
    served = serving_graph.named_outputs(detections)

    def scaffold() -> Any:
        is_averaged = pipeline_config.eval_config.use_moving_averages
        saver = Saver(inference_variables(True), sharded=True) if is_averaged else None
        return make_scaffold(saver, batch.run_config)

    return tpu_estimator.TPUEstimatorSpec(
        ModeKeys.PREDICT,
        predictions=served,
        export_outputs={
            key: estimator.export.PredictOutput(served)
            for key in (serving_graph.SERVING_DEFAULT, serving_graph.PREDICT)
        },
        scaffold_fn=scaffold,
    )


def _types_on_core(train_config: train_pb2.TrainConfig) -> step.NetworkTypes:
    return step.NetworkTypes(tf.bfloat16) if train_config.use_bfloat16 else step.FLOAT32


def _detect(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    batch: _Batch,
    types: step.NetworkTypes,
    is_on_core: bool,
) -> Tuple[TrainableDetector, Any, BatchDetections]:
    """Detector, predictions and detections of an evaluation or a prediction."""
    model = pipeline_config.model
    model = with_static_shapes(model) if is_on_core else model
    detector = build_detector(model, False, pipeline_config.graph_rewriter)
    predictions = step.predict(detector, batch.features, types=types)
    true_shapes = batch.features[schema.TRUE_IMAGE_SHAPE]
    return detector, predictions, detector.postprocess(predictions, true_shapes)
