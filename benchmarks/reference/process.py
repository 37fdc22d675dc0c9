"""One run of a `model_main`, whose steps a probe times: `process.py STEPS MODULE|FILE.py FLAGS…`.

Ends after STEPS steps and prints their figures as JSON; with 0 steps it only runs the program.
`MODULE` is ours, and `FILE.py` belongs to the Object Detection API. That was last published for
older packages, so names that it uses and that TensorFlow 2.15, NumPy and Pillow have moved are put
back; its modules themselves are not touched.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import resource
import runpy
import statistics
import sys
import time
import types
from typing import Any, List

import wrapt

WARM_UP = 3
SESSIONS = "tensorflow.python.training.monitored_session"
# Packages for models of the TF2 line and for TPUs, which are imported in any case.
_ABSENT = ("official", "tensorflow_io", "tensorflow.contrib")


def _age() -> float:
    """Seconds since the system started this process."""
    with open("/proc/self/stat", encoding="ascii") as file:
        ticks = float(file.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _probe(steps: int, monitored_session: types.ModuleType) -> None:
    """Times the steps of all sessions of a module, TensorFlow's `monitored_session`."""
    run = monitored_session.MonitoredSession.run
    seconds: List[float] = []
    processor: List[float] = []
    first: List[float] = []

    def timed(self: Any, *args: Any, **options: Any) -> Any:
        begin, used = time.perf_counter(), time.process_time()
        values = run(self, *args, **options)
        seconds.append(time.perf_counter() - begin)
        processor.append(time.process_time() - used)
        first.append(_age())
        if len(seconds) == steps:
            figures = {
                "first_step_seconds": first[0],
                "step_seconds": statistics.median(seconds[WARM_UP:]),
                "step_processor_seconds": statistics.median(processor[WARM_UP:]),
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            }
            print(json.dumps(figures), file=sys.__stdout__, flush=True)
            os._exit(0)
        return values

    monitored_session.MonitoredSession.run = timed


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of `_ABSENT`, which hold any name."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if not any(name == each or name.startswith(f"{each}.") for each in _ABSENT):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = lambda name: type(name, (), {})  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _prepare() -> None:
    """Makes the Object Detection API of the TF1 line run on TensorFlow 2.15."""
    import numpy
    import tensorflow.compat.v1 as tf
    from PIL import ImageFont

    sys.meta_path.append(_Absent())
    tf.disable_v2_behavior()
    for kind in (int, float, bool, object):
        setattr(numpy, kind.__name__, kind)
    # Pillow 10 removed it.
    ImageFont.FreeTypeFont.getsize = lambda font, text: font.getbbox(text)[2:]  # type: ignore[attr-defined]
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import control_flow_ops

    for name in ("case", "cond", "while_loop"):
        setattr(control_flow_ops, name, getattr(tf, name))
    ops.IndexedSlices = tf.IndexedSlices
    for name in ("", ".base", ".convolutional", ".core", ".normalization", ".pooling"):
        layers = importlib.import_module(f"keras.src.legacy_tf_layers{name}")
        sys.modules[f"tf_keras.legacy_tf_layers{name}"] = layers
    from object_detection.utils import tf_version

    tf_version.is_tf1 = lambda: True
    tf_version.is_tf2 = lambda: False


def main() -> None:
    """Runs the program."""
    steps, program = int(sys.argv[1]), sys.argv[2]
    sys.argv = sys.argv[2:]
    if steps:
        # Imported by the program itself, which may prepare for it.
        wrapt.register_post_import_hook(functools.partial(_probe, steps), SESSIONS)
    sys.path[0] = os.getcwd()
    if program.endswith(".py"):
        _prepare()
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
