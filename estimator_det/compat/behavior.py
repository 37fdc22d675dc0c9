"""Refuses what a process that switched TensorFlow 2 off cannot do."""

from __future__ import annotations

import tensorflow as _tf


def require_v2_behavior() -> None:
    """Raises RuntimeError where a script called `disable_v2_behavior()` or a part of it.

    Target assignment needs sizes that are plain numbers, and summaries run Python in a branch,
    which control flow of TensorFlow 1 cannot. Eager execution and resource variables may be off.
    """
    switches = {
        "disable_v2_tensorshape": isinstance(_tf.TensorShape([1])[0], int),
        "disable_control_flow_v2": _tf.compat.v1.control_flow_v2_enabled(),
    }
    calls = [f"{name}()" for name, is_on in switches.items() if not is_on]
    if calls:
        raise RuntimeError(
            "this process switched parts of TensorFlow 2 off, which detectors need: "
            f"{', '.join(calls)}; tf.compat.v1.disable_v2_behavior() calls both, and so does "
            "TF2_BEHAVIOR=0. Remedy: remove the call. Estimators and graphs of TensorFlow 1 "
            "do not need it; tf.compat.v1.disable_eager_execution() may stay"
        )
