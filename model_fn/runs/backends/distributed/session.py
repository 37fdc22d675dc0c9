"""What hooks of TF1 get around the calls of a TF2 loop: a graph, a session, a saver."""

from __future__ import annotations

import contextlib
import functools
import os
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

import numpy as np

from estimator_det.compat import eagerly, tf, tf1
from model_fn.checkpoints.errors import RunError
from model_fn.runs.backends.distributed import workers
from model_fn.training.finite_gate import RejectedBatch
from model_fn.training.loop_step import LoopStep, Outcome
from model_fn.training.step import TrainStep


class Fetch:
    """A value of the last call; stands where hooks expect a tensor of their graph."""

    def __init__(self, read: Callable[[Outcome], Any]) -> None:
        self.read = read


def _item(field: str, name: str, last: Outcome) -> Any:
    return getattr(last, field)[name]


def _position_item(reader: int, key: str, last: Outcome) -> Any:
    return last.positions[reader][key]


class LoopSession:
    """Stands for the session that hooks expect.

    Args:
        loop_step: Has the variables.
        graph: Of the function that is called, for TensorBoard.

    Attributes:
        graph: See above.
        outcome: Of the last call.
        rejected: The batch of the step that was not finite, of all replicas of this process.
    """

    def __init__(self, loop_step: LoopStep, graph: tf.Graph) -> None:
        self._loop_step = loop_step
        self.graph = graph
        self.outcome: Optional[Outcome] = None
        self.rejected = RejectedBatch({})

    def run(self, fetches: Any, feed_dict: Any = None) -> Any:
        """Values of a structure of `Fetch`es and of the global step.

        Raises:
            RunError: for a tensor of a graph, which no graph of the loop has.
        """
        del feed_dict
        with eagerly():
            return tf.nest.map_structure(self._value, fetches)

    def _value(self, wanted: Any) -> Any:
        if isinstance(wanted, Fetch):
            assert self.outcome is not None, "no step was taken"
            return tf.nest.map_structure(np.asarray, wanted.read(self.outcome))
        name = getattr(wanted, "name", str(wanted))
        if name.partition(":")[0].split("/")[0] == tf1.GraphKeys.GLOBAL_STEP:
            return int(self._loop_step.global_step.numpy())
        raise RunError(
            f"a hook wants {name}, and the TF2 loop has no graph to fetch it from: it gives hooks "
            "the global step and what TrainGraph.step has. Train without --strategy"
        )

    def store(self, outcome: Outcome) -> None:
        """Takes what a call returned; keeps the batch of a step that was rejected."""
        self.outcome = outcome
        if bool(outcome.is_finite):
            return
        inputs = [named_inputs(batch) for batch in outcome.batches]
        self.rejected.arrays = {
            name: np.concatenate([np.asarray(each[name]) for each in inputs]) for name in inputs[0]
        }

    def train_step(self, outcome: Outcome) -> TrainStep:
        """What hooks may fetch.

        Args:
            outcome: Of the traced function; its structure counts.
        """

        def named(field: str, names: Any) -> Dict[str, Fetch]:
            return {name: Fetch(functools.partial(_item, field, name)) for name in names}

        return TrainStep(
            train_op=None,
            losses={},
            scalars=named("scalars", outcome.scalars),
            counts=named("counts", outcome.counts),
            summary=None,
            gradients=dict.fromkeys(self._loop_step.trained_names()),
            checks=named("checks", outcome.checks),
            written=[],
            positions=[
                {key: Fetch(functools.partial(_position_item, reader, key)) for key in position}
                for reader, position in enumerate(outcome.positions)
            ],
            input_wait=Fetch(lambda last: last.input_wait),
            rejected=self.rejected,
            num_taken=Fetch(lambda last: last.num_taken),
        )


def named_inputs(batch: Any) -> Dict[str, tf.Tensor]:
    """(features, labels) under the names that `TrainStep.rejected` has."""
    return {
        f"{prefix}/{key}": tensor
        for prefix, tensors in zip(("features", "labels"), batch)
        for key, tensor in tensors.items()
    }


class LoopSaver:
    """Saves variables under the names that an Estimator gives them.

    Args:
        loop_step: Has the variables.
    """

    def __init__(self, loop_step: LoopStep) -> None:
        self._loop_step = loop_step

    def save(
        self, session: Any, path: str, global_step: Optional[int] = None, **options: Any
    ) -> str:
        """As that of TensorFlow; writes no meta graph and no `checkpoint` file."""
        del session, options
        prefix = path if global_step is None else f"{path}-{int(global_step)}"
        tf.io.gfile.makedirs(os.path.dirname(prefix))
        with eagerly():
            values = self._loop_step.values()
            tf.raw_ops.SaveV2(
                prefix=prefix,
                tensor_names=list(values),
                shape_and_slices=[""] * len(values),
                tensors=list(values.values()),
            )
        return prefix


class HookedLoop:
    """Calls hooks as a session of TF1 does.

    Args:
        session: They get it.
        hooks: In order.
    """

    def __init__(self, session: LoopSession, hooks: Sequence[Any]) -> None:
        self._session, self._hooks = session, list(hooks)
        self._graph = tf.Graph()
        with self._graph.as_default():
            tf1.train.create_global_step()
        self._context: Any = None
        self._fetches: List[Any] = []

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        with workers.own_errors(), self._graph.as_default():
            yield

    def begin(self) -> None:
        """Before the first call."""
        with self._calling():
            for hook in self._hooks:
                hook.begin()
            for hook in self._hooks:
                hook.after_create_session(self._session, None)

    def before_call(self) -> None:
        """Asks hooks what they want of the next call."""
        self._context = tf1.train.SessionRunContext(None, self._session)
        with self._calling():
            wanted = [hook.before_run(self._context) for hook in self._hooks]
        self._fetches = [None if each is None else each.fetches for each in wanted]

    def after_call(self, outcome: Outcome) -> bool:
        """Gives hooks what they wanted; True if one of them wants to stop, since `before_call`."""
        self._session.store(outcome)
        with self._calling():
            for hook, fetches in zip(self._hooks, self._fetches):
                results = None if fetches is None else self._session.run(fetches)
                hook.after_run(self._context, tf1.train.SessionRunValues(results, None, None))
        return bool(self._context.stop_requested)

    def end(self) -> None:
        """After the last call, unless an error ended the loop."""
        with self._graph.as_default():
            for hook in self._hooks:
                hook.end(self._session)
