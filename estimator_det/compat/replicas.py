"""What a TF2 loop over replicas needs of TensorFlow's internals: TF1 optimizers, and the seed."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple

import tensorflow as tf
from tensorflow.python.distribute import multi_worker_util as _multi_worker_util
from tensorflow.python.eager import context as _context

tf1: Any = tf.compat.v1


class _Summed:
    """Stands for a strategy whose replicas have summed their gradients already."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    @property
    def extended(self) -> _Summed:
        return self

    def batch_reduce_to(self, operation: Any, pairs: Sequence[Tuple[Any, Any]]) -> Any:
        del operation
        return [gradient for gradient, _ in pairs]

    def group(self, value: Any, name: Optional[str] = None) -> Any:
        return self._strategy.group(value, name=name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy.extended, name)


def apply_summed(optimizer: Any, strategy: Any, pairs: Sequence[Tuple[Any, Any]]) -> None:
    """Applies gradients that replicas have summed by themselves, outside of replicas.

    `apply_gradients` would sum them once more.

    Args:
        optimizer: Of TF1.
        strategy: Whose replicas made the gradients.
        pairs: Gradients, equal on all replicas, and variables.
    """
    optimizer._distributed_apply(_Summed(strategy), list(pairs))


def make_slots(optimizer: Any, variables: Sequence[Any]) -> None:
    """Creates the variables of a TF1 optimizer now, not when it applies gradients first."""
    optimizer._prepare()
    optimizer._create_slots(list(variables))


def shared_state(optimizer: Any) -> Dict[str, Any]:
    """Variables that a TF1 optimizer has once, by the names that it gives them: "beta1_power".

    `optimizer.variables()` leaves those out that were created under a strategy of several replicas.
    """
    return {name: variable for (name, _), variable in optimizer._non_slot_dict.items()}


@contextlib.contextmanager
def quiet_layers() -> Iterator[None]:
    """Within, layers of TF1 do not warn that TF2 has others; for the tracing of functions."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`layer\.(apply|updates)`", UserWarning)
        yield


def eagerly() -> Any:
    """A context in which operations run at once, even where a graph is the default one."""
    return _context.eager_mode()


def global_seed() -> Optional[int]:
    """The seed that TensorFlow mixes into every other one; None if it has none."""
    if tf.executing_eagerly():
        seed: Optional[int] = _context.global_seed()
        return seed
    of_graph: Optional[int] = tf1.get_default_graph().seed
    return of_graph


def limit_waiting(resolver: Any, secs: float) -> None:
    """Has workers wait for each other for so long, when their strategy is made; by default an hour.

    Args:
        resolver: `ClusterResolver` of the strategy.
        secs: After these, it ends with a `DeadlineExceededError`.
    """
    spec = resolver.cluster_spec()
    found = tf1.ConfigProto().experimental.coordination_config
    for job in spec.jobs:
        found.coordinated_job_list.add(name=job, num_tasks=spec.num_tasks(job))
    _context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=_multi_worker_util.coordination_leader(spec),
        cluster_register_timeout_in_ms=int(secs * 1000),
        coordinated_jobs=list(found.coordinated_job_list),
    )
