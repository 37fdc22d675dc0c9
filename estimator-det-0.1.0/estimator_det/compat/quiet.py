"""Hides start-up messages of TensorFlow that TF_CPP_MIN_LOG_LEVEL does not hide."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from typing import Iterator

# From 2.18 on, native libraries write these before TensorFlow reads TF_CPP_MIN_LOG_LEVEL.
_HIDDEN = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|[IWE]0000 \S+ +\d+ (port|cudart_stub|cpu_feature_guard|cuda_executor)\.cc:\d+\]"
    rb"|[IWE]0000 \S+ +\d+ (cuda_dnn|cuda_fft|cuda_blas|computation_placer)\.cc:\d+\]"
    rb"|I0000 \S+ +\d+ device_compiler\.h:\d+\] Compiled cluster using XLA!"
    rb"|To enable the following instructions: "
)


@contextlib.contextmanager
def startup_messages() -> Iterator[None]:
    """Buffers stderr and removes TensorFlow's messages about its start and a missing GPU.

    Does nothing if TF_CPP_MIN_LOG_LEVEL is 0 or not set. If the body raises an error, all messages
    are written.
    """
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
                if failed or not _HIDDEN.match(line):
                    os.write(2, line)
