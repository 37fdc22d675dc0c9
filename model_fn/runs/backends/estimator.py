"""Runs steps by `tf.estimator.Estimator` in one process, and calls hooks around them."""

from __future__ import annotations

import contextlib
import copy
import logging
from typing import Any, Callable, ContextManager, Dict, List, Optional, Sequence

from estimator_det.compat import estimator, tf, tf1
from estimator_det.detectors.base import make_preprocessor
from inputs import pipeline as input_pipeline
from inputs.bad_records.log import FaultLog
from inputs.records.cursor import FROM_STEP, DataCursor, derived_seed
from model_fn.checkpoints import repair
from model_fn.checkpoints.errors import VARIABLES_LOST, SessionLostError
from model_fn.checkpoints.variables import check_resumable
from model_fn.evaluation.accumulator import OnResults
from model_fn.model_fn import create_model_fn
from model_fn.runs.backends import Evaluator
from model_fn.runs.cluster import SINGLE, Cluster, estimator_environment
from model_fn.runs.context import Hook, RunContext, StepResult
from model_fn.runs.data_cursor import position_file
from model_fn.runs.options import FLOAT32, MIXED_BFLOAT16, MIXED_FLOAT16
from model_fn.training.step import TrainGraph

_LOG = logging.getLogger(__name__)

SUMMARY_STEPS = 100  # between two summaries
_TYPES = {FLOAT32: tf.float32, MIXED_FLOAT16: tf.float16, MIXED_BFLOAT16: tf.bfloat16}


class HookAdapter(tf1.train.SessionRunHook):
    """Turns what an Estimator's session does into calls of hooks."""

    def __init__(self, context: RunContext, graph: TrainGraph, hooks: Sequence[Hook]) -> None:
        self._context, self._graph, self._hooks = context, graph, hooks
        self._timer = tf1.train.SecondOrStepTimer(every_steps=SUMMARY_STEPS)
        self._step = 0  # after the last call
        self.session: Any = None

    def begin(self) -> None:
        """Compares the graph with the checkpoint to resume from, before anything changes there."""
        self._global_step = tf1.train.get_global_step()
        self._fetches = self._make_fetches()
        latest = tf1.train.latest_checkpoint(self._context.model_dir)
        if latest is not None and self._context.cluster.is_chief:
            wanted = {variable.op.name: variable for variable in tf1.global_variables()}
            with repair.restoring(latest):
                check_resumable(latest, wanted, self._context.config.model)

    def _make_fetches(self) -> Any:
        step = self._graph.step
        with tf.control_dependencies([step.applied.op]):
            step_after = tf.identity(self._global_step.read_value())
        # The same at every step: another set of fetches would make TensorFlow optimize again.
        return {
            "step": step_after,
            "scalars": step.scalars,
            "checks": step.applied.checks,
            "input_wait": step.input_wait,
            "positions": list(step.positions),
            "summary": step.summary.serialized,
        }

    def after_create_session(self, session: tf1.Session, coord: Any) -> None:
        if self.session is not None:  # It would read the data from their start once more.
            raise SessionLostError(VARIABLES_LOST)
        self.session, self._step = session, int(session.run(self._global_step))
        for hook in self._hooks:
            hook.begin(self._context, self._step)
        if self._context.stop.is_requested:
            coord.request_stop()

    def before_run(self, run_context: Any) -> Any:
        del run_context
        for hook in self._hooks:
            hook.before_step(self._step)
        return self._arguments()

    def _arguments(self) -> Any:
        is_chief = self._context.cluster.is_chief
        is_due = is_chief and self._timer.should_trigger_for_step(self._step + 1)
        if is_due:
            self._timer.update_last_triggered_step(self._step + 1)
        feeds = {self._graph.step.summary.is_due: is_due}
        return tf1.train.SessionRunArgs(self._fetches, feed_dict=feeds)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        result = self._result(run_values.results)
        self._step = result.step
        for hook in self._hooks:
            hook.after_step(result)
        # An Estimator's own hook notices the steps of other workers one batch later.
        num_steps = self._context.num_steps
        is_last = num_steps is not None and result.step >= num_steps
        if is_last or self._context.stop.is_requested:
            run_context.request_stop()

    def _result(self, results: Any) -> StepResult:
        result = StepResult(
            step=int(results["step"]),
            num_taken=1,
            scalars=_floats(results["scalars"]),
            checks=_floats(results["checks"]),
            input_wait=float(results["input_wait"]),
            positions=results["positions"],
            summary=bytes(results["summary"]),
        )
        if result.is_finite:
            return result
        return result._replace(num_taken=0, rejected=self._graph.step.rejected.arrays)

    def end(self, session: tf1.Session) -> None:
        step = int(session.run(self._global_step))
        for hook in self._hooks:
            hook.end(step)


def _floats(values: Dict[str, Any]) -> Dict[str, float]:
    return {name: float(value) for name, value in values.items()}


def make_estimator(
    pipeline_config: Any,
    model_dir: str,
    *,
    cluster: Cluster = SINGLE,
    seed: Optional[int] = None,
    graph: Optional[TrainGraph] = None,
    handle_results: Optional[OnResults] = None,
    checkpoint: Optional[str] = None,
    compute_dtype: tf.DType = tf.float32,
    **run_options: Any,
) -> Any:
    """Builds an `Estimator`; `run_options` are more settings of its `RunConfig`.

    It saves no checkpoints by itself: runs bring a hook for that.
    """
    if handle_results is not None:
        run_options.setdefault("session_config", _evaluation_session())
    with estimator_environment(cluster):
        run_config = estimator.RunConfig(
            model_dir=model_dir,
            tf_random_seed=seed,
            # The hooks of a run do that: an Estimator's fetch something else in some steps.
            save_summary_steps=0,
            log_step_count_steps=None,
            **{"save_checkpoints_steps": None, "save_checkpoints_secs": None, **run_options},
        )
    model_fn = create_model_fn(
        pipeline_config, graph=graph, handle_results=handle_results, compute_dtype=compute_dtype
    )
    return estimator.Estimator(model_fn, config=run_config, params={"checkpoint": checkpoint})


def _evaluation_session() -> Optional[tf1.ConfigProto]:
    """Without the graph optimizers that find nothing on CPUs; None for an Estimator's own."""
    if tf.config.list_physical_devices("GPU"):
        return None
    config = tf1.ConfigProto(allow_soft_placement=True)
    options = config.graph_options.rewrite_options
    options.meta_optimizer_iterations = options.ONE  # An Estimator's own has this, too.
    options.memory_optimization = options.NO_MEM_OPT
    options.layout_optimizer = options.OFF
    return config


def network_type(context: RunContext) -> tf.DType:
    """Type that the network of a training computes in."""
    if context.options.is_for_tpu:
        return tf.bfloat16 if context.config.train_config.use_bfloat16 else tf.float32
    return _TYPES[context.options.precision or FLOAT32]


def make_train_input_fn(
    context: RunContext,
    cursor: Optional[DataCursor],
    first_step: int,
    fault_log: FaultLog,
    *,
    shares_steps: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """Builds the input function of a training by Estimator.

    Args:
        shares_steps: Other workers take steps, too, so that the step is not known.
        **options: More of `create_train_input_fn`.
    """
    config, seed = copy.deepcopy(context.config), context.options.seed
    # The report of a bad step names its images.
    config.train_input_reader.include_source_id = True
    input_fn: Callable[..., Any] = input_pipeline.create_train_input_fn(
        config,
        make_preprocessor(config.model),
        seed=seed if cursor is not None else derived_seed(seed, FROM_STEP, first_step),
        fault_log=fault_log,
        cursor=cursor,
        data_service=context.options.data_service,
        first_step=None if shares_steps or context.options.data_service else first_step,
        **options,
    )
    return input_fn


def _session_config(cluster: Cluster) -> Optional[tf1.ConfigProto]:
    """Without graph optimization on CPUs; None for an Estimator's own, which clusters need.

    It takes a second until the first step, and makes no later one faster: what it joins for CPUs
    are operations of one reader, and in training the gradient is another one.
    """
    if not cluster.task.is_alone or tf.config.list_physical_devices("GPU"):
        return None
    config = tf1.ConfigProto(allow_soft_placement=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    # The session keeps the graph of initial values. Without a limit it folds into constants the
    # zeros and ones that optimizers start from, and holds each of these twice.
    config.graph_options.optimizer_options.max_folded_constant_in_bytes = 2**16
    return config


class EstimatorBackend:
    """An Estimator in this process; `Backend` says what its methods do."""

    _adapter: HookAdapter  # adapter of the training that runs

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self.position_files: Sequence[str] = (
            [] if context.options.data_service else [position_file(context.cluster)]
        )
        if context.options.data_service is not None:
            _LOG.warning(
                "tf.data service: each record is read once an epoch as long as no data worker "
                "fails; those that a failed one has not delivered are missing in that epoch. The "
                "position in the data is not saved: a resumed run begins with a new epoch, in a "
                "new order. A record that cannot be used ends the run, whatever bad_records says"
            )
        self._build_estimator: Callable[..., Any] = make_estimator
        self.graph = TrainGraph(context.stop)

    def running(self) -> ContextManager[None]:
        return contextlib.nullcontext()

    def common_step(self, own_step: int) -> int:
        return own_step

    def input_fn(
        self, cursors: Sequence[DataCursor], first_step: int, fault_log: FaultLog
    ) -> Callable[..., Any]:
        return make_train_input_fn(self._context, next(iter(cursors), None), first_step, fault_log)

    def train(self, input_fn: Callable[..., Any], hooks: Sequence[Hook]) -> None:
        adapter = HookAdapter(self._context, self.graph, hooks)
        self._train(self._make_trainer(), input_fn, adapter)

    def _make_trainer(self, **run_options: Any) -> Any:
        return self._make_estimator(
            cluster=self._context.cluster,
            graph=self.graph,
            compute_dtype=network_type(self._context),
            session_config=_session_config(self._context.cluster),
            **run_options,
        )

    def _make_estimator(self, **arguments: Any) -> Any:
        context = self._context
        return self._build_estimator(
            context.config, context.model_dir, seed=context.options.seed, **arguments
        )

    def _train(self, trainer: Any, input_fn: Callable[..., Any], adapter: HookAdapter) -> None:
        self._adapter = adapter
        users = [hook for hook in self._context.options.hooks if not isinstance(hook, Hook)]
        trainer.train(input_fn, hooks=[*users, adapter], max_steps=self._context.num_steps)

    def save(self, prefix: str) -> None:
        self.graph.saver.save(self._adapter.session, prefix, write_state=False)

    def trained_names(self) -> List[str]:
        return list(self.graph.step.applied.gradients)

    def graph_def(self) -> Any:
        return self._adapter.session.graph.as_graph_def(add_shapes=True)

    def evaluator(self) -> Evaluator:
        return Evaluator(self._context.model_dir, self._make_estimator)
