"""The part of this process in a cluster, as TF_CONFIG says."""

from __future__ import annotations

from estimator_det.compat import estimator


def is_chief() -> bool:
    """Whether this process saves: it does unless TF_CONFIG gives it another part in a cluster."""
    return bool(estimator.RunConfig().is_chief)


def is_evaluator() -> bool:
    """Whether TF_CONFIG makes this process the evaluator of a cluster."""
    return bool(estimator.RunConfig().task_type == "evaluator")


def is_in_cluster() -> bool:
    """Whether TF_CONFIG names a cluster."""
    return bool(estimator.RunConfig().cluster_spec.jobs)
