"""How steps are executed: by an Estimator, a TPUEstimator or a TF2 loop, behind one interface."""

from __future__ import annotations

from typing import Optional

from estimator_det.config.text import ConfigError
from model_fn.runs.backends.base import Backend, Evaluator, RunSettings
from model_fn.runs.backends.tpu_options import OnTpu
from model_fn.runs.loop_options import InLoop

__all__ = ["Backend", "Evaluator", "RunSettings", "make_backend"]


def make_backend(
    settings: RunSettings, on_tpu: Optional[OnTpu] = None, in_loop: Optional[InLoop] = None
) -> Backend:
    """The backend of a run: an Estimator, unless options for another one are given.

    Args:
        settings: Of the run.
        on_tpu: A TPU, or its rehearsal.
        in_loop: The TF2 loop; not together with `on_tpu`.
    """
    if on_tpu is not None and in_loop is not None:
        raise ConfigError("a run is on a TPU or in the TF2 loop; give one of on_tpu and in_loop")
    if in_loop is not None:
        from model_fn.runs.backends.distributed.backend import LoopBackend

        return LoopBackend(settings, in_loop)
    if on_tpu is not None:
        from model_fn.runs.backends.tpu_estimator import TpuBackend

        return TpuBackend(settings, on_tpu)
    from model_fn.runs.backends.estimator import EstimatorBackend

    return EstimatorBackend(settings)
