"""Variables of a TF2 loop under a strategy, by their names in checkpoints."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, Callable, Dict, List, Mapping, Sequence

import numpy as np

from estimator_det.compat import shared_state, tf, tf1
from estimator_det.protos import model_pb2, optimizer_pb2
from model_fn.checkpoints.repair import restoring
from model_fn.checkpoints.variables import AVERAGE_SUFFIX, check_resumable
from model_fn.training.optimizers import state_names
from model_fn.training.train_op import name_of


@dataclasses.dataclass(frozen=True, eq=False)
class LoopState:
    """Reads and sets the variables of a loop."""

    strategy: Any
    variables: Dict[str, Any]  # by their names in an Estimator
    extra: Dict[str, Any]  # further variables, which an Estimator does not have
    trained_names: List[str]  # variables that the step trains

    @property
    def _all(self) -> Dict[str, Any]:
        return {**self.variables, **self.extra}

    def values(self) -> Dict[str, np.ndarray]:
        """All values; statistics are averaged over the replicas of this process."""
        return {name: self._value(variable) for name, variable in self._all.items()}

    def _value(self, variable: Any) -> np.ndarray:
        copies = self.strategy.experimental_local_results(variable)
        if variable.synchronization != tf.VariableSynchronization.ON_READ:
            copies = copies[:1]
        if len(copies) == 1:
            return np.asarray(copies[0].numpy())
        return np.mean([copy.numpy() for copy in copies], axis=0)

    def save(self, prefix: str) -> None:
        """Saves all values as a checkpoint, without listing it."""
        tf.io.gfile.makedirs(os.path.dirname(prefix))
        values = self.values()
        tf.raw_ops.SaveV2(
            prefix=prefix,
            tensor_names=list(values),
            shape_and_slices=[""] * len(values),
            tensors=list(values.values()),
        )

    def stored_values(
        self, checkpoint: str, model: model_pb2.DetectionModel
    ) -> Dict[str, np.ndarray]:
        """The values in a checkpoint, which must be of this model."""
        with restoring(checkpoint):
            reader = tf1.train.load_checkpoint(checkpoint)
            names = set(reader.get_variable_to_shape_map())
            check_resumable(checkpoint, self.variables, model)
            wanted = [*self.variables, *names.intersection(self.extra)]
            return {name: reader.get_tensor(name) for name in wanted}

    def first_values(self, fine_tuned: Mapping[str, np.ndarray]) -> Dict[str, np.ndarray]:
        """The values that a new training starts from; averages start at their variables."""
        values = {**self.values(), **fine_tuned}
        for name in self.variables:
            if name.endswith(AVERAGE_SUFFIX):
                values[name] = values[name.removesuffix(AVERAGE_SUFFIX)]
        return values

    def restore(self, values: Mapping[str, np.ndarray]) -> None:
        """Assigns values by the names of variables; variables without a value stay as they are."""
        for name, variable in self._all.items():
            if name in values:
                variable.assign(values[name])

    def agree(self) -> None:
        """Assigns the first worker's values to the variables of all; every worker must call it."""
        variables = list(self._all.values())
        values = first_worker_values(
            self.strategy, lambda: [variable.read_value() for variable in variables]
        )
        for variable, value in zip(variables, values):
            variable.assign(value)


def first_worker_values(
    strategy: Any, make_values: Callable[[], List[tf.Tensor]]
) -> List[tf.Tensor]:
    """Values of the first replica, in every worker; all workers must call this.

    Args:
        make_values: Called in each replica.
    """

    def masked_values() -> List[tf.Tensor]:
        context = tf.distribute.get_replica_context()
        is_first = tf.equal(context.replica_id_in_sync_group, 0)
        # Types are not mixed in one sum.
        return [
            context.all_reduce(
                tf.distribute.ReduceOp.SUM, tf.where(is_first, value, tf.zeros_like(value))
            )
            for value in make_values()
        ]

    @tf.function(autograph=False)
    def collect() -> List[tf.Tensor]:
        agreed = strategy.run(masked_values)
        return [strategy.experimental_local_results(value)[0] for value in agreed]

    return list(collect())


def optimizer_variables(
    optimizer: Any, config: optimizer_pb2.Optimizer, trained: Sequence[tf.Variable]
) -> Dict[str, Any]:
    """Variables of an optimizer by an Estimator's names: slots, and variables that exist once."""
    suffixes, names = state_names(config)
    others = shared_state(optimizer)
    named = {name: others[name] for name in names}
    for variable in trained:
        for slot, suffix in suffixes.items():
            value = optimizer.get_slot(variable, slot)
            if value is not None:
                named[name_of(variable) + suffix] = value
    return named
