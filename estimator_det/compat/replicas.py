"""Access to TensorFlow's internals for a TF2 loop over replicas: TF1 optimizers and the seed."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Tuple

import tensorflow as tf
from tensorflow.python.distribute import multi_worker_util as _multi_worker_util
from tensorflow.python.eager import context as _context

tf1: Any = tf.compat.v1


class _SummedStrategy:
    """Replaces a strategy whose replicas have already summed their gradients."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    @property
    def extended(self) -> _SummedStrategy:
        return self

    def batch_reduce_to(self, operation: Any, pairs: Sequence[Tuple[Any, Any]]) -> Any:
        del operation
        return [gradient for gradient, _ in pairs]

    def group(self, value: Any, name: Optional[str] = None) -> Any:
        return self._strategy.group(value, name=name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy.extended, name)


def apply_summed(optimizer: Any, strategy: Any, pairs: Sequence[Tuple[Any, Any]]) -> None:
    """Applies gradients that replicas have summed already, outside of replicas.

    `apply_gradients` would sum them once more.
    """
    optimizer._distributed_apply(_SummedStrategy(strategy), list(pairs))


def make_slots(optimizer: Any, variables: Sequence[Any]) -> None:
    """Creates the variables of a TF1 optimizer before it applies gradients first."""
    optimizer._prepare()
    optimizer._create_slots(list(variables))


def shared_state(optimizer: Any) -> Dict[str, Any]:
    """Returns variables of a TF1 optimizer that belong to no model variable, e.g. "beta1_power".

    `optimizer.variables()` omits such variables created under a strategy of several replicas.
    """
    return {name: variable for (name, _), variable in optimizer._non_slot_dict.items()}


def eagerly() -> Any:
    """Returns a context in which operations run at once, even if a graph is the default one."""
    return _context.eager_mode()


def global_seed() -> Optional[int]:
    """Returns the seed that TensorFlow mixes into all others; None if it has none."""
    if tf.executing_eagerly():
        seed: Optional[int] = _context.global_seed()
        return seed
    graph_seed: Optional[int] = tf1.get_default_graph().seed
    return graph_seed


def limit_waiting(resolver: Any, secs: float) -> None:
    """Limits the time that workers wait for each other at their start; an hour by default."""
    spec = resolver.cluster_spec()
    coordination = tf1.ConfigProto().experimental.coordination_config
    for job in spec.jobs:
        coordination.coordinated_job_list.add(name=job, num_tasks=spec.num_tasks(job))
    _context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=_multi_worker_util.coordination_leader(spec),
        cluster_register_timeout_in_ms=int(secs * 1000),
        coordinated_jobs=list(coordination.coordinated_job_list),
    )
