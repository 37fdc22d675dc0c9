"""Start-up notes of TensorFlow that its own setting for quiet does not reach."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from typing import Iterator

# From 2.18 on, native libraries write these before TensorFlow reads TF_CPP_MIN_LOG_LEVEL.
_NOTES = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR"
    rb"|[IWE]0000 \S+ +\d+ (port|cudart_stub|cpu_feature_guard|cuda_executor)\.cc:\d+\]"
    rb"|[IWE]0000 \S+ +\d+ (cuda_dnn|cuda_fft|cuda_blas|computation_placer)\.cc:\d+\]"
    rb"|I0000 \S+ +\d+ device_compiler\.h:\d+\] Compiled cluster using XLA!"
    rb"|To enable the following instructions: "
)


@contextlib.contextmanager
def start_notes() -> Iterator[None]:
    """Holds back what is written to stderr, and lets through all but notes of a missing GPU.

    Does nothing unless TF_CPP_MIN_LOG_LEVEL asks for quiet. Everything written while an error
    was raised is shown.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") == "0":
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        failed = True
        try:
            yield
            failed = False
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            held.seek(0)
            for line in held:
                if failed or not _NOTES.match(line):
                    os.write(2, line)
