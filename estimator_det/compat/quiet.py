"""Hides messages of TensorFlow that TF_CPP_MIN_LOG_LEVEL does not hide."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import sys
import tempfile
import warnings
from typing import ContextManager, Iterator, List, Pattern

# From 2.18 on, native libraries write these before TensorFlow reads TF_CPP_MIN_LOG_LEVEL.
_HIDDEN = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|[IWE]0000 \S+ +\d+ (port|cudart_stub|cpu_feature_guard|cuda_executor)\.cc:\d+\]"
    rb"|[IWE]0000 \S+ +\d+ (cuda_dnn|cuda_fft|cuda_blas|computation_placer)\.cc:\d+\]"
    # Graph optimizers cannot estimate CropAndResize of an unknown number of boxes.
    rb"|[IWE]0000 \S+ +\d+ op_level_cost_estimator\.cc:\d+\] Error in PredictCost\(\)"
    rb"|I0000 \S+ +\d+ device_compiler\.h:\d+\] Compiled cluster using XLA!"
    rb"|To enable the following instructions: "
)


# Packages whose calls of deprecated functions a user of this library cannot change.
_CALLERS = (
    *("estimator_det", "inputs", "model_fn", "exporters"),
    *("tensorflow", "tensorflow_estimator", "tf_slim", "tf_keras", "keras"),
)


def hide_deprecations() -> None:
    """Drops TensorFlow's advice on deprecated functions that this library or TensorFlow calls.

    Advice on calls from other packages is still logged.
    """
    prefixes = tuple(f"From {folder}/" for name in _CALLERS for folder in _folders(name))

    def is_shown(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(prefixes)

    logging.getLogger("tensorflow").addFilter(is_shown)
    # tf-slim calls layers by a method that Keras renamed.
    warnings.filterwarnings("ignore", message="`layer.apply` is deprecated")


def _folders(package: str) -> List[str]:
    spec = importlib.util.find_spec(package)
    return list(spec.submodule_search_locations or ()) if spec else []


def startup_messages() -> ContextManager[None]:
    """Buffers stderr and removes TensorFlow's messages about its start and a model's first run.

    Does nothing if TF_CPP_MIN_LOG_LEVEL is 0 or not set. If the body raises an error, all messages
    are written.
    """
    return _filtered_stderr(_HIDDEN)


def tflite_messages() -> ContextManager[None]:
    """Like `startup_messages`, but removes all messages: TFLite prints statistics and devices."""
    return _filtered_stderr(re.compile(b""))


@contextlib.contextmanager
def _filtered_stderr(hidden: Pattern[bytes]) -> Iterator[None]:
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") == "0":
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    # The file descriptor is replaced, because native libraries do not write to sys.stderr.
    with tempfile.TemporaryFile() as buffer:
        os.dup2(buffer.fileno(), 2)
        has_failed = True
        try:
            yield
            has_failed = False
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            buffer.seek(0)
            for line in buffer:
                if has_failed or not hidden.match(line):
                    os.write(2, line)
