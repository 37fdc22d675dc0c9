"""Runs steps by `TPUEstimator`: what it is fed, and what is reported of its loops."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, ContextManager, Dict, Iterator, Optional, Sequence, Tuple

from estimator_det.compat import failures, tf, tf1, tpu_estimator
from estimator_det.config.text import ConfigError
from estimator_det.detectors.base import make_preprocessor
from inputs import pipeline as input_pipeline
from inputs import schema
from inputs.bad_records.log import FaultLog
from inputs.records.cursor import FROM_STEP, DataCursor, derived_seed
from model_fn.evaluation.accumulator import OnResults, Results
from model_fn.model_fn import create_model_fn
from model_fn.runs import progress
from model_fn.runs.backends import Evaluator, strategies
from model_fn.runs.backends.estimator import EstimatorBackend, HookAdapter
from model_fn.runs.backends.strategies import NoTpuError
from model_fn.runs.cluster import SINGLE, estimator_environment
from model_fn.runs.context import Hook, RunContext, StepResult
from model_fn.runs.options import TpuOptions, check_static, check_tpu, static_batches
from model_fn.runs.progress import NotFiniteLossError
from model_fn.training.step import TrainGraph

# Features that a train step reads; the rest would only fill the path from host to cores.
FEATURES = tuple(key for key, spec in schema.FEATURES.items() if spec.in_train_step)
EVALUATION_FEATURES = tuple(key for key, spec in schema.FEATURES.items() if spec.in_eval_step)
_UNUSED_LABELS = tuple(key for key, spec in schema.LABELS.items() if not spec.on_tpu)


def make_estimator(
    pipeline_config: Any,
    model_dir: str,
    *,
    tpu: TpuOptions,
    seed: Optional[int] = None,
    graph: Optional[TrainGraph] = None,
    handle_results: Optional[OnResults] = None,
    checkpoint: Optional[str] = None,
) -> Any:
    """Builds a `TPUEstimator`: a synchronous batch over all cores, records read by each host.

    It saves no checkpoints by itself: runs bring a hook for that.
    """
    check_tpu(pipeline_config, model_dir, tpu)
    finding = strategies.finding(tpu.name, tpu.zone, tpu.project)
    with estimator_environment(SINGLE), finding:
        resolver = None
        if not tpu.rehearses:
            resolver = strategies.make_resolver(tpu.name, tpu.zone, tpu.project)
        # One entry of the speed a loop. TPUEstimator counts runs of its session, and without a TPU
        # each of them is a step.
        runs = tpu.iterations_per_loop if tpu.rehearses else 1
        run_config = tpu_estimator.RunConfig(
            model_dir=model_dir,
            tf_random_seed=seed,
            cluster=resolver,
            save_checkpoints_secs=None,
            save_checkpoints_steps=None,
            log_step_count_steps=tpu.iterations_per_loop * runs,
            tpu_config=tpu_estimator.TPUConfig(
                iterations_per_loop=tpu.iterations_per_loop,
                # Estimators handle a single shard as one that is not replicated at all.
                num_shards=tpu.num_shards if tpu.num_shards > 1 else None,
                per_host_input_for_training=tpu_estimator.InputPipelineConfig.PER_HOST_V2,
            ),
        )
    evaluation_batch = pipeline_config.eval_config.batch_size
    return tpu_estimator.TPUEstimator(
        create_model_fn(pipeline_config, use_tpu=True, graph=graph, handle_results=handle_results),
        config=run_config,
        params={"checkpoint": checkpoint},
        use_tpu=not tpu.rehearses,
        train_batch_size=pipeline_config.train_config.batch_size,
        eval_batch_size=evaluation_batch,
        predict_batch_size=evaluation_batch,
        eval_on_tpu=tpu.evaluates,
        export_to_tpu=False,
    )


# Restores functional loops. TPUEstimator puts the whole model into a loop; in a function, layers
# with a regularizer cannot be built in bfloat16: the stand-in of a variable there has no name.
_LOOPS = contextlib.ExitStack()


@contextlib.contextmanager
def running(tpu: TpuOptions) -> Iterator[None]:
    """Context manager: a TPUEstimator can build its graph and train, and errors are explained."""
    if tf1.control_flow_v2_enabled():
        tf1.disable_control_flow_v2()
        _LOOPS.callback(tf1.enable_control_flow_v2)
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        variable = failures.variable_with_nan(error)
        if variable is None:
            raise
        raise NotFiniteLossError(
            f"not finite after a loop of {tpu.iterations_per_loop} steps: {variable}. "
            f"{progress.TPU_REMEDY}"
        ) from error
    except (RuntimeError, ValueError) as error:
        if not failures.lacks_tpu(error):
            raise
        raise NoTpuError(
            f"TPU {tpu.name!r} has no cores that this machine can reach. Is it running, and "
            "this its network? To try the run without one, rehearse it: --rehearse_tpu"
        ) from error
    finally:
        _LOOPS.close()


def fed(input_fn: Callable[..., Any], *, evaluates: bool = False) -> Callable[..., Any]:
    """An input function for `TPUEstimator`: batches of static shape, of what cores make use of.

    Each host reads its own part of the records; a batch is that of one core,
    `params["batch_size"]`. ConfigError if the configuration leaves a shape open.
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
    # One replica: the batch size is that of a core already.
    return tf.distribute.InputContext(count, index, num_replicas_in_sync=1)


class TpuAdapter(HookAdapter):
    """Calls hooks after each loop on the TPU; in a rehearsal, after each step.

    The scalars are those of the last step that arrived at the host.
    """

    def _make_fetches(self) -> Any:
        _LOOPS.close()  # The graph about to run is built.
        self._graph.host_values.prepare()
        return None

    def _arguments(self) -> Any:
        return None

    def _result(self, results: Any) -> StepResult:
        step = int(self.session.run(self._global_step))
        scalars = self._graph.host_values.read(self.session)
        return StepResult(step, step - self._step, scalars)


class TpuEvaluator(Evaluator):
    """Evaluates whole batches of `eval_config.num_examples` images on the TPU; exports for CPU."""

    def __init__(
        self, pipeline_config: Any, model_dir: str, make_estimator: Callable[..., Any]
    ) -> None:
        config = pipeline_config.eval_config
        self._steps = config.num_examples // max(config.batch_size, 1)
        if not self._steps:
            raise ConfigError(
                "eval_config.num_examples",
                f"is {config.num_examples}, less than a batch of {config.batch_size}: a "
                "TPU must know how many images to evaluate",
                "Set it to the number of images, or evaluate on this machine",
            )
        super().__init__(model_dir, make_estimator)

    def evaluate(
        self, input_fn: Callable[..., Any], **options: Any
    ) -> Tuple[Dict[str, Any], Results]:
        return super().evaluate(fed(input_fn, evaluates=True), steps=self._steps, **options)


class TpuBackend(EstimatorBackend):
    """A TPUEstimator, or its rehearsal on this machine; `Backend` says what its methods do."""

    def __init__(self, context: RunContext, tpu: TpuOptions) -> None:
        super().__init__(context)
        self.position_files = []
        self._tpu = tpu
        self._build_estimator = functools.partial(make_estimator, tpu=tpu)

    def running(self) -> ContextManager[None]:
        return running(self._tpu)

    def input_fn(
        self, cursors: Sequence[DataCursor], first_step: int, fault_log: FaultLog
    ) -> Callable[..., Any]:
        del cursors
        config = static_batches(self._context.config)
        return fed(
            input_pipeline.create_train_input_fn(
                config,
                make_preprocessor(config.model),
                seed=derived_seed(self._context.options.seed, FROM_STEP, first_step),
                fault_log=fault_log,
                cursor=None,
                runs_elsewhere=not self._tpu.has_local_files,
                first_step=first_step,
                images_per_step=config.train_config.batch_size,
            )
        )

    def train(self, input_fn: Callable[..., Any], hooks: Sequence[Hook]) -> None:
        adapter = TpuAdapter(self._context, self.graph, hooks)
        self._train(self._make_estimator(graph=self.graph), input_fn, adapter)

    def evaluator(self) -> Evaluator:
        if self._tpu.evaluates:
            return TpuEvaluator(self._context.config, self._context.model_dir, self._make_estimator)
        return super().evaluator()
