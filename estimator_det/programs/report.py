"""One HTML page about a training run, or two runs side by side.

The page is made of files that a run has written. Pictures come from the records of the evaluation.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shlex
import statistics
import time
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

import estimator_det
from estimator_det import files
from estimator_det.compat import tf
from estimator_det.config import pipeline
from estimator_det.config.text import entries
from estimator_det.console.printing import counted
from estimator_det.errors import UsageError
from estimator_det.files import ownership
from estimator_det.programs import report_pictures
from estimator_det.programs.report_run import Run, read_run
from inputs.records.stream import find_files, input_patterns
from model_fn.checks import data_check, data_report
from model_fn.checks.findings import findings
from model_fn.drawing import charts
from model_fn.evaluation import details, diagnostics
from model_fn.evaluation.best_checkpoints import BEST_FOLDER
from model_fn.evaluation.history import Evaluation
from model_fn.evaluation.readers import TRAINING_DATA, evaluation_folder
from model_fn.evaluation.reliability import Reliability, reliability_chart
from model_fn.evaluation.report import HEADLINE, headline_label
from model_fn.events import short_name

MAX_POINTS = 400  # in a curve
MAX_ROWS = 100  # rows of a table
MAX_RECORDS = 1000  # read for the data report from each reader
BENCHMARKS = ("benchmark.json", "*/benchmark.json", "*/*/benchmark.json")


class Page(NamedTuple):
    """A rendered page, and what programs read of it."""

    html: str
    label_faults: Dict[str, Dict[str, List[Dict[str, Any]]]]  # by folder of a run and reader


def render(folders: Sequence[str], benchmark: Optional[str] = None) -> Page:
    """The page of one run, or of two."""
    import jinja2
    import markupsafe

    runs = [read_run(folder) for folder in folders]
    # Two runs are often folders of one name in different projects.
    if len({run.name for run in runs}) < len(runs):
        runs = [run._replace(name=run.folder) for run in runs]
    # Class names and paths are text of other people, so all of it is escaped; a value that the
    # template expects and does not get is an error, not an empty place.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(os.path.dirname(__file__)),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # matplotlib escapes texts.
    environment.filters["svg"] = lambda panel: markupsafe.Markup(charts.svg(panel))
    environment.filters["metric"] = _number
    sections = [_sections(run, benchmark) for run in runs]
    page = {
        "title": " and ".join(run.name for run in runs),
        "signature": ownership.signature("report"),
        "version": estimator_det.__version__,
        "tensorflow": tf.__version__,
        "time": time.strftime("%Y-%m-%d %H:%M"),
        "runs": sections,
        "curves": _curves(runs),
        "max_rows": MAX_ROWS,
        "metrics": _metrics(runs),
        "differences": _differences(runs) if len(runs) > 1 else [],
    }
    html = environment.get_template("report.html").render(page)
    return Page(html, {each["folder"]: each["label_faults"] for each in sections})


def _json(*parts: str) -> Dict[str, Any]:
    """The JSON object of a file; empty if it is absent or cut off."""
    try:
        return dict(json.loads(files.read_text(os.path.join(*parts))))
    except (ValueError, TypeError):
        return {}


def _sections(run: Run, benchmark: Optional[str]) -> Dict[str, Any]:
    """Values of the template for one run."""
    names = [row.name for row in run.table.classes] if run.table else []
    rows = _benchmark(run, benchmark)  # first, since it refuses a wrong file
    pictures = report_pictures.draw(run.config, run.reader, names, run.details)
    label_faults = {run.reader: pictures.pop("label_faults")} if run.chosen else {}
    # The training data are evaluated only on demand.
    if training := details.latest(evaluation_folder(run.folder, TRAINING_DATA)):
        kinds = ("label_faults",)
        faults = report_pictures.draw(run.config, TRAINING_DATA, names, training, kinds)
        label_faults[TRAINING_DATA] = faults["label_faults"]
    return {
        **run._asdict(),
        "benchmark": rows,
        "step": run.chosen.step if run.chosen else None,
        "headline": _headline(run),
        "findings": _findings(run),
        "commands": _commands(run),
        "config": pipeline.format_pipeline(run.config),
        "classes": _classes(run),
        "precisions": run.details.get("average_precisions", {}),
        "charts": _charts(run.details),
        **pictures,
        "label_faults": label_faults,
        "data": _data(run),
        "speed": _speed(run),
    }


def _number(value: Any) -> str:
    """A metric in three digits; – if it was not measured."""
    if value is None or math.isnan(value) or value == -1:
        return "–"
    return f"{value:.3f}"


def _headline_names(evaluation: Evaluation) -> List[str]:
    return [name for name in evaluation.metrics if HEADLINE.fullmatch(name) and name != "loss"]


def _headline(run: Run) -> List[Tuple[str, str]]:
    """The main numbers: name and value."""
    tiles = []
    if run.chosen is not None:
        names = _headline_names(run.chosen)[:3]
        tiles = [(headline_label(name), _number(run.chosen.metrics[name])) for name in names]
        tiles.append(("best F1", _number(run.table.all_classes.f1)))
    if run.progress:
        tiles.append(("steps", f"{run.progress[-1]['step']:,}"))
    return tiles


def _findings(run: Run) -> List[str]:
    if run.chosen is None:
        return []
    return findings(run.config, run.folder, run.reader, run.chosen.step, run.chosen.metrics)


def _commands(run: Run) -> List[Tuple[str, str]]:
    """Purpose and text of the commands that repeat the run and use its result."""
    config = shlex.quote(os.path.join(run.folder, pipeline.PIPELINE_FILE))
    train = [f"train {config}", "--model_dir NEW_RUN"]
    if steps := run.config.train_config.num_steps:
        train.append(f"--num_train_steps {steps}")
    # The seed of the order of records; the seed of initial values is not recorded without --seed.
    for position in list(_json(run.folder, "data_position.json").values())[:1]:
        train.append(f"--seed {position['seed']}")
    commands = [("train again", train)]
    if run.chosen is not None:
        place = os.path.join(run.folder, BEST_FOLDER) if run.is_best else run.folder
        prefix = shlex.quote(os.path.join(place, f"model.ckpt-{run.chosen.step}"))
        checkpoint = f"--trained_checkpoint_prefix {prefix}"
        commands += [
            ("evaluate", ["evaluate", f"--model_dir {shlex.quote(run.folder)}"]),
            ("export", [f"export {config}", checkpoint, "--output_dir exported"]),
        ]
    return [(name, "estimator-det " + " \\\n    ".join(parts)) for name, parts in commands]


def _differences(runs: Sequence[Run]) -> List[Tuple[str, str, str]]:
    """Fields of the configurations that differ: path, first value, second value."""
    fields = [
        {
            entry.path: str(entry.value)
            for entry in entries(run.config)
            if not hasattr(entry.value, "ListFields")
        }
        for run in runs
    ]
    paths = dict.fromkeys(itertools.chain(*fields))
    rows = [(path, *(each.get(path, "–") for each in fields)) for path in paths]
    return [(path, first, second) for path, first, second in rows if first != second]


def _metrics(runs: Sequence[Run]) -> List[Tuple[str, List[Optional[float]], str]]:
    """Name, value of each run, and note of the metrics that are not of a single class."""
    chosen = [run.chosen for run in runs if run.chosen is not None]
    names = dict.fromkeys(name for evaluation in chosen for name in evaluation.metrics)
    rows = []
    for name in sorted(names, key=lambda name: (not name.startswith("Detection"), name)):
        is_of_class = "ByCategory" in name and not name.startswith("Keypoints_")
        if is_of_class or name in ("global_step", "learning_rate", "loss"):
            continue
        values = [run.chosen.metrics.get(name) if run.chosen else None for run in runs]
        notes = [run.chosen.notes.get(name, "") for run in runs if run.chosen]
        rows.append((name, values, next(filter(None, notes), "")))
    return rows


def _curves(runs: Sequence[Run]) -> List[charts.Panel]:
    """Charts of what changes during training; of two runs, a chart for each quantity."""
    panels: Dict[str, Dict[str, charts.Curve]] = {}
    for run in runs:
        for title, curve in _series(run):
            if len(runs) > 1:
                title = f"{title}: {curve.name}" if curve.name else title
                curve = curve._replace(name=run.name)
            if curve.x:
                panels.setdefault(title, {})[curve.name] = curve
    return [
        charts.curves(title, list(panel.values()), x_label="step")
        for title, panel in panels.items()
    ]


def _series(run: Run) -> Iterator[Tuple[str, charts.Curve]]:
    """Quantities of a run by step, with the title of their chart."""
    for key in dict.fromkeys(itertools.chain(*run.progress)):
        if key.startswith("Loss/"):
            yield "Loss", _curve(short_name(key), run.progress, key)
    for reader, evaluations in run.evaluations.items():
        rows = [{**evaluation.metrics, "step": evaluation.step} for evaluation in evaluations]
        label = f"{reader}: " if len(run.evaluations) > 1 else ""
        yield "Loss", _curve(f"{label}evaluation", rows, "Loss/total_loss")
        for name in _headline_names(evaluations[-1]) if evaluations else []:
            yield "Evaluation", _curve(label + headline_label(name), rows, name)
    yield "Learning rate", _curve("", run.progress, "learning_rate")
    yield "Speed of training, images/s", _curve("", run.progress, "images_per_second")


def _curve(name: str, rows: Sequence[Mapping[str, Any]], key: str) -> charts.Curve:
    """Finite values of a key by step, thinned out."""
    # A resumed run repeats steps; the last value of each counts.
    values = {
        float(row["step"]): float(row[key])
        for row in rows
        if row.get(key) is not None and math.isfinite(row[key]) and row[key] != -1
    }
    steps = sorted(values)
    # The last point stays, whatever the distance.
    steps = steps[:: -max(len(steps) // MAX_POINTS, 1)][::-1]
    return charts.Curve(name, steps, [values[step] for step in steps])


def _charts(values: Mapping[str, Any]) -> List[charts.Panel]:
    """Precision and recall, and reliability."""
    if not values:
        return []
    reliability = Reliability(*(np.array(values["reliability"][k]) for k in Reliability._fields))
    title = f"expected error {reliability.expected_error:.3f}"
    return [
        diagnostics.precision_and_recall(values["curves"]),
        reliability_chart("Reliability of scores", {title: reliability}),
    ]


def _classes(run: Run) -> Sequence[Any]:
    """Rows of all classes together, and of each class, those with most boxes first."""
    if run.table is None:
        return ()
    return [run.table.all_classes, *sorted(run.table.classes, key=lambda row: -row.num_boxes)]


def _data(run: Run) -> Dict[str, Any]:
    """Lines and charts of the data report, of the first records of each file."""
    try:
        readers = (run.config.train_input_reader, *run.config.eval_input_reader)
        counts = [
            sum(len(find_files(pattern)) for pattern in input_patterns(reader))
            for reader in readers
        ]
        per_file = max(MAX_RECORDS // max(counts), 1)
        report = data_check.check_data(run.config, run.name, max_records=per_file, progress=False)
    except report_pictures.ABSENT as error:
        return {"missing": str(error)}
    return {
        "missing": "",
        "records": counted(sum(scan.num_records for scan in report.scans), "record"),
        "lines": data_report.summary_lines(report),
        "charts": data_report.panels(report),
    }


def _speed(run: Run) -> List[Tuple[str, str]]:
    """Name and value of what training needed."""

    def values(key: str) -> List[float]:
        return [float(row[key]) for row in run.progress if row.get(key) is not None]

    rows = []
    if speeds := values("images_per_second"):
        rows.append(("images/s, median", f"{statistics.median(speeds):,.1f}"))
    if waits := values("input_wait_share"):
        rows.append(("waiting for data, median", f"{statistics.median(waits):.0%}"))
    if memory := values("memory_bytes"):
        rows.append(("memory of the process, at most", f"{max(memory) / 1e9:.2f} GB"))
    evaluations = run.evaluations.get(run.reader, [])
    rows.append(("evaluations", str(len(evaluations))))
    rows.append(("batch size", str(run.config.train_config.batch_size)))
    return rows


def _benchmark(run: Run, path: Optional[str]) -> List[List[str]]:
    """Rows of the benchmark of exports; empty if there is none."""
    patterns = [path] if path else [os.path.join(run.folder, each) for each in BENCHMARKS]
    paths = list(itertools.chain(*(sorted(tf.io.gfile.glob(pattern)) for pattern in patterns)))
    if path and not paths:
        raise FileNotFoundError(f"there is no benchmark {path}; correct the path")
    rows: List[List[str]] = []
    try:
        for model in json.loads(files.read_text(paths[0]))["models"] if paths else []:
            rows += _benchmark_rows(model)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(
            f"{paths[0]}: is not a file of `estimator-det benchmark`; give another file"
        ) from None
    return rows


def _benchmark_rows(model: Mapping[str, Any]) -> List[List[str]]:
    if "error" in model:
        return [[model["format"], model["error"], *[""] * 6]]
    size, memory = f"{model['bytes'] / 1e6:.1f}", f"{model['memory_peak_bytes'] / 1e6:.0f}"
    accuracy = _number(model["metrics"].get("DetectionBoxes_Precision/mAP"))
    return [
        [
            model["format"],
            str(timing["batch_size"]),
            *(f"{timing[key]:.1f}" for key in ("median_ms", "p95_ms", "images_per_second")),
            size,
            memory,
            accuracy,
        ]
        for timing in model["timings"]
    ]
