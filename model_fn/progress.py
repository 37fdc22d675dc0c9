"""What watches a run: reports of training and evaluation, and evaluations on further readers."""

from __future__ import annotations

import datetime
import math
import statistics
import sys
import time
from typing import Any, Dict, List, Optional, TextIO

from tqdm import tqdm

from estimator_det.compat import tf, tf1

Metrics = Dict[str, float]

_WATCHED = "estimator_det/watched"
_SCOPE = "watched/"


def watch(name: str, value: tf.Tensor) -> None:
    """Enters a scalar of the default graph among those that `TrainingReport` tells."""
    tf1.add_to_collection(_WATCHED, tf.identity(value, name=_SCOPE + name))


def watched() -> Dict[str, tf.Tensor]:
    """The scalars entered in the default graph, by name."""
    return {tensor.op.name[len(_SCOPE) :]: tensor for tensor in tf1.get_collection(_WATCHED)}


class NotFiniteLossError(RuntimeError):
    """A loss term became NaN or infinite; the message names it."""


class TrainingReport(tf1.train.SessionRunHook):
    """Tells step, loss terms, learning rate, images per second and the time left.

    On a terminal this is a progress bar, elsewhere a line per `every_steps`. The first step is
    reported as soon as it is done. A value that is not finite ends the training with
    `NotFiniteLossError`.

    Args:
        batch_size: Images per step, for the rate.
        num_steps: The global step at which training ends; None if it goes on.
        every_steps: Steps between two reports.
        silent: Only watch for bad losses.
        stream: Where to write; standard error by default.
    """

    def __init__(
        self,
        batch_size: int,
        num_steps: Optional[int] = None,
        *,
        every_steps: int = 20,
        silent: bool = False,
        stream: Optional[TextIO] = None,
    ) -> None:
        self._batch_size = batch_size
        self._num_steps = num_steps
        self._every_steps = every_steps
        self._silent = silent
        self._stream = stream or sys.stderr
        self._bar: Optional[Any] = None
        self._tensors: Dict[str, tf.Tensor] = {}
        self._step = 0
        self._first_step = 0
        self._last_time = 0.0
        self._durations: List[float] = []

    def begin(self) -> None:
        """Finds the scalars of the graph about to run."""
        self._tensors = watched()
        self._global_step = tf1.train.get_global_step()

    def after_create_session(self, session: tf1.Session, coord: Any) -> None:
        """Reads where training starts from."""
        del coord
        self._step = self._first_step = int(session.run(self._global_step))
        self._durations = []
        self._last_time = time.monotonic()
        if self._bar is None and not self._silent and self._stream.isatty():
            self._bar = tqdm(
                total=self._num_steps, initial=self._step, unit="step", file=self._stream
            )

    def before_run(self, run_context: Any) -> Any:
        """Asks for the scalars at every step: a changing set of fetches would cost more."""
        del run_context
        return tf1.train.SessionRunArgs(self._tensors)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Checks the scalars and reports them when it is time."""
        del run_context
        self._step += 1
        now = time.monotonic()
        if self._step > self._first_step + 1:  # The first run also optimizes the graph.
            self._durations.append(now - self._last_time)
        self._last_time = now
        values = {name: float(value) for name, value in run_values.results.items()}
        bad = {name: value for name, value in values.items() if not math.isfinite(value)}
        if bad:
            raise NotFiniteLossError(
                f"step {self._step}: not finite: {bad}; all: {values}. Usual causes: a learning "
                "rate that is too high (set gradient_clipping_by_norm or a warm-up), or boxes "
                "without area in the training records"
            )
        if self._silent:
            return
        if self._bar is not None:
            self._bar.set_postfix_str(_numbers(values), refresh=False)
            self._bar.update(1)
        if self._step == self._first_step + 1 or self._step % self._every_steps == 0:
            if self._bar is None:
                print(self._line(values), file=self._stream, flush=True)
            del self._durations[: -self._every_steps]

    def end(self, session: tf1.Session) -> None:
        """Closes the progress bar."""
        del session
        if self._bar is not None:
            self._bar.close()

    def _line(self, values: Dict[str, float]) -> str:
        of = f"/{self._num_steps}" if self._num_steps else ""
        parts = [f"step {self._step}{of}", _numbers(values)]
        if self._durations:
            # The median: a step in which a checkpoint is saved or evaluated says nothing.
            seconds = max(statistics.median(self._durations), 1e-6)
            parts.append(f"{self._batch_size / seconds:.1f} images/s")
            if self._num_steps:
                left = round((self._num_steps - self._step) * seconds)
                parts.append(f"{datetime.timedelta(seconds=left)} left")
        return " | ".join(parts)


def _numbers(values: Dict[str, float]) -> str:
    return " ".join(
        f"{name.replace('Loss/', '').replace('_loss', '')} {value:.4g}"
        for name, value in values.items()
    )
