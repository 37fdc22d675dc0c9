"""What TensorFlow's coordinator of parameter servers keeps to itself: a dataset for each worker."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf
from tensorflow.python.distribute import input_lib as _input_lib
from tensorflow.python.distribute.coordinator import cluster_coordinator as _cluster_coordinator
from tensorflow.python.distribute.coordinator import values as _values


class WorkerPool:
    """Workers to which the coordinator gives functions, each to one that is free.

    Args:
        strategy: A `ParameterServerStrategy`.
    """

    def __init__(self, strategy: Any) -> None:
        # Functions are traced before they are scheduled, which TensorFlow warns of.
        strategy.extended._allow_run_without_coordinator = True
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def on_each(self, make: Callable[[int], Any], spec: Any) -> Any:
        """Makes a value on each worker, and again on one that has come back after a failure.

        `create_per_worker_dataset` makes the same for all of them, without an argument.

        Args:
            make: Gets the number of a worker; runs in this process, with its operations there.
            spec: Type of what it makes.

        Returns:
            For `schedule`, whose function gets the value of its worker.
        """
        made = []
        for worker in self._coordinator._cluster.workers:
            number = worker.worker_index
            value = worker.create_resource(make, args=(number,))
            value._type_spec = spec
            made.append(value)
        return _values.PerWorkerValues(made)

    def schedule(self, function: Any, *arguments: Any) -> Any:
        """Starts a concrete function on a worker, later if none is free; its future result."""
        return self._coordinator.schedule(function, args=arguments)

    def has_ended(self, result: Any) -> bool:
        """Whether a result of `schedule` is here, copied from its worker.

        Raises:
            OpError: the first one that a function or a lost parameter server has raised.
            Exception: the first one of what `on_each` calls.
        """
        # In this order: an error that comes between cancels the results that are not there.
        is_there: bool = result._has_fetched_to_local or result._error is not None
        try:
            self._coordinator.done()
        except _cluster_coordinator.ClosureInputError as error:
            raise error.original_exception from error
        return is_there


def iterator_spec(strategy: Any, dataset: Any) -> Any:
    """Type of the iterator of a distributed dataset that a function returns; its data never end."""
    spec = _input_lib.get_iterator_spec_from_dataset(strategy, dataset)
    # Otherwise batches might be empty, and their sizes would not be known.
    spec._enable_get_next_as_optional = False
    return spec
