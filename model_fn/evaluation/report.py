"""Progress and results of evaluations, on a terminal and in TensorBoard."""

from __future__ import annotations

import re
import sys
import threading
import time
from typing import Any, Dict, List, Mapping, Optional

from estimator_det.compat import tf, tf1
from estimator_det.config.facts import score_threshold_field
from estimator_det.console import printing
from estimator_det.protos import model_pb2
from inputs.bad_records.log import FaultLog
from model_fn.drawing import charts
from model_fn.evaluation import details, diagnostics, score_thresholds
from model_fn.evaluation.accumulator import Results
from model_fn.evaluation.history import Evaluation, MetricValues
from model_fn.evaluation.score_thresholds import ThresholdRow
from model_fn.events import event_writer, write_figures

# Amounts that are printed of an evaluation.
NOTHING, LINE, TABLE = "nothing", "line", "table"
REPORT_SECS = 10.0  # between two lines of progress

# Loss, mAPs that are not of a category or size, AP of LVIS, panoptic quality.
HEADLINE = re.compile(
    r"loss|\w+_Precision/mAP[^/( ]*|\w+_AP|PanopticQuality@[\d.]+IOU"
    r"|Keypoints_Precision/mAP ByCategory/.+"
)
# Metrics of keypoints are all by class.
_DETAIL = re.compile(
    r"^(?!Keypoints_).*ByCategory|\((small|medium|large)\)|AR@10?( |$)|^Loss/|^learning_rate$"
)
_NAMED = 4  # metrics that share a reason, by name


def is_main(name: str) -> bool:
    """True for metrics of the short table: none of a class or size, no terms of the loss."""
    # By exclusion, so that metrics of plug-ins are in the table, too.
    return _DETAIL.search(name) is None


def headline_label(name: str) -> str:
    """The last part of the name of a metric; with its class if it is of keypoints."""
    summary, _, class_name = name.partition(" ByCategory/")
    if class_name:  # "Keypoints_Precision/mAP ByCategory/cat" becomes "keypoints mAP of cat"
        return f"keypoints {summary.split('/')[-1]} of {class_name}"
    return name.split("/")[-1]


def report(
    model: Optional[model_pb2.DetectionModel],
    reader: str,
    folder: str,
    values: Dict[str, Any],
    results: Results,
    faults: FaultLog,
    *,
    shown: str = TABLE,
) -> Evaluation:
    """Writes and prints the results of an evaluation.

    Args:
        model: `DetectionModel` proto that made the detections; None if none did.
        folder: Gets events, thresholds and details.
        values: Metrics and losses by name, and the global step.
        shown: NOTHING; LINE, with reasons for its metrics alone; or TABLE, with all reasons and
            the table of thresholds.
    """
    metrics, step = scalars(values), int(values[tf1.GraphKeys.GLOBAL_STEP])
    score_field = "" if model is None else score_threshold_field(model)
    notes = diagnostics.explain_metrics(
        metrics, results.scopes, results.details["counts"], score_field
    )
    bad_records = faults.counts()
    figures = {f"bad_records/{kind}": count for kind, count in bad_records.items()}
    write_figures(folder, figures, step, flush=True)
    table = score_thresholds.make_table(results.matches, model)
    path = score_thresholds.write(folder, step, reader, table)
    details.write(folder, step, results.details)
    if shown == LINE:
        print_results(reader, values, table.all_classes)
        print_notes({name: notes[name] for name in notes if HEADLINE.fullmatch(name)})
        print_faults(faults)
    elif shown == TABLE:
        print_results(reader, values)
        print_notes(notes)
        printing.report(score_thresholds.format_table(table, path), sys.stderr)
        print_faults(faults)
    return Evaluation(reader, step, metrics, notes, bad_records, matches=results.matches)


def session_config(*, is_short: bool) -> Optional[tf1.ConfigProto]:
    """Session settings without graph optimizers that find nothing on CPUs; None for the default.

    Args:
        is_short: Optimize nothing.
    """
    if tf.config.list_physical_devices("GPU"):
        return None
    config = tf1.ConfigProto(allow_soft_placement=True)
    options = config.graph_options.rewrite_options
    options.meta_optimizer_iterations = options.ONE  # An Estimator's own has this, too.
    options.memory_optimization = options.NO_MEM_OPT
    options.layout_optimizer = options.OFF
    options.disable_meta_optimizer = is_short
    return config


class EndPreparation(tf1.train.SessionRunHook):
    """Loads matplotlib and opens the event file of a folder before an evaluation ends."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def after_create_session(self, session: Any, coord: Any) -> None:
        # While the session prepares the graph of the first batch.
        threading.Thread(target=charts.load).start()

    def end(self, session: tf1.Session) -> None:
        event_writer(self._folder)  # If an Estimator opens the file, it also writes the graph.


class EvaluationProgress(tf1.train.SessionRunHook):
    """Prints every few seconds how many images are evaluated."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size, self._images = batch_size, 0
        self._start = self._reported = 0.0

    def begin(self) -> None:
        self._start = self._reported = time.monotonic()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        del run_context, run_values
        self._images += self._batch_size
        now = time.monotonic()
        if now - self._reported >= REPORT_SECS:
            self._reported = now
            rate = self._images / (now - self._start)
            line = f"evaluating: {self._images} images | {rate:.1f} images/s"
            printing.report(line, sys.stderr)


def scalars(results: Mapping[str, Any]) -> MetricValues:
    """The numbers among evaluation results, which also hold serialized pictures."""
    return {k: float(value) for k, value in results.items() if not isinstance(value, bytes)}


def print_results(name: str, results: Dict[str, Any], row: Optional[ThresholdRow] = None) -> None:
    """Prints a line with the loss and mAPs of an evaluation.

    Names are cut down to their last part, unless several metrics share it. A row of the table of
    thresholds adds its best F1.
    """
    chosen = {key: value for key, value in scalars(results).items() if HEADLINE.fullmatch(key)}
    ends = [headline_label(key) for key in chosen]
    names = [end if ends.count(end) == 1 else key for end, key in zip(ends, chosen)]
    shown = dict(zip(names, chosen.values()))
    numbers = " ".join(
        f"{key} {'without objects' if value == -1 else f'{value:.4f}'}"
        for key, value in sorted(shown.items())
    )
    if row is not None and row.threshold is not None:
        numbers += f" | best F1 {row.f1:.3f} at score {row.threshold:.3f}"
    step = int(results.get(tf1.GraphKeys.GLOBAL_STEP, 0))
    printing.report(f"evaluation {name!r} at step {step} | {numbers}", sys.stderr)


def print_faults(faults: FaultLog) -> None:
    """Prints what was wrong with records: in full if some of it is new, else in a line."""
    text = faults.summary()
    if text and not faults.has_new_faults:
        text = f"  {text.splitlines()[0].rstrip(':')}, as before: see {faults.path}"
    if text:
        printing.report(text, sys.stderr)


def print_notes(notes: Mapping[str, str]) -> None:
    """Prints why metrics are -1, 0 or NaN: a line for each reason."""
    names: Dict[str, List[str]] = {}
    for name, reason in notes.items():
        names.setdefault(reason, []).append(name.split("/", 1)[-1])
    for reason, metrics in names.items():
        shown = printing.listed(map(printing.plain, metrics), _NAMED)
        printing.report(f"  {shown}: {reason}", sys.stderr)
