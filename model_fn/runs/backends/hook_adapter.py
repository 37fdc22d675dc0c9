"""Calls the hooks of a run around the steps of an Estimator."""

from __future__ import annotations

from typing import Any, Dict, Sequence

from estimator_det.compat import tf, tf1
from model_fn.checkpoints import repair
from model_fn.checkpoints.errors import VARIABLES_LOST, SessionLostError
from model_fn.checkpoints.variables import check_resumable
from model_fn.runs.context import RunContext
from model_fn.runs.hooks import Hook, StepResult
from model_fn.training.step import TrainGraph

SUMMARY_STEPS = 100  # between two summaries


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
        with tf.control_dependencies([step.train_op]):
            step_after = tf.identity(self._global_step.read_value())
        # The same at every step: another set of fetches would make TensorFlow optimize again.
        return {
            "step": step_after,
            "scalars": step.scalars,
            "checks": step.checks,
            "input_wait": step.input_wait,
            "positions": list(step.positions),
            "summary": step.summary.serialized,
        }

    def after_create_session(self, session: tf1.Session, coord: Any) -> None:
        del coord
        if self.session is not None:  # It would read the data from their start once more.
            raise SessionLostError(VARIABLES_LOST)
        self.session, self._step = session, int(session.run(self._global_step))
        for hook in self._hooks:
            hook.begin(self._context, self._step)

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
        # Of steps of other workers, an Estimator's own hook hears one batch later.
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
