"""Modules that TensorFlow 2.16 removed and tensorflow-estimator still imports.

Each function builds one module with the parts that a single machine needs. Members that cannot work
raise NotImplementedError with their name and the versions on which they work.
"""

from __future__ import annotations

import types
from typing import Any, NoReturn

import tensorflow as tf

tf1: Any = tf.compat.v1

_WORKS_ON = "It works on TensorFlow 2.15: pip install 'tensorflow==2.15.1'"


def _refuse_calls(feature: str) -> Any:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            f"{feature} is not available on TensorFlow {tf.__version__}, which does not contain "
            f"it. {_WORKS_ON}"
        )

    return refuse


def _module(name: str, doc: str, **members: Any) -> types.ModuleType:
    module = types.ModuleType(name, doc)
    vars(module).update(members)
    return module


def estimator_training(name: str) -> types.ModuleType:
    """Distribution strategies in an Estimator's RunConfig, which all raise an error.

    Without a strategy, RunConfig does not use this module; parameter servers through TF_CONFIG do
    not need it either.
    """
    strategies = "train_distribute, eval_distribute and experimental_distribute of RunConfig"
    return _module(
        name,
        estimator_training.__doc__ or "",
        should_run_distribute_coordinator=lambda config: False,
        init_run_config=_refuse_calls(strategies),
        train_and_evaluate=_refuse_calls(strategies),
        estimator_train=_refuse_calls(strategies),
        estimator_evaluate=_refuse_calls(strategies),
    )


class _NoGracefulShutdown(tf1.train.SessionRunHook):
    """Replacement of the hook with which TPUEstimator watches the health of workers."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def after_create_session(self, session: Any, coord: Any) -> None:
        del session, coord
        tf1.logging.warning(
            "TensorFlow %s cannot watch the health of TPU workers: if one is lost, training ends "
            "with an error, and a restart resumes from the last checkpoint. %s",
            tf.__version__,
            _WORKS_ON,
        )


def session_support(name: str) -> types.ModuleType:
    """Health of TPU workers: not watched, with a warning; options that need it raise an error."""
    return _module(
        name,
        session_support.__doc__ or "",
        GracefulShutdownHook=_NoGracefulShutdown,
        # Read as a default argument, so it must exist.
        ResetComputation=lambda: None,
        ShutdownLameWorkers=_refuse_calls("TF_TPU_GRACEFUL_SHUTDOWN_MODE=shutdown_worker"),
        ShutdownAllWorkers=_refuse_calls("TF_TPU_GRACEFUL_SHUTDOWN_MODE=shutdown_all_workers"),
        start_worker_watchdog=_refuse_calls("TF_TPU_WATCHDOG_TIMEOUT"),
    )


class _Unavailable(types.ModuleType):
    """Embedding tables of TPUs (`embedding_config_spec`): every name is a class without instances.

    Classes, because TPUEstimator uses them in isinstance checks.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # attributes of modules
            raise AttributeError(name)
        refuse = _refuse_calls(f"TPU embedding ({name})")
        setattr(self, name, type(name, (), {"__init__": refuse}))
        return vars(self)[name]


tpu_embedding = tpu_embedding_gradient = _Unavailable
