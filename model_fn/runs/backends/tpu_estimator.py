"""Runs steps by `TPUEstimator`: its input, and a report once a loop."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Callable, Dict, Iterator, Optional, Sequence

from estimator_det.compat import failures, tf, tf1, tpu_estimator
from estimator_det.config.derived_models import static_batches
from estimator_det.errors import ConfigError, NotFiniteLossError
from estimator_det.protos import pipeline_pb2
from inputs import tpu as tpu_input
from inputs.bad_records.log import FaultLog
from inputs.records.cursor import DataCursor
from model_fn.model_fn import ModelFn
from model_fn.runs import progress, roles
from model_fn.runs.backends import strategies
from model_fn.runs.backends.base import Backend, Training, make_train_input_fn
from model_fn.runs.backends.estimator import HookAdapter
from model_fn.runs.cluster import SINGLE, estimator_environment
from model_fn.runs.context import Hook, RunContext, StepResult
from model_fn.runs.options import TpuOptions


def make_estimator(
    model_fn: ModelFn,
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    model_dir: str,
    *,
    tpu: TpuOptions,
    seed: Optional[int] = None,
    params: Optional[Dict[str, Any]] = None,
) -> Any:
    """Builds a `TPUEstimator`: a synchronous batch over all cores, records read by each host.

    The TPUEstimator saves no checkpoints by itself: runs bring a hook for that. `model_fn` was made
    with `use_tpu`.
    """
    roles.check_tpu(pipeline_config, model_dir, tpu)
    lookup_errors = strategies.tpu_lookup_errors(tpu.name, tpu.zone, tpu.project)
    with estimator_environment(SINGLE), lookup_errors:
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
                # Estimators do not replicate a single shard.
                num_shards=tpu.num_shards if tpu.num_shards > 1 else None,
                per_host_input_for_training=tpu_estimator.InputPipelineConfig.PER_HOST_V2,
            ),
        )
    evaluation_batch = pipeline_config.eval_config.batch_size
    return tpu_estimator.TPUEstimator(
        model_fn,
        config=run_config,
        params=params or {},
        use_tpu=not tpu.rehearses,
        train_batch_size=pipeline_config.train_config.batch_size,
        eval_batch_size=evaluation_batch,
        predict_batch_size=evaluation_batch,
        eval_on_tpu=tpu.evaluates,
        export_to_tpu=False,
    )


@contextlib.contextmanager
def explained(tpu: TpuOptions) -> Iterator[None]:
    """Context manager: errors of a TPUEstimator become errors of a run."""
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
        raise strategies.unreachable(tpu.name, str(error)) from error


class _TpuAdapter(HookAdapter):
    """Calls hooks after each loop on the TPU; in a rehearsal, after each step.

    The scalars belong to the last step that arrived at the host. `restore_loops` is called when the
    graph is built, before its session runs.
    """

    def __init__(
        self,
        context: RunContext,
        model_fn: ModelFn,
        make_hooks: Callable[[Training], Sequence[Hook]],
        restore_loops: Callable[[], None],
    ) -> None:
        super().__init__(context, model_fn, make_hooks)
        self._restore_loops = restore_loops

    def _make_fetches(self) -> Any:
        self._restore_loops()
        return [tf1.train.get_global_step(), self._built.step.variable().read_value()]

    def _arguments(self) -> Any:
        return None

    def _result(self, results: Any) -> StepResult:
        assert self.session is not None
        step, values = self.session.run(self._fetches)
        return StepResult(int(step), int(step) - self._step, self._built.step.scalars(values))


def evaluation_steps(pipeline_config: pipeline_pb2.TrainEvalPipelineConfig) -> int:
    """Number of whole batches in `eval_config.num_examples`, which a TPU must know."""
    config = pipeline_config.eval_config
    steps = config.num_examples // max(config.batch_size, 1)
    if not steps:
        raise ConfigError.at(
            "eval_config.num_examples",
            f"is {config.num_examples}, less than a batch of {config.batch_size}: a "
            "TPU must know how many images to evaluate",
            "Set it to the number of images, or evaluate on this machine",
        )
    return steps


class TpuBackend(Backend):
    """A TPUEstimator, or its rehearsal on this machine."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context, position_files=[])
        assert context.options.tpu is not None
        self._tpu = context.options.tpu
        self._functional_loops = contextlib.ExitStack()  # restores them when it is closed

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with explained(self._tpu), self._functional_loops:
            # TPUEstimator puts the whole model into a loop. In a function, layers with a
            # regularizer cannot be built in bfloat16: the stand-in of a variable has no name.
            if tf1.control_flow_v2_enabled():
                tf1.disable_control_flow_v2()
                self._functional_loops.callback(tf1.enable_control_flow_v2)
            yield

    def input_fn(
        self, cursors: Sequence[DataCursor], first_step: int, fault_log: FaultLog
    ) -> Callable[..., Any]:
        del cursors
        context = dataclasses.replace(self._context, config=static_batches(self._context.config))
        input_fn = make_train_input_fn(
            context,
            None,
            first_step,
            fault_log,
            runs_elsewhere=not self._tpu.has_local_files,
            images_per_step=context.config.train_config.batch_size,
        )
        return tpu_input.make_tpu_input_fn(input_fn)

    def train(
        self, input_fn: Callable[..., Any], make_hooks: Callable[[Training], Sequence[Hook]]
    ) -> None:
        context = self._context
        model_fn = ModelFn(context.config, use_tpu=True)
        trainer = make_estimator(
            model_fn, context.config, context.model_dir, tpu=self._tpu, seed=context.options.seed
        )
        # Evaluations during the training build graphs with functional loops.
        adapter = _TpuAdapter(context, model_fn, make_hooks, self._functional_loops.close)
        adapter.train(trainer, input_fn)
