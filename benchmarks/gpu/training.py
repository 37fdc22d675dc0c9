"""Measures a training of this product, by `runner.train` as users start it."""

from __future__ import annotations

import os
import tempfile
from typing import Any, Dict, List, Optional

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.gpu.case import (
    ESTIMATOR,
    FLOAT32,
    TF32,
    TWO_STAGE_SIZE,
    Case,
    Clock,
    Plan,
    main,
)
from estimator_det.compat import tf
from estimator_det.config import pipeline
from model_fn.runs import runner
from model_fn.runs.context import Hook, RunContext, StepResult
from model_fn.runs.options import LoopOptions

# So low that a training from random weights stays finite.
RATE = "learning_rate { constant_learning_rate { learning_rate: 1e-5 } }"


class Timer(Hook):
    """Ends the run when enough steps have been timed."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.waits: List[float] = []  # seconds that each step waited for its batch
        self.memory: List[int] = []  # bytes in use on the device after each step

    def begin(self, context: RunContext, step: int) -> None:
        self._stop = context.stop
        self.clock.start()

    def after_step(self, result: StepResult) -> None:
        self.waits.append(result.input_wait or 0.0)
        self.memory.append(_device_memory("current"))
        if self.clock.tick():
            self._stop.request()


def measure(case: Case, plan: Plan) -> Dict[str, float]:
    """Speed and memory of a training."""
    timer = Timer(Clock(plan))
    with tempfile.TemporaryDirectory() as model_dir:
        runner.train(
            _config(case, plan),
            model_dir,
            num_train_steps=10**6,
            loop=_loop(case),
            precision=None if case.precision in (FLOAT32, TF32) else case.precision,
            hooks=[timer],
            progress=False,
            seed=1,
        )
    return {
        **timer.clock.figures(case),
        "input_wait": sum(timer.waits[plan.warm_up :]) / timer.clock.seconds,
        "memory_gb": _device_memory("peak") / 1e9,
        "growth_gb": (timer.memory[-1] - timer.memory[plan.warm_up]) / 1e9,
    }


def _config(case: Case, plan: Plan) -> Any:
    config = pipeline.override(
        pipeline.read_pipeline(os.path.join(plan.configs, f"{case.model}.config")),
        batch_size=case.batch_size,
        label_map_path=plan.label_map,
        train_input_path=plan.record,
        eval_input_path=plan.record,
    )
    config.train_config.fine_tune_checkpoint = ""
    overrides = [f"train_config.optimizer={{ adam_optimizer {{ {RATE} }} }}"]
    if config.model.HasField("faster_rcnn"):
        field = "model.faster_rcnn.image_resizer.fixed_shape_resizer"
        sides = zip(("height", "width"), TWO_STAGE_SIZE)
        overrides += [f"{field}.{side}={pixels}" for side, pixels in sides]
    return pipeline.apply_overrides(config, overrides)


def _loop(case: Case) -> Optional[LoopOptions]:
    if case.trainer == ESTIMATOR:
        return None
    return LoopOptions(
        strategy=case.trainer,
        jit_compile=case.jit_compile,
        steps_per_call=case.steps_per_call,
    )


def _device_memory(kind: str) -> int:
    """Bytes of tensors on the first GPU, "current" or "peak"; 0 without a GPU."""
    if not tf.config.list_physical_devices("GPU"):
        return 0
    return int(tf.config.experimental.get_memory_info("GPU:0")[kind])


if __name__ == "__main__":
    main(measure)
