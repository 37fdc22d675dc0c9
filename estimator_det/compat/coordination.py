"""Access to private parts of TensorFlow's ClusterCoordinator: a dataset for each worker."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf
from tensorflow.python.distribute import input_lib as _input_lib
from tensorflow.python.distribute.coordinator import cluster_coordinator as _cluster_coordinator
from tensorflow.python.distribute.coordinator import values as _values


class WorkerPool:
    """Workers of a coordinator, which runs each function on a free worker."""

    def __init__(self, strategy: Any) -> None:
        # Functions are traced before they are scheduled; TensorFlow would warn of that.
        strategy.extended._allow_run_without_coordinator = True
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def create_on_workers(self, make: Callable[[int], Any], spec: Any) -> Any:
        """Creates a value on each worker, and again after a worker failed and returned.

        `create_per_worker_dataset` creates the same value for all workers, without an argument.

        Args:
            make: function of a worker's number; runs in this process, with its operations there.

        Returns:
            An argument for `schedule`, whose function receives the value of its worker.
        """
        values = []
        for worker in self._coordinator._cluster.workers:
            number = worker.worker_index
            value = worker.create_resource(make, args=(number,))
            value._type_spec = spec
            values.append(value)
        return _values.PerWorkerValues(values)

    def schedule(self, function: Any, *arguments: Any) -> Any:
        """Starts a concrete function on the next free worker; returns its future result."""
        return self._coordinator.schedule(function, args=arguments)

    def has_ended(self, result: Any) -> bool:
        """True if a result of `schedule` has been copied from its worker."""
        # In this order, because an error between the two lines cancels the missing results.
        is_copied: bool = result._has_fetched_to_local or result._error is not None
        try:
            self._coordinator.done()
        except _cluster_coordinator.ClosureInputError as error:
            raise error.original_exception from error
        return is_copied


def iterator_spec(strategy: Any, dataset: Any) -> Any:
    """Type of the iterator of an endless distributed dataset that a function returns."""
    spec = _input_lib.get_iterator_spec_from_dataset(strategy, dataset)
    # Otherwise batches could be empty, and their sizes would be unknown.
    spec._enable_get_next_as_optional = False
    return spec
