"""`estimator-det check-data`: reads the records of a configuration and reports on them."""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from typing import Any

from estimator_det.console import printing
from estimator_det.files import json_lines
from estimator_det.programs import console
from estimator_det.programs.verbs.base import (
    REPORT_FILES,
    add_config_arguments,
    add_options,
    add_report_arguments,
    config_path,
    load,
    positive,
    print_report,
    write_report,
)
from inputs.machine import available_cpus

SUMMARY = "Reads all records of a configuration and reports what they contain and what is wrong"
EXAMPLE = "ssd.config --output_dir check_data --jobs 8"
FINDINGS_FILE = "findings.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    text = "whose records are read (default: %(default)s)"
    add_options(parser, str, {"--reader": text}, choices=("train", "eval", "all"), default="all")
    text = (
        f"folder for {FINDINGS_FILE}, report.txt, report.json and histograms.png "
        "(default: %(default)s)"
    )
    add_options(parser, str, {"--output_dir DIR": text}, default="check_data")
    add_report_arguments(parser)
    numbers = {
        "--jobs": "processes (default: one for each CPU)",
        "--max_records N": "read the first N records of each file only",
    }
    add_options(parser, positive, numbers)


def run(options: argparse.Namespace) -> int:
    config = load(options, is_trusted=False)
    from estimator_det.files import ownership
    from model_fn.checkpoints import writing
    from model_fn.checks import data_check, data_report

    started = time.monotonic()
    with writing.writable_folder(options.output_dir, "output_dir"):
        names = (FINDINGS_FILE, *REPORT_FILES)
        ownership.check_files(options.output_dir, "check-data", names)
        report = data_check.check_data(
            config,
            config_path(options),
            readers=options.reader,
            jobs=options.jobs or available_cpus(),
            max_records=options.max_records,
        )
        seconds = time.monotonic() - started
        ownership.mark(options.output_dir, "check-data")
        _write_findings(report, options.output_dir)
        lines = data_report.text_lines(report)
        document, panels = data_report.to_dictionary(report), data_report.panels(report)
        title = f"data of {report.config}"
        write_report(options.output_dir, "", lines, document, panels, title)
    records = printing.counted(sum(scan.num_records for scan in report.scans), "record")
    errors = printing.counted(report.num_errors, "error")
    closing = [
        f"read {records} in {seconds:.1f} s",
        f"all errors and warnings, charts and this report: {options.output_dir}",
        f"{errors}, {printing.counted(report.num_warnings, 'warning')}",
    ]
    shown = lines if options.verbose else data_report.summary_lines(report)
    print_report(document, [*shown, *closing])
    return console.EXIT_FAILED if report.num_errors else console.EXIT_OK


def _write_findings(report: Any, folder: str) -> None:
    """Writes a line for each error and warning: first about records, then about the rest."""
    from estimator_det import files
    from model_fn.checks.data_report import severity

    findings = [
        {"reader": scan.reader, "severity": severity(entry), **dataclasses.asdict(entry)}
        for scan in report.scans
        for entry in scan.entries
    ]
    findings += [problem.__dict__ for problem in report.problems]
    text = "".join(json_lines.dumps(finding) + "\n" for finding in findings)
    files.write_text(os.path.join(folder, FINDINGS_FILE), text)
