"""How steps are executed, behind one interface.

By an Estimator, by those of a cluster, by a TPUEstimator or by a TF2 loop.
"""

from __future__ import annotations

from model_fn.runs.backends.base import Backend, Evaluator
from model_fn.runs.cluster import PARAMETER_SERVER as SERVER_TASK
from model_fn.runs.context import RunContext
from model_fn.runs.loop_options import PARAMETER_SERVER

__all__ = ["Backend", "Evaluator", "make_backend", "serve_others"]


def make_backend(context: RunContext) -> Backend:
    """The backend of a run: an Estimator, unless options for another one are given."""
    loop, tpu, cluster = context.options.loop, context.options.tpu, context.cluster
    if loop is not None and loop.strategy == PARAMETER_SERVER and cluster.is_chief:
        from model_fn.runs.backends.distributed.coordinator import CoordinatorBackend

        return CoordinatorBackend(context, loop)
    if loop is not None:
        from model_fn.runs.backends.distributed.backend import LoopBackend

        return LoopBackend(context, loop)
    if tpu is not None:
        from model_fn.runs.backends.tpu_estimator import TpuBackend

        return TpuBackend(context, tpu)
    if not cluster.task.is_alone and not cluster.is_evaluator:
        from model_fn.runs.backends.parameter_servers import ParameterServerBackend

        return ParameterServerBackend(context)
    from model_fn.runs.backends.estimator import EstimatorBackend

    return EstimatorBackend(context)


def serve_others(context: RunContext) -> bool:
    """Runs the part of this process in a cluster, if it takes no steps; True if that is done."""
    loop, cluster = context.options.loop, context.cluster
    if loop is None:
        if cluster.task.type != SERVER_TASK:
            return False
        from model_fn.runs.backends import parameter_servers

        parameter_servers.serve(context)
        return True
    if loop.strategy != PARAMETER_SERVER or cluster.is_chief or cluster.is_evaluator:
        return False
    from model_fn.runs.backends.distributed import coordinator

    coordinator.serve(context, loop)
    return True
