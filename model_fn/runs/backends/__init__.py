"""How steps are executed, behind one interface.

By an Estimator, by those of a cluster, by a TPUEstimator or by a TF2 loop.
"""

from __future__ import annotations

from typing import Any, Optional

from estimator_det.config.text import ConfigError
from model_fn.runs import cluster
from model_fn.runs.backends.base import Backend, Evaluator, RunSettings
from model_fn.runs.backends.tpu_options import OnTpu
from model_fn.runs.loop_options import PARAMETER_SERVER, InLoop

__all__ = ["Backend", "Evaluator", "RunSettings", "make_backend", "serve_others"]


def make_backend(
    settings: RunSettings, on_tpu: Optional[OnTpu] = None, in_loop: Optional[InLoop] = None
) -> Backend:
    """The backend of a run: an Estimator, unless options for another one are given.

    Args:
        settings: Of the run.
        on_tpu: A TPU, or its rehearsal.
        in_loop: The TF2 loop; not together with `on_tpu`.

    Raises:
        ConfigError: if options contradict each other, TF_CONFIG is malformed, or its cluster cannot
            train.
    """
    if on_tpu is not None and in_loop is not None:
        raise ConfigError("a run is on a TPU or in the TF2 loop; give one of on_tpu and in_loop")
    _check_data_service(settings, on_tpu or in_loop)
    if in_loop is not None and in_loop.strategy == PARAMETER_SERVER and cluster.is_chief():
        from model_fn.runs.backends.distributed.coordinator import CoordinatorBackend

        return CoordinatorBackend(settings, in_loop)
    if in_loop is not None:
        from model_fn.runs.backends.distributed.backend import LoopBackend

        return LoopBackend(settings, in_loop)
    if on_tpu is not None:
        from model_fn.runs.backends.tpu_estimator import TpuBackend

        return TpuBackend(settings, on_tpu)
    task = cluster.read_task()
    if not task.is_alone and task.type != cluster.EVALUATOR:
        from model_fn.runs.backends.parameter_servers import ParameterServerBackend

        return ParameterServerBackend(settings)
    from model_fn.runs.backends.estimator import EstimatorBackend

    return EstimatorBackend(settings)


def _check_data_service(settings: RunSettings, other: Optional[Any]) -> None:
    """Refuses a data service beside options of another backend than Estimator."""
    if settings.data_service is not None and other is not None:
        raise ConfigError(
            "tf_data_service works with Estimator alone; remove it, or the options of a TPU or of "
            "the TF2 loop"
        )


def serve_others(settings: RunSettings, in_loop: Optional[InLoop] = None) -> bool:
    """Whether this process has a part without steps of its own, which is over at the return.

    Args:
        settings: Of the run.
        in_loop: The TF2 loop, or None for an Estimator.

    Raises:
        ConfigError: if the cluster or the configuration does not allow it.
        Stopped: and the other errors of `cluster_tasks.serve`.
    """
    task = cluster.read_task()
    if in_loop is None:
        if task.type != cluster.PARAMETER_SERVER:
            return False
        from model_fn.runs.backends import parameter_servers

        parameter_servers.serve(settings)
        return True
    _check_data_service(settings, in_loop)
    if in_loop.strategy != PARAMETER_SERVER or cluster.is_chief() or cluster.is_evaluator():
        return False
    from model_fn.runs.backends.distributed import coordinator

    coordinator.serve(settings, in_loop)
    return True
