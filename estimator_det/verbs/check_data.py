"""`estimator-det check-data`: reads the records of a configuration and reports on them."""

from __future__ import annotations

import argparse
import time
from typing import Any

from estimator_det import console
from estimator_det.config import json_lines, printing
from estimator_det.verbs.base import add_config_arguments, config_path, load
from inputs.machine import available_cpus

SUMMARY = "Reads all records of a configuration and reports what they contain and what is wrong"
EXAMPLE = "ssd.config --output_dir check_data --jobs 8"
FINDINGS_FILE = "findings.jsonl"
REPORT_FILE = "report.txt"
JSON_FILE = "report.json"
PICTURE_FILE = "histograms.png"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    add_config_arguments(parser)
    parser.add_argument(
        "--reader",
        default="all",
        choices=("train", "eval", "all"),
        help="whose records are read (default: %(default)s)",
    )
    parser.add_argument(
        "--output_dir",
        default="check_data",
        metavar="DIR",
        help=f"folder for {FINDINGS_FILE}, {REPORT_FILE}, {JSON_FILE} and {PICTURE_FILE} "
        "(default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--verbose", action="store_true", help="print the whole report, not a summary of 15 lines"
    )
    parser.add_argument("--jobs", type=int, help="processes (default: one for each CPU)")
    parser.add_argument(
        "--max_records", type=int, metavar="N", help="read the first N records of each file only"
    )


def run(options: argparse.Namespace) -> int:
    """Runs the verb; returns an exit code."""
    for name in ("jobs", "max_records"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise console.UsageError(f"--{name} must be 1 or more")
    config = load(options)
    from model_fn.checkpoints import writing
    from model_fn.checks import data_check, data_report

    started = time.monotonic()
    with writing.into_folder(options.output_dir, "output_dir"):
        report = data_check.check_data(
            config,
            config_path(options),
            readers=options.reader,
            jobs=options.jobs or available_cpus(),
            max_records=options.max_records,
        )
        seconds = time.monotonic() - started
        _write(report, options.output_dir)
    if options.json:
        document = json_lines.dumps(data_report.as_dictionary(report), indent=2)
        printing.report(document, whole=True)
    else:
        lines = data_report.text_lines if options.verbose else data_report.summary_lines
        for line in lines(report):
            console.say(line)
        records = sum(scan.num_records for scan in report.scans)
        console.say(f"read {printing.counted(records, 'record')} in {seconds:.1f} s")
        console.say(f"all errors and warnings, charts and this report: {options.output_dir}")
        totals = (
            printing.counted(report.num_errors, "error"),
            printing.counted(report.num_warnings, "warning"),
        )
        console.say(", ".join(totals))
    return console.EXIT_FAILED if report.num_errors else console.EXIT_OK


def _write(report: Any, folder: str) -> None:
    """Writes all files of a report; those of an earlier check are replaced.

    The findings are a line for each error and warning: first those of records, then all others.
    """
    from estimator_det.compat import tf
    from estimator_det.config import files
    from model_fn.checks import data_report
    from model_fn.drawing import charts

    lines = [
        json_lines.dumps(
            {
                "reader": scan.reader,
                "severity": data_report.severity(entry),
                **entry._asdict(),
            }
        )
        for scan in report.scans
        for entry in scan.entries
    ]
    lines += [json_lines.dumps(problem.__dict__) for problem in report.problems]
    document = json_lines.dumps(data_report.as_dictionary(report), indent=2)
    for name, text in (
        (FINDINGS_FILE, "\n".join(lines)),
        (REPORT_FILE, printing.printable("\n".join(data_report.text_lines(report)))),
        (JSON_FILE, document),
    ):
        files.write_text(files.join(folder, name), text + "\n" if text else "")
    picture = files.join(folder, PICTURE_FILE)
    panels = data_report.panels(report)
    if panels:
        with tf.io.gfile.GFile(picture, "wb") as file:
            file.write(charts.figure(panels, title=f"data of {report.config}"))
    elif tf.io.gfile.exists(picture):
        tf.io.gfile.remove(picture)
