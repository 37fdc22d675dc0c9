"""Sends a training to MLflow: parameters, losses, metrics, pictures and the exported models.

A thread of its own sends, so that a tracker that is slow or down neither delays nor ends a run.
"""

from __future__ import annotations

import functools
import glob
import importlib
import importlib.util
import io
import logging
import math
import os
import queue
import threading
from typing import Any, Callable, Mapping, Optional

from PIL import Image

from estimator_det.compat import tf1
from estimator_det.config import text
from estimator_det.console.printing import plain
from estimator_det.errors import UsageError
from estimator_det.files import json_lines
from model_fn.evaluation import history
from model_fn.runs.context import Hook, RunContext, StepResult

MLFLOW = "mlflow"
TAG = "estimator_det.model_dir"  # by which a resumed run finds its entry
_ARTIFACTS = ("pipeline.config", "export")
_LAST_SECONDS = 60.0

_LOG = logging.getLogger(__name__)


class MlflowHook(Hook):
    """Reports to the server or folder of MLFLOW_TRACKING_URI; `close` ends it after the run."""

    def __init__(self) -> None:
        if importlib.util.find_spec(MLFLOW) is None:
            raise UsageError("--track mlflow needs mlflow; run pip install 'estimator-det[mlflow]'")
        self._mlflow: Any = importlib.import_module(MLFLOW)
        self._waiting: queue.SimpleQueue[Optional[Callable[[], Any]]] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send, name=MLFLOW, daemon=True)
        self._context: Optional[RunContext] = None
        self._first_step = self._reported_step = 0

    def begin(self, context: RunContext, step: int) -> None:
        self._reported_step = step
        if self._context is None:  # else training begins again, after variables were lost
            self._context, self._first_step = context, step
            self._waiting.put(lambda: self._open(context))
            self._sender.start()

    def after_step(self, result: StepResult) -> None:
        assert self._context is not None
        if result.step >= self._reported_step + self._context.options.progress_steps:
            self._reported_step = result.step
            self._waiting.put(lambda: self._log(result.scalars, result.step))

    def close(self) -> None:
        """Sends evaluations and files of the run, and waits a while for the tracker."""
        if self._context is None:  # it ended before the first step
            return
        folder = self._context.model_dir
        self._waiting.put(lambda: self._log_evaluations(folder))
        self._waiting.put(lambda: self._log_pictures(folder))
        for path in (os.path.join(folder, name) for name in _ARTIFACTS):
            if os.path.exists(path):
                self._waiting.put(functools.partial(self._mlflow.log_artifact, path))
        self._waiting.put(self._mlflow.end_run)
        self._waiting.put(None)
        self._sender.join(_LAST_SECONDS)
        if self._sender.is_alive():
            _LOG.warning("MLflow has not taken all of this run within %d s", _LAST_SECONDS)

    def _send(self) -> None:
        while report := self._waiting.get():
            try:
                report()
            except Exception as error:  # whatever a tracker does, the training goes on
                _LOG.warning("MLflow gets no more of this run: %s", plain(str(error)))
                return

    def _open(self, context: RunContext) -> None:
        """Continues the entry of the folder, or begins one with the configuration."""
        folder = os.path.abspath(context.model_dir)
        runs = self._mlflow.search_runs(
            filter_string=f"tags.`{TAG}` = '{folder}'", max_results=1, output_format="list"
        )
        if runs:
            self._mlflow.start_run(run_id=runs[0].info.run_id)
            return
        self._mlflow.start_run(run_name=os.path.basename(folder), tags={TAG: folder})
        fields = (each for each in text.entries(context.config) if not each.field.message_type)
        self._mlflow.log_params({_allowed(each.path): plain(each.value) for each in fields})

    def _log(self, values: Mapping[str, Optional[float]], step: int) -> None:
        usable = {k: v for k, v in values.items() if v is not None and math.isfinite(v)}
        self._mlflow.log_metrics({_allowed(name): v for name, v in usable.items()}, step=step)

    def _log_evaluations(self, folder: str) -> None:
        path = os.path.join(folder, history.EVALUATIONS_FILE)
        for line in json_lines.read(path, ("reader", "step", "metrics")):
            if self._is_new(line["step"]):
                named = {f"{line['reader']}/{name}": v for name, v in line["metrics"].items()}
                self._log(named, line["step"])

    def _log_pictures(self, folder: str) -> None:
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), "eval_*", "events.*"))):
            place = f"pictures/{os.path.basename(os.path.dirname(path))}"
            for event in tf1.train.summary_iterator(path):
                for value in event.summary.value if self._is_new(event.step) else ():
                    if value.HasField("image"):
                        name = f"{event.step:08d} {_allowed(value.tag).replace('/', ' ')}.png"
                        picture = Image.open(io.BytesIO(value.image.encoded_image_string))
                        self._mlflow.log_image(picture, f"{place}/{name}")

    def _is_new(self, step: int) -> bool:
        """False for evaluations that an earlier process of the run has sent."""
        return step > self._first_step or self._first_step == 0


def _allowed(name: str) -> str:
    """MLflow allows these characters in names, and 250 of them."""
    return "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name)[-250:]
