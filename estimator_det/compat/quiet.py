"""Hides messages of TensorFlow that TF_CPP_MIN_LOG_LEVEL does not hide."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from typing import ContextManager, Iterator, Pattern

# From 2.18 on, native libraries write these before TensorFlow reads TF_CPP_MIN_LOG_LEVEL.
_HIDDEN = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|[IWE]0000 \S+ +\d+ (port|cudart_stub|cpu_feature_guard|cuda_executor)\.cc:\d+\]"
    rb"|[IWE]0000 \S+ +\d+ (cuda_dnn|cuda_fft|cuda_blas|computation_placer)\.cc:\d+\]"
    rb"|I0000 \S+ +\d+ device_compiler\.h:\d+\] Compiled cluster using XLA!"
    rb"|To enable the following instructions: "
)


def startup_messages() -> ContextManager[None]:
    """Buffers stderr and removes TensorFlow's messages about its start and a missing GPU.

    Does nothing if TF_CPP_MIN_LOG_LEVEL is 0 or not set. If the body raises an error, all messages
    are written.
    """
    return _without(_HIDDEN)


def tflite_messages() -> ContextManager[None]:
    """Like `startup_messages`, but removes all: TFLite prints statistics and devices."""
    return _without(re.compile(b""))


@contextlib.contextmanager
def _without(hidden: Pattern[bytes]) -> Iterator[None]:
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") == "0":
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as buffer:
        os.dup2(buffer.fileno(), 2)
        failed = True
        try:
            yield
            failed = False
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            buffer.seek(0)
            for line in buffer:
                if failed or not hidden.match(line):
                    os.write(2, line)
