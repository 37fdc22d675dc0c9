"""`estimator-det report`: one HTML page about a training run, or about two."""

from __future__ import annotations

import argparse
import os
from typing import Any, Dict

from estimator_det.errors import UsageError
from estimator_det.programs import console
from estimator_det.programs.verbs.base import add_options, run_folder

SUMMARY = "Writes an HTML page about a training run, or about two runs side by side"
EXAMPLE = "run --output report.html"
PAGE = "report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="folder of a run or project; at most two"
    )
    texts = {
        "--output FILE": f"the page (default: {PAGE} in the folder of the first run)",
        "--benchmark FILE": "benchmark.json of the run's exports (default: the first one below its "
        "folder)",
    }
    add_options(parser, str, texts)


def run(options: argparse.Namespace) -> None:
    if len(options.runs) > 2:
        raise UsageError(f"{len(options.runs)} runs are given: give one or two")
    if options.benchmark and len(options.runs) > 1:
        raise UsageError("--benchmark is of one run: give one, or remove it")
    from estimator_det import files
    from estimator_det.files import ownership
    from estimator_det.programs import report
    from model_fn.checkpoints import writing

    runs = [run_folder(path) for path in options.runs]
    for run in runs:
        if os.path.isfile(run):
            raise UsageError(f"{run} is a file: give the folder of a run or project")
    path = options.output or os.path.join(runs[0], PAGE)
    if os.path.isdir(path):
        raise UsageError(f"--output {path} is a folder: give a file, such as {path}/{PAGE}")
    with writing.writable_folder(os.path.dirname(path) or ".", "output"):
        ownership.check_file(path, "report")
        # A path may contain bytes that are not UTF-8.
        rendered = report.render(runs, options.benchmark)
        page = rendered.html.encode("utf-8", "replace")
        files.write_text(path, page)
    console.print_line(f"page: {path} ({len(page) / 1e6:.1f} MB)")
    faults = {
        run: {
            reader: [_without_pictures(each) for each in rows] for reader, rows in readers.items()
        }
        for run, readers in rendered.label_faults.items()
    }
    console.report_result({"page": path, "label_faults": faults})


def _without_pictures(fault: Dict[str, Any]) -> Dict[str, Any]:
    return {key: value for key, value in fault.items() if key != "urls"}
