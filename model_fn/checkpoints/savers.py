"""Savers and scaffolds: which variables of a graph are saved, and which are restored."""

from __future__ import annotations

import math
from typing import Any, Callable, Container, Dict, List, Optional

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.protos import model_pb2, train_pb2
from model_fn.checkpoints.repair import restoring, step_of
from model_fn.checkpoints.variables import AVERAGE_SUFFIX, OBJECT_GRAPH, SLOT, check_variables

# TensorFlow holds constants some seven times while it prepares a graph.
_MOST_CONSTANT_BYTES = 2**26
_ALIGNMENT = 64  # bytes


class Saver(tf1.train.Saver):
    """A saver whose errors say what is wrong with the checkpoint."""

    def restore(self, sess: tf1.Session, save_path: str) -> None:
        with restoring(save_path):
            super().restore(sess, save_path)


class EvaluationSaver(Saver):
    """A saver that checks a checkpoint before it restores it, and warns of variables it ignores.

    The global step is 0 if the checkpoint has none, for example after an export.

    Args:
        weights: What the graph has in place of variables; checked like variables.
    """

    def __init__(
        self,
        variables: Dict[str, tf.Variable],
        model: Optional[model_pb2.DetectionModel],
        weights: Dict[str, tf.Tensor],
    ) -> None:
        model_variables = {k: v for k, v in variables.items() if k != tf1.GraphKeys.GLOBAL_STEP}
        super().__init__(model_variables, sharded=True, allow_empty=True)
        self._weights = {**model_variables, **weights}
        self._model = model
        self._step = variables.get(tf1.GraphKeys.GLOBAL_STEP)

    def restore(self, sess: tf1.Session, save_path: str) -> None:
        with restoring(save_path):
            check_variables(save_path, self._weights, self._model)
        super().restore(sess, save_path)
        if self._step is not None:
            self._step.load(step_of(save_path), sess)


class CheckpointWeights:
    """A `custom_getter` of variable scopes that gives layers the values of a checkpoint.

    They are constants: TensorFlow folds batch norm into convolutions whose filters are constants,
    and arranges these once instead of in each step. Or they are fed: a step takes longer then, but
    nothing is prepared, and nothing copied. What the checkpoint lacks or has in other precision
    remains a variable, for the saver to name; so do all weights of a large model that are not fed.

    Args:
        use_moving_averages: Take the averages of trainable variables.
        is_fed: Feed the weights in each step.

    Attributes:
        tensors: By the name in the checkpoint.
        feeds: The weights to feed, by their placeholder.
    """

    def __init__(self, checkpoint: str, use_moving_averages: bool, *, is_fed: bool = False) -> None:
        self._use_averages, self._is_fed = use_moving_averages, is_fed
        self.tensors: Dict[str, tf.Tensor] = {}
        self.feeds: Dict[tf.Tensor, np.ndarray] = {}
        with restoring(checkpoint):
            reader = tf1.train.NewCheckpointReader(checkpoint)
            # An object-based checkpoint has no names of variables.
            is_named = not reader.has_tensor(OBJECT_GRAPH)
            shapes = reader.get_variable_to_shape_map() if is_named else {}
            # In their order in the file: remote storage reads far ahead.
            names = [name for name in sorted(shapes) if self._is_weight(name, shapes)]
            size = sum(4 * math.prod(shapes[name]) for name in names)
            fitting = names if is_fed or size <= _MOST_CONSTANT_BYTES else []
            self._values = {name: reader.get_tensor(name) for name in fitting}

    def _is_weight(self, name: str, stored: Container[str]) -> bool:
        if name.endswith(AVERAGE_SUFFIX):
            return self._use_averages
        return not SLOT.search(name) and not (
            self._use_averages and name + AVERAGE_SUFFIX in stored
        )

    def __call__(
        self, getter: Callable[..., Any], name: str, shape: Any = None, **options: Any
    ) -> Any:
        is_trainable = options.get("trainable") is not False
        stored = name + (AVERAGE_SUFFIX if self._use_averages and is_trainable else "")
        if stored in self.tensors:
            return self.tensors[stored]
        value = self._values.pop(stored, None)
        if value is None or shape is None or value.dtype != np.float32:
            return getter(name, shape=shape, **options)
        if list(value.shape) != tf.TensorShape(shape).as_list():
            return getter(name, shape=shape, **options)
        # Outside of loops and scopes, under the name of the variable.
        with tf.init_scope():
            if self._is_fed:
                weight = tf1.placeholder(value.dtype, value.shape, name=f"{name}/")
                self.feeds[weight] = _aligned(value)
            else:
                weight = tf.constant(value, name=f"{name}/")
        self.tensors[stored] = weight
        if is_trainable:
            tf1.add_to_collection(tf1.GraphKeys.TRAINABLE_VARIABLES, weight)
        if options.get("regularizer") is not None:
            penalty = options["regularizer"](weight)
            tf1.add_to_collection(tf1.GraphKeys.REGULARIZATION_LOSSES, penalty)
        return weight

    def hooks(self) -> List[tf1.train.SessionRunHook]:
        """Hooks of the session, which feed the weights."""
        return [tf1.train.FeedFnHook(lambda: self.feeds)] if self.feeds else []


def _aligned(value: np.ndarray) -> np.ndarray:
    """A copy that starts where TensorFlow's tensors may, so that it is fed without another copy."""
    memory = np.empty(value.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    aligned = memory[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    aligned[...] = value
    return aligned


def make_saver(
    train_config: train_pb2.TrainConfig, run_config: Optional[Any] = None
) -> tf1.train.Saver:
    """The saver of training: sharded, with relative paths, so that a model_dir can be moved."""
    return Saver(
        sharded=True,
        max_to_keep=run_config.keep_checkpoint_max if run_config else 5,
        keep_checkpoint_every_n_hours=train_config.keep_checkpoint_every_n_hours,
        save_relative_paths=True,
    )


def make_scaffold(
    saver: Optional[tf1.train.Saver],
    config: Optional[Any],
    summary_op: Optional[tf.Tensor] = None,
) -> Any:
    """Scaffold that, in a run of one process, does not ask whether variables are initialized.

    Such a run has just restored or initialized them all; the question would cost two operations
    for each variable, and is left to the workers of a cluster.
    """
    if config is not None and config.num_worker_replicas > 1:
        return tf1.train.Scaffold(saver=saver, summary_op=summary_op)
    nothing_missing = tf.zeros([0], tf.string)
    return tf1.train.Scaffold(
        saver=saver,
        summary_op=summary_op,
        ready_op=nothing_missing,
        ready_for_local_init_op=nothing_missing,
    )
