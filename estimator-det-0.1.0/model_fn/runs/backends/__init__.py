"""How steps are executed: by an Estimator or by a TPUEstimator, behind one interface."""

from __future__ import annotations

from typing import Optional

from model_fn.runs.backends.base import Backend, Evaluator, RunSettings
from model_fn.runs.backends.tpu_options import OnTpu

__all__ = ["Backend", "Evaluator", "RunSettings", "make_backend"]


def make_backend(settings: RunSettings, on_tpu: Optional[OnTpu] = None) -> Backend:
    """The backend of a run: a TPU, or its rehearsal, where `on_tpu` is given."""
    if on_tpu is not None:
        from model_fn.runs.backends.tpu_estimator import TpuBackend

        return TpuBackend(settings, on_tpu)
    from model_fn.runs.backends.estimator import EstimatorBackend

    return EstimatorBackend(settings)
